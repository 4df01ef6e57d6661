#include "tests/model/daemon_model.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include <sys/eventfd.h>
#include <sys/stat.h>

#include "checkpoint/catalog.h"
#include "common/board_protocol.h"
#include "common/check.h"
#include "common/units.h"

namespace forestage {
namespace {

constexpr size_t kSessionsMax = 10;
constexpr size_t kSessionsPerUserMax = 10;
constexpr size_t kDescriptorsPerUserMax = 64;
constexpr size_t kLanesMax = 2;
constexpr size_t kProcessesMax = 16;
constexpr absl::Duration kAgreementTimeout = absl::Seconds(20);
constexpr absl::Duration kDescriptorTimeout = absl::Seconds(30);
// Of the model's node, in MemAvailable, where the headroom ends.
constexpr uint64_t kNodeBytes = 100 * kGiB;
constexpr uint64_t kHeadroomBytes = 10 * kGiB;
constexpr uint64_t kPlentyBytes = 50 * kGiB;

// How sessions end that did nothing wrong.
constexpr absl::string_view kEndOfDrain = "the daemon is draining";

std::string NameOf(const ModelRank& rank) { return absl::StrCat("rank ", rank.number); }

}  // namespace

// What a rank sends on its session's stream.
class DaemonModel::Link : public DaemonSession {
 public:
  Link(DaemonModel& model, ModelRank& rank) : model_(model), rank_(rank) {}
  void SendDemand(absl::Span<const DemandedBytes>) override {}
  void SendUrgent(absl::Span<const uint64_t> extent_indexes) override {
    if (rank_.lives()) model_.registry_->AddUrgent(rank_.id, extent_indexes);
  }
  void SendConsumed(uint32_t) override {}
  absl::StatusOr<StagingStatus> GetProgress(absl::Time) override {
    return absl::UnimplementedError("GetProgress");
  }
  void Close() override {}

 private:
  DaemonModel& model_;
  ModelRank& rank_;
};

class DaemonModel::Listener : public SessionListener {
 public:
  Listener(DaemonModel& model, ModelRank& rank) : model_(model), rank_(rank) {}
  void OnOpened(const SessionToken& token) override { model_.OnOpened(rank_, token); }
  void OnCheckpoint(const CheckpointSummary& summary) override {
    model_.OnCheckpoint(rank_, summary);
  }
  void OnDecision(const SessionDecision& decision) override { model_.OnDecision(rank_, decision); }
  void OnProgress(const StagingProgress& progress) override { model_.OnProgress(rank_, progress); }
  void OnDraining() override { model_.OnDraining(rank_); }
  void OnEnded(const absl::Status& status) override { model_.OnEnded(rank_, status); }

 private:
  DaemonModel& model_;
  ModelRank& rank_;
};

std::shared_ptr<SessionListener> DaemonModel::ListenerFor(ModelRank& rank) {
  return std::make_shared<Listener>(*this, rank);
}

DaemonModel::DaemonModel(const Options& options, World& world, Coverage& coverage)
    : options_(options),
      world_(world),
      coverage_(coverage),
      random_(options.seed),
      storage_(options.mistake == Mistake::kLaneMissesItsWake) {
  world_.files.Restore();
  SetMemory(kPlentyBytes);
  const uint64_t factors[] = {0, 1, 1, 3};
  for (const Event& event : Events()) {
    const uint64_t factor = event.weight >= 20 ? 1 : factors[random_.Below(4)];
    const bool happens = !options_.without.contains(std::string(event.name));
    weights_.push_back(happens ? event.weight * factor : 0);
  }
  // So little that few reads are in flight at a time, in most runs.
  const uint64_t extents[] = {1, 2, 3, 64};
  in_flight_bytes_max_ = extents[random_.Below(4)] * ModelFiles::kExtentBytes;
  StartDaemon();
}

DaemonModel::~DaemonModel() { StopDaemon(); }

DaemonModel::Outcome DaemonModel::Play() {
  for (size_t i = 0; i < options_.events_max && outcome_.violation.empty(); ++i) {
    RunOneEvent(/*meanwhile=*/false);
    CheckAll();
  }
  if (outcome_.violation.empty()) Settle();
  if (outcome_.violation.empty()) EndEverything();
  StopDaemon();
  if (outcome_.violation.empty()) CheckBoards();
  Expect(storage_.lanes() == 0, "lanes outlive their checkpoints");
  return outcome_;
}

void DaemonModel::Note(const std::string& line) {
  outcome_.trace.push_back(absl::StrCat(within_event_ ? "    meanwhile: " : "", line));
  if (options_.says_trace) std::fprintf(stderr, "%s\n", outcome_.trace.back().c_str());
}

void DaemonModel::Violate(const std::string& what) {
  if (!outcome_.violation.empty()) return;
  outcome_.violation = what;
  outcome_.trace.push_back("VIOLATION: " + what);
}

void DaemonModel::SetMemory(uint64_t bytes) {
  world_.memory_root.Write("proc/meminfo",
                           absl::StrCat("MemTotal: ", kNodeBytes / kKiB, " kB\nMemAvailable: ",
                                        (kHeadroomBytes + bytes) / kKiB, " kB\n"));
}

void DaemonModel::StartDaemon() {
  drain_steps_ = 0;
  failures_.clear();
  ledger_ = std::make_unique<MemoryLedger>(MemoryBudget::Options{
      .root = world_.memory_root.path(), .headroom = {}, .limit_bytes = kNoMemoryLimit});
  absl::StatusOr<std::unique_ptr<StripedCheckpointStore>> store = StripedCheckpointStore::Create(
      {.extent_bytes = ModelFiles::kExtentBytes,
       .lanes_max = kLanesMax,
       .in_flight_bytes_max = in_flight_bytes_max_,
       .node_in_flight_bytes_max = 2 * in_flight_bytes_max_,
       .observer = &storage_,
       .reader = {.name = "model", .reason = "model", .make_reader = storage_.MakeFactory()}});
  CHECK(store.ok());
  store_ = std::make_unique<ModelStore>(
      *std::move(store), storage_,
      ModelStore::Hooks{
          .meanwhile = [this] { Meanwhile(); },
          .on_built = [this](const ModelCheckpoint& checkpoint) { OnBuilt(checkpoint); },
          .on_shared = [this] { Count("shared"); }},
      options_.mistake == Mistake::kCheckpointForgetsToRemoveSessions);
  Expect(generations_.insert(store_->generation()).second, "two daemons have one generation");
  auto exit_watch = ExitWatch::Create();
  CHECK(exit_watch.ok());
  exit_watch_ = *std::move(exit_watch);
  const auto make_queue = [this](const WorkLimits&) {
    // The registry makes the one for releases first.
    ModelQueue*& place = releases_ == nullptr ? releases_ : preparations_;
    auto queue = std::make_unique<ModelQueue>([&place] { place = nullptr; });
    place = queue.get();
    return queue;
  };
  registry_ = std::make_unique<SessionRegistry>(
      SessionRegistry::Options{.sessions_max = kSessionsMax,
                               .sessions_per_user_max = kSessionsPerUserMax,
                               .descriptors_per_user_max = kDescriptorsPerUserMax,
                               .lanes_max = kLanesMax,
                               .agreement_timeout = kAgreementTimeout,
                               .descriptor_timeout = kDescriptorTimeout,
                               .now = [this] { return now_; },
                               .memory = ledger_.get(),
                               .make_work_queue = make_queue},
      *store_, *exit_watch_, nullptr);
}

void DaemonModel::StopDaemon() {
  if (registry_ == nullptr) return;
  stopping_daemon_ = true;
  kept_.clear();
  registry_.reset();
  stopping_daemon_ = false;
  for (const ModelRank& rank : ranks_) Expect(!rank.lives(), NameOf(rank) + " outlives its daemon");
  Expect(ledger_->leased_bytes() == 0, "memory is leased when the daemon has ended");
  Expect(store_->alive().empty(), "a checkpoint outlives the sessions of its daemon");
  exit_watch_.reset();
  store_.reset();
  ledger_.reset();
}

void DaemonModel::OnBuilt(const ModelCheckpoint& checkpoint) {
  ModelBoardWatch board;
  board.epoch = checkpoint.epoch();
  const UniqueFd fd(fcntl(checkpoint.board_fd(), F_DUPFD_CLOEXEC, 0));
  struct stat attributes = {};
  CHECK(fd.valid() && fstat(fd.get(), &attributes) == 0);
  board.inode = attributes.st_ino;
  absl::StatusOr<std::unique_ptr<StagingBoardView>> view = StagingBoardView::Map(fd);
  CHECK(view.ok());
  board.view = *std::move(view);
  absl::StatusOr<FileMapping> mapping =
      FileMapping::MapReadOnly(fd.get(), static_cast<size_t>(attributes.st_size));
  CHECK(mapping.ok());
  board.mapping = *std::move(mapping);
  const ExtentMap& extents = checkpoint.extents();
  for (uint64_t index = 0; index < extents.extent_count(); ++index) {
    const Extent extent = extents.extent(index);
    board.places.push_back(
        {.file = std::string(checkpoint.catalog().shard(extent.shard_index).name),
         .begin = extent.offset,
         .end = extent.offset + extent.bytes});
  }
  board.states.assign(extents.extent_count(), ExtentState::kAbsent);
  Expect(board.view->generation() == store_->generation(), "a board of another daemon");
  boards_.push_back(std::move(board));
  Count("checkpoint built");
}

void DaemonModel::Meanwhile() {
  if (stopping_daemon_ || within_event_) return;
  within_event_ = true;
  for (uint64_t i = random_.Below(3); i > 0 && outcome_.violation.empty(); --i) {
    RunOneEvent(/*meanwhile=*/true);
  }
  within_event_ = false;
}

// What the daemon says.

void DaemonModel::OnOpened(ModelRank& rank, const SessionToken& token) {
  Expect(!rank.token.has_value(), NameOf(rank) + " is told of its open twice");
  rank.token = token;
}

void DaemonModel::OnCheckpoint(ModelRank& rank, const CheckpointSummary& summary) {
  Note(NameOf(rank) + " is ready");
  Count("ready");
  Expect(rank.token.has_value() && !rank.ended.has_value() && !rank.ready.has_value(),
         NameOf(rank) + " is told of its checkpoint out of order");
  rank.ready = summary;
  // Ranks see one checkpoint if, and only if, they have the same files.
  std::string files;
  for (const ShardTerms& shard : rank.terms.shards) {
    absl::StrAppend(&files, shard.name, " ", shard.mtime_ns, ";");
  }
  const auto of_files = signatures_.try_emplace(files, summary.signature);
  Expect(of_files.first->second == summary.signature, "the same files have two signatures");
  for (const auto& [others, signature] : signatures_) {
    Expect(others == files || signature != summary.signature, "two checkpoints have one signature");
  }
}

void DaemonModel::OnDecision(ModelRank& rank, const SessionDecision& decision) {
  Note(absl::StrCat(NameOf(rank), " gets ", SessionPolicyName(decision.effective), ": ",
                    ReasonClassName(decision.reason_class)));
  Count(absl::StrCat("decision ", ReasonClassName(decision.reason_class)));
  Expect(rank.ready.has_value() && !rank.ended.has_value(),
         NameOf(rank) + " is told a decision out of order");
  Expect(!rank.decision.has_value(), NameOf(rank) + " is told two decisions");
  CheckDecision(rank, decision);
  rank.decision = decision;
}

void DaemonModel::OnProgress(ModelRank& rank, const StagingProgress& progress) {
  Expect(rank.token.has_value() && !rank.ended.has_value(),
         NameOf(rank) + " is told of progress out of order");
  Expect(progress.resident_bytes + progress.failed_bytes <= progress.wanted_bytes,
         "more is read than is wanted");
  Count(progress.complete ? "told complete" : "told progress");
}

void DaemonModel::OnDraining(ModelRank& rank) {
  Expect(rank.token.has_value() && !rank.ended.has_value() && !rank.told_draining,
         NameOf(rank) + " is told of the drain out of order");
  rank.told_draining = true;
}

void DaemonModel::OnEnded(ModelRank& rank, const absl::Status& status) {
  Note(absl::StrCat(NameOf(rank), " has ended: ", status.ToString().substr(0, 60)));
  Count(absl::StrCat("ended ", absl::StatusCodeToString(status.code())));
  Expect(rank.token.has_value(), NameOf(rank) + " has ended before it was opened");
  Expect(!rank.ended.has_value(), NameOf(rank) + " has ended twice");
  Expect(rank.deliveries_asked == rank.deliveries_answered,
         NameOf(rank) + " has ended, and who waits for its descriptors is not told");
  rank.ended = status;
  rank.loss->Lose("the session has ended");
  if (rank.group == nullptr) return;
  rank.group->members.erase(&rank);
  if (!rank.ready.has_value() && !opening_ && status.message() != kEndOfDrain) {
    OnRankFailed(rank.terms, rank.group_key);
  }
  if (rank.group->members.empty()) groups_.erase(rank.group_key);
}

void DaemonModel::OnDelivery(ModelRank& rank, absl::StatusOr<SessionDelivery> delivery) {
  ++rank.deliveries_answered;
  if (!delivery.ok()) {
    Count("delivery refused");
    return;
  }
  Expect(rank.ready.has_value() && !rank.ended.has_value(),
         NameOf(rank) + " gets descriptors out of order");
  if (rank.extents != nullptr) return;
  struct stat attributes = {};
  CHECK(fstat(delivery->board.get(), &attributes) == 0);
  for (const ModelBoardWatch& board : boards_) {
    if (board.inode == attributes.st_ino) rank.board = &board;
  }
  absl::StatusOr<std::unique_ptr<StagingBoardView>> view = StagingBoardView::Map(delivery->board);
  if (rank.board == nullptr || !view.ok()) return Violate("a board that nobody made is delivered");
  rank.link = std::make_unique<Link>(*this, rank);
  auto extents = StagedExtents::Create({.board = *std::move(view),
                                        .shard_bytes = rank.shard_bytes,
                                        .daemon = rank.link.get(),
                                        .loss = rank.loss});
  if (!extents.ok()) return Violate("the board does not fit the rank's files");
  rank.extents = *std::move(extents);
  Count("delivered");
}

// Events.

const std::vector<DaemonModel::Event>& DaemonModel::Events() {
  static const auto* const events = new std::vector<Event>{
      {"open", 30, &DaemonModel::Open, true},
      {"send descriptors", 60, &DaemonModel::Send, true},
      {"ask for delivery", 30, &DaemonModel::AskForDelivery, true},
      {"demand", 20, &DaemonModel::Demand, true},
      {"use", 40, &DaemonModel::Use, true},
      {"begin to wait", 12, &DaemonModel::BeginWait, true},
      {"wait on", 12, &DaemonModel::StepWait, true},
      {"consume", 2, &DaemonModel::Consume, true},
      {"ask for progress", 3, &DaemonModel::AskForProgress, true},
      {"close", 4, &DaemonModel::Close, true},
      {"reject", 1, &DaemonModel::Reject, true},
      {"kill", 4, &DaemonModel::Kill, true},
      {"end stream", 4, &DaemonModel::EndStream, true},
      {"session loop", 20, &DaemonModel::StepLoop, true},
      {"time", 6, &DaemonModel::PassTime, true},
      {"prepare", 50, &DaemonModel::Prepare},
      {"release", 20, &DaemonModel::Release},
      {"lane", 70, &DaemonModel::RunLane, true},
      {"read ends", 50, &DaemonModel::EndRead, true},
      {"file changes", 1, &DaemonModel::ChangeFile, true},
      {"memory changes", 3, &DaemonModel::ChangeMemory, true},
      {"readers refused", 1, &DaemonModel::ChangeReaders},
      {"drain", 2, &DaemonModel::Drain, true},
      {"crash", 1, &DaemonModel::Crash},
  };
  return *events;
}

std::vector<std::string> DaemonModel::EventNames() {
  std::vector<std::string> names;
  for (const Event& event : Events()) names.emplace_back(event.name);
  return names;
}

void DaemonModel::RunOneEvent(bool meanwhile) {
  const std::vector<Event>& events = Events();
  uint64_t sum = 0;
  for (size_t i = 0; i < events.size(); ++i) {
    if (!meanwhile || events[i].meanwhile) sum += weights_[i];
  }
  if (sum == 0) return;
  uint64_t drawn = random_.Below(sum);
  for (size_t i = 0; i < events.size(); ++i) {
    if (meanwhile && !events[i].meanwhile) continue;
    if (drawn < weights_[i]) return (this->*events[i].run)();
    drawn -= weights_[i];
  }
}

ModelRank* DaemonModel::SomeRank(Wanted wanted) {
  std::vector<ModelRank*> found;
  for (ModelRank& rank : ranks_) {
    if (wanted(rank)) found.push_back(&rank);
  }
  return found.empty() ? nullptr : found[random_.Below(found.size())];
}

ModelProcess& DaemonModel::SomeProcess() {
  if (processes_.size() >= kProcessesMax || (!processes_.empty() && random_.OneIn(3))) {
    std::vector<ModelProcess*> alive;
    for (ModelProcess& process : processes_) {
      if (process.alive) alive.push_back(&process);
    }
    if (!alive.empty()) return *alive[random_.Below(alive.size())];
  }
  const uint64_t number = processes_.size() + 1;
  ModelProcess process;
  process.number = number;
  process.peer = {.pid = static_cast<pid_t>(1000 + number),
                  .uid = static_cast<uid_t>(random_.Below(2)),
                  .gid = 0,
                  .pidfd = nullptr};
  if (!random_.OneIn(6)) {
    const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    CHECK(fd >= 0);
    process.peer.pidfd = std::make_shared<const UniqueFd>(fd);
  }
  processes_.push_back(std::move(process));
  return processes_.back();
}

SessionTerms DaemonModel::SomeTerms(size_t path) {
  const SessionPolicy policies[] = {SessionPolicy::kAuto, SessionPolicy::kAuto,
                                    SessionPolicy::kRankStripedReadAhead, SessionPolicy::kNative};
  SessionTerms terms;
  const uint64_t group = random_.Below(3);
  terms.group_name = absl::StrCat("g", group);
  terms.launch_nonce = random_.OneIn(4) ? "again" : "first";
  terms.path = absl::StrCat("/m/", path);
  // A group's ranks agree on these, mostly.
  terms.local_size = static_cast<uint32_t>(1 + (options_.seed + group) % 3);
  terms.agreement =
      (options_.seed / 3 + group) % 2 == 0 ? SessionAgreement::kEager : SessionAgreement::kStrict;
  if (random_.OneIn(24)) terms.local_size = 2;
  if (random_.OneIn(24)) terms.agreement = SessionAgreement::kStrict;
  terms.local_rank = static_cast<uint32_t>(random_.Below(terms.local_size));
  terms.policy = policies[random_.Below(4)];
  if (random_.OneIn(2)) terms.agreement_timeout = absl::Seconds(5 + 10 * random_.Below(3));
  terms.demand_follows = random_.OneIn(2);
  return terms;
}

const ModelRank* DaemonModel::HolderOf(const ModelRank& rank, const std::string& key) const {
  const auto found = groups_.find(key);
  if (found == groups_.end()) return nullptr;
  for (const ModelRank* member : found->second->members) {
    if (member->terms.local_rank == rank.terms.local_rank) return member;
  }
  return nullptr;
}

size_t DaemonModel::UsersSessions(const ModelRank& rank) const {
  const auto is_users = [&rank](const ModelRank& other) {
    return other.lives() && other.process->peer.uid == rank.process->peer.uid;
  };
  return static_cast<size_t>(absl::c_count_if(ranks_, is_users)) + preparations_->held() +
         releases_->held();
}

absl::StatusCode DaemonModel::ExpectedOfOpen(const ModelRank& rank, const std::string& key) const {
  if (registry_->draining()) return absl::StatusCode::kUnavailable;
  const auto lives = [](const ModelRank& other) { return other.lives(); };
  size_t living = static_cast<size_t>(absl::c_count_if(ranks_, lives));
  const auto found = groups_.find(key);
  const ModelRank* holder = HolderOf(rank, key);
  size_t members = 0;
  if (found != groups_.end()) {
    members = found->second->members.size();
    if (holder != nullptr && !holder->process->alive && holder->process->peer.pidfd != nullptr) {
      holder = nullptr;
      --members;
      --living;
    }
  }
  if (living >= kSessionsMax) return absl::StatusCode::kResourceExhausted;
  if (members == 0) return absl::StatusCode::kOk;
  if (found->second->local_size != rank.terms.local_size ||
      found->second->agreement != rank.terms.agreement) {
    return absl::StatusCode::kInvalidArgument;
  }
  return holder != nullptr ? absl::StatusCode::kAlreadyExists : absl::StatusCode::kOk;
}

void DaemonModel::JoinGroup(ModelRank& rank, const std::string& key) {
  std::shared_ptr<ModelGroup>& group = groups_[key];
  if (group == nullptr) {
    const absl::Duration timeout = rank.terms.agreement_timeout > absl::ZeroDuration()
                                       ? rank.terms.agreement_timeout
                                       : kAgreementTimeout;
    group = std::make_shared<ModelGroup>();
    group->local_size = rank.terms.local_size;
    group->agreement = rank.terms.agreement;
    group->deadline = now_ + timeout;
    group->first_wish = rank.terms.policy;
    const auto failure = failures_.find(key);
    if (group->agreement == SessionAgreement::kStrict && failure != failures_.end() &&
        now_ < failure->second.at + kRankFailureKept &&
        failure->second.local_size == group->local_size) {
      group->failed = failure->second.local_rank != rank.terms.local_rank;
      if (group->failed) {
        Count("failed before it came");
      } else {
        failures_.erase(failure);
      }
    }
  }
  group->members.insert(&rank);
  rank.group = group;
  rank.group_key = key;
}

void DaemonModel::OnRankFailed(const SessionTerms& terms, const std::string& key) {
  if (terms.agreement != SessionAgreement::kStrict || terms.local_size == 1) return;
  failures_[key] = {.local_rank = terms.local_rank, .local_size = terms.local_size, .at = now_};
  const auto found = groups_.find(key);
  if (found == groups_.end()) return;
  ModelGroup& group = *found->second;
  if (group.agreement != SessionAgreement::kStrict || group.local_size != terms.local_size) return;
  if (!group.decided) Count("failed before the decision");
  group.failed = group.failed || !group.decided;
}

void DaemonModel::Open() {
  // A drain goes on soon, or nothing else would happen.
  if (drain_steps_ > 0 && random_.OneIn(2)) return Drain();
  const size_t path = random_.Below(2);
  ranks_.emplace_back();
  ModelRank& rank = ranks_.back();
  rank.number = ranks_.size();
  rank.process = &SomeProcess();
  rank.terms = SomeTerms(path);
  rank.checkpoint = random_.OneIn(16) ? ModelFiles::kDamaged : random_.OneIn(8) ? 1 - path : path;
  rank.files = world_.files.Open(rank.checkpoint);
  for (const ModelFiles::Shard& shard : rank.files) {
    rank.shard_bytes.push_back(shard.bytes);
    rank.terms.shards.push_back(
        {.name = shard.name, .size_bytes = shard.bytes, .mtime_ns = shard.mtime_ns});
  }
  const std::string key =
      absl::StrCat(rank.terms.group_name, "|", rank.terms.launch_nonce, "|", rank.terms.path);
  const absl::StatusCode expected = ExpectedOfOpen(rank, key);
  Note(absl::StrCat("open rank ", rank.number, " process ", rank.process->number, " group ", key,
                    " ", rank.terms.local_rank, "/", rank.terms.local_size, " ",
                    SessionAgreementName(rank.terms.agreement), " ",
                    SessionPolicyName(rank.terms.policy), " checkpoint ", rank.checkpoint,
                    rank.terms.demand_follows ? " demand follows" : ""));
  const bool had_holder = HolderOf(rank, key) != nullptr;
  opening_ = true;
  const absl::StatusOr<SessionId> id =
      registry_->Open(rank.terms, rank.process->peer, ListenerFor(rank));
  opening_ = false;
  const bool decided = std::exchange(decided_while_opening_, false);
  Expect(!decided || absl::IsResourceExhausted(id.status()),
         "an open that is not refused decides for others");
  if (absl::IsResourceExhausted(id.status())) OnRankFailed(rank.terms, key);
  Count(absl::StrCat("open ", absl::StatusCodeToString(id.status().code())));
  if (id.ok() && had_holder) Count("replaced");
  // Sessions that have ended count for their user until their files are let go of.
  const bool share_used_up =
      absl::IsResourceExhausted(id.status()) && UsersSessions(rank) >= kSessionsPerUserMax;
  if (id.status().code() != expected && !share_used_up) {
    Violate(absl::StrCat("open answers ", id.status().ToString(), ", expected ",
                         absl::StatusCodeToString(expected)));
  }
  if (!id.ok()) {
    Expect(!rank.token.has_value(), "a session that is refused is told that it is open");
    rank.files.clear();
    return;
  }
  rank.id = *id;
  rank.ready_deadline = now_ + kDescriptorTimeout;
  JoinGroup(rank, key);
}

void DaemonModel::Send() {
  ModelRank* const rank =
      SomeRank([](const ModelRank& one) { return one.acts() && one.sent < one.files.size(); });
  if (rank == nullptr) return;
  const size_t count = 1 + random_.Below(rank->files.size() - rank->sent);
  if (random_.OneIn(30)) {
    const auto wrong =
        registry_->AdmitShards(rank->id, static_cast<uint32_t>(rank->sent + 1), count);
    Expect(absl::IsInvalidArgument(wrong.status()), "a gap in descriptors is admitted");
    return;
  }
  auto charge = registry_->AdmitShards(rank->id, static_cast<uint32_t>(rank->sent), count);
  if (absl::IsResourceExhausted(charge.status())) return Count("descriptors refused");
  if (!charge.ok()) return Violate("descriptors in order are refused");
  std::vector<UniqueFd> descriptors;
  for (size_t i = rank->sent; i < rank->sent + count; ++i) {
    descriptors.push_back(std::move(rank->files[i].fd));
  }
  if (random_.OneIn(60)) {
    Note(NameOf(*rank) + " sends what it did not announce");
    registry_->RefuseShards(rank->id, std::move(descriptors), *std::move(charge), "wrong");
    Expect(!rank->lives(), "a session survives a broken request");
    return;
  }
  Note(absl::StrCat(NameOf(*rank), " sends ", count));
  const absl::StatusOr<uint32_t> held = registry_->AddShards(
      rank->id, static_cast<uint32_t>(rank->sent), std::move(descriptors), *std::move(charge));
  rank->sent += count;
  if (!held.ok() || *held != rank->sent) return Violate("descriptors are not counted");
  if (rank->sent == rank->files.size()) rank->ready_deadline = now_ + kDescriptorTimeout;
}

void DaemonModel::AskForDelivery() {
  ModelRank* const rank = SomeRank([](const ModelRank& one) {
    return one.acts() && one.extents == nullptr && one.deliveries_asked < 6;
  });
  if (rank == nullptr) return;
  ++rank->deliveries_asked;
  registry_->WhenReady(rank->id, [this, rank](absl::StatusOr<SessionDelivery> delivery) {
    OnDelivery(*rank, std::move(delivery));
  });
}

void DaemonModel::Demand() {
  ModelRank* const rank =
      SomeRank([](const ModelRank& one) { return one.acts() && one.ready.has_value(); });
  if (rank == nullptr) return;
  std::vector<DemandItem> items;
  for (uint64_t i = random_.Below(3); i > 0; --i) {
    DemandItem item = {.tensor_index =
                           static_cast<uint32_t>(random_.Below(rank->ready->tensor_count))};
    if (random_.OneIn(2)) item.end = random_.Below(100);
    items.push_back(item);
  }
  if (random_.OneIn(40)) items.push_back({.tensor_index = 1000});
  Note(absl::StrCat(NameOf(*rank), " demands ", items.size()));
  Count("demand");
  registry_->AddDemand(rank->id, items);
}

void DaemonModel::Use() {
  ModelRank* const rank = SomeRank([](const ModelRank& one) {
    return one.process != nullptr && one.process->alive && one.extents != nullptr &&
           one.decision.has_value() &&
           one.decision->effective == SessionPolicy::kRankStripedReadAhead;
  });
  if (rank != nullptr) UseExtent(*rank, random_.Below(rank->board->places.size()));
}

// One look of a rank that wants these bytes, by the client's own rules.
void DaemonModel::UseExtent(ModelRank& rank, uint64_t index) {
  const ModelBoardWatch::Place& place = rank.board->places[index];
  const auto shard = absl::c_find_if(
      rank.files, [&place](const ModelFiles::Shard& file) { return file.name == place.file; });
  CHECK(shard != rank.files.end());
  const absl::StatusOr<Reader> reader =
      rank.extents->Wait(static_cast<uint32_t>(shard - rank.files.begin()), place.begin, place.end,
                         random_.OneIn(2) ? shard->bytes : place.end, absl::InfinitePast());
  if (!reader.ok()) {
    Expect(rank.loss->closed() ? absl::IsFailedPrecondition(reader.status())
                               : absl::IsDeadlineExceeded(reader.status()),
           "a wait ends with another error");
    Count("used later");
  } else if (*reader == Reader::kDaemon) {
    Count("used");
    CheckDemandedPages(*rank.board, index, rank.id);
  } else {
    Count("read by itself");
    Expect(rank.loss->lost() ||
               storage_.HasFailed(rank.board->epoch, place.file, place.begin, place.end),
           absl::StrCat(NameOf(rank), " reads extent ", index, " by itself for no reason"));
  }
}

void DaemonModel::BeginWait() {
  ModelRank* const rank = SomeRank([](const ModelRank& one) {
    return one.extents != nullptr && one.process->alive && one.waits.size() < 2;
  });
  if (rank == nullptr) return;
  ModelWait wait = {.extent = random_.Below(rank->board->places.size())};
  wait.seen = rank->board->change_count();
  wait.looked = options_.mistake == Mistake::kWaiterLooksBeforeItCounts &&
                !IsSettled(rank->board->view->state(wait.extent)) && !rank->board->view->closed();
  rank->waits.push_back(wait);
}

void DaemonModel::StepWait() {
  ModelRank* const rank =
      SomeRank([](const ModelRank& one) { return !one.waits.empty() && one.process->alive; });
  if (rank == nullptr) return;
  const size_t which = random_.Below(rank->waits.size());
  ModelWait& wait = rank->waits[which];
  const ModelBoardWatch& board = *rank->board;
  if (wait.asleep) {
    if (board.change_count() == wait.seen) return;
    wait = {.extent = wait.extent, .seen = board.change_count(), .asleep = false};
    Count("woken");
    return;
  }
  if (wait.looked) {
    wait = {.extent = wait.extent, .seen = board.change_count(), .asleep = true};
    return;
  }
  if (IsSettled(board.view->state(wait.extent)) || board.view->closed()) {
    Count("wait ended");
    rank->waits.erase(rank->waits.begin() + static_cast<std::ptrdiff_t>(which));
    return;
  }
  // The kernel compares at the moment of going to sleep.
  wait.asleep = board.change_count() == wait.seen;
  if (!wait.asleep) wait.seen = board.change_count();
}

void DaemonModel::Consume() {
  ModelRank* const rank =
      SomeRank([](const ModelRank& one) { return one.acts() && one.ready.has_value(); });
  if (rank == nullptr) return;
  const auto tensor = static_cast<uint32_t>(random_.Below(rank->ready->tensor_count));
  registry_->MarkConsumed(rank->id, {&tensor, 1});
}

void DaemonModel::AskForProgress() {
  ModelRank* const rank = SomeRank([](const ModelRank& one) { return one.acts(); });
  if (rank != nullptr) registry_->RequestProgress(rank->id, random_.Below(100));
}

void DaemonModel::Close() {
  ModelRank* const rank = SomeRank([](const ModelRank& one) { return one.acts(); });
  if (rank == nullptr) return;
  Note(NameOf(*rank) + " closes");
  rank->loss->Close();
  registry_->Close(rank->id);
  Expect(!rank->lives(), "a closed session lives on");
}

void DaemonModel::Reject() {
  ModelRank* const rank = SomeRank([](const ModelRank& one) { return one.acts(); });
  if (rank == nullptr) return;
  Note(NameOf(*rank) + " breaks the protocol");
  registry_->Reject(rank->id, "wrong");
  Expect(!rank->lives(), "a session survives a broken request");
}

void DaemonModel::Kill() {
  std::vector<ModelProcess*> alive;
  for (ModelProcess& process : processes_) {
    if (process.alive) alive.push_back(&process);
  }
  if (alive.empty()) return;
  ModelProcess& process = *alive[random_.Below(alive.size())];
  Note(absl::StrCat("process ", process.number, " dies"));
  Count("process died");
  process.alive = false;
  if (process.peer.pidfd == nullptr) return;
  const uint64_t one = 1;
  CHECK(write(process.peer.pidfd->get(), &one, sizeof(one)) == sizeof(one));
}

void DaemonModel::EndStream() {
  ModelRank* const rank =
      SomeRank([](const ModelRank& one) { return one.lives() && !one.process->alive; });
  if (rank == nullptr) return;
  Note(NameOf(*rank) + "'s stream ends");
  registry_->Close(rank->id);
}

// What SessionLoop does.
void DaemonModel::StepLoop() {
  for (const SessionId session : exit_watch_->Wait(absl::InfinitePast())) {
    Count("exit seen");
    registry_->OnProcessExit(session);
  }
  const absl::Time next = registry_->Tick();
  for (const ModelRank& rank : ranks_) {
    if (!rank.lives()) continue;
    if (!rank.ready.has_value()) {
      Expect(now_ < rank.ready_deadline, NameOf(rank) + " is not ended at its deadline");
      Expect(next <= rank.ready_deadline, "the loop would sleep beyond a session's deadline");
    } else if (!rank.decision.has_value()) {
      Expect(now_ < rank.group->deadline, NameOf(rank) + " is not told at the group's deadline");
      Expect(next <= rank.group->deadline, "the loop would sleep beyond a group's deadline");
    }
  }
}

void DaemonModel::PassTime() {
  now_ += absl::Milliseconds(random_.OneIn(4) ? random_.Below(40'000) : random_.Below(1000));
}

void DaemonModel::Prepare() {
  if (preparations_->size() == 0) return;
  Note("prepare");
  preparations_->Run(random_.Below(preparations_->size()));
}

void DaemonModel::Release() {
  if (options_.mistake == Mistake::kSomebodyKeepsACheckpoint && kept_.empty()) {
    kept_ = store_->List();
  }
  if (releases_->size() == 0) return;
  Note("release");
  releases_->Run(random_.Below(releases_->size()));
}

void DaemonModel::RunLane() {
  const std::vector<ModelStorage::LaneName> runnable = storage_.Runnable();
  if (runnable.empty()) return;
  const ModelStorage::LaneName lane = runnable[random_.Below(runnable.size())];
  const bool stop_halfway = random_.OneIn(3);
  Note(absl::StrCat("lane ", lane.index, " of checkpoint #", lane.epoch, " runs",
                    stop_halfway ? ", halfway" : ""));
  storage_.Run(lane, stop_halfway);
  if (storage_.IsHalfway(lane)) Count("stopped halfway");
}

void DaemonModel::EndRead() {
  const std::vector<ModelStorage::Read> reads = storage_.Reads();
  if (reads.empty()) return;
  const ModelStorage::Read& read = reads[random_.Below(reads.size())];
  absl::Status status;
  if (random_.OneIn(8)) status = absl::UnavailableError(read.file + ": Input/output error");
  if (random_.OneIn(24)) status = absl::OutOfRangeError(read.file + ": the file ends");
  const bool lies = options_.mistake == Mistake::kReaderLies && random_.OneIn(4);
  Note(absl::StrCat("read ", read.id, " of ", read.file, " at ", read.ranges.front().begin,
                    " ends: ", absl::StatusCodeToString(status.code())));
  Count(absl::StrCat("read ", absl::StatusCodeToString(status.code())));
  storage_.End(read.id, status, lies);
}

void DaemonModel::ChangeFile() {
  const size_t checkpoint = random_.Below(2);
  const size_t shard = random_.Below(world_.files.ShardCount(checkpoint));
  Note("file changes: " + world_.files.Name(checkpoint, shard));
  Count("file changed");
  world_.files.Change(checkpoint, shard);
  storage_.OnFileChanged(world_.files.Name(checkpoint, shard));
}

void DaemonModel::ChangeMemory() {
  const uint64_t choices[] = {0, 40 * kKiB, 100 * kKiB, kPlentyBytes};
  const uint64_t bytes = choices[random_.Below(4)];
  Note(absl::StrCat("memory: ", bytes));
  memory_was_plenty_ = false;
  SetMemory(bytes);
}

void DaemonModel::ChangeReaders() {
  const bool refuse = random_.OneIn(3);
  Note(refuse ? "readers are refused" : "readers are given");
  storage_.RefuseReaders(refuse);
}

// As the server does it, with all else in between.
void DaemonModel::Drain() {
  ++drain_steps_;
  Note(absl::StrCat("drain, step ", drain_steps_));
  if (drain_steps_ == 1) {
    registry_->BeginDrain();
  } else if (drain_steps_ == 2) {
    store_->Stop();
  } else if (drain_steps_ == 3) {
    registry_->EndAll();
    for (const ModelRank& rank : ranks_) {
      Expect(!rank.lives(), NameOf(rank) + " outlives the drain");
    }
  } else if (!within_event_) {
    Count("drained");
    StopDaemon();
    StartDaemon();
  }
}

void DaemonModel::Crash() {
  if (!random_.OneIn(3)) return;
  Note("the daemon is gone and comes again");
  Count("restarted");
  StopDaemon();
  StartDaemon();
}

}  // namespace forestage
