// Reads through an io_uring of its own: advices and reads of many pieces in flight from one thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "common/unique_fd.h"
#include "daemon/storage/first_failure.h"
#include "daemon/storage/read_piece.h"
#include "daemon/storage/storage_reader.h"

struct io_uring;
struct io_uring_sqe;

namespace forestage {

// See StorageReader for who may call what. The destructor cancels what is in flight and waits until
// the kernel has let go of it, since the kernel writes into our buffer until then.
class UringStorageReader : public StorageReader {
 public:
  // Fails where io_uring is not to be had, with a message that names the cause and the fix:
  // PERMISSION_DENIED (seccomp, kernel.io_uring_disabled), UNIMPLEMENTED (no io_uring, or one that
  // lacks an operation), RESOURCE_EXHAUSTED (locked memory).
  static absl::StatusOr<std::unique_ptr<UringStorageReader>> Create();
  ~UringStorageReader() override;

  absl::string_view name() const override { return "io_uring"; }
  size_t in_flight_max() const override;
  size_t in_flight() const override { return requests_.size() + ended_.size(); }
  void Start(const ReadRequest& request) override;
  std::vector<ReadResult> Wait(absl::Time deadline) override;
  void Wake() override;
  void Cancel() override;

 private:
  struct RingDeleter {
    void operator()(io_uring* ring) const;
  };
  using Ring = std::unique_ptr<io_uring, RingDeleter>;

  struct Request {
    ReadRequest request;
    ReadPlan plan;
    size_t next_piece = 0;
    size_t pieces_in_flight = 0;
    FirstFailure failure = {};
  };
  // One piece at the kernel.
  struct Slot {
    std::list<Request>::iterator owner;
    std::optional<ReadPiece> piece;
    int operations = 0;
    int64_t step_result = 0;
  };

  UringStorageReader(Ring ring, UniqueFd wake_fd);

  static absl::StatusOr<Ring> MakeRing();
  static absl::Status CheckRing(io_uring* ring);

  io_uring_sqe* TakeEntry();
  // Room for two entries that the kernel must get in one submission.
  void MakeRoomForTwo();
  void SubmitQueued();
  void ArmWake();
  // Gives free slots to pieces that wait.
  void FillSlots();
  void SubmitStep(size_t slot_index);
  void CancelInFlight();
  // Submits, then waits for at least one completion until the deadline.
  void SubmitAndWait(absl::Time deadline);
  void ReapCompletions();
  void OnCompletion(uint64_t tag, int32_t result);
  void OnStepEnded(size_t slot_index);
  void EndIfComplete(std::list<Request>::iterator request);

  // Constant after construction.
  const UniqueFd wake_fd_;
  const Ring ring_;
  // Shared by all reads in flight: nobody looks at the bytes.
  const std::unique_ptr<std::byte[]> scratch_;

  // The lane's thread only.
  std::list<Request> requests_;
  std::vector<Slot> slots_;
  std::vector<size_t> free_slots_;
  std::vector<ReadResult> ended_;
  bool wake_armed_ = false;
  bool woken_ = false;

  // Any thread.
  std::atomic<bool> cancel_requested_ = false;
};

}  // namespace forestage
