#include "daemon/session/session_registry.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "common/check.h"
#include "common/errno_status.h"
#include "common/status_macros.h"
#include "daemon/limits.h"
#include "daemon/session/worker_pool.h"

namespace forestage {
namespace {

// How often a checkpoint that is being staged is looked at, so that its end is told soon.
constexpr absl::Duration kProgressLookPeriod = absl::Milliseconds(100);
// What bounds a user's staging, beside the names of MemoryBoundKind.
constexpr char kUserBoundName[] = "user";

absl::StatusOr<SessionToken> MakeToken() {
  SessionToken token = {};
  size_t filled = 0;
  while (filled < token.size()) {
    const ssize_t count = getrandom(token.data() + filled, token.size() - filled, 0);
    if (count < 0 && errno != EINTR) return ErrnoStatus(errno, "getrandom");
    if (count > 0) filled += static_cast<size_t>(count);
  }
  return token;
}

std::unique_ptr<WorkQueue> MakeWorkQueue(const SessionRegistry::Options& options,
                                         const WorkLimits& limits) {
  if (options.make_work_queue != nullptr) return options.make_work_queue(limits);
  return std::make_unique<WorkerPool>(limits);
}

// Never asks a server.
uint64_t StorageOf(const UniqueFd& file) {
  struct statx attributes = {};
  if (statx(file.get(), "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, &attributes) != 0) {
    return WorkOwner::kUnknown;
  }
  return makedev(attributes.stx_dev_major, attributes.stx_dev_minor);
}

// Files of a checkpoint are on one file system but for rare links.
uint64_t StorageOf(const std::vector<UniqueFd>& files) {
  return files.empty() ? WorkOwner::kUnknown : StorageOf(files.front());
}

absl::StatusOr<SessionDelivery> DuplicateDelivery(const StagedCheckpoint& staged) {
  SessionDelivery delivery;
  delivery.catalog = UniqueFd(fcntl(staged.catalog_fd(), F_DUPFD_CLOEXEC, 0));
  delivery.board = UniqueFd(fcntl(staged.board_fd(), F_DUPFD_CLOEXEC, 0));
  if (!delivery.catalog.valid() || !delivery.board.valid()) {
    return absl::ResourceExhaustedError("the daemon has no descriptor left (RLIMIT_NOFILE)");
  }
  return delivery;
}

}  // namespace

struct SessionRegistry::Session {
  // Constant after Open.
  SessionId id = 0;
  SessionToken token = {};
  SessionTerms terms;
  PeerIdentity peer;
  std::shared_ptr<SessionListener> listener;
  GroupKey group_key;
  absl::Time opened_at;
  // What this session counts for its user; with its descriptors until it is ready.
  std::shared_ptr<UserQuota::Charge> charge;
  // Those of the checkpoint, from then on.
  std::shared_ptr<UserQuota::Charge> checkpoint_charge;

  // How many shards it has named to borrow them, and what these count.
  uint32_t named_count = 0;
  std::shared_ptr<UserQuota::Charge> loan_charge;
  // Of the descriptors that are to come: how many `charge` counts already.
  size_t reserved_count = 0;
  // Descriptors that have come; given away to the preparation.
  std::vector<UniqueFd> received;
  uint32_t received_count = 0;
  // The file system of its first file; unknown until all have come.
  uint64_t storage = WorkOwner::kUnknown;
  bool preparing = false;
  // What the others of its group are told when its client closes it now.
  std::string refusal = "it closed its session";
  // When the preparation is given up.
  absl::Time preparation_deadline;
  std::vector<std::function<void(absl::StatusOr<SessionDelivery>)>> waiters;

  // Null until ready.
  std::shared_ptr<StagedCheckpoint> staged;
  // Has not had its first tensor; not of who only stages.
  bool opening = false;
  // The daemon may read ahead for it.
  bool reading = false;
  // Of the checkpoint's pages in memory. Null: not reading, or nobody counts.
  std::shared_ptr<const MemoryLease> lease;
  // The same bytes among those of its user. Null: not reading.
  std::unique_ptr<const UserQuota::StagedHold> staged_hold;
  // When it became ready, as far as it was asked.
  uint64_t resident_bytes = 0;
  size_t demand_items = 0;
  std::optional<SessionDecision> decision;
  std::vector<bool> consumed;  // by tensor
  uint64_t consumed_bytes = 0;
  uint64_t major_faults = 0;
  // Progress: complete was told, and nothing came since.
  bool told_complete = false;
  absl::Time next_progress = absl::InfinitePast();
};

// What a session's checkpoint wants of the node's memory: room for all of it, since a demand comes
// after the decision.
MemoryRequest SessionRegistry::RequestOf(const Session& session) {
  return {.checkpoint = session.staged.get(),
          .wanted_bytes = session.staged->CacheableBytes(),
          .resident_bytes = session.resident_bytes};
}

SessionRegistry::SessionRegistry(Options options, CheckpointStore& store, ExitWatch& exit_watch,
                                 SessionObserver* observer)
    : options_(std::move(options)),
      store_(store),
      exit_watch_(exit_watch),
      observer_(observer),
      quota_({.sessions_max = options_.sessions_per_user_max,
              .descriptors_max = options_.descriptors_per_user_max,
              .staged_bytes_max = options_.staged_bytes_per_user_max}),
      release_queue_(MakeWorkQueue(
          options_, {kReleaseThreadsMax, kReleaseThreadsPerUserMax, kReleaseThreadsPerStorageMax})),
      preparation_queue_(
          MakeWorkQueue(options_, {kPreparationThreadsMax, kPreparationThreadsPerUserMax,
                                   kPreparationThreadsPerStorageMax})) {
  CHECK(options_.now != nullptr);
}

SessionRegistry::~SessionRegistry() {
  BeginDrain();
  EndAll();
}

SessionRegistry::Session* SessionRegistry::Find(SessionId id) {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : found->second.get();
}

Group& SessionRegistry::FindOrFound(const GroupKey& key, const GroupMember& member,
                                    const SessionTerms& terms) {
  std::unique_ptr<Group>& group = groups_[key];
  if (group == nullptr) {
    const absl::Duration timeout = terms.agreement_timeout > absl::ZeroDuration()
                                       ? terms.agreement_timeout
                                       : options_.agreement_timeout;
    group = std::make_unique<Group>(member, options_.now() + timeout);
    if (terms.agreement == SessionAgreement::kStrict) {
      const std::optional<RankFailure> failure =
          rank_failures_.TakeFor(key, member, options_.now());
      if (failure.has_value()) group->OnRankFailed(*failure);
    }
  }
  return *group;
}

absl::StatusOr<SessionId> SessionRegistry::Open(const SessionTerms& terms, const PeerIdentity& peer,
                                                std::shared_ptr<SessionListener> listener) {
  RETURN_IF_ERROR(ValidateSessionTerms(terms));
  ASSIGN_OR_RETURN(const SessionToken token, MakeToken());
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<SessionId> id = OpenLocked(token, terms, peer, std::move(listener));
  if (absl::IsResourceExhausted(id.status())) {
    const GroupKey key(terms.group_name, terms.launch_nonce, terms.path);
    OnRankFailed(key, terms, peer.pid, id.status().message());
  }
  return id;
}

absl::StatusOr<SessionId> SessionRegistry::OpenLocked(const SessionToken& token,
                                                      const SessionTerms& terms,
                                                      const PeerIdentity& peer,
                                                      std::shared_ptr<SessionListener> listener) {
  if (draining_) return absl::UnavailableError("the daemon is draining");
  GroupKey key(terms.group_name, terms.launch_nonce, terms.path);
  // A dead holder is replaced before anything else, since it may be the last of its group.
  if (const auto group = groups_.find(key); group != groups_.end()) {
    const std::optional<SessionId> holder = group->second->HolderOf(terms.local_rank);
    if (holder.has_value() && ProcessExited(Find(*holder)->peer)) {
      End(*holder, "replaced", absl::CancelledError("the process has exited"));
    }
  }
  if (sessions_.size() >= options_.sessions_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the daemon has ", sessions_.size(), " sessions, its limit (sessions-max)"));
  }
  ASSIGN_OR_RETURN(std::shared_ptr<UserQuota::Charge> charge, quota_.ChargeSession(peer.uid));
  const SessionId id = next_id_++;
  const GroupMember member = {.session = id,
                              .local_rank = terms.local_rank,
                              .local_size = terms.local_size,
                              .policy = terms.policy,
                              .agreement = terms.agreement,
                              .pid = peer.pid};
  RETURN_IF_ERROR(exit_watch_.Watch(id, peer));
  const absl::Status joined = FindOrFound(key, member, terms).Join(member);
  if (!joined.ok()) {
    exit_watch_.Forget(id);
    return joined;
  }
  auto session = std::make_unique<Session>();
  session->id = id;
  session->token = token;
  session->terms = terms;
  session->peer = peer;
  session->listener = std::move(listener);
  session->group_key = std::move(key);
  session->opened_at = options_.now();
  session->charge = std::move(charge);
  StartOpening(*session);
  session->listener->OnOpened(token);
  tokens_[token] = id;
  sessions_[id] = std::move(session);
  ReportCounts();
  exit_watch_.Wake();
  return id;
}

void SessionRegistry::OnRankFailed(const GroupKey& key, const SessionTerms& terms, int64_t pid,
                                   absl::string_view why) {
  if (terms.agreement != SessionAgreement::kStrict || terms.local_size == 1) return;
  const RankFailure failure = {.local_rank = terms.local_rank, .pid = pid, .why = std::string(why)};
  rank_failures_.Add(key, terms.local_size, failure, options_.now());
  const auto group = groups_.find(key);
  if (group == groups_.end() || group->second->agreement() != terms.agreement ||
      group->second->local_size() != terms.local_size) {
    return;
  }
  group->second->OnRankFailed(failure);
  GiveOutcomes(*group->second);
}

void SessionRegistry::Close(SessionId id) {
  absl::MutexLock lock(&mutex_);
  End(id, "closed", absl::OkStatus());
}

void SessionRegistry::OnProcessExit(SessionId id) {
  absl::MutexLock lock(&mutex_);
  End(id, "process_exit", absl::CancelledError("the process has exited"));
}

void SessionRegistry::Reject(SessionId id, absl::string_view why) {
  absl::MutexLock lock(&mutex_);
  EndInvalid(id, why);
}

absl::StatusOr<SessionId> SessionRegistry::FindByToken(const SessionToken& token,
                                                       const PeerIdentity& peer) {
  absl::MutexLock lock(&mutex_);
  const auto found = tokens_.find(token);
  // One answer for both, so that nobody can try out tokens of others.
  if (found == tokens_.end() || !SameProcess(Find(found->second)->peer, peer)) {
    return absl::PermissionDeniedError(
        "no session of this process has this token: it was never given out, its session is over, "
        "or it is another process's; open a session on the gRPC socket first");
  }
  return found->second;
}

absl::Status SessionRegistry::CheckShards(const Session* session, uint32_t first_index,
                                          size_t count) const {
  if (session == nullptr) return absl::NotFoundError("the session has ended");
  const size_t expected = session->terms.shards.size();
  if (first_index != session->received_count || count > expected - first_index) {
    return absl::InvalidArgumentError(
        absl::StrCat("shards ", first_index, " to ", first_index + count, " were sent, but ",
                     session->received_count, " of ", expected, " have come"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<UserQuota::Charge>> SessionRegistry::AdmitShards(
    SessionId id, uint32_t first_index, size_t count) {
  absl::MutexLock lock(&mutex_);
  Session* session = Find(id);
  RETURN_IF_ERROR(CheckShards(session, first_index, count));
  const size_t reserved = std::min(count, session->reserved_count);
  if (absl::Status admitted = session->charge->AddDescriptors(count - reserved); !admitted.ok()) {
    session->refusal = std::string(admitted.message());
    return admitted;
  }
  session->reserved_count -= reserved;
  return session->charge;
}

absl::StatusOr<std::shared_ptr<UserQuota::Charge>> SessionRegistry::AdmitNamedShards(
    SessionId id, uint32_t first_index, size_t count) {
  absl::MutexLock lock(&mutex_);
  Session* session = Find(id);
  if (session == nullptr) return absl::NotFoundError("the session has ended");
  const size_t expected = session->terms.shards.size();
  if (session->received_count != 0 || first_index != session->named_count ||
      count > expected - first_index) {
    return absl::InvalidArgumentError(
        absl::StrCat("shards ", first_index, " to ", first_index + count, " were named, but ",
                     session->named_count, " of ", expected, " were before, and ",
                     session->received_count, " have come"));
  }
  if (session->loan_charge == nullptr) {
    std::shared_ptr<UserQuota::Charge> loan_charge = session->charge->SplitDescriptors();
    // The descriptors that are to come have their place before any loan.
    RETURN_IF_ERROR(session->charge->AddDescriptors(expected));
    session->reserved_count = expected;
    session->loan_charge = std::move(loan_charge);
  }
  RETURN_IF_ERROR(session->loan_charge->AddDescriptors(count));
  session->named_count += static_cast<uint32_t>(count);
  return session->loan_charge;
}

void SessionRegistry::LendShards(SessionId id, std::vector<UniqueFd> named,
                                 std::vector<gid_t> groups,
                                 std::shared_ptr<UserQuota::Charge> charge,
                                 ShardLending::Done done) {
  absl::MutexLock lock(&mutex_);
  Session* session = Find(id);
  if (session == nullptr) {
    Release(std::move(charge), std::move(named));
    return done(absl::NotFoundError("the session has ended"));
  }
  const PeerIdentity& peer = session->peer;
  // The session's own time for its descriptors goes on meanwhile.
  const absl::Duration patience = std::min(kLendTimeout, options_.descriptor_timeout / 2);
  const ShardLending::AskId ask =
      lending_.Ask(id, peer.uid, named.size(), options_.now() + patience, std::move(done));
  FileReader reader = {.uid = peer.uid, .gid = peer.gid, .groups = std::move(groups)};
  const WorkOwner owner = {.user = peer.uid, .storage = StorageOf(named)};
  auto shown = std::make_shared<std::vector<UniqueFd>>(std::move(named));
  preparation_queue_->Submit(owner,
                             [this, ask, shown = std::move(shown), reader = std::move(reader),
                              charge = std::move(charge)] { ShowShards(ask, *shown, reader); });
  exit_watch_.Wake();
}

void SessionRegistry::ShowShards(ShardLending::AskId ask, std::vector<UniqueFd>& named,
                                 const FileReader& reader) {
  std::vector<std::optional<LendableFile>> files;
  for (UniqueFd& descriptor : named) {
    files.push_back(LookAtNamedFile(descriptor.get(), reader, options_.lent_file_system));
    descriptor.Reset();
  }
  absl::MutexLock lock(&mutex_);
  lending_.Show(ask, std::move(files));
}

SharedFd SessionRegistry::Share(UniqueFd descriptor, std::shared_ptr<UserQuota::Charge> charge) {
  return SharedFd(new UniqueFd(std::move(descriptor)),
                  [this, charge = std::move(charge)](const UniqueFd* shared) {
                    ReleaseFor(charge, StorageOf(*shared), std::unique_ptr<const UniqueFd>(shared));
                  });
}

void SessionRegistry::OfferShards(SessionId id, const std::vector<ReceivedShard>& shards) {
  std::vector<std::optional<LendableFile>> files;
  for (const ReceivedShard& shard : shards) {
    files.push_back(LookAtOpenFile(shard.fd.get(), options_.lent_file_system));
  }
  absl::MutexLock lock(&mutex_);
  const Session* session = Find(id);
  if (session == nullptr) return;
  const uid_t uid = session->peer.uid;
  std::vector<std::pair<LendableFile, SharedFd>> offers;
  for (size_t i = 0; i < shards.size(); ++i) {
    if (!files[i].has_value() || !lending_.Wants(uid, *files[i])) continue;
    UniqueFd own(fcntl(shards[i].fd.get(), F_DUPFD_CLOEXEC, 0));
    // Without one left the others open the file themselves.
    if (!own.valid()) continue;
    offers.emplace_back(*std::move(files[i]), Share(std::move(own), session->loan_charge));
  }
  lending_.Offer(id, uid, std::move(offers));
}

absl::StatusOr<uint32_t> SessionRegistry::AddShards(SessionId id, uint32_t first_index,
                                                    std::vector<UniqueFd> descriptors,
                                                    std::shared_ptr<UserQuota::Charge> charge) {
  absl::MutexLock lock(&mutex_);
  Session* session = Find(id);
  if (const absl::Status status = CheckShards(session, first_index, descriptors.size());
      !status.ok()) {
    Release(std::move(charge), std::move(descriptors));
    return status;
  }
  for (UniqueFd& descriptor : descriptors) session->received.push_back(std::move(descriptor));
  session->received_count += static_cast<uint32_t>(descriptors.size());
  if (session->received_count == session->terms.shards.size() && !session->preparing) {
    Prepare(*session);
  }
  return session->received_count;
}

void SessionRegistry::RefuseShards(SessionId id, std::vector<UniqueFd> descriptors,
                                   std::shared_ptr<UserQuota::Charge> charge,
                                   absl::string_view why) {
  absl::MutexLock lock(&mutex_);
  Release(std::move(charge), std::move(descriptors));
  EndInvalid(id, why);
}

void SessionRegistry::Release(std::shared_ptr<UserQuota::Charge> charge,
                              std::vector<UniqueFd> descriptors) {
  const uint64_t storage = StorageOf(descriptors);
  ReleaseFor(std::move(charge), storage, std::move(descriptors));
}

template <typename Held>
void SessionRegistry::ReleaseFor(std::shared_ptr<UserQuota::Charge> charge, uint64_t storage,
                                 Held held) {
  const WorkOwner owner = {.user = charge->uid(), .storage = storage};
  // A function is copied; what it holds need not be copyable.
  auto shared = std::make_shared<Held>(std::move(held));
  release_queue_->Submit(owner, [shared = std::move(shared), charge = std::move(charge)]() mutable {
    shared.reset();
    charge.reset();
  });
}

void SessionRegistry::Prepare(Session& session) {
  session.preparing = true;
  session.preparation_deadline = options_.now() + options_.descriptor_timeout;
  session.storage = StorageOf(session.received);
  auto shards = std::make_shared<std::vector<ReceivedShard>>();
  for (size_t i = 0; i < session.received.size(); ++i) {
    const ShardTerms& terms = session.terms.shards[i];
    shards->push_back({.name = terms.name,
                       .size_bytes = terms.size_bytes,
                       .mtime_ns = terms.mtime_ns,
                       .fd = std::move(session.received[i]),
                       .uid = session.peer.uid});
  }
  session.received.clear();
  const size_t lanes = std::min<size_t>(session.terms.local_size, options_.lanes_max);
  preparation_queue_->Submit(
      {.user = session.peer.uid, .storage = session.storage},
      [this, id = session.id, path = session.terms.path, shards, lanes, charge = session.charge,
       storage = session.storage, lends = session.named_count > 0] {
        if (lends) OfferShards(id, *shards);
        absl::StatusOr<std::shared_ptr<StagedCheckpoint>> acquired =
            store_.Acquire(path, std::move(*shards), lanes);
        const uint64_t resident_bytes = acquired.ok() ? AskResidentBytes(**acquired) : 0;
        OnPrepared(id, std::move(acquired), resident_bytes, charge, storage);
      });
  exit_watch_.Wake();
}

uint64_t SessionRegistry::AskResidentBytes(const StagedCheckpoint& staged) const {
  const MemoryRequest cold = {
      .checkpoint = &staged, .wanted_bytes = staged.CacheableBytes(), .resident_bytes = 0};
  if (options_.memory == nullptr || options_.memory->Fits(cold)) return 0;
  return staged.CachedBytes();
}

void SessionRegistry::OnPrepared(SessionId id,
                                 absl::StatusOr<std::shared_ptr<StagedCheckpoint>> result,
                                 uint64_t resident_bytes,
                                 const std::shared_ptr<UserQuota::Charge>& charge,
                                 uint64_t storage) {
  absl::MutexLock lock(&mutex_);
  Session* session = Find(id);
  if (!result.ok()) {
    End(id, "error", result.status());
  } else if (session == nullptr) {
    ReleaseFor(charge, storage, std::move(*result));
  } else {
    session->resident_bytes = resident_bytes;
    BecomeReady(*session, std::move(*result));
  }
}

void SessionRegistry::ChargeCheckpoint(Session& session) {
  std::erase_if(checkpoint_charges_, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<UserQuota::Charge>& entry =
      checkpoint_charges_[{session.peer.uid, session.staged.get()}];
  session.checkpoint_charge = entry.lock();
  if (session.checkpoint_charge == nullptr) {
    session.checkpoint_charge = session.charge->SplitDescriptors();
    entry = session.checkpoint_charge;
  }
  // The store has closed those of the checkpoint's files that it had already.
  session.charge->DropDescriptors();
}

void SessionRegistry::BecomeReady(Session& session, std::shared_ptr<StagedCheckpoint> staged) {
  session.staged = std::move(staged);
  ChargeCheckpoint(session);
  const StagedCheckpoint& checkpoint = *session.staged;
  const CatalogView& catalog = checkpoint.catalog();
  session.consumed.resize(catalog.tensor_count());
  session.listener->OnCheckpoint({.signature = catalog.signature(),
                                  .extent_bytes = checkpoint.extents().extent_bytes(),
                                  .extent_count = checkpoint.extents().extent_count(),
                                  .tensor_count = catalog.tensor_count()});
  Group& group = *groups_.at(session.group_key);
  group.ReportReady(session.id, catalog.signature());
  StartReading(group);
  for (auto& waiter : session.waiters) waiter(DuplicateDelivery(checkpoint));
  session.waiters.clear();
  GiveOutcomes(group);
  exit_watch_.Wake();
}

void SessionRegistry::StartReading(Group& group) {
  AskAdmission(group);
  for (const SessionId id : group.Readers()) {
    Session& session = *Find(id);
    if (session.reading) continue;
    // The group's answer stands, also for a rank that comes after all others of its checkpoint.
    if (session.lease == nullptr && options_.memory != nullptr) {
      session.lease = options_.memory->Renew(RequestOf(session));
    }
    if (session.staged_hold == nullptr) {
      session.staged_hold = quota_.KeepStaged(session.peer.uid, session.staged.get(),
                                              session.staged->CacheableBytes());
    }
    session.reading = true;
    for (const auto& [other_id, other] : sessions_) {
      if (other->opening && other->group_key == session.group_key) {
        session.staged->HoldReadAhead(other_id);
      }
    }
    group.NoteReadingBegan();
    if (!session.terms.demand_follows) session.staged->AddDemandForEverything(session.id);
  }
}

void SessionRegistry::AskAdmission(Group& group) {
  const std::optional<SessionId> asker = group.NeedsAdmission();
  if (!asker.has_value()) return;
  Session& session = *Find(*asker);
  absl::StatusOr<std::unique_ptr<UserQuota::StagedHold>> hold =
      quota_.HoldStaged(session.peer.uid, session.staged.get(), session.staged->CacheableBytes());
  if (!hold.ok()) {
    if (observer_ != nullptr) observer_->OnAdmissionRefused(kUserBoundName);
    return group.SetAdmission(std::string(hold.status().message()));
  }
  if (options_.memory != nullptr) {
    MemoryAdmission admission = options_.memory->Admit(RequestOf(session));
    session.lease = std::move(admission.lease);
    if (session.lease == nullptr) {
      if (observer_ != nullptr) {
        observer_->OnAdmissionRefused(MemoryBoundKindName(admission.bound_kind));
      }
      return group.SetAdmission(std::move(admission.reason));
    }
  }
  session.staged_hold = *std::move(hold);
  group.SetAdmission("");
}

void SessionRegistry::GiveOutcomes(Group& group) {
  for (const Group::Outcome& outcome : group.TakeOutcomes(options_.now())) {
    Session& session = *Find(outcome.session);
    const SessionDecision& decision = outcome.decision;
    if (decision.effective == SessionPolicy::kNative) {
      StopReadingFor(session);
      StopOpening(session);
    }
    session.decision = decision;
    spdlog::info(
        "decision group=\"{}\" nonce=\"{}\" path=\"{}\" rank={} size={} pid={} uid={} requested={} "
        "effective={} activated={} reason_class={} reason=\"{}\"",
        absl::CEscape(session.terms.group_name), absl::CEscape(session.terms.launch_nonce),
        absl::CEscape(session.terms.path), session.terms.local_rank, session.terms.local_size,
        session.peer.pid, session.peer.uid, std::string(SessionPolicyName(decision.requested)),
        std::string(SessionPolicyName(decision.effective)), decision.activated,
        std::string(ReasonClassName(decision.reason_class)), absl::CEscape(decision.reason));
    if (observer_ != nullptr) {
      observer_->OnDecision(SessionPolicyName(decision.effective),
                            ReasonClassName(decision.reason_class));
    }
    session.listener->OnDecision(decision);
  }
  ReportCounts();
}

void SessionRegistry::StopReadingFor(Session& session) {
  if (!session.reading) return;
  session.reading = false;
  for (const auto& [other_id, other] : sessions_) {
    if (other->group_key == session.group_key) session.staged->ReleaseReadAhead(other_id);
  }
  session.staged->RemoveSession(session.id);
  session.lease = nullptr;
  session.staged_hold = nullptr;
}

template <typename Body>
void SessionRegistry::ForEachReader(const GroupKey& group, const Body& body) {
  for (const auto& [id, session] : sessions_) {
    if (session->reading && session->group_key == group) body(*session);
  }
}

void SessionRegistry::StartOpening(Session& session) {
  // Who is alone and wants everything may never say that it has a tensor: it stages.
  if (session.terms.local_size == 1 && !session.terms.demand_follows) return;
  session.opening = true;
  ForEachReader(session.group_key,
                [&](const Session& reader) { reader.staged->HoldReadAhead(session.id); });
}

void SessionRegistry::StopOpening(Session& session) {
  if (!session.opening) return;
  session.opening = false;
  ForEachReader(session.group_key,
                [&](const Session& reader) { reader.staged->ReleaseReadAhead(session.id); });
}

void SessionRegistry::WhenReady(SessionId id,
                                std::function<void(absl::StatusOr<SessionDelivery>)> done) {
  absl::MutexLock lock(&mutex_);
  Session* session = Find(id);
  if (session == nullptr) {
    done(absl::NotFoundError("the session has ended"));
  } else if (session->staged != nullptr) {
    done(DuplicateDelivery(*session->staged));
  } else if (!session->preparing) {
    done(absl::FailedPreconditionError(absl::StrCat("descriptors of ", session->received_count,
                                                    " of ", session->terms.shards.size(),
                                                    " shards have come; send the others first")));
  } else if (session->waiters.size() >= kWaitersPerSessionMax) {
    done(absl::ResourceExhaustedError(
        absl::StrCat(kWaitersPerSessionMax, " connections wait for this session already")));
  } else {
    session->waiters.push_back(std::move(done));
  }
}

void SessionRegistry::AddDemand(SessionId id, absl::Span<const DemandItem> items) {
  absl::MutexLock lock(&mutex_);
  Session* session = Find(id);
  if (session == nullptr) return;
  if (session->staged == nullptr) return EndInvalid(id, "a demand before the checkpoint event");
  session->demand_items += items.size();
  if (items.size() > kDemandItemsPerMessageMax ||
      session->demand_items > kDemandItemsPerSessionMax) {
    return EndInvalid(
        id, absl::StrCat("a demand of more than ", kDemandItemsPerMessageMax,
                         " items a message or ", kDemandItemsPerSessionMax, " a session"));
  }
  // A native rank reads by itself; its demand is checked by nobody.
  if (!session->reading) return;
  const absl::Status added = session->staged->AddDemand(id, items);
  if (!added.ok()) return EndInvalid(id, added.message());
  session->told_complete = false;
  exit_watch_.Wake();
}

void SessionRegistry::AddUrgent(SessionId id, absl::Span<const uint64_t> extent_indexes) {
  absl::MutexLock lock(&mutex_);
  Session* session = Find(id);
  if (session == nullptr) return;
  if (session->staged == nullptr) {
    return EndInvalid(id, "an urgent request before the checkpoint event");
  }
  if (extent_indexes.size() > kUrgentExtentsPerMessageMax) {
    return EndInvalid(id, absl::StrCat("an urgent request of more than ",
                                       kUrgentExtentsPerMessageMax, " extents"));
  }
  if (!session->reading) return;
  session->staged->AddUrgent(id, extent_indexes);
  session->told_complete = false;
  exit_watch_.Wake();
}

void SessionRegistry::MarkConsumed(SessionId id, absl::Span<const uint32_t> tensor_indexes) {
  absl::MutexLock lock(&mutex_);
  Session* session = Find(id);
  if (session == nullptr) return;
  if (session->staged == nullptr) {
    return EndInvalid(id, "consumed tensors before the checkpoint event");
  }
  const CatalogView& catalog = session->staged->catalog();
  uint64_t bytes = 0;
  for (const uint32_t index : tensor_indexes) {
    if (index >= session->consumed.size()) {
      return EndInvalid(id,
                        absl::StrCat("consumed tensor ", index, " of ", session->consumed.size()));
    }
    if (session->consumed[index]) continue;
    session->consumed[index] = true;
    const TensorEntryView tensor = catalog.tensor(index);
    bytes += tensor.end - tensor.begin;
  }
  session->consumed_bytes += bytes;
  if (!tensor_indexes.empty()) StopOpening(*session);
  if (observer_ != nullptr) observer_->OnConsumed(bytes);
}

void SessionRegistry::RequestProgress(SessionId id, uint64_t major_faults) {
  absl::MutexLock lock(&mutex_);
  Session* session = Find(id);
  if (session == nullptr) return;
  // A counter of a process only grows; what a client says otherwise is ignored.
  if (major_faults > session->major_faults) {
    if (observer_ != nullptr) observer_->OnMajorFaults(major_faults - session->major_faults);
    session->major_faults = major_faults;
  }
  session->listener->OnProgress(session->staged == nullptr ? StagingProgress()
                                                           : session->staged->progress());
}

absl::Time SessionRegistry::Tick() {
  absl::MutexLock lock(&mutex_);
  const absl::Time now = options_.now();
  absl::Time next = std::min(EndOverdue(now), lending_.Expire(now));
  for (const auto& [key, group] : groups_) {
    if (!group->deadline().has_value()) continue;
    GiveOutcomes(*group);
    next = std::min(next, group->deadline().value_or(absl::InfiniteFuture()));
  }
  return std::min(next, TellProgress(now));
}

absl::Time SessionRegistry::EndOverdue(absl::Time now) {
  absl::Time next = absl::InfiniteFuture();
  std::vector<SessionId> overdue;
  for (const auto& [id, session] : sessions_) {
    if (session->staged != nullptr) continue;
    const absl::Time deadline = session->preparing
                                    ? session->preparation_deadline
                                    : session->opened_at + options_.descriptor_timeout;
    if (now >= deadline) {
      overdue.push_back(id);
    } else {
      next = std::min(next, deadline);
    }
  }
  const std::string timeout = absl::FormatDuration(options_.descriptor_timeout);
  for (const SessionId id : overdue) {
    const Session& session = *Find(id);
    End(id, "error",
        absl::DeadlineExceededError(
            session.preparing
                ? absl::StrCat("the headers of ", session.terms.shards.size(),
                               " shards were not read within ", timeout,
                               " (descriptor-timeout): their storage does not answer")
                : absl::StrCat("descriptors of ", session.received_count, " of ",
                               session.terms.shards.size(), " shards came within ", timeout)));
  }
  return next;
}

absl::Time SessionRegistry::TellProgress(absl::Time now) {
  // Sessions share checkpoints; each is asked once.
  std::map<const StagedCheckpoint*, StagingProgress> progress_of;
  bool staging = false;
  for (const auto& [id, session] : sessions_) {
    if (session->staged == nullptr || !session->decision.has_value() || session->told_complete ||
        !session->reading) {
      continue;
    }
    const auto [entry, inserted] = progress_of.try_emplace(session->staged.get());
    if (inserted) entry->second = session->staged->progress();
    const StagingProgress& progress = entry->second;
    // Before its first demand a checkpoint has nothing to tell.
    if (progress.wanted_bytes == 0 && !progress.complete) continue;
    staging = staging || !progress.complete;
    if (!progress.complete && now < session->next_progress) continue;
    session->next_progress = now + kProgressPeriod;
    session->told_complete = progress.complete;
    session->listener->OnProgress(progress);
  }
  return staging ? now + kProgressLookPeriod : absl::InfiniteFuture();
}

void SessionRegistry::EndInvalid(SessionId id, absl::string_view what) {
  End(id, "error", absl::InvalidArgumentError(what));
}

void SessionRegistry::End(SessionId id, absl::string_view outcome, const absl::Status& status) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  const std::shared_ptr<Session> session(std::move(found->second));
  sessions_.erase(found);
  tokens_.erase(session->token);
  exit_watch_.Forget(id);
  lending_.Leave(id);
  const auto group = groups_.find(session->group_key);
  StopOpening(*session);
  StopReadingFor(*session);
  group->second->Leave(id);
  if (group->second->empty()) {
    groups_.erase(group);
  } else if (!draining_) {
    // Another rank's checkpoint may be the group's now.
    StartReading(*group->second);
  }
  const absl::Status answer =
      status.ok() ? absl::CancelledError("the client closed the session") : status;
  for (auto& waiter : session->waiters) waiter(answer);
  spdlog::info("session ended group=\"{}\" rank={} pid={} outcome={} status=\"{}\"",
               absl::CEscape(session->terms.group_name), session->terms.local_rank,
               session->peer.pid, std::string(outcome), absl::CEscape(status.ToString()));
  session->listener->OnEnded(status);
  if (observer_ != nullptr) observer_->OnSessionEnded(outcome);
  // Who is replaced has somebody else on his seat already.
  if (session->staged == nullptr && outcome != "replaced" && outcome != "draining") {
    OnRankFailed(session->group_key, session->terms, session->peer.pid,
                 status.ok() ? session->refusal : status.message());
  }
  ReportCounts();
  // Closing files and waiting for lanes block on storage.
  if (session->staged != nullptr) {
    ReleaseFor(session->charge, session->storage,
               std::pair(std::move(session->checkpoint_charge), std::move(session->staged)));
  }
  if (!session->received.empty()) Release(session->charge, std::move(session->received));
}

void SessionRegistry::ReportCounts() {
  if (observer_ == nullptr) return;
  observer_->OnSessionCount(sessions_.size());
  observer_->OnGroupCount(groups_.size());
  if (options_.memory != nullptr) observer_->OnLeasedBytes(options_.memory->leased_bytes());
  uint64_t largest = 0;
  for (const auto& [uid, bytes] : quota_.StagedBytes()) largest = std::max(largest, bytes);
  observer_->OnLargestUserBytes(largest);
}

void SessionRegistry::ReleaseLater(std::shared_ptr<StagedCheckpoint> checkpoint) {
  release_queue_->Submit(WorkOwner{}, [held = std::move(checkpoint)] {});
}

void SessionRegistry::BeginDrain() {
  absl::MutexLock lock(&mutex_);
  if (draining_) return;
  draining_ = true;
  for (const auto& [id, session] : sessions_) session->listener->OnDraining();
}

void SessionRegistry::EndAll() {
  absl::MutexLock lock(&mutex_);
  while (!sessions_.empty()) {
    End(sessions_.begin()->first, "draining", absl::UnavailableError("the daemon is draining"));
  }
}

bool SessionRegistry::WaitUntilIdle(absl::Time deadline) {
  return preparation_queue_->WaitUntilIdle(deadline) && release_queue_->WaitUntilIdle(deadline);
}

bool SessionRegistry::draining() const {
  absl::MutexLock lock(&mutex_);
  return draining_;
}

std::vector<SessionSnapshot> SessionRegistry::Snapshot() const {
  absl::MutexLock lock(&mutex_);
  const absl::Time now = options_.now();
  std::vector<SessionSnapshot> snapshots;
  for (const auto& [id, session] : sessions_) {
    snapshots.push_back({.id = id,
                         .group_name = session->terms.group_name,
                         .launch_nonce = session->terms.launch_nonce,
                         .local_size = session->terms.local_size,
                         .local_rank = session->terms.local_rank,
                         .agreement = session->terms.agreement,
                         .peer = session->peer,
                         .checkpoint = session->staged.get(),
                         .decision = session->decision,
                         .age = now - session->opened_at,
                         .consumed_bytes = session->consumed_bytes,
                         .major_faults = session->major_faults});
  }
  return snapshots;
}

}  // namespace forestage
