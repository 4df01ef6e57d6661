// How a piece of a file is brought into the page cache and verified.
//
// Two ways to fill, chosen for each mount by what its first block shows (mount.h):
// - *faults*: the first page is populated through a mapping whose faults read whole huge pages,
// then
//   the last one, which waits for all; and the pages are looked at. To populate all of them is left
//   for what is missing then: where pages are small, to map each costs as much as to read it. When
//   it returns the data is there, and an error is an error.
// - *advise, wait, verify*: a read-ahead advice is a hint with traps: it is cut silently (so pieces
//   are as large as the mount takes), its completion says nothing about the data (so the piece
//   waits for a one-byte read of its last page), and it swallows errors and is dropped under memory
//   pressure (so the pages are looked at, and holes are filled by real reads, whose error is the
//   piece's error).
//
//   kTrial --> one page is populated, the last one is read, look --> kFaults or kAdvice
//   kFaults: kPopulate first page --> look --all there-------------------------> kDone
//                 |  \--> kPopulate last page --> look --all there-------------> kDone
//                 |                                 \--> kPopulate -------------> kDone
//                 \--error--> kRead ... --> look, as below
//   kAdvice: kAdvise --> look --all there--------------------------------------> kDone
//                 |  \--holes--> kRead ... --> look again (bounded) --> kPopulate --> kDone
//                 |--mincore would lie--> kPopulate --error--> kRead ... --> kPopulate --> kDone
//   a file without a mapping: kRead ... (everything is read) ------------------> kDone
//
// What is to be done next is decided here, for all readers; how it is done is theirs.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "daemon/storage/shard_file.h"
#include "daemon/storage/storage_reader.h"

namespace forestage {

// What a request needs.
struct ReadPlan {
  struct Piece {
    ByteRange range;
    FillWay way = FillWay::kAdvice;

    friend bool operator==(const Piece&, const Piece&) = default;
  };
  // Disjoint, in order; they cover all that is missing, and of what the request does not demand
  // nothing. Of kFaults and kUnknown each lies in one aligned block of kFaultBlockBytes that is
  // demanded whole, of kAdvice each has at most advice_bytes_max() of the file. The first one of
  // kUnknown is a block of which nothing is cached, and tells.
  std::vector<Piece> pieces;
  // See ReadResult; both are known before the first piece.
  uint64_t storage_bytes = 0;
  bool all_cached = false;
};
// How far from its beginning a block that a fault brought in must be demanded (or the file end):
// the kernel leaves its read-ahead mark on it, and who reads the block later through a descriptor
// makes the kernel read what is missing so far.
uint64_t ReachOfFault(const ShardFile& file);
ReadPlan PlanRead(const ReadRequest& request);

// What stands in results: names the file and the offset.
absl::Status ReadErrorStatus(const ShardFile& file, uint64_t offset, int error_number);
absl::Status EndOfFileStatus(const ShardFile& file, uint64_t offset);
absl::Status CancelledReadStatus(const ReadRequest& request);
// OUT_OF_RANGE when the file, as far as this machine knows, ends before the request does: its last
// page may still be there although the file was cut inside it.
absl::Status CheckFileCovers(const ReadRequest& request);

struct PieceStep {
  enum class Kind {
    kAdvise,    // advise [offset, offset + bytes), then read the byte at probe_offset, buffered
    kRead,      // read up to `bytes` bytes at offset, buffered, anywhere
    kPopulate,  // MADV_POPULATE_READ of [offset, offset + bytes) of the file's mapping
    kDone,      // see status()
  };
  Kind kind = Kind::kDone;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t probe_offset = 0;
};

// One piece on its way. Not thread-safe. Nothing here blocks on storage.
class ReadPiece {
 public:
  // `file` outlives the piece. Requires: as ReadPlan has it.
  ReadPiece(const ShardFile& file, ByteRange range, FillWay way);
  ReadPiece(const ReadPiece&) = delete;
  ReadPiece& operator=(const ReadPiece&) = delete;
  // Takes what its steps have mapped out of the page tables.
  ~ReadPiece();

  const ShardFile& file() const { return *file_; }
  uint64_t begin() const { return range_.begin; }
  const PieceStep& step() const { return step_; }
  bool done() const { return step_.kind == PieceStep::Kind::kDone; }
  // Requires: done().
  const absl::Status& status() const { return status_; }

  // The step was carried out: bytes read (kRead), 0 (kPopulate), or a negative errno; decides the
  // next one. Requires: !done().
  void OnResult(int64_t result);

 private:
  enum class Verification { kMincore, kPopulate, kRead };

  // What the trial of a mount waits for.
  enum class Trial { kNone, kFault, kLastPage };
  // Which page of a block a fault waits for.
  enum class Fault { kNone, kFirstPage, kLastPage };

  static Verification VerificationFor(const ShardFile& file);
  void Begin(FillWay way);
  void OnTrialResult(int64_t result);
  void SetPopulateStep(uint64_t begin, uint64_t end);
  uint64_t LastPage() const;
  void FaultIn(Fault fault);
  void OnFault();
  void Look();
  void Fill(std::vector<ByteRange> holes);
  void OnReadResult(int64_t result);
  void OnPopulateResult(int64_t result);
  void Populate();
  void Finish(absl::Status status);
  // The read of step_ or, with no hole left, what comes after it.
  void NextRead();

  const ShardFile* file_;
  ByteRange range_;
  Verification verification_;
  Trial trial_ = Trial::kNone;
  Fault fault_ = Fault::kNone;
  PieceStep step_;
  absl::Status status_;
  // Holes that are still to be read, last first.
  std::vector<ByteRange> holes_;
  // Whether a step was to map pages.
  bool mapped_ = false;
  int fill_rounds_ = 0;
  int interruptions_ = 0;
};

}  // namespace forestage
