// One offender never hides another: every fault that a checkpoint can have, alone and beside every
// other one, in both orders of their shards, is named by all that refuse the checkpoint.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/cli/local_catalog.h"
#include "client/cli/mount_examination.h"
#include "client/src/checkpoint_for_test.h"
#include "client/src/daemon_fake.h"
#include "client/src/load_session.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <linux/capability.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "common/status_matchers.h"
#include "common/temporary_directory_for_test.h"

namespace forestage {
namespace {

constexpr char kIndexName[] = "model.safetensors.index.json";
constexpr char kPointer[] =
    "version https-git-lfs.spec/v1\noid sha256:4d7a214614ab2935c943f9\nsize 4976698672\n";
constexpr size_t kShards = 6;

enum class Mode { kNoIndex, kIndex, kBrokenIndex };

// Root that may not read what is forbidden to it, until it goes. Threads that are started meanwhile
// are the same.
class WithoutRightsOfRoot {
 public:
  WithoutRightsOfRoot() {
    header_.version = _LINUX_CAPABILITY_VERSION_3;
    EXPECT_EQ(syscall(SYS_capget, &header_, saved_), 0);
    __user_cap_data_struct less[2] = {saved_[0], saved_[1]};
    less[0].effective &= ~(1u << CAP_DAC_OVERRIDE | 1u << CAP_DAC_READ_SEARCH);
    EXPECT_EQ(syscall(SYS_capset, &header_, less), 0);
  }
  ~WithoutRightsOfRoot() { EXPECT_EQ(syscall(SYS_capset, &header_, saved_), 0); }

 private:
  __user_cap_header_struct header_ = {};
  __user_cap_data_struct saved_[2] = {};
};

// A checkpoint that is sound until faults are added to it.
class BrokenCheckpoint {
 public:
  explicit BrokenCheckpoint(Mode mode) : mode_(mode) {
    for (size_t i = 0; i < kShards; ++i) WriteSound(i, {});
  }

  // A sound shard that no fault has yet; from now on errors may name it.
  size_t Take() {
    EXPECT_LT(taken_, kShards);
    return taken_++;
  }
  static std::string Name(size_t shard) {
    return absl::StrFormat("model-%05d-of-%05d.safetensors", shard + 1, kShards);
  }
  std::string Path(const std::string& name) const { return directory_.File(name); }
  std::string Path(size_t shard) const { return Path(Name(shard)); }

  // Its own tensors and these.
  void WriteSound(size_t shard, const std::vector<std::string>& further) {
    std::vector<TensorForTest> tensors;
    for (const char* name : {"a", "b"}) {
      tensors.push_back({absl::StrCat("own.", shard, ".", name), "U8", {4}, RandomBytes(4, shard)});
      if (shard >= indexed_) AddEntry(tensors.back().name, Name(shard));
    }
    indexed_ = std::max(indexed_, shard + 1);
    for (const std::string& name : further) tensors.push_back({name, "U8", {4}, RandomBytes(4, 9)});
    WriteShard(Path(shard), tensors);
  }
  void Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(Path(name), std::ios::binary) << bytes;
  }
  // A file of this header and `data_bytes` zeros.
  void WriteHeader(size_t shard, const std::string& header, size_t data_bytes) const {
    std::string length(8, '\0');
    for (size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i) & 0xFF);
    Write(Name(shard), absl::StrCat(length, header, std::string(data_bytes, '\0')));
  }
  void Remove(size_t shard) const { std::filesystem::remove(Path(shard)); }
  void AddEntry(const std::string& tensor, const std::string& shard) {
    AddRawEntry(absl::StrCat("\"", tensor, "\":\"", shard, "\""));
  }
  void AddRawEntry(std::string entry) { entries_.push_back(std::move(entry)); }
  // A number that tells faults of one kind apart.
  size_t Serial() { return serial_++; }

  const std::string& Finish() const {
    if (mode_ == Mode::kIndex) {
      Write(kIndexName, absl::StrCat("{\"weight_map\":{", absl::StrJoin(entries_, ","), "}}"));
    }
    return directory_.path();
  }
  std::vector<std::string> UntouchedNames() const {
    std::vector<std::string> names;
    for (size_t i = taken_; i < kShards; ++i) names.push_back(Name(i));
    return names;
  }

 private:
  const Mode mode_;
  const TemporaryDirectoryForTest directory_;
  size_t taken_ = 0;
  size_t serial_ = 0;
  size_t indexed_ = 0;
  std::vector<std::string> entries_;
};

// Adds a fault; what an error must say of it.
using AddFault = std::function<std::vector<std::string>(BrokenCheckpoint&)>;

struct FaultKind {
  const char* name;
  std::set<Mode> modes;
  AddFault add;
};

const std::set<Mode> kAnyMode = {Mode::kNoIndex, Mode::kIndex, Mode::kBrokenIndex};

// A shard whose file holds other bytes.
FaultKind Content(const char* name, std::string bytes, std::string said) {
  return {name, kAnyMode, [bytes, said](BrokenCheckpoint& checkpoint) {
            const std::string shard = BrokenCheckpoint::Name(checkpoint.Take());
            checkpoint.Write(shard, bytes);
            return std::vector<std::string>{shard, said};
          }};
}

FaultKind Header(const char* name, std::string header, size_t data_bytes, std::string said) {
  return {name, kAnyMode, [=](BrokenCheckpoint& checkpoint) {
            const size_t shard = checkpoint.Take();
            checkpoint.WriteHeader(shard, header, data_bytes);
            return std::vector<std::string>{BrokenCheckpoint::Name(shard), said};
          }};
}

// A sound shard to which something is done.
FaultKind Done(const char* name, std::string said,
               std::function<void(const std::string& path)> act) {
  return {name, kAnyMode, [=](BrokenCheckpoint& checkpoint) {
            const size_t shard = checkpoint.Take();
            act(checkpoint.Path(shard));
            return std::vector<std::string>{BrokenCheckpoint::Name(shard), said};
          }};
}

// In the place of a shard.
FaultKind Instead(const char* name, std::string said,
                  std::function<void(const std::string& path)> make) {
  return Done(name, std::move(said), [make = std::move(make)](const std::string& path) {
    std::filesystem::remove(path);
    make(path);
  });
}

// An entry of the index: `entry` makes it from a number and the name of a sound shard.
FaultKind Entry(const char* name, std::string said,
                std::function<std::string(size_t, const std::string&)> entry) {
  return {
      name, {Mode::kIndex}, [=](BrokenCheckpoint& checkpoint) {
        const size_t serial = checkpoint.Serial();
        const std::string shard = BrokenCheckpoint::Name(checkpoint.Take());
        checkpoint.AddRawEntry(entry(serial, shard));
        return std::vector<std::string>{absl::StrReplaceAll(said, {{"#", absl::StrCat(serial)}})};
      }};
}

std::vector<FaultKind> KindsOfShards() {
  return {
      Content("empty", "", "an empty file"),
      Content("LFS pointer", kPointer, "a git-LFS pointer"),
      Content("HTML page", "<!DOCTYPE html><html>", "an HTML page"),
      Content("absurd length", std::string(64, '\xFF'), "HeaderTooLarge"),
      Content("header longer than the file", std::string("\x99\0\0\0\0\0\0\0{}", 10),
              "InvalidHeaderLength"),
      Content("pickle", std::string("\x80\x02}q", 4) + std::string(20, 'x'), "a Python pickle"),
      Header("no JSON", "{nonsense", 0, "InvalidHeaderDeserialization"),
      Header("overlap",
             R"({"o.a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
             R"("o.b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
             6, "overlap"),
      Header("bad dtype", R"({"d":{"dtype":"F9","shape":[4],"data_offsets":[0,4]}})", 4, "'F9'"),
      Header("bad shape", R"({"s":{"dtype":"U8","shape":[5],"data_offsets":[0,4]}})", 4,
             "TensorInvalidInfo"),
      Done("cut", "a cut download",
           [](const std::string& path) {
             std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
           }),
      Done("too long", "bytes too many",
           [](const std::string& path) {
             std::filesystem::resize_file(path, std::filesystem::file_size(path) + 1);
           }),
      Done("forbidden", "EACCES", [](const std::string& path) { chmod(path.c_str(), 0); }),
      Instead("missing", "missing", [](const std::string&) {}),
      Instead("missing while it is fetched", ".safetensors.incomplete'",
              [](const std::string& path) { std::ofstream(path + ".incomplete") << "x"; }),
      Instead("FIFO", "is a FIFO",
              [](const std::string& path) { EXPECT_EQ(mkfifo(path.c_str(), 0600), 0); }),
      Instead("directory", "is a directory",
              [](const std::string& path) { std::filesystem::create_directory(path); }),
      Instead("dangling link", "'../../blobs/gone'",
              [](const std::string& path) {
                std::filesystem::create_symlink("../../blobs/gone", path);
              }),
      Instead("circle of links", "leads in a circle",
              [](const std::string& path) { std::filesystem::create_symlink(path, path); }),
  };
}

std::vector<FaultKind> KindsOfIndexes() {
  return {
      Entry("entry that its shard lacks", "'lacking.#' is not in",
            [](size_t serial, const std::string& shard) {
              return absl::StrCat("\"lacking.", serial, "\":\"", shard, "\"");
            }),
      Entry("path out of the directory", "'../out-#.safetensors' (for 'out.#')",
            [](size_t serial, const std::string&) {
              return absl::StrCat("\"out.", serial, "\":\"../out-", serial, ".safetensors\"");
            }),
      Entry("absolute path", "'/etc/absolute-#.safetensors' (for 'absolute.#')",
            [](size_t serial, const std::string&) {
              return absl::StrCat("\"absolute.", serial, "\":\"/etc/absolute-", serial,
                                  ".safetensors\"");
            }),
      Entry("value that is no name", "'number.#'",
            [](size_t serial, const std::string&) {
              return absl::StrCat("\"number.", serial, "\":7");
            }),
      Entry("weights of another kind", "'foreign-#.bin'",
            [](size_t serial, const std::string&) {
              return absl::StrCat("\"foreign.", serial, "\":\"foreign-", serial, ".bin\"");
            }),
      Entry("missing shard of the index alone", "'unnumbered-#.safetensors' is missing",
            [](size_t serial, const std::string&) {
              return absl::StrCat("\"unnumbered.", serial, "\":\"unnumbered-", serial,
                                  ".safetensors\"");
            }),
      {"key held twice",
       {Mode::kIndex},
       [](BrokenCheckpoint& checkpoint) {
         const std::string name = absl::StrCat("key.", checkpoint.Serial());
         const size_t shard = checkpoint.Take();
         checkpoint.WriteSound(shard, {name});
         for (int i = 0; i < 2; ++i) checkpoint.AddEntry(name, BrokenCheckpoint::Name(shard));
         return std::vector<std::string>{absl::StrCat("'", name, "'"), "twice"};
       }},
      {"key held twice, of a missing shard",
       {Mode::kIndex},
       [](BrokenCheckpoint& checkpoint) {
         const std::string name = absl::StrCat("key.", checkpoint.Serial());
         const size_t shard = checkpoint.Take();
         checkpoint.Remove(shard);
         for (int i = 0; i < 2; ++i) checkpoint.AddEntry(name, BrokenCheckpoint::Name(shard));
         return std::vector<std::string>{absl::StrCat("'", name, "'"), "twice",
                                         BrokenCheckpoint::Name(shard)};
       }},
      {"name in two shards",
       // Of a broken index nobody knows which one it meant.
       {Mode::kNoIndex, Mode::kIndex},
       [](BrokenCheckpoint& checkpoint) {
         const std::string name = absl::StrCat("twice.", checkpoint.Serial());
         std::vector<std::string> said = {absl::StrCat("'", name, "' in ")};
         for (int i = 0; i < 2; ++i) {
           const size_t shard = checkpoint.Take();
           checkpoint.WriteSound(shard, {name});
           said.push_back(BrokenCheckpoint::Name(shard));
         }
         return said;
       }},
      {"FIFO that no number asks for",
       {Mode::kNoIndex, Mode::kBrokenIndex},
       [](BrokenCheckpoint& checkpoint) {
         const std::string name = absl::StrCat("pipe-", checkpoint.Serial(), ".safetensors");
         EXPECT_EQ(mkfifo(checkpoint.Path(name).c_str(), 0600), 0);
         return std::vector<std::string>{absl::StrCat("'", name, "' is a FIFO")};
       }},
      {"directory that no number asks for",
       {Mode::kNoIndex, Mode::kBrokenIndex},
       [](BrokenCheckpoint& checkpoint) {
         const std::string name = absl::StrCat("tree-", checkpoint.Serial(), ".safetensors");
         std::filesystem::create_directory(checkpoint.Path(name));
         return std::vector<std::string>{absl::StrCat("'", name, "' is a directory")};
       }},
      {"shard out of its own count",
       {Mode::kNoIndex, Mode::kBrokenIndex},
       [](BrokenCheckpoint& checkpoint) {
         const std::string set = absl::StrCat("over.", checkpoint.Serial(), "-");
         const std::string one_of_one = absl::StrCat(set, "1-of-1.safetensors");
         const std::string two_of_one = absl::StrCat(set, "2-of-1.safetensors");
         for (const std::string& name : {one_of_one, two_of_one}) {
           const std::vector<TensorForTest> tensors = {{name, "U8", {4}, RandomBytes(4, 0)}};
           WriteShard(checkpoint.Path(name), tensors);
         }
         return std::vector<std::string>{two_of_one, "there whose number"};
       }},
      {"damaged shard whose name is no text",
       {Mode::kNoIndex, Mode::kBrokenIndex},
       [](BrokenCheckpoint& checkpoint) {
         const size_t serial = checkpoint.Serial();
         checkpoint.Write(absl::StrCat("odd-\xFF-", serial, ".safetensors"), "short");
         return std::vector<std::string>{absl::StrCat("odd-\\377-", serial, ".safetensors")};
       }},
  };
}

std::vector<FaultKind> KindsOfBrokenIndexes() {
  const auto index = [](const char* name, std::string said,
                        std::function<void(const std::string& path)> make) {
    return FaultKind{name, {Mode::kBrokenIndex}, [=](BrokenCheckpoint& checkpoint) {
                       make(checkpoint.Path(kIndexName));
                       return std::vector<std::string>{kIndexName, said};
                     }};
  };
  const auto text = [&](const char* name, std::string said, std::string content) {
    return index(name, std::move(said), [content](const std::string& path) {
      std::ofstream(path, std::ios::binary) << content;
    });
  };
  return {
      text("index that is a pointer", "a git-LFS pointer", kPointer),
      text("index that is a page", "an HTML page", "<!DOCTYPE html><html>"),
      text("empty index", "an empty file", ""),
      text("cut index", "not a valid index", R"({"weight_map":{"a":"b)"),
      text("index that is not UTF-8", "not UTF-8", "{\"weight_map\":{\"\xFF\":\"f\"}}"),
      index("index that is a link to nothing", "'gone'",
            [](const std::string& path) { std::filesystem::create_symlink("gone", path); }),
      index("index that is a directory", "is a directory",
            [](const std::string& path) { std::filesystem::create_directory(path); }),
      index("forbidden index", "EACCES",
            [](const std::string& path) {
              std::ofstream(path) << "{}";
              chmod(path.c_str(), 0);
            }),
  };
}

// Whoever refuses a checkpoint, with what it says.
std::vector<std::pair<std::string, absl::Status>> Answers(const std::string& directory) {
  const WithoutRightsOfRoot without_rights;
  SessionOptions native;
  native.use_daemon = false;
  DaemonFake daemon;
  std::vector<std::pair<std::string, absl::Status>> answers;
  answers.emplace_back("native rank",
                       LoadSession::Open(directory, native, daemon.connector()).status());
  answers.emplace_back("rank with a daemon",
                       LoadSession::Open(directory, {}, daemon.connector()).status());
  answers.emplace_back("ls", LocalCatalog::Read(directory).status());
  const absl::StatusOr<ExaminedCheckpoint> examined =
      ExamineCheckpoint(directory, absl::Minutes(1));
  answers.emplace_back("doctor", examined.ok() ? examined->soundness : examined.status());
  return answers;
}

// Everybody names all that `added` says, and no shard that is sound.
void ExpectAllNamed(Mode mode, const std::vector<const FaultKind*>& added) {
  BrokenCheckpoint checkpoint(mode);
  std::vector<std::string> said;
  std::vector<std::string> kinds;
  for (const FaultKind* kind : added) {
    kinds.emplace_back(kind->name);
    for (std::string& text : kind->add(checkpoint)) said.push_back(std::move(text));
  }
  SCOPED_TRACE(absl::StrCat(absl::StrJoin(kinds, " + "), mode == Mode::kIndex ? ", indexed" : ""));
  const std::string& directory = checkpoint.Finish();
  for (const auto& [who, status] : Answers(directory)) {
    EXPECT_FALSE(status.ok()) << who;
    for (const std::string& text : said) {
      EXPECT_TRUE(absl::StrContains(status.message(), text))
          << who << " does not say \"" << text << "\":\n"
          << status;
    }
    for (const std::string& name : checkpoint.UntouchedNames()) {
      EXPECT_FALSE(absl::StrContains(status.message(), name)) << who << " names a sound shard:\n"
                                                              << status;
    }
    EXPECT_TRUE(absl::StrContains(status.message(), directory)) << who << ":\n" << status;
  }
}

class OffenderPairsTest : public ::testing::TestWithParam<Mode> {
 protected:
  void SetUp() override {
    for (const auto& some : {KindsOfShards(), KindsOfIndexes(), KindsOfBrokenIndexes()}) {
      for (const FaultKind& kind : some) {
        if (kind.modes.count(GetParam()) > 0) kinds_.push_back(kind);
      }
    }
  }
  // Without one the index would be missing, not broken.
  static bool BreaksTheIndex(const FaultKind& kind) {
    return kind.modes == std::set<Mode>{Mode::kBrokenIndex};
  }

  std::vector<FaultKind> kinds_;
};

TEST_P(OffenderPairsTest, EachIsNamedAloneAndTwice) {
  for (const FaultKind& kind : kinds_) {
    const bool breaks = BreaksTheIndex(kind);
    if (GetParam() == Mode::kBrokenIndex && !breaks) continue;
    ExpectAllNamed(GetParam(), {&kind});
    if (!breaks) ExpectAllNamed(GetParam(), {&kind, &kind});
  }
}

TEST_P(OffenderPairsTest, EachIsNamedBesideEveryOtherInBothOrders) {
  for (const FaultKind& first : kinds_) {
    for (const FaultKind& second : kinds_) {
      if (&first == &second) continue;
      const int breaking = BreaksTheIndex(first) + BreaksTheIndex(second);
      if (breaking != (GetParam() == Mode::kBrokenIndex ? 1 : 0)) continue;
      ExpectAllNamed(GetParam(), {&first, &second});
    }
  }
}

std::string ModeName(const ::testing::TestParamInfo<Mode>& parameter) {
  switch (parameter.param) {
    case Mode::kNoIndex:
      return "WithoutIndex";
    case Mode::kIndex:
      return "WithIndex";
    case Mode::kBrokenIndex:
      return "WithABrokenIndex";
  }
  return "";
}

INSTANTIATE_TEST_SUITE_P(Modes, OffenderPairsTest,
                         ::testing::Values(Mode::kNoIndex, Mode::kIndex, Mode::kBrokenIndex),
                         ModeName);

}  // namespace
}  // namespace forestage
