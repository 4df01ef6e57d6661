#include "checkpoint/weight_index.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/status_matchers.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

absl::StatusOr<ParsedWeightIndex> ParseAll(absl::string_view text) {
  auto owner = std::make_shared<const std::string>(text);
  const absl::string_view owned = *owner;
  return ParseWeightIndex(owned, std::move(owner), "x.index.json");
}

// Of an index without faults.
absl::StatusOr<WeightIndex> Parse(absl::string_view text) {
  absl::StatusOr<ParsedWeightIndex> parsed = ParseAll(text);
  if (!parsed.ok()) return parsed.status();
  EXPECT_EQ(parsed->faults, "");
  return std::move(parsed->index);
}

// {"a=1", ...}
std::vector<std::string> EntriesOf(const WeightIndex& index) {
  std::vector<std::string> entries;
  for (const WeightIndex::Entry& entry : index.entries)
    entries.push_back(absl::StrCat(entry.tensor, "=", index.shards[entry.shard]));
  return entries;
}

TEST(WeightIndexTest, KeepsTheOrderAndEachShardOnce) {
  ASSERT_OK_AND_ASSIGN(
      const WeightIndex index,
      Parse(R"({"weight_map":{"b":"2","a":"1","c":"2","d":"2"},"metadata":null})"));
  EXPECT_THAT(EntriesOf(index), ElementsAre("b=2", "a=1", "c=2", "d=2"));
  EXPECT_THAT(index.shards, ElementsAre("2", "1"));
}

TEST(WeightIndexTest, NamesLiveAsLongAsTheIndexAlsoThoseWithEscapes) {
  WeightIndex copy;
  {
    ASSERT_OK_AND_ASSIGN(
        const WeightIndex index,
        Parse(R"({"weight_map":{"\u0061.with.a.long.name.weight":"f","b\n":"\u0066","c":"g"}})"));
    copy = index;
  }
  EXPECT_THAT(EntriesOf(copy), ElementsAre("a.with.a.long.name.weight=f", "b\n=f", "c=g"));
}

TEST(WeightIndexTest, TellsShardsApartWhateverTheirEscapes) {
  // The last two are other texts of "f" and "ff", and a text that is another name.
  ASSERT_OK_AND_ASSIGN(
      const WeightIndex index,
      Parse(R"({"weight_map":{"a":"f","b": "f","c":"ff","d":"f","e":"\u0066","f":"f",)"
            R"("g":"f\u0066","h":"x\\b","i":"x\\b","j":"x\b"}})"));
  EXPECT_THAT(EntriesOf(index), ElementsAre("a=f", "b=f", "c=ff", "d=f", "e=f", "f=f", "g=ff",
                                            "h=x\\b", "i=x\\b", "j=x\b"));
  EXPECT_THAT(index.shards, ElementsAre("f", "ff", "x\\b", "x\b"));
}

TEST(WeightIndexTest, KeepsKeysHeldTwiceAndNamesThemWhenAsked) {
  ASSERT_OK_AND_ASSIGN(
      const WeightIndex index,
      Parse(R"({"weight_map":{"a":"f","b":"g","a":"f","b":"f","b":"f","c":"f"}})"));
  EXPECT_THAT(EntriesOf(index), ElementsAre("a=f", "b=g", "a=f", "b=f", "b=f", "c=f"));
  EXPECT_EQ(RepeatedKeys(index).Text(), "'a'; 'b'");
}

TEST(WeightIndexTest, ListsAllThatIsWrongWithEntriesAndKeepsTheSoundOnes) {
  ASSERT_OK_AND_ASSIGN(const ParsedWeightIndex parsed,
                       ParseAll(R"({"weight_map":{"a":"f","d":1,"e":null,"f":"../x","g":"y/z",
                                "h":"..","i":"","j":"/etc/x","k":"g"}})"));
  EXPECT_THAT(parsed.faults,
              AllOf(HasSubstr("2 values that are no file names: 'd'; 'e'"),
                    HasSubstr("5 shards that are no file names in the directory"),
                    HasSubstr("'../x' (for 'f')"), HasSubstr("'y/z'"), HasSubstr("'..'"),
                    HasSubstr("'' (for 'i')"), HasSubstr("'/etc/x'"), Not(HasSubstr("'a'"))));
  EXPECT_THAT(EntriesOf(parsed.index),
              ElementsAre("a=f", "f=../x", "g=y/z", "h=..", "i=", "j=/etc/x", "k=g"));
  ASSERT_OK_AND_ASSIGN(const ParsedWeightIndex single,
                       ParseAll(R"({"weight_map":{"a":"../f","b":1}})"));
  EXPECT_THAT(single.faults, AllOf(HasSubstr("1 value that is no file name: 'b'"),
                                   HasSubstr("1 shard that is no file name in the directory")));
}

TEST(WeightIndexTest, SaysWhatATextIsInstead) {
  EXPECT_THAT(Parse("version https-git-lfs.spec/v1\noid sha256:4d7a\nsize 4976698\n"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("a git-LFS pointer"), HasSubstr("4976698 bytes"))));
  EXPECT_THAT(Parse("<html><body>403"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("this is an HTML page")));
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
  ASSERT_OK_AND_ASSIGN(const ParsedWeightIndex zero,
                       ParseAll("{\"weight_map\":{\"a\":\"f\\u0000\"}}"));
  EXPECT_THAT(zero.faults, HasSubstr("no file name"));
}

}  // namespace
}  // namespace forestage
