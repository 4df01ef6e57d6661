#include "client/cli/local_catalog.h"

#include <fstream>
#include <string>

#include "client/cli/demo_writer.h"
#include "client/cli/ls_command.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/status_matchers.h"
#include "common/temporary_directory_for_test.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

void WriteShard(const TemporaryDirectoryForTest& directory, const std::string& name,
                std::vector<DemoTensor> tensors) {
  ASSERT_OK(
      WriteDemoShard(directory.File(name), std::move(tensors), [](uint64_t) { return true; }));
}

std::vector<std::string> Keys(const Json& object) {
  std::vector<std::string> keys;
  for (const auto& item : object.items()) keys.push_back(item.key());
  return keys;
}

TEST(LocalCatalogTest, NamesEveryDamagedShard) {
  const TemporaryDirectoryForTest directory;
  WriteShard(directory, "model-00001-of-00003.safetensors", {{"a", {4}}});
  std::ofstream(directory.File("model-00002-of-00003.safetensors")) << "short";
  std::ofstream(directory.File("model-00003-of-00003.safetensors")) << "x";
  EXPECT_THAT(LocalCatalog::Read(directory.path()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("model-00002"), HasSubstr("model-00003"))));
}

TEST(LocalCatalogTest, SaysThatADirectoryIsMissing) {
  EXPECT_THAT(LocalCatalog::Read("/nowhere/at/all"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nowhere/at/all")));
}

TEST(LsTest, JsonHasTheDocumentedKeysAndAbsoluteRanges) {
  const TemporaryDirectoryForTest directory;
  WriteShard(directory, "model-00001-of-00002.safetensors", {{"a.x", {2, 3}}, {"a.y", {}}});
  WriteShard(directory, "model-00002-of-00002.safetensors", {{"b", {5}}});
  std::ofstream(directory.File("pytorch_model.bin")) << "PK";
  ASSERT_OK_AND_ASSIGN(const auto catalog, LocalCatalog::Read(directory.path()));
  const Json document = LsJson(*catalog, "");
  EXPECT_THAT(Keys(document),
              ElementsAre("total_bytes", "shards", "tensors", "ignored", "ignored_copies"));
  ASSERT_EQ(document["shards"].size(), 2u);
  EXPECT_THAT(Keys(document["shards"][0]), ElementsAre("name", "bytes", "tensors"));
  EXPECT_EQ(document["shards"][0]["tensors"], 2);
  const uint64_t first = document["shards"][0]["bytes"];
  const uint64_t second = document["shards"][1]["bytes"];
  EXPECT_EQ(document["total_bytes"], first + second);
  ASSERT_EQ(document["tensors"].size(), 3u);
  const Json& tensor = document["tensors"][0];
  EXPECT_THAT(Keys(tensor), ElementsAre("name", "shard", "dtype", "shape", "begin", "end"));
  EXPECT_EQ(tensor["name"], "a.x");
  EXPECT_EQ(tensor["shard"], "model-00001-of-00002.safetensors");
  EXPECT_EQ(tensor["dtype"], "BF16");
  EXPECT_EQ(tensor["shape"], Json::array({2, 3}));
  EXPECT_EQ(tensor["begin"], first - 14);
  EXPECT_EQ(tensor["end"], first - 2);
  EXPECT_EQ(document["tensors"][1]["shape"], Json::array());
  ASSERT_EQ(document["ignored"].size(), 1u);
  EXPECT_THAT(Keys(document["ignored"][0]), ElementsAre("name", "reason"));
  EXPECT_EQ(document["ignored"][0]["name"], "pytorch_model.bin");
}

TEST(LsTest, APrefixLimitsTheTensorsOnly) {
  const TemporaryDirectoryForTest directory;
  WriteShard(directory, "model.safetensors", {{"a.x", {2, 3}}, {"a.y", {}}, {"b", {5}}});
  ASSERT_OK_AND_ASSIGN(const auto catalog, LocalCatalog::Read(directory.path()));
  const Json document = LsJson(*catalog, "a.");
  EXPECT_EQ(document["tensors"].size(), 2u);
  EXPECT_EQ(document["shards"][0]["tensors"], 3);
  EXPECT_THAT(LsText(*catalog, "c"), HasSubstr("no tensor's name begins with 'c'"));
  EXPECT_THAT(LsText(*catalog, "a."), AllOf(HasSubstr("a.x"), HasSubstr("[2, 3]")));
}

}  // namespace
}  // namespace forestage
