// Loading a checkpoint as one of the local ranks of a group. Start here.
//
//   forestage::SessionOptions options;
//   options.group_name = "my-model";
//   options.local_rank = rank;
//   options.local_size = ranks;
//   ASSIGN_OR_RETURN(auto session, forestage::Session::Open("/models/my-model", options));
//   for (size_t index : session->catalog()->Alphabetical()) {
//     ASSIGN_OR_RETURN(auto slice, session->GetSlice(index));
//     ASSIGN_OR_RETURN(auto view, slice.View());
//     ... view.bytes() ...
//   }
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "forestage/catalog.h"
#include "forestage/decision.h"
#include "forestage/slice.h"

namespace forestage {

// One part of what a rank will consume.
struct DemandedSlice {
  std::string tensor = {};
  // One entry a dimension, or fewer: the rest whole. Empty: the whole tensor.
  std::vector<Range> ranges = {};
};

// The same of a tensor of a catalog that is known.
struct ChosenSlice {
  size_t tensor_index = 0;
  std::vector<Range> ranges = {};
};

struct SessionOptions {
  // The daemon's socket. Empty: $FORESTAGE_SOCKET, else /run/forestage/forestaged.sock. A wrong
  // path is no error: the load is native and decision().reason says so.
  std::string socket_path = {};
  // The user that the daemon runs as: a name, or a number where the name is not known (in a
  // container). Empty: $FORESTAGE_DAEMON_USER, else nobody in particular. Whatever is given, root
  // and this process's own user are believed to be the daemon when they listen on its sockets, and
  // nobody else: nothing is sent then, the load is native and decision().reason says who listens.
  std::string daemon_user = {};
  // False: read natively and ask no daemon.
  bool use_daemon = true;
  // How long to wait for a daemon whose socket is not there yet or does not accept yet. Not at all
  // when it is the default socket and its directory does not exist.
  absl::Duration daemon_wait = absl::Seconds(1);
  // How long the daemon may take to answer an open, headers included. Afterwards: native.
  absl::Duration open_timeout = absl::Seconds(30);

  // Names the local ranks that load together. Empty: this process is a group of its own, and
  // local_size must be 1.
  std::string group_name = {};
  // The same in all ranks of one launch, another in the next. Empty: $FORESTAGE_LAUNCH_NONCE, else
  // $TORCHELASTIC_RUN_ID, else "".
  std::string launch_nonce = {};
  uint32_t local_rank = 0;
  uint32_t local_size = 1;
  Policy policy = Policy::kAuto;
  Agreement agreement = Agreement::kEager;
  // Strict: how long Open may wait for the other ranks. Afterwards: native for all.
  absl::Duration agreement_timeout = absl::Seconds(60);
  // UUID of this rank's GPU, for the daemon's status; may be empty.
  std::string device_uuid = {};

  // Only for a directory without an index that holds both layouts.
  bool prefer_consolidated = false;
  // What this rank will consume, in order. nullopt: everything, in file order.
  std::optional<std::vector<DemandedSlice>> demand = {};
  // The same for a rank that must see the catalog first: called once, during Open, before anything
  // is read for this rank. Without it such a rank would have to read the headers by itself first.
  // At most one of the two may be set.
  std::function<std::vector<ChosenSlice>(const Catalog& catalog)> choose_demand = {};
};

// A read of the daemon's that has not come back for ten seconds or more.
struct StuckRead {
  std::string file = {};  // its name in the checkpoint's directory
  uint64_t offset = 0;
  uint64_t bytes = 0;
  double seconds = 0;
};

// Where a read of a slice stands.
struct ReadPlace {
  std::string file = {};  // its path
  // It waits for bytes from here on.
  uint64_t offset = 0;
  // Else the storage is waited for, by a read of this process.
  bool waits_for_daemon = false;
};

struct StagingStatus {
  uint64_t wanted_bytes = 0;    // of all that the ranks of this node demand
  uint64_t resident_bytes = 0;  // of these, in memory
  uint64_t failed_bytes = 0;    // of these, not readable by the daemon
  uint64_t read_bytes = 0;      // what the daemon read from storage
  double staging_seconds = 0;   // from the first demand until complete, or until now
  bool complete = false;
  // Brought into memory a second, over the last few seconds.
  double bytes_per_second = 0;
  // At this rate; 0 when complete. nullopt: unknown, since nothing is demanded or nothing comes.
  std::optional<double> seconds_left = std::nullopt;
  // The first of them, by place.
  std::vector<StuckRead> stuck_reads = {};
};

// Opens a checkpoint and gets its slices, from the daemon's reads when there is one, by reading the
// files otherwise: the same bytes. A missing, refusing, dying or hanging daemon is never an error.
//
// Thread-safe. Not usable in a forked child (FAILED_PRECONDITION; decision() says native); the
// parent is not harmed, and what the child destroys is leaked there on purpose. Its catalog and its
// views stay valid there. A child of a process that has asked a daemon may open sessions, which are
// native: gRPC does not survive a fork. Nothing is inherited across exec.
//
// May raise the process's soft limit on open files (RLIMIT_NOFILE) towards the hard one when there
// are more shards than it allows.
class Session {
 public:
  // Selects the files of `directory`, opens them, and joins the group. Blocks: on the file system,
  // at most daemon_wait + open_timeout on the daemon, and with strict agreement at most
  // agreement_timeout on other ranks.
  // Errors are those of the checkpoint only: NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT (each
  // damaged file by name), FAILED_PRECONDITION (see the message); INVALID_ARGUMENT for options that
  // contradict each other or a demand of a tensor that does not exist.
  static absl::StatusOr<std::unique_ptr<Session>> Open(const std::string& directory,
                                                       const SessionOptions& options);
  // Closes.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  std::shared_ptr<const Catalog> catalog() const;
  // The decision as it stands now: effective turns to native when the daemon is lost.
  Decision decision() const;

  // NOT_FOUND, INVALID_ARGUMENT: no such tensor, ranges outside it or not at byte boundaries.
  absl::StatusOr<Slice> GetSlice(absl::string_view tensor,
                                 absl::Span<const Range> ranges = {}) const;
  absl::StatusOr<Slice> GetSlice(size_t tensor_index, absl::Span<const Range> ranges = {}) const;

  // Tells the daemon that this rank is done with a tensor. Views stay valid. Where there was no
  // room to stage the checkpoint, the tensor's pages are the next to leave memory.
  void MarkConsumed(size_t tensor_index);

  // What the daemon has staged of this checkpoint, asked now. UNAVAILABLE when this load
  // is native.
  absl::StatusOr<StagingStatus> GetStagingStatus(absl::Time deadline) const;
  // Waits until all that is demanded is resident or failed. UNAVAILABLE when there is no daemon or
  // it is lost, DEADLINE_EXCEEDED. Calls `progress` (may be null) about four times a second.
  absl::StatusOr<StagingStatus> WaitUntilStaged(
      absl::Time deadline, const std::function<void(const StagingStatus&)>& progress) const;

  // Whether the files are what they were when they were opened; one that was deleted or replaced
  // since is, for who has it open. FAILED_PRECONDITION, OUT_OF_RANGE: one was written to, made
  // longer or cut; all such are named, a line each. Blocks on the file system, which may remember
  // for some time what it was told before (attribute caches).
  absl::Status CheckFilesUnchanged() const;

  // Where the reads of this session's slices stand now, one for each that is on its way, 32 at
  // most. For a thread that watches over those that read: who waits for storage that does not
  // answer cannot say so itself. Never blocks.
  std::vector<ReadPlace> ReadPlaces() const;

  // Leaves the group and releases all that the daemon holds for this rank. Slices cannot be read
  // afterwards; views stay valid. Idempotent.
  void Close();

 private:
  class Implementation;
  explicit Session(std::shared_ptr<Implementation> implementation);
  const std::shared_ptr<Implementation> implementation_;
};

}  // namespace forestage
