// Every open session and group of the daemon, free of gRPC and of sockets.
//
//   Open --all descriptors--> preparing (a pool thread opens the shards) --sound--> ready
//     \________________________________\________________________________________/
//                      ended: once, whatever ends it; everything it held is released
//
// docs/semantics.md says what is promised.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "common/descriptor_protocol.h"
#include "common/file_system_magic.h"
#include "common/peer_identity.h"
#include "common/unique_fd.h"
#include "daemon/memory/memory_ledger.h"
#include "daemon/session/exit_watch.h"
#include "daemon/session/group.h"
#include "daemon/session/rank_failures.h"
#include "daemon/session/session_decision.h"
#include "daemon/session/session_terms.h"
#include "daemon/session/shard_lending.h"
#include "daemon/session/user_quota.h"
#include "daemon/session/work_queue.h"
#include "daemon/staging/staged_checkpoint.h"

namespace forestage {

struct CheckpointSummary {
  CheckpointSignature signature = {};
  uint64_t extent_bytes = 0;
  uint64_t extent_count = 0;
  uint64_t tensor_count = 0;
};

// What one session's stream is told. Called under the registry's lock, one call at a time, from any
// thread: must neither block nor call the registry.
class SessionListener {
 public:
  virtual ~SessionListener() = default;
  // First.
  virtual void OnOpened(const SessionToken& token) = 0;
  virtual void OnCheckpoint(const CheckpointSummary& summary) = 0;
  virtual void OnDecision(const SessionDecision& decision) = 0;
  virtual void OnProgress(const StagingProgress& progress) = 0;
  virtual void OnDraining() = 0;
  // Last, once. OK: the client closed the session.
  virtual void OnEnded(const absl::Status& status) = 0;
};

// Counts for metrics. Called under the registry's lock; must not block.
class SessionObserver {
 public:
  virtual ~SessionObserver() = default;
  virtual void OnSessionCount(size_t open) = 0;
  virtual void OnGroupCount(size_t open) = 0;
  // "closed", "process_exit", "replaced", "draining", "error".
  virtual void OnSessionEnded(absl::string_view outcome) = 0;
  virtual void OnDecision(absl::string_view effective, absl::string_view reason_class) = 0;
  virtual void OnConsumed(uint64_t bytes) = 0;
  virtual void OnMajorFaults(uint64_t count) = 0;
  // A group's checkpoint does not fit into memory: "node", "cgroup", "setting"; or into what its
  // user may have of it: "user".
  virtual void OnAdmissionRefused(absl::string_view bound) = 0;
  // What checkpoints have leased of the node's memory now.
  virtual void OnLeasedBytes(uint64_t bytes) = 0;
  // Most that is staged for one user now.
  virtual void OnLargestUserBytes(uint64_t bytes) = 0;
};

// Descriptors for a rank; its own duplicates.
struct SessionDelivery {
  UniqueFd catalog;
  UniqueFd board;
};

// One session as status shows it.
struct SessionSnapshot {
  SessionId id = 0;
  std::string group_name;
  std::string launch_nonce;
  uint32_t local_size = 0;
  uint32_t local_rank = 0;
  SessionAgreement agreement = SessionAgreement::kEager;
  PeerIdentity peer;
  // The checkpoint it is on, to be compared only; null until it is ready.
  const StagedCheckpoint* checkpoint = nullptr;
  std::optional<SessionDecision> decision;
  absl::Duration age;
  uint64_t consumed_bytes = 0;
  uint64_t major_faults = 0;
};

// Thread-safe; no call blocks on storage or on a peer, except the destructor.
class SessionRegistry {
 public:
  struct Options {
    size_t sessions_max = 256;
    // Of one user; see UserQuota.
    size_t sessions_per_user_max = 192;
    size_t descriptors_per_user_max = 48 * 1024;
    uint64_t staged_bytes_per_user_max = UINT64_MAX;
    size_t lanes_max = 8;
    absl::Duration agreement_timeout = absl::Seconds(60);
    absl::Duration descriptor_timeout = absl::Seconds(30);
    // Files of file systems of this type (statfs) are lent by one session to others of its user.
    uint32_t lent_file_system = kFuseMagic;
    // The clock.
    std::function<absl::Time()> now;
    // Whom to ask before reading ahead. Outlives the registry. Null: memory is without end.
    MemoryLedger* memory = nullptr;
    // Makes what runs preparations and releases. Null: WorkerPool.
    WorkQueueFactory make_work_queue = nullptr;
  };
  // All must outlive it. `observer` may be null.
  SessionRegistry(Options options, CheckpointStore& store, ExitWatch& exit_watch,
                  SessionObserver* observer);
  // Ends every session and waits for preparations that run.
  ~SessionRegistry();
  SessionRegistry(const SessionRegistry&) = delete;
  SessionRegistry& operator=(const SessionRegistry&) = delete;

  // Errors (no call to `listener` was made then):
  //   INVALID_ARGUMENT    see ValidateSessionTerms and Group::Join
  //   ALREADY_EXISTS      a living process holds this local rank; the message names its pid
  //   RESOURCE_EXHAUSTED  sessions_max, sessions_per_user_max
  //   UNAVAILABLE         draining
  absl::StatusOr<SessionId> Open(const SessionTerms& terms, const PeerIdentity& peer,
                                 std::shared_ptr<SessionListener> listener)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // The stream has ended. Calls about a session that has ended already do nothing.
  void Close(SessionId id) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnProcessExit(SessionId id) ABSL_LOCKS_EXCLUDED(mutex_);
  // The client broke the protocol: ends the session, INVALID_ARGUMENT.
  void Reject(SessionId id, absl::string_view why) ABSL_LOCKS_EXCLUDED(mutex_);

  // PERMISSION_DENIED: no session has this token, or it was given to another process.
  absl::StatusOr<SessionId> FindByToken(const SessionToken& token, const PeerIdentity& peer)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether descriptors of shards first_index, first_index + 1, ... may be received, and the
  // account that they then belong to. NOT_FOUND: the session has ended; INVALID_ARGUMENT: a gap, or
  // more than the open request has shards; RESOURCE_EXHAUSTED: descriptors_per_user_max.
  absl::StatusOr<std::shared_ptr<UserQuota::Charge>> AdmitShards(SessionId id, uint32_t first_index,
                                                                 size_t count)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether descriptors that only name shards may be received (see LendShards), and their account.
  // Errors as AdmitShards; each shard is named once, and before any descriptor of one is sent.
  absl::StatusOr<std::shared_ptr<UserQuota::Charge>> AdmitNamedShards(SessionId id,
                                                                      uint32_t first_index,
                                                                      size_t count)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // What the session may borrow of the shards that it shows with O_PATH descriptors, which are the
  // registry's from now on. Calls `done` once, at once or later, under the registry's lock, within
  // kLendTimeout: an entry for each, null where the session is to open the file itself. `groups`:
  // the supplementary ones of its process. NOT_FOUND, CANCELLED: the session has ended.
  void LendShards(SessionId id, std::vector<UniqueFd> named, std::vector<gid_t> groups,
                  std::shared_ptr<UserQuota::Charge> charge, ShardLending::Done done)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The descriptors that came after AdmitShards, which are the registry's from now on whatever it
  // answers; returns how many shards the session holds descriptors of. The last one starts the
  // preparation. Errors as there.
  absl::StatusOr<uint32_t> AddShards(SessionId id, uint32_t first_index,
                                     std::vector<UniqueFd> descriptors,
                                     std::shared_ptr<UserQuota::Charge> charge)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // What came after AdmitShards is not what was announced: ends the session (INVALID_ARGUMENT) and
  // closes the descriptors where that may block.
  void RefuseShards(SessionId id, std::vector<UniqueFd> descriptors,
                    std::shared_ptr<UserQuota::Charge> charge, absl::string_view why)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls `done` once, at once or later, under the registry's lock: when the checkpoint is ready,
  // or with what ended the session. FAILED_PRECONDITION: shards are missing; RESOURCE_EXHAUSTED: so
  // many wait for this session already.
  void WhenReady(SessionId id, std::function<void(absl::StatusOr<SessionDelivery>)> done)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // What a session's client asks. A wrong request ends the session (INVALID_ARGUMENT).
  void AddDemand(SessionId id, absl::Span<const DemandItem> items) ABSL_LOCKS_EXCLUDED(mutex_);
  void AddUrgent(SessionId id, absl::Span<const uint64_t> extent_indexes)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void MarkConsumed(SessionId id, absl::Span<const uint32_t> tensor_indexes)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Answers with a progress event, now. `major_faults` of its process so far.
  void RequestProgress(SessionId id, uint64_t major_faults) ABSL_LOCKS_EXCLUDED(mutex_);

  // Keeps deadlines: strict groups, descriptors that do not come, progress. Returns when it wants
  // to be called next; ExitWatch::Wake() is called when that has become earlier.
  absl::Time Tick() ABSL_LOCKS_EXCLUDED(mutex_);

  // Tells every session that the daemon is draining; Open is UNAVAILABLE from now on.
  void BeginDrain() ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends every session (UNAVAILABLE).
  void EndAll() ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until preparations and releases have ended; false when storage still holds one at the
  // deadline.
  bool WaitUntilIdle(absl::Time deadline);

  bool draining() const ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<SessionSnapshot> Snapshot() const ABSL_LOCKS_EXCLUDED(mutex_);
  // What is read for each user who has anything read, in bytes of whole checkpoints.
  std::map<uid_t, uint64_t> StagedBytesOfUsers() const { return quota_.StagedBytes(); }
  uint64_t staged_bytes_per_user_max() const { return options_.staged_bytes_per_user_max; }
  // Lets go of a checkpoint on a thread that may block (the last holder waits for its lanes).
  void ReleaseLater(std::shared_ptr<StagedCheckpoint> checkpoint);

 private:
  struct Session;
  using GroupKey = RankFailures::GroupKey;

  absl::StatusOr<SessionId> OpenLocked(const SessionToken& token, const SessionTerms& terms,
                                       const PeerIdentity& peer,
                                       std::shared_ptr<SessionListener> listener)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The rank loads natively by itself: nobody of its strict group need wait for it.
  void OnRankFailed(const GroupKey& key, const SessionTerms& terms, int64_t pid,
                    absl::string_view why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Group& FindOrFound(const GroupKey& key, const GroupMember& member, const SessionTerms& terms)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Session* Find(SessionId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Prepare(Session& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Tells the lending what a session has shown, and closes the descriptors. Blocks on storage.
  void ShowShards(ShardLending::AskId ask, std::vector<UniqueFd>& named, const FileReader& reader)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Lets other sessions of this user have what this one has sent. Blocks on storage.
  void OfferShards(SessionId id, const std::vector<ReceivedShard>& shards)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // A descriptor that is closed where that may block.
  SharedFd Share(UniqueFd descriptor, std::shared_ptr<UserQuota::Charge> charge);
  // How much of it is in memory, where that can matter. Takes its time.
  uint64_t AskResidentBytes(const StagedCheckpoint& staged) const;
  void OnPrepared(SessionId id, absl::StatusOr<std::shared_ptr<StagedCheckpoint>> result,
                  uint64_t resident_bytes, const std::shared_ptr<UserQuota::Charge>& charge,
                  uint64_t storage) ABSL_LOCKS_EXCLUDED(mutex_);
  // From the session's account to that of its user for this checkpoint, which its sessions share.
  void ChargeCheckpoint(Session& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckShards(const Session* session, uint32_t first_index, size_t count) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Time EndOverdue(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Lets go of something on a thread that may block on `storage`; the user's charge lasts until
  // then.
  template <typename Held>
  void ReleaseFor(std::shared_ptr<UserQuota::Charge> charge, uint64_t storage, Held held);
  void Release(std::shared_ptr<UserQuota::Charge> charge, std::vector<UniqueFd> descriptors);
  void BecomeReady(Session& session, std::shared_ptr<StagedCheckpoint> staged)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Compares the group's checkpoint with the node's memory, where that is still to be done, and
  // begins to read for every rank that may be read for.
  void StartReading(Group& group) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static MemoryRequest RequestOf(const Session& session);
  void AskAdmission(Group& group) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GiveOutcomes(Group& group) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StopReadingFor(Session& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Calls `body` with each session of this group that is read for.
  template <typename Body>
  void ForEachReader(const GroupKey& group, const Body& body) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What is staged for its group waits for this session, which opens; until StopOpening.
  void StartOpening(Session& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StopOpening(Session& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(SessionId id, absl::string_view outcome, const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndInvalid(SessionId id, absl::string_view what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Time TellProgress(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReportCounts() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  CheckpointStore& store_;
  ExitWatch& exit_watch_;
  SessionObserver* const observer_;

  mutable absl::Mutex mutex_;
  SessionId next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<SessionId, std::unique_ptr<Session>> sessions_ ABSL_GUARDED_BY(mutex_);
  std::map<SessionToken, SessionId> tokens_ ABSL_GUARDED_BY(mutex_);
  std::map<GroupKey, std::unique_ptr<Group>> groups_ ABSL_GUARDED_BY(mutex_);
  RankFailures rank_failures_ ABSL_GUARDED_BY(mutex_);
  UserQuota quota_;
  // The descriptors that a user has in a checkpoint; entries outlive their charges for a while.
  std::map<std::pair<uid_t, const StagedCheckpoint*>, std::weak_ptr<UserQuota::Charge>>
      checkpoint_charges_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  ShardLending lending_ ABSL_GUARDED_BY(mutex_);

  // Last, so that their threads end before the rest goes.
  const std::unique_ptr<WorkQueue> release_queue_;
  const std::unique_ptr<WorkQueue> preparation_queue_;
};

}  // namespace forestage
