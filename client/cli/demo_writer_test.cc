#include "client/cli/demo_writer.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "checkpoint/safetensors_header.h"
#include "common/status_matchers.h"
#include "common/temporary_directory_for_test.h"

namespace forestage {
namespace {

using ::testing::HasSubstr;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::byte> Bytes(const std::string& name, uint64_t offset, size_t size) {
  std::vector<std::byte> bytes(size);
  FillDemoBytes(name, offset, absl::MakeSpan(bytes));
  return bytes;
}

TEST(DemoBytesTest, AreTheSameEveryTimeAndOthersForEveryName) {
  EXPECT_EQ(Bytes("a", 0, 4096), Bytes("a", 0, 4096));
  EXPECT_NE(Bytes("a", 0, 4096), Bytes("b", 0, 4096));
  EXPECT_NE(Bytes("ab", 0, 4096), Bytes("ba", 0, 4096));
}

TEST(DemoBytesTest, DoNotDependOnThePieceInWhichTheyAreMade) {
  const std::vector<std::byte> whole = Bytes("a", 0, 1003);
  const std::vector<std::byte> end = Bytes("a", 512, 1003 - 512);
  EXPECT_EQ(std::vector<std::byte>(whole.begin() + 512, whole.end()), end);
}

TEST(DemoBytesTest, AreFiniteValuesBelowTwoAndHardlyEverRepeat) {
  const std::vector<std::byte> bytes = Bytes("a", 0, 1 << 16);
  std::vector<uint64_t> words(bytes.size() / 8);
  std::memcpy(words.data(), bytes.data(), bytes.size());
  for (uint64_t word : words) ASSERT_EQ(word & 0x4000400040004000ull, 0u);
  std::sort(words.begin(), words.end());
  EXPECT_EQ(std::unique(words.begin(), words.end()), words.end());
}

TEST(DemoHeaderTest, IsPaddedToEightBytes) {
  for (size_t length = 1; length <= 9; ++length) {
    const std::vector<DemoTensor> tensors = {{std::string(length, 'n'), {2, 3}}};
    EXPECT_EQ(MakeSafetensorsHeader(tensors).size() % 8, 0u);
  }
}

TEST(DemoShardTest, IsASoundFileThatHoldsItsTensorsByName) {
  const TemporaryDirectoryForTest directory;
  const std::string path = directory.File("x.safetensors");
  uint64_t advanced = 0;
  ASSERT_OK(WriteDemoShard(path, {{"b", {3, 5}}, {"a", {7}}}, [&](uint64_t bytes) {
    advanced += bytes;
    return true;
  }));
  EXPECT_EQ(advanced, 44u);
  const std::string file = ReadFile(path);
  const uint64_t header_bytes = file.size() - 44;
  ASSERT_OK_AND_ASSIGN(
      const SafetensorsHeader header,
      ParseHeader({reinterpret_cast<const std::byte*>(file.data()) + 8, header_bytes - 8},
                  file.size(), "x.safetensors"));
  ASSERT_EQ(header.tensors.size(), 2u);
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.tensors[1].name, "b");
  EXPECT_EQ(header.tensors[1].dtype, Dtype::kBF16);
  EXPECT_EQ(header.metadata->at("format"), "pt");
  const std::vector<std::byte> expected = Bytes("b", 0, 30);
  EXPECT_EQ(std::memcmp(file.data() + header.tensors[1].begin, expected.data(), 30), 0);
}

TEST(DemoShardTest, StopsWhenItIsToldTo) {
  const TemporaryDirectoryForTest directory;
  EXPECT_THAT(WriteDemoShard(directory.File("x"), {{"a", {7}}}, [](uint64_t) { return false; }),
              StatusIs(absl::StatusCode::kCancelled, testing::_));
}

TEST(DemoShardTest, WritesOverNothing) {
  const TemporaryDirectoryForTest directory;
  ASSERT_OK(WriteDemoText(directory.File("x"), "mine"));
  EXPECT_THAT(WriteDemoShard(directory.File("x"), {{"a", {7}}}, [](uint64_t) { return true; }),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(directory.File("x"))));
  EXPECT_EQ(ReadFile(directory.File("x")), "mine");
}

}  // namespace
}  // namespace forestage
