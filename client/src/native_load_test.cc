// Loads without a daemon: every byte right, every error typed.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/src/checkpoint_for_test.h"
#include "client/src/load_session.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "checkpoint/dtype.h"
#include "common/status_matchers.h"
#include "common/units.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

absl::StatusOr<DaemonWelcome> NeverCalled(const DaemonOpenRequest&, std::shared_ptr<DaemonLoss>) {
  ADD_FAILURE() << "a native load asked for a daemon";
  return absl::UnavailableError("never");
}

SessionOptions NoDaemon() {
  SessionOptions options;
  options.use_daemon = false;
  return options;
}

absl::StatusOr<std::shared_ptr<LoadSession>> OpenNative(
    const std::string& directory, const SessionOptions& options = NoDaemon()) {
  return LoadSession::Open(directory, options, NeverCalled);
}

// Both ways to read a slice give these bytes.
void ExpectBytes(const Slice& slice, absl::Span<const std::byte> expected) {
  ASSERT_EQ(slice.bytes(), expected.size());
  std::vector<std::byte> copy(slice.bytes());
  ASSERT_OK(slice.CopyTo(absl::MakeSpan(copy)));
  EXPECT_TRUE(absl::MakeConstSpan(copy) == expected) << "copied bytes differ";
  const absl::StatusOr<SliceView> view = slice.View();
  if (slice.contiguous()) {
    ASSERT_OK(view);
    EXPECT_TRUE(view->bytes() == expected) << "viewed bytes differ";
  } else {
    EXPECT_THAT(view, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("CopyTo")));
  }
}

TEST(NativeLoadTest, GivesEveryDtypeUnalignedScalarAndEmptyTensor) {
  TemporaryDirectoryForTest directory;
  std::vector<TensorForTest> tensors;
  for (int i = 0; i < kDtypeCount; ++i) {
    const Dtype dtype = *DtypeFromNumber(static_cast<uint8_t>(i));
    // 8 elements are whole bytes in every type; the odd ones shift what follows.
    for (const std::vector<uint64_t>& shape : std::vector<std::vector<uint64_t>>{{8}, {3, 8}}) {
      const uint64_t elements = shape.size() == 1 ? 8 : 24;
      tensors.push_back({.name = absl::StrCat(std::string(DtypeName(dtype)), ".", shape.size()),
                         .dtype = std::string(DtypeName(dtype)),
                         .shape = shape,
                         .bytes = RandomBytes(elements * DtypeBits(dtype) / 8, tensors.size())});
    }
  }
  tensors.push_back({"odd", "U8", {5}, RandomBytes(5, 100)});
  tensors.push_back({"scalar", "F64", {}, RandomBytes(8, 101)});
  tensors.push_back({"empty", "F32", {4, 0, 2}, {}});
  for (size_t lead = 0; lead < 9; ++lead) {
    WriteShard(directory.File("model.safetensors"), tensors, lead);
    ASSERT_OK_AND_ASSIGN(auto session, OpenNative(directory.path()));
    for (const TensorForTest& tensor : tensors) {
      SCOPED_TRACE(absl::StrCat(tensor.name, ", lead ", lead));
      ASSERT_OK_AND_ASSIGN(Slice slice, session->GetSlice(tensor.name, {}));
      EXPECT_EQ(slice.shape(), tensor.shape);
      ExpectBytes(slice, tensor.bytes);
    }
  }
}

TEST(NativeLoadTest, GivesRandomSlicesAsANaiveModelDoes) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t bound) { return random() % bound; };
  for (int round = 0; round < 30; ++round) {
    TemporaryDirectoryForTest directory;
    std::vector<uint64_t> shape;
    uint64_t elements = 1;
    for (uint64_t d = 0, rank = below(4) + 1; d < rank; ++d) {
      shape.push_back(below(d == 0 ? 70 : 40) + 1);
      elements *= shape.back();
    }
    const bool wide = below(2) == 0;
    const uint64_t element_bytes = wide ? 8 : 1;
    const TensorForTest tensor = {"t", wide ? "F64" : "I8", shape,
                                  RandomBytes(elements * element_bytes, seed + round)};
    WriteShard(directory.File("model.safetensors"), {tensor}, below(8));
    ASSERT_OK_AND_ASSIGN(auto session, OpenNative(directory.path()));
    for (int s = 0; s < 20; ++s) {
      std::vector<Range> ranges;
      for (const uint64_t extent : shape) {
        const uint64_t start = below(extent + 1);
        ranges.push_back({start, start + below(extent - start + 1)});
      }
      // Walk over every element of the tensor and keep those inside.
      std::vector<std::byte> expected;
      for (uint64_t element = 0; element < elements; ++element) {
        bool inside = true;
        uint64_t rest = element;
        for (size_t d = shape.size(); d-- > 0; rest /= shape[d]) {
          const uint64_t index = rest % shape[d];
          inside = inside && index >= ranges[d].start && index < ranges[d].stop;
        }
        if (!inside) continue;
        const auto first = tensor.bytes.begin() + static_cast<ptrdiff_t>(element * element_bytes);
        expected.insert(expected.end(), first, first + static_cast<ptrdiff_t>(element_bytes));
      }
      ASSERT_OK_AND_ASSIGN(Slice slice, session->GetSlice("t", ranges));
      ExpectBytes(slice, expected);
    }
  }
}

TEST(NativeLoadTest, CopiesSlicesOfFewBytesOfManyRowsAndOfLongRuns) {
  TemporaryDirectoryForTest directory;
  constexpr uint64_t kRows = 9000;
  constexpr uint64_t kColumns = 2500;
  const TensorForTest tensor = {"t", "U8", {kRows, kColumns}, RandomBytes(kRows * kColumns, 7)};
  const TensorForTest long_rows = {"l", "U8", {5, 3'000'000}, RandomBytes(15'000'000, 8)};
  WriteShard(directory.File("model.safetensors"), {tensor, long_rows});
  ASSERT_OK_AND_ASSIGN(auto session, OpenNative(directory.path()));
  const auto expect_columns = [&](const TensorForTest& of, uint64_t start, uint64_t stop) {
    ASSERT_OK_AND_ASSIGN(Slice slice,
                         session->GetSlice(of.name, {{0, of.shape[0]}, {start, stop}}));
    std::vector<std::byte> expected;
    for (uint64_t row = 0; row < of.shape[0]; ++row) {
      const auto first = of.bytes.begin() + static_cast<ptrdiff_t>(row * of.shape[1]);
      expected.insert(expected.end(), first + static_cast<ptrdiff_t>(start),
                      first + static_cast<ptrdiff_t>(stop));
    }
    ExpectBytes(slice, expected);
  };
  expect_columns(tensor, 3, 4);
  expect_columns(tensor, 0, kColumns - 1);
  expect_columns(long_rows, 17, 2'000'000);
  expect_columns(long_rows, 5, 5);
}

// Memory that was never touched is prepared in steps; what lies around it, and memory in use, must
// not notice.
TEST(NativeLoadTest, CopiesIntoFreshMemoryAndNotABytePastIt) {
  TemporaryDirectoryForTest directory;
  constexpr uint64_t kBytes = 3'000'001;
  const TensorForTest tensor = {"t", "U8", {kBytes}, RandomBytes(kBytes, 12)};
  WriteShard(directory.File("model.safetensors"), {tensor});
  ASSERT_OK_AND_ASSIGN(auto session, OpenNative(directory.path()));
  ASSERT_OK_AND_ASSIGN(Slice slice, session->GetSlice("t", {}));
  constexpr size_t kMemoryBytes = 4 * kMiB;
  void* const memory =
      mmap(nullptr, kMemoryBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const absl::Span<std::byte> all(static_cast<std::byte*>(memory), kMemoryBytes);
  for (const size_t lead : {size_t{0}, size_t{4095}, size_t{70'001}}) {
    ASSERT_EQ(madvise(memory, kMemoryBytes, MADV_DONTNEED), 0);
    // Some of the pages are there already.
    std::fill_n(all.begin() + lead + 1'000'000, 100'000, std::byte{9});
    ASSERT_OK(slice.CopyTo(all.subspan(lead, kBytes)));
    EXPECT_TRUE(all.subspan(lead, kBytes) == absl::MakeConstSpan(tensor.bytes)) << lead;
    const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
    EXPECT_TRUE(std::all_of(all.begin(), all.begin() + lead, is_zero)) << lead;
    EXPECT_TRUE(std::all_of(all.begin() + lead + kBytes, all.end(), is_zero)) << lead;
  }
  munmap(memory, kMemoryBytes);
}

TEST(NativeLoadTest, SlicesSubByteTensorsAtByteBoundariesOnly) {
  TemporaryDirectoryForTest directory;
  const TensorForTest tensor = {"t", "F4", {4, 6}, RandomBytes(12, 3)};
  WriteShard(directory.File("model.safetensors"), {tensor});
  ASSERT_OK_AND_ASSIGN(auto session, OpenNative(directory.path()));
  ASSERT_OK_AND_ASSIGN(Slice slice, session->GetSlice("t", {{1, 3}, {2, 4}}));
  ExpectBytes(slice, {{tensor.bytes[4], tensor.bytes[7]}});
  EXPECT_THAT(session->GetSlice("t", {{0, 1}, {1, 3}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tensor t")));
}

TEST(NativeLoadTest, RefusesWhatDoesNotExist) {
  const CheckpointForTest checkpoint({});
  ASSERT_OK_AND_ASSIGN(auto session, OpenNative(checkpoint.directory()));
  EXPECT_THAT(session->GetSlice("nothing", {}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("nothing")));
  EXPECT_THAT(session->GetSlice(size_t{6}, {}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("6")));
  EXPECT_THAT(session->GetSlice("layer.0.0", {{0, 65}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("layer.0.0")));
  ASSERT_OK_AND_ASSIGN(Slice slice, session->GetSlice("layer.0.0", {}));
  std::vector<std::byte> small(3);
  EXPECT_THAT(slice.CopyTo(absl::MakeSpan(small)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("3 bytes")));
  EXPECT_THAT(OpenNative("/nonexistent/checkpoint"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nonexistent/checkpoint")));
}

TEST(NativeLoadTest, ListsEveryDamagedShard) {
  const CheckpointForTest checkpoint({.shards = 5});
  std::filesystem::resize_file(checkpoint.ShardPath(1), 100);
  std::filesystem::resize_file(checkpoint.ShardPath(3), 4);
  EXPECT_THAT(OpenNative(checkpoint.directory()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("00002-of-00005"), HasSubstr("00004-of-00005"))));
}

TEST(NativeLoadTest, RefusesOptionsThatContradictEachOther) {
  const CheckpointForTest checkpoint({});
  SessionOptions options = NoDaemon();
  options.group_name = "g";
  options.local_rank = 2;
  options.local_size = 2;
  EXPECT_THAT(OpenNative(checkpoint.directory(), options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("local_rank 2")));
  options.local_rank = 1;
  options.group_name = "";
  EXPECT_THAT(OpenNative(checkpoint.directory(), options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("group_name")));
}

TEST(NativeLoadTest, RefusesADemandOfATensorThatDoesNotExist) {
  const CheckpointForTest checkpoint({});
  SessionOptions options = NoDaemon();
  options.demand = {{.tensor = "layer.0.0", .ranges = {}}, {.tensor = "layer.9.9", .ranges = {}}};
  EXPECT_THAT(OpenNative(checkpoint.directory(), options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("layer.9.9")));
}

TEST(NativeLoadTest, ShowsTheCatalog) {
  const CheckpointForTest checkpoint({.shards = 2, .tensors = 2, .rows = 4, .columns = 8});
  ASSERT_OK_AND_ASSIGN(auto session, OpenNative(checkpoint.directory()));
  const std::shared_ptr<const Catalog> catalog = session->catalog();
  session.reset();
  ASSERT_EQ(catalog->tensor_count(), 4);
  ASSERT_EQ(catalog->shard_count(), 2);
  EXPECT_EQ(catalog->total_bytes(), std::filesystem::file_size(checkpoint.ShardPath(0)) +
                                        std::filesystem::file_size(checkpoint.ShardPath(1)));
  const TensorInfo tensor = catalog->tensor(*catalog->Find("layer.1.0"));
  EXPECT_EQ(tensor.dtype, "U8");
  EXPECT_EQ(tensor.dtype_bits, 8);
  EXPECT_EQ(tensor.bytes(), 32);
  EXPECT_THAT(tensor.shape, ElementsAre(4, 8));
  EXPECT_EQ(tensor.shard, "model-00002-of-00002.safetensors");
  EXPECT_EQ(catalog->shard(1).first_tensor, 2);
  EXPECT_EQ(catalog->shard(1).tensor_count, 2);
  EXPECT_EQ(catalog->Alphabetical().size(), 4);
  EXPECT_THAT(catalog->Alphabetical("layer.1."), ElementsAre(2, 3));
  EXPECT_THAT(catalog->Alphabetical("x"), IsEmpty());
  EXPECT_EQ(catalog->metadata(0), std::nullopt);
  EXPECT_EQ(catalog->Find("layer"), std::nullopt);
}

TEST(NativeLoadTest, TellsItsDecision) {
  const CheckpointForTest checkpoint({});
  ASSERT_OK_AND_ASSIGN(auto told, OpenNative(checkpoint.directory()));
  EXPECT_EQ(told->decision().effective, Policy::kNative);
  EXPECT_FALSE(told->decision().activated);
  EXPECT_THAT(told->decision().reason, HasSubstr("no daemon"));
  SessionOptions options;
  options.policy = Policy::kNative;
  ASSERT_OK_AND_ASSIGN(auto wished, OpenNative(checkpoint.directory(), options));
  EXPECT_EQ(wished->decision().requested, Policy::kNative);
  EXPECT_THAT(wished->decision().reason, HasSubstr("requested"));
  EXPECT_THAT(wished->GetStagingStatus(absl::InfiniteFuture()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("requested")));
  EXPECT_THAT(wished->WaitUntilStaged(absl::InfiniteFuture(), nullptr),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("requested")));
}

class TruncationTest : public ::testing::TestWithParam<uint64_t> {};

// Cut inside a page, at a page, and far before: an error with file and offset, never SIGBUS, and
// never the zeros that the rest of the last page shows.
TEST_P(TruncationTest, IsAnErrorWithFileAndOffset) {
  const CheckpointForTest checkpoint({.shards = 1, .tensors = 1, .rows = 64, .columns = 1024});
  ASSERT_OK_AND_ASSIGN(auto session, OpenNative(checkpoint.directory()));
  ASSERT_OK_AND_ASSIGN(Slice slice, session->GetSlice(0, {}));
  const std::string path = checkpoint.ShardPath(0);
  const uint64_t cut = GetParam();
  std::filesystem::resize_file(path, cut);
  const auto error = StatusIs(absl::StatusCode::kOutOfRange,
                              AllOf(HasSubstr(path), HasSubstr(absl::StrCat("offset ", cut))));
  EXPECT_THAT(slice.View(), error);
  std::vector<std::byte> copy(slice.bytes());
  EXPECT_THAT(slice.CopyTo(absl::MakeSpan(copy)), error);
  ASSERT_OK_AND_ASSIGN(Slice columns, session->GetSlice(0, {{0, 64}, {1000, 1024}}));
  std::vector<std::byte> few(columns.bytes());
  EXPECT_THAT(columns.CopyTo(absl::MakeSpan(few)),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr(path)));
}

INSTANTIATE_TEST_SUITE_P(Cuts, TruncationTest, ::testing::Values(1000, 8192, 8193, 65000));

TEST(NativeLoadTest, NeverGivesBytesOfAFileThatWasWrittenTo) {
  const CheckpointForTest checkpoint({.shards = 2});
  ASSERT_OK_AND_ASSIGN(auto session, OpenNative(checkpoint.directory()));
  ASSERT_OK_AND_ASSIGN(const Slice whole, session->GetSlice("layer.0.0", {}));
  ASSERT_OK_AND_ASSIGN(const Slice columns, session->GetSlice("layer.0.1", {{0, 64}, {3, 7}}));
  ASSERT_OK_AND_ASSIGN(const Slice other, session->GetSlice("layer.1.0", {}));
  std::vector<std::byte> bytes(whole.bytes());
  std::vector<std::byte> packed(columns.bytes());
  ASSERT_OK(whole.CopyTo(absl::MakeSpan(bytes)));
  ASSERT_OK(columns.CopyTo(absl::MakeSpan(packed)));

  const std::string path = checkpoint.ShardPath(0);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  file.put('x');
  file.close();
  // Whatever the clock's resolution.
  std::filesystem::last_write_time(path,
                                   std::filesystem::last_write_time(path) + std::chrono::hours(1));
  const auto changed =
      StatusIs(absl::StatusCode::kFailedPrecondition,
               AllOf(HasSubstr(path), HasSubstr("was changed since it was opened: it was written "
                                                "to")));
  EXPECT_THAT(whole.View(), changed);
  EXPECT_THAT(whole.CopyTo(absl::MakeSpan(bytes)), changed);
  EXPECT_THAT(columns.CopyTo(absl::MakeSpan(packed)), changed);
  EXPECT_OK(other.View());
  EXPECT_THAT(session->CheckFilesUnchanged(), changed);
  ASSERT_EQ(truncate(checkpoint.ShardPath(1).c_str(), 100), 0);
  EXPECT_THAT(session->CheckFilesUnchanged(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr(path), HasSubstr(checkpoint.ShardPath(1)),
                             HasSubstr("at offset 100: the file ends here"))));
}

TEST(NativeLoadTest, KeepsWhatItHasOpenedWhenFilesAreReplacedOrDeleted) {
  const CheckpointForTest checkpoint({.shards = 2, .seed = 1});
  const CheckpointForTest later({.shards = 2, .seed = 2});
  ASSERT_OK_AND_ASSIGN(auto session, OpenNative(checkpoint.directory()));
  std::filesystem::rename(later.ShardPath(0), checkpoint.ShardPath(0));
  std::filesystem::remove(checkpoint.ShardPath(1));
  EXPECT_OK(session->CheckFilesUnchanged());
  for (const auto& [name, expected] : checkpoint.tensors()) {
    ASSERT_OK_AND_ASSIGN(const Slice slice, session->GetSlice(name, {}));
    ExpectBytes(slice, expected);
  }
}

TEST(NativeLoadTest, ServesManyThreadsAtOnce) {
  const CheckpointForTest checkpoint({.shards = 3, .tensors = 8});
  ASSERT_OK_AND_ASSIGN(auto session, OpenNative(checkpoint.directory()));
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (const auto& [name, bytes] : checkpoint.tensors()) {
        const absl::StatusOr<Slice> slice = session->GetSlice(name, {});
        const absl::StatusOr<SliceView> view =
            slice.ok() ? slice->View() : absl::StatusOr<SliceView>(slice.status());
        std::vector<std::byte> copy(bytes.size());
        if (!view.ok() || view->bytes() != absl::MakeConstSpan(bytes) ||
            !slice->CopyTo(absl::MakeSpan(copy)).ok() || copy != bytes) {
          ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(NativeLoadTest, KeepsViewsButNoSlicesAfterClose) {
  const CheckpointForTest checkpoint({});
  ASSERT_OK_AND_ASSIGN(auto session, OpenNative(checkpoint.directory()));
  ASSERT_OK_AND_ASSIGN(Slice slice, session->GetSlice("layer.0.1", {}));
  ASSERT_OK_AND_ASSIGN(SliceView view, slice.View());
  session->Close();
  session->Close();
  const auto closed = StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("closed"));
  EXPECT_THAT(slice.View(), closed);
  EXPECT_THAT(session->GetSlice("layer.0.1", {}), closed);
  session.reset();
  EXPECT_TRUE(view.bytes() == absl::MakeConstSpan(checkpoint.tensors().at("layer.0.1")));
  std::vector<std::byte> copy(slice.bytes());
  EXPECT_THAT(slice.CopyTo(absl::MakeSpan(copy)), closed);
}

// The exit status of a forked child that runs `body`.
int ExitOfChild(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body() ? 0 : 1);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

TEST(NativeLoadTest, IsRefusedInAForkedChildAndUnharmedInTheParent) {
  const CheckpointForTest checkpoint({});
  ASSERT_OK_AND_ASSIGN(auto session, OpenNative(checkpoint.directory()));
  ASSERT_OK_AND_ASSIGN(Slice slice, session->GetSlice(0, {}));
  EXPECT_EQ(ExitOfChild([&] {
              std::vector<std::byte> copy(slice.bytes());
              const bool refused = absl::IsFailedPrecondition(session->GetSlice(0, {}).status()) &&
                                   absl::IsFailedPrecondition(slice.View().status()) &&
                                   absl::IsFailedPrecondition(slice.CopyTo(absl::MakeSpan(copy))) &&
                                   session->decision().effective == Policy::kNative;
              session->Close();
              LoadSession::Drop(std::move(session));
              return refused;
            }),
            0);
  EXPECT_OK(slice.View());
}

bool OpensUnderDescriptorLimit(const std::string& directory, rlim_t soft, rlim_t hard,
                               absl::StatusCode expected) {
  const rlimit limit = {.rlim_cur = soft, .rlim_max = hard};
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  const auto session = OpenNative(directory);
  return session.status().code() == expected &&
         (session.ok() || session.status().message().find("hard limit") != std::string::npos);
}

TEST(NativeLoadTest, RaisesTheSoftDescriptorLimitOrSaysSo) {
  const CheckpointForTest checkpoint({.shards = 100, .tensors = 1, .rows = 1, .columns = 8});
  const std::string& directory = checkpoint.directory();
  EXPECT_EQ(ExitOfChild([&] {
              return OpensUnderDescriptorLimit(directory, 40, 400, absl::StatusCode::kOk);
            }),
            0);
  EXPECT_EQ(ExitOfChild([&] {
              return OpensUnderDescriptorLimit(directory, 40, 60,
                                               absl::StatusCode::kResourceExhausted);
            }),
            0);
}

TEST(NativeLoadTest, WritesNothingBesideTheCheckpoint) {
  const CheckpointForTest checkpoint({});
  const auto before = std::filesystem::last_write_time(checkpoint.directory());
  ASSERT_OK_AND_ASSIGN(auto session, OpenNative(checkpoint.directory()));
  ASSERT_OK_AND_ASSIGN(Slice slice, session->GetSlice(0, {}));
  EXPECT_OK(slice.View());
  session.reset();
  EXPECT_EQ(std::filesystem::last_write_time(checkpoint.directory()), before);
}

}  // namespace
}  // namespace forestage
