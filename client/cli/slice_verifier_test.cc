#include "client/cli/slice_verifier.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/cli/demo_writer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/status_matchers.h"
#include "common/temporary_directory_for_test.h"
#include "common/units.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Optional;

class SliceVerifierTest : public ::testing::Test {
 protected:
  SliceVerifierTest() {
    // The tensor is longer than the verifier's buffer.
    path_ = directory_.File("model.safetensors");
    EXPECT_OK(WriteDemoShard(path_, {{"a", {3, kMiB}}, {"b", {8}}}, [](uint64_t) { return true; }));
    auto local = LocalCatalog::Read(directory_.path());
    EXPECT_OK(local);
    local_ = *std::move(local);
    catalog_ = std::make_unique<Catalog>(local_, local_->view());
    verifier_ = std::make_unique<SliceVerifier>(local_);
  }

  TensorInfo Tensor(const std::string& name) const {
    return catalog_->tensor(*catalog_->Find(name));
  }

  static std::vector<std::byte> Expected(const std::string& name, uint64_t offset, size_t size) {
    std::vector<std::byte> bytes(size);
    FillDemoBytes(name, offset, absl::MakeSpan(bytes));
    return bytes;
  }

  TemporaryDirectoryForTest directory_;
  std::string path_;
  std::shared_ptr<const LocalCatalog> local_;
  std::unique_ptr<Catalog> catalog_;
  std::unique_ptr<SliceVerifier> verifier_;
};

TEST_F(SliceVerifierTest, FindsNothingInTheFilesBytes) {
  ASSERT_OK_AND_ASSIGN(std::optional<std::string> difference,
                       verifier_->FindDifference(Tensor("a"), {}, Expected("a", 0, 6 * kMiB)));
  EXPECT_EQ(difference, std::nullopt);
  ASSERT_OK_AND_ASSIGN(difference,
                       verifier_->FindDifference(Tensor("b"), {}, Expected("b", 0, 16)));
  EXPECT_EQ(difference, std::nullopt);
}

TEST_F(SliceVerifierTest, ComparesRowsWithTheirOwnPartOfTheFile) {
  const Range rows[] = {{.start = 1, .stop = 3}};
  ASSERT_OK_AND_ASSIGN(
      std::optional<std::string> difference,
      verifier_->FindDifference(Tensor("a"), rows, Expected("a", 2 * kMiB, 4 * kMiB)));
  EXPECT_EQ(difference, std::nullopt);
  ASSERT_OK_AND_ASSIGN(difference,
                       verifier_->FindDifference(Tensor("a"), rows, Expected("a", 0, 4 * kMiB)));
  EXPECT_THAT(difference, Optional(HasSubstr("differs from")));
}

TEST_F(SliceVerifierTest, NamesTheFirstByteThatDiffers) {
  std::vector<std::byte> bytes = Expected("a", 0, 6 * kMiB);
  const size_t where = 5 * kMiB + 3;
  bytes[where] ^= std::byte{1};
  ASSERT_OK_AND_ASSIGN(const std::optional<std::string> difference,
                       verifier_->FindDifference(Tensor("a"), {}, bytes));
  EXPECT_THAT(difference, Optional(HasSubstr(std::to_string(Tensor("a").begin + where))));
  EXPECT_THAT(difference, Optional(HasSubstr(path_)));
}

TEST_F(SliceVerifierTest, TakesAWrongLengthForADifference) {
  ASSERT_OK_AND_ASSIGN(const std::optional<std::string> difference,
                       verifier_->FindDifference(Tensor("b"), {}, Expected("b", 0, 14)));
  EXPECT_THAT(difference, Optional(HasSubstr("14 bytes were delivered instead of 16")));
}

TEST_F(SliceVerifierTest, ATruncatedFileIsAChangeAndNoDifference) {
  const uint64_t bytes = Tensor("b").begin + 4;
  ASSERT_EQ(truncate(path_.c_str(), static_cast<off_t>(bytes)), 0);
  EXPECT_THAT(verifier_->FindDifference(Tensor("b"), {}, Expected("b", 0, 16)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr(path_), HasSubstr("changed since the load began"),
                             HasSubstr("it has " + std::to_string(bytes) + " bytes now"))));
}

TEST_F(SliceVerifierTest, AFileThatWasWrittenToIsAChangeAndNoDifference) {
  std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  file.put('x');
  file.close();
  // Whatever the clock's resolution.
  std::filesystem::last_write_time(path_,
                                   std::filesystem::last_write_time(path_) + std::chrono::hours(1));
  const std::string last = Tensor("b").begin > Tensor("a").begin ? "b" : "a";
  const size_t bytes = last == "b" ? 16 : 6 * kMiB;
  EXPECT_THAT(verifier_->FindDifference(Tensor(last), {}, Expected(last, 0, bytes)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("changed since the load began"),
                             HasSubstr("it was written to"), HasSubstr("load again"))));
}

TEST_F(SliceVerifierTest, AFileThatWasReplacedIsAChangeAndNoDifference) {
  const std::string other = directory_.File("other");
  EXPECT_OK(WriteDemoShard(other, {{"c", {3, kMiB}}, {"d", {8}}}, [](uint64_t) { return true; }));
  ASSERT_EQ(rename(other.c_str(), path_.c_str()), 0);
  EXPECT_THAT(verifier_->FindDifference(Tensor("b"), {}, Expected("b", 0, 16)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr(path_), HasSubstr("another file has its name now"))));
  ASSERT_EQ(unlink(path_.c_str()), 0);
  SliceVerifier late(local_);
  EXPECT_THAT(late.FindDifference(Tensor("b"), {}, Expected("b", 0, 16)),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr(path_), HasSubstr("was there when the load began"))));
}

}  // namespace
}  // namespace forestage
