#include "checkpoint/weight_index.h"

#include <string>

#include "common/status_matchers.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

absl::StatusOr<std::vector<IndexedTensor>> Parse(absl::string_view text) {
  return ParseWeightIndex(text, "x.index.json");
}

TEST(WeightIndexTest, SortsByTensor) {
  ASSERT_OK_AND_ASSIGN(const std::vector<IndexedTensor> entries,
                       Parse(R"({"weight_map":{"b":"2","a":"1"},"metadata":null})"));
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].tensor, "a");
  EXPECT_EQ(entries[0].shard, "1");
}

TEST(WeightIndexTest, ListsAllThatIsWrong) {
  EXPECT_THAT(
      Parse(R"({"weight_map":{"a":"f","a":"g","b":"f","b":"f","b":"f","c":"f",
                       "d":1,"e":null,"f":"../x","g":"y/z","h":"..","i":"","j":"/etc/x"}})"),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("x.index.json"), HasSubstr("2 keys held twice: 'a'; 'b'"),
                     HasSubstr("2 values that are no file names: 'd'; 'e'"), HasSubstr("'../x'"),
                     HasSubstr("'y/z'"), HasSubstr("'..'"), HasSubstr("'' (for 'i')"),
                     HasSubstr("'/etc/x'"), Not(HasSubstr("'c'")))));
}

TEST(WeightIndexTest, RefusesWhatIsNoIndex) {
  const auto invalid = [](absl::string_view what) {
    return StatusIs(absl::StatusCode::kInvalidArgument,
                    AllOf(HasSubstr("x.index.json"), HasSubstr(std::string(what))));
  };
  EXPECT_THAT(Parse(""), invalid("not a valid index"));
  EXPECT_THAT(Parse("[]"), invalid("expected an object"));
  EXPECT_THAT(Parse("{}"), invalid("no weight_map"));
  EXPECT_THAT(Parse(R"({"weight_map":{}})"), invalid("names no tensor"));
  EXPECT_THAT(Parse(R"({"weight_map":[]})"), invalid("expected an object"));
  EXPECT_THAT(Parse(R"({"weight_map":{"a":"f"},"weight_map":{"a":"f"}})"),
              invalid("a second weight_map"));
  EXPECT_THAT(Parse(R"({"weight_map":{"a":"f"})"), invalid("ends inside an object"));
  EXPECT_THAT(Parse(R"({"weight_map":{"a":"f"}} x)"), invalid("something follows"));
  EXPECT_THAT(Parse("{\"weight_map\":{\"\xFF\":\"f\"}}"), invalid("not UTF-8"));
  EXPECT_THAT(Parse("{\"weight_map\":{\"a\":\"f\\u0000\"}}"), invalid("no file names"));
}

}  // namespace
}  // namespace forestage
