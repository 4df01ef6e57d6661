#include "checkpoint/file_selection.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "checkpoint/header_file_for_test.h"
#include "common/status_matchers.h"
#include "common/temporary_directory_for_test.h"
#include "common/unique_fd.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kIndex[] = "model.safetensors.index.json";
// A sound shard.
const std::string kShard = SafetensorsForTest("{}", 0);
const std::string kShardOfA =
    SafetensorsForTest(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1);
constexpr absl::string_view kGguf("GGUF\x03\0\0\0", 8);

std::vector<std::string> ShardNames(const FileSelection& selection) {
  std::vector<std::string> names;
  for (const SelectedShard& shard : selection.shards) names.push_back(shard.name);
  return names;
}

// "name: reason".
std::vector<std::string> Ignored(const FileSelection& selection) {
  std::vector<std::string> files;
  for (const IgnoredFile& file : selection.ignored) {
    files.push_back(absl::StrCat(file.name, ": ", file.reason));
  }
  return files;
}

TEST(NaturalLessTest, CountsAsPeopleDo) {
  EXPECT_TRUE(NaturalLess("model-2", "model-10"));
  EXPECT_FALSE(NaturalLess("model-10", "model-2"));
  EXPECT_TRUE(NaturalLess("a9b10", "a9b11"));
  EXPECT_TRUE(NaturalLess("a", "a1"));
  EXPECT_TRUE(NaturalLess("a99999999999999999999999999998", "a99999999999999999999999999999"));
  EXPECT_TRUE(NaturalLess("a5", "aa"));
}

TEST(NaturalLessTest, IsAStrictOrder) {
  const std::vector<std::string> names = {"",    "1",  "01",  "001", "a",    "a1",  "a01", "a1b",
                                          "a-1", "b2", "b10", "b1",  "\xFF", "a 1", "0",   "00"};
  for (const std::string& a : names) {
    EXPECT_FALSE(NaturalLess(a, a)) << a;
    for (const std::string& b : names) {
      if (a != b) {
        EXPECT_NE(NaturalLess(a, b), NaturalLess(b, a)) << a << " and " << b;
      }
      for (const std::string& c : names) {
        if (NaturalLess(a, b) && NaturalLess(b, c)) {
          EXPECT_TRUE(NaturalLess(a, c)) << a << " " << b << " " << c;
        }
      }
    }
  }
}

TEST(FileSelectionTest, TakesSafetensorsInNaturalOrder) {
  const TemporaryDirectoryForTest directory;
  for (const char* name :
       {"part-10.safetensors", "part-2.safetensors", "config.json", "README.md"}) {
    directory.Write(name);
  }
  ASSERT_OK_AND_ASSIGN(const FileSelection selection, SelectFiles(directory.path()));
  EXPECT_THAT(ShardNames(selection), ElementsAre("part-2.safetensors", "part-10.safetensors"));
  EXPECT_EQ(selection.shards[0].path, directory.path() + "/part-2.safetensors");
  EXPECT_EQ(selection.directory, directory.path());
  EXPECT_THAT(selection.ignored, IsEmpty());
  EXPECT_EQ(selection.index_name, "");
  EXPECT_THAT(selection.index.entries, IsEmpty());
}

TEST(FileSelectionTest, KeepsNamesOfAnyBytes) {
  const TemporaryDirectoryForTest directory;
  const std::string name = "\xFF\n\xE6 x.safetensors";
  directory.Write(name);
  ASSERT_OK_AND_ASSIGN(const FileSelection selection, SelectFiles(directory.path()));
  EXPECT_THAT(ShardNames(selection), ElementsAre(name));
}

TEST(FileSelectionTest, SaysWhyFilesAreIgnored) {
  const TemporaryDirectoryForTest directory;
  directory.Write("model.safetensors");
  directory.Write("consolidated.safetensors");
  directory.Write("pytorch_model.bin");
  directory.Write("pytorch_model.bin.index.json");
  directory.Write("._model.safetensors");
  directory.MakeDirectory("consolidated.1.safetensors");

  ASSERT_OK_AND_ASSIGN(const FileSelection selection, SelectFiles(directory.path()));
  EXPECT_THAT(ShardNames(selection), ElementsAre("model.safetensors"));
  EXPECT_THAT(
      Ignored(selection),
      ElementsAre(
          "._model.safetensors: a hidden file",
          "consolidated.1.safetensors: a directory, not a regular file",
          "consolidated.safetensors: the consolidated layout, where the sharded one is taken",
          "pytorch_model.bin: not safetensors: safetensors are beside it",
          "pytorch_model.bin.index.json: an index that is not used: safetensors are beside it"));
}

TEST(FileSelectionTest, WhatIsNamedLikeAShardAndIsNoFileIsAnErrorWithoutAnIndex) {
  const TemporaryDirectoryForTest directory;
  directory.Write("model.safetensors", kShard);
  directory.MakeDirectory("dir.safetensors");
  ASSERT_EQ(mkfifo(directory.File("fifo.safetensors").c_str(), 0600), 0);
  const UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string socket_path = directory.File("socket.safetensors");
  ASSERT_LT(socket_path.size(), sizeof(address.sun_path));
  std::memcpy(address.sun_path, socket_path.data(), socket_path.size());
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_THAT(SelectFiles(directory.path()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("'dir.safetensors' is a directory, not a regular file"),
                             HasSubstr("'fifo.safetensors' is a FIFO, not a regular file"),
                             HasSubstr("'socket.safetensors' is a socket, not a regular file"),
                             Not(HasSubstr("model.safetensors")))));
  // An index knows what is meant.
  directory.Write(kIndex, R"({"weight_map":{"a":"model.safetensors"}})");
  ASSERT_OK_AND_ASSIGN(const FileSelection selection, SelectFiles(directory.path()));
  EXPECT_THAT(ShardNames(selection), ElementsAre("model.safetensors"));
  EXPECT_THAT(Ignored(selection), ElementsAre("dir.safetensors: a directory, not a regular file",
                                              "fifo.safetensors: a FIFO, not a regular file",
                                              "socket.safetensors: a socket, not a regular file"));
}

TEST(FileSelectionTest, SaysWhatLooksLikeSafetensorsAndIsNone) {
  const TemporaryDirectoryForTest directory;
  directory.Write("b.SAFETENSORS");
  directory.Write(".c.safetensors.partial");
  directory.Write("d.safetensors.1f2e.incomplete");
  directory.Write("e.safetensors.tmp");
  directory.Write("notes.tmp");
  const auto none = SelectFiles(directory.path());
  EXPECT_THAT(none, StatusIs(absl::StatusCode::kNotFound,
                             AllOf(HasSubstr("'b.SAFETENSORS' (its name"),
                                   HasSubstr("'e.safetensors.tmp' (not finished"),
                                   Not(HasSubstr("notes.tmp")))));
  const std::vector<std::string> ignored = {
      ".c.safetensors.partial: not finished: a program that writes or fetches it left a .partial "
      "file",
      "b.SAFETENSORS: its name does not end in .safetensors in small letters",
      "d.safetensors.1f2e.incomplete: not finished: a program that writes or fetches it left a "
      ".incomplete file",
      "e.safetensors.tmp: not finished: a program that writes or fetches it left a .tmp file"};
  directory.Write("a.safetensors");
  ASSERT_OK_AND_ASSIGN(const FileSelection by_names, SelectFiles(directory.path()));
  EXPECT_THAT(Ignored(by_names), ElementsAreArray(ignored));
  directory.Write(kIndex, R"({"weight_map":{"t":"a.safetensors"}})");
  ASSERT_OK_AND_ASSIGN(const FileSelection by_index, SelectFiles(directory.path()));
  EXPECT_THAT(Ignored(by_index), ElementsAreArray(ignored));
}

TEST(FileSelectionTest, TakesTheLayoutThatIsPreferredOrThere) {
  const TemporaryDirectoryForTest directory;
  directory.Write("consolidated.00.safetensors");
  SelectionOptions options;
  ASSERT_OK_AND_ASSIGN(const FileSelection only, SelectFiles(directory.path(), options));
  EXPECT_THAT(ShardNames(only), ElementsAre("consolidated.00.safetensors"));
  directory.Write("model.safetensors");
  options.preferred_layout = CheckpointLayout::kConsolidated;
  ASSERT_OK_AND_ASSIGN(const FileSelection both, SelectFiles(directory.path(), options));
  EXPECT_THAT(ShardNames(both), ElementsAre("consolidated.00.safetensors"));
  EXPECT_THAT(Ignored(both), ElementsAre(HasSubstr("model.safetensors: the sharded layout")));
}

TEST(FileSelectionTest, ListsEveryGapOfANumberedSet) {
  const TemporaryDirectoryForTest directory;
  directory.Write("model-00002-of-00005.safetensors", kShard);
  directory.Write("model-00004-of-00005.safetensors", kShard);
  directory.Write("other-1-of-2.safetensors");
  EXPECT_THAT(SelectFiles(directory.path()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("'model-00001-of-00005.safetensors'"),
                             HasSubstr("'model-00003-of-00005.safetensors'"),
                             HasSubstr("'model-00005-of-00005.safetensors'"),
                             HasSubstr("'other-2-of-2.safetensors'"), HasSubstr("4 shards"),
                             Not(HasSubstr("'model-00002-of-00005.safetensors'")))));
}

TEST(FileSelectionTest, AShardOutOfItsOwnCountIsThereAndNotMissing) {
  const TemporaryDirectoryForTest directory;
  directory.Write("model-00001-of-00002.safetensors", kShard);
  directory.Write("model-00003-of-00002.safetensors", kShard);
  const std::string out_of_count =
      "1 shard is there whose number its own name leaves no place for: "
      "'model-00003-of-00002.safetensors'";
  EXPECT_THAT(SelectFiles(directory.path()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("1 shard of a numbered set is missing: "
                                       "'model-00002-of-00002.safetensors'; "),
                             HasSubstr(out_of_count), HasSubstr("fetch"), HasSubstr("remove"))));
  directory.Write("model-00002-of-00002.safetensors", kShard);
  EXPECT_THAT(SelectFiles(directory.path()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr(out_of_count), HasSubstr("remove"),
                             Not(HasSubstr("missing")), Not(HasSubstr("fetch")))));
}

TEST(FileSelectionTest, TakesSetsThatCountFromOneOrZero) {
  const TemporaryDirectoryForTest directory;
  for (const char* name : {"a-00001-of-00002.safetensors", "a-00002-of-00002.safetensors",
                           "b-0-of-2.safetensors", "b-1-of-2.safetensors", "c-of-9.safetensors"}) {
    directory.Write(name);
  }
  EXPECT_OK(SelectFiles(directory.path()));
}

TEST(FileSelectionTest, CountsTheGapsOfASetThatNobodyCanList) {
  const TemporaryDirectoryForTest directory;
  directory.Write("model-1-of-4000000000.safetensors");
  const absl::StatusOr<FileSelection> selection = SelectFiles(directory.path());
  EXPECT_THAT(selection, StatusIs(absl::StatusCode::kFailedPrecondition,
                                  AllOf(HasSubstr("3999999999 shards"), HasSubstr("more"))));
  EXPECT_LT(selection.status().message().size(), 200'000u);
}

TEST(FileSelectionTest, FollowsTheLinksOfAHuggingFaceCache) {
  const TemporaryDirectoryForTest cache;
  cache.Write("blobs/0a", "x");
  cache.Write("blobs/0b", R"({"weight_map":{"w":"model-00001-of-00001.safetensors"}})");
  cache.Link("../../blobs/0a", "snapshots/rev/model-00001-of-00001.safetensors");
  cache.Link("../../blobs/0b", absl::StrCat("snapshots/rev/", kIndex));
  ASSERT_OK_AND_ASSIGN(const FileSelection selection, SelectFiles(cache.File("snapshots/rev")));
  EXPECT_THAT(ShardNames(selection), ElementsAre("model-00001-of-00001.safetensors"));
  EXPECT_EQ(selection.index_name, kIndex);
  // The entry itself holds no weights, and says where they are.
  EXPECT_THAT(SelectFiles(cache.path()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("snapshots/")));
}

TEST(FileSelectionTest, NamesDanglingLinksAndTheirTargets) {
  const TemporaryDirectoryForTest directory;
  directory.Link("../../blobs/gone", "a.safetensors");
  directory.Link("b.safetensors", "b.safetensors");
  directory.Write("c.safetensors", kShard);
  EXPECT_THAT(SelectFiles(directory.path()),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("'a.safetensors' is a link to '../../blobs/gone'"),
                             HasSubstr("'../../blobs/gone', which does not exist"),
                             HasSubstr("'b.safetensors' is a link to 'b.safetensors', which leads "
                                       "in a circle"),
                             Not(HasSubstr("c.safetensors")))));
}

TEST(FileSelectionTest, TakesWhatTheIndexNames) {
  const TemporaryDirectoryForTest directory;
  directory.Write("model-2.safetensors");
  directory.Write("model-10.safetensors");
  directory.Write("extra.safetensors");
  directory.Write("training.bin");
  directory.Write("consolidated.safetensors");
  directory.Write("consolidated.safetensors.index.json");
  directory.Write(kIndex, R"({"metadata":{"total_size":1},"weight_map":
      {"b":"model-10.safetensors","a":"model-2.safetensors","c":"model-10.safetensors"}})");
  ASSERT_OK_AND_ASSIGN(const FileSelection selection, SelectFiles(directory.path()));
  EXPECT_THAT(ShardNames(selection), ElementsAre("model-2.safetensors", "model-10.safetensors"));
  const WeightIndex& index = selection.index;
  ASSERT_EQ(index.entries.size(), 3u);
  for (const WeightIndex::Entry& entry : index.entries) {
    if (entry.tensor != "a") continue;
    EXPECT_EQ(index.shards[entry.shard], "model-2.safetensors");
  }
  EXPECT_THAT(Ignored(selection),
              ElementsAre("consolidated.safetensors: not named by model.safetensors.index.json",
                          "consolidated.safetensors.index.json: an index that is not used: "
                          "model.safetensors.index.json decides",
                          "extra.safetensors: not named by model.safetensors.index.json",
                          "training.bin: not safetensors: model.safetensors.index.json decides"));
}

TEST(FileSelectionTest, UsesTheConsolidatedIndexWithoutTheOther) {
  const TemporaryDirectoryForTest directory;
  directory.Write("consolidated-1.safetensors");
  directory.Write("model.safetensors");
  directory.Write("consolidated.safetensors.index.json",
                  R"({"weight_map":{"a":"consolidated-1.safetensors"}})");
  ASSERT_OK_AND_ASSIGN(const FileSelection selection, SelectFiles(directory.path()));
  EXPECT_THAT(ShardNames(selection), ElementsAre("consolidated-1.safetensors"));
}

TEST(FileSelectionTest, ListsEveryIndexedShardThatIsNotThere) {
  const TemporaryDirectoryForTest directory;
  directory.Write("here.safetensors", kShardOfA);
  directory.Link("nowhere", "link.safetensors");
  ASSERT_EQ(mkfifo(directory.File("fifo.safetensors").c_str(), 0600), 0);
  directory.Write(kIndex, R"({"weight_map":{"a":"here.safetensors","b":"gone-1.safetensors",
      "c":"gone-2.safetensors","d":"link.safetensors","e":"fifo.safetensors"}})");
  EXPECT_THAT(
      SelectFiles(directory.path()),
      StatusIs(
          absl::StatusCode::kNotFound,
          AllOf(HasSubstr("of the 5 shards"), HasSubstr("'gone-1.safetensors' is missing"),
                HasSubstr("'gone-2.safetensors' is missing"),
                HasSubstr("'link.safetensors' is a link to 'nowhere'"),
                HasSubstr("'fifo.safetensors' is a FIFO"), Not(HasSubstr("here.safetensors")))));
}

TEST(FileSelectionTest, WhatStandsInThePlaceOfANumberedShardIsNotMissing) {
  const TemporaryDirectoryForTest directory;
  directory.Write("m-00001-of-00004.safetensors", kShard);
  ASSERT_EQ(mkdir(directory.File("m-00002-of-00004.safetensors").c_str(), 0700), 0);
  ASSERT_EQ(mkfifo(directory.File("m-00003-of-00004.safetensors").c_str(), 0600), 0);
  EXPECT_THAT(SelectFiles(directory.path()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("'m-00002-of-00004.safetensors' is a directory"),
                             HasSubstr("'m-00003-of-00004.safetensors' is a FIFO"),
                             HasSubstr("1 shard of a numbered set is missing: "
                                       "'m-00004-of-00004.safetensors'"))));
}

TEST(FileSelectionTest, NeverOpensAnIndexThatIsNoFile) {
  const TemporaryDirectoryForTest directory;
  directory.Write("model.safetensors");
  ASSERT_EQ(mkfifo(directory.File(kIndex).c_str(), 0600), 0);
  EXPECT_THAT(SelectFiles(directory.path()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a FIFO")));
  ASSERT_EQ(unlink(directory.File(kIndex).c_str()), 0);
  directory.Link("gone", kIndex);
  EXPECT_THAT(SelectFiles(directory.path()),
              StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr(kIndex), HasSubstr("'gone'"))));
}

TEST(FileSelectionTest, ListsDamagedShardsBesideThoseThatAreMissing) {
  const TemporaryDirectoryForTest directory;
  const std::string pointer = "version git-lfs-spec-v1\nsize 77\n";
  directory.Write("a-1-of-4.safetensors", kShardOfA);
  directory.Write("a-2-of-4.safetensors", pointer);
  directory.Link("gone", "a-3-of-4.safetensors");
  const auto all = AllOf(HasSubstr("/a-2-of-4.safetensors': "), HasSubstr("git-LFS pointer"),
                         HasSubstr("'a-3-of-4.safetensors' is a link to 'gone'"),
                         HasSubstr("'a-4-of-4.safetensors'"), Not(HasSubstr("a-1-of-4")));
  EXPECT_THAT(SelectFiles(directory.path()), StatusIs(absl::StatusCode::kNotFound, all));
  directory.Write(kIndex, R"({"weight_map":{"a":"a-1-of-4.safetensors",
      "b":"a-2-of-4.safetensors","c":"a-3-of-4.safetensors","d":"a-4-of-4.safetensors"}})");
  EXPECT_THAT(SelectFiles(directory.path()), StatusIs(absl::StatusCode::kNotFound, all));
}

TEST(FileSelectionTest, ListsDamagedShardsBesideABrokenIndex) {
  const TemporaryDirectoryForTest directory;
  directory.Write("a.safetensors", "");
  directory.Write("b.safetensors", kShard);
  const auto all = AllOf(HasSubstr(kIndex), HasSubstr("/a.safetensors': "),
                         HasSubstr("an empty file"), Not(HasSubstr("b.safetensors")));
  directory.Write(kIndex, "{");
  EXPECT_THAT(SelectFiles(directory.path()), StatusIs(absl::StatusCode::kInvalidArgument, all));
  ASSERT_EQ(unlink(directory.File(kIndex).c_str()), 0);
  directory.Link("gone", kIndex);
  EXPECT_THAT(SelectFiles(directory.path()), StatusIs(absl::StatusCode::kNotFound, all));
}

TEST(FileSelectionTest, SaysWhatToDoWithOtherKindsOfWeights) {
  const TemporaryDirectoryForTest directory;
  directory.Write("pytorch_model-00001-of-00002.bin", "no known beginning");
  directory.Write("consolidated.00.pth", "\x80\x02}q");
  // Not by its name.
  directory.Write("weights", kGguf);
  directory.Write("stray.safetensors.json", "{}");
  directory.Write("README.md", "text");
  EXPECT_THAT(
      SelectFiles(directory.path()),
      StatusIs(
          absl::StatusCode::kFailedPrecondition,
          AllOf(HasSubstr("not served yet"), HasSubstr("'pytorch_model-00001-of-00002.bin'"),
                HasSubstr("'consolidated.00.pth' (a Python pickle)"),
                HasSubstr("'weights' (a GGUF file)"), HasSubstr("the engine's own loader"),
                HasSubstr("convert them"), Not(HasSubstr("stray")), Not(HasSubstr("README")))));
  directory.Write(kIndex, R"({"weight_map":{"a":"pytorch_model-00001-of-00002.bin",
      "b":"consolidated.00.pth","c":"gone.safetensors","d":"empty.safetensors"}})");
  directory.Write("empty.safetensors");
  EXPECT_THAT(SelectFiles(directory.path()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("'consolidated.00.pth' (a Python pickle)"),
                             HasSubstr("convert them"), HasSubstr("'gone.safetensors' is missing"),
                             HasSubstr("/empty.safetensors': "))));
}

TEST(FileSelectionTest, SaysWhatFilesWithTheNamesOfWeightsReallyAre) {
  const TemporaryDirectoryForTest directory;
  directory.Write("pytorch_model.bin", "version git-lfs-spec-v1\nsize 77\n");
  directory.Write("model.pt", kShard);
  directory.Link("gone", "x.bin");
  directory.MakeDirectory("dir.bin");
  EXPECT_THAT(SelectFiles(directory.path()),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("no weights"), HasSubstr("'pytorch_model.bin' (a git-LFS"),
                             HasSubstr("'model.pt' (a safetensors file by its content"),
                             HasSubstr("rename it"), HasSubstr("'x.bin' (a link to 'gone'"),
                             Not(HasSubstr("dir.bin")))));
}

TEST(FileSelectionTest, SaysWhatIsWrongWithThePath) {
  const TemporaryDirectoryForTest directory;
  directory.Write("file");
  directory.Link("gone", "link");
  EXPECT_THAT(SelectFiles(directory.File("missing")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("missing")));
  EXPECT_THAT(SelectFiles(directory.File("file")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a regular file")));
  EXPECT_THAT(SelectFiles(directory.File("link")),
              StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr("link"), HasSubstr("'gone'"))));
  directory.MakeDirectory("empty/x.safetensors");
  EXPECT_THAT(SelectFiles(directory.File("empty")),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("'x.safetensors' is a directory, not a regular file")));
}

TEST(FileSelectionTest, CreatesNothing) {
  const TemporaryDirectoryForTest directory;
  directory.Write("model.safetensors");
  directory.Write(kIndex, R"({"weight_map":{"a":"model.safetensors"}})");
  ASSERT_OK(SelectFiles(directory.path()));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path()), {}), 2);
}

}  // namespace
}  // namespace forestage
