#include "client/src/load_session.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/src/shard_reader.h"
#include "client/src/slice_state.h"

#include "common/cached_bytes.h"
#include "common/check.h"
#include "common/error_list.h"
#include "common/file_system_magic.h"
#include "common/socket_path.h"
#include "common/status_macros.h"

namespace forestage {
namespace {

// How often WaitUntilStaged asks the daemon.
constexpr absl::Duration kProgressPeriod = absl::Milliseconds(250);
constexpr absl::Duration kSettledPause = absl::Milliseconds(10);
// How often the daemon is asked whether it has seen the demand, where the board shows as resident
// what is not in memory: what it says by itself meanwhile looks like an answer to the first
// question.
constexpr int kDemandQuestionsMax = 2;

// Threads that bring in blocks for ranks that read by themselves: of all ranks of a node together,
// and of each. One has 2 MiB in flight, and 16 of them as much as the window of read-ahead.
constexpr size_t kFillThreadsOfNode = 32;
constexpr size_t kFillThreadsMin = 4;
constexpr size_t kFillThreadsMax = 16;

absl::Status CheckOptions(const SessionOptions& options) {
  if (options.local_size == 0) return absl::InvalidArgumentError("local_size is 0");
  if (options.local_rank >= options.local_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "local_rank ", options.local_rank, " is not below local_size ", options.local_size));
  }
  if (options.group_name.empty() && options.local_size != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("local_size is ", options.local_size,
                     " but group_name is empty: give all ranks that load together one name"));
  }
  if (options.daemon_wait < absl::ZeroDuration() || options.open_timeout < absl::ZeroDuration() ||
      options.agreement_timeout < absl::ZeroDuration()) {
    return absl::InvalidArgumentError("a timeout is negative");
  }
  if (options.demand.has_value() && options.choose_demand) {
    return absl::InvalidArgumentError("both demand and choose_demand are given");
  }
  return absl::OkStatus();
}

std::string FirstOf(std::string chosen, std::initializer_list<const char*> variables,
                    const char* otherwise) {
  if (!chosen.empty()) return chosen;
  for (const char* variable : variables) {
    const char* value = std::getenv(variable);
    if (value != nullptr && value[0] != '\0') return value;
  }
  return otherwise;
}

// Two processes never choose the same name, even when one gets the pid of another.
std::string GroupOfOwn() {
  std::random_device random;
  return absl::StrCat("pid-", getpid(), "-", absl::Hex(random(), absl::kZeroPad8),
                      absl::Hex(random(), absl::kZeroPad8));
}

// The same for every rank that names the directory, however it writes the path: it is part of what
// tells groups apart.
std::string PathLabel(const std::string& directory) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(directory, error);
  if (error) return directory;
  std::string label = absolute.lexically_normal().string();
  if (label.size() > 1 && label.back() == '/') label.pop_back();
  return label;
}

// Without a directory for the default socket no daemon is about to start there, so that a machine
// without Forestage loses no time.
bool DaemonMayStart(const std::string& socket_path) {
  std::error_code error;
  return socket_path != kSocketPathDefault ||
         std::filesystem::exists(std::filesystem::path(socket_path).parent_path(), error);
}

DaemonOpenRequest MakeOpenRequest(const std::string& directory, const SessionOptions& options,
                                  const CheckpointFiles& files) {
  const std::string socket_path =
      FirstOf(options.socket_path, {kSocketPathVariable}, kSocketPathDefault);
  DaemonOpenRequest request = {
      .socket_path = socket_path,
      .daemon_user = FirstOf(options.daemon_user, {kDaemonUserVariable}, ""),
      .daemon_wait = DaemonMayStart(socket_path) ? options.daemon_wait : absl::ZeroDuration(),
      .open_timeout = options.open_timeout,
      .agreement_timeout = options.agreement_timeout,
      .group_name = options.group_name.empty() ? GroupOfOwn() : options.group_name,
      .launch_nonce =
          FirstOf(options.launch_nonce, {"FORESTAGE_LAUNCH_NONCE", "TORCHELASTIC_RUN_ID"}, ""),
      .local_rank = options.local_rank,
      .local_size = options.local_size,
      .policy = options.policy,
      .agreement = options.agreement,
      .device_uuid = options.device_uuid,
      .path = PathLabel(directory),
      .shards = {},
      .demand_follows = options.demand.has_value() || options.choose_demand,
  };
  request.shards.reserve(files.shards().size());
  for (const OpenShard& shard : files.shards()) {
    request.shards.push_back({.name = shard.name,
                              .bytes = shard.bytes,
                              .mtime_ns = shard.mtime_ns,
                              .fd = shard.fd.get()});
  }
  return request;
}

absl::StatusOr<std::vector<int>> OpenAndList(CheckpointFiles& files, std::vector<UniqueFd> lent) {
  RETURN_IF_ERROR(files.OpenRest(std::move(lent)));
  std::vector<int> descriptors;
  for (const OpenShard& shard : files.shards()) descriptors.push_back(shard.fd.get());
  return descriptors;
}

// Why no daemon is asked at all; empty when one is.
std::string NoDaemonReason(const SessionOptions& options) {
  if (!options.use_daemon) return "this process was told to use no daemon";
  // In a group that must agree the others wait for this rank's wish.
  if (options.policy == Policy::kNative &&
      (options.agreement == Agreement::kEager || options.local_size == 1)) {
    return "native was requested";
  }
  return "";
}

}  // namespace

LoadSession::LoadSession(std::shared_ptr<const CheckpointFiles> files,
                         const SessionOptions& options)
    : files_(std::move(files)) {
  given_.requested = options.policy;
}

LoadSession::~LoadSession() {
  CHECK(!InForkedChild());
  Close();
}

void LoadSession::Drop(std::shared_ptr<const LoadSession> session) {
  if (!session->InForkedChild()) return;
  // Never deleted: the child may not destroy the session.
  static_cast<void>(new std::shared_ptr<const LoadSession>(std::move(session)));
}

absl::StatusOr<std::shared_ptr<LoadSession>> LoadSession::Open(const std::string& directory,
                                                               const SessionOptions& options,
                                                               const DaemonConnector& connector) {
  RETURN_IF_ERROR(CheckOptions(options));
  const SelectionOptions selection = {.preferred_layout = options.prefer_consolidated
                                                              ? CheckpointLayout::kConsolidated
                                                              : CheckpointLayout::kSharded};
  std::string reason = NoDaemonReason(options);
  ASSIGN_OR_RETURN(
      std::shared_ptr<CheckpointFiles> files,
      CheckpointFiles::Open(directory, selection,
                            reason.empty() ? std::optional(kFuseMagic) : std::nullopt));
  std::shared_ptr<LoadSession> session(new LoadSession(files, options));
  if (reason.empty()) {
    const absl::Status joined = session->Join(directory, options, connector, *files);
    reason = OneLine(joined.message());
    // Nobody is there to share with, or something went wrong before it came to that.
    if (files->incomplete()) RETURN_IF_ERROR(files->OpenRest({}));
  }
  // Whatever the daemon said of the files: this process believes its own reading of the headers.
  if (session->catalog_ == nullptr) RETURN_IF_ERROR(session->BecomeNative(std::move(reason)));
  session->SayIfNotMapped();
  const absl::Status demanded = session->ResolveDemand(options);
  if (session->InForkedChild()) {
    // choose_demand has forked, and this is the child.
    const absl::Status refusal = session->CheckUsable();
    Drop(std::move(session));
    return refusal;
  }
  RETURN_IF_ERROR(demanded);
  if (session->extents_ != nullptr && session->demand_.has_value()) {
    session->SendDemand();
    session->demand_sent_at_ = absl::Now();
    session->demand_seen_ = !session->AnyDemandedBegun();
  }
  session->MakeReadAhead(options);
  return session;
}

absl::Status LoadSession::Join(const std::string& directory, const SessionOptions& options,
                               const DaemonConnector& connector, CheckpointFiles& files) {
  DaemonOpenRequest request = MakeOpenRequest(directory, options, files);
  if (files.incomplete()) {
    request.open_shards = [&files](std::vector<UniqueFd> lent) {
      return OpenAndList(files, std::move(lent));
    };
  }
  ASSIGN_OR_RETURN(DaemonWelcome welcome, connector(request, loss_));
  const Policy effective = welcome.decision.effective;
  if (effective == Policy::kNative) {
    // Stay a member of the group, so that its decision stands as long as its ranks live.
    daemon_ = std::move(welcome.session);
    given_.activated = welcome.decision.activated;
    return absl::UnavailableError(welcome.decision.reason.empty()
                                      ? "the daemon decided native and gave no reason"
                                      : welcome.decision.reason);
  }
  if (effective != Policy::kRankStripedReadAhead) {
    return absl::UnavailableError(
        "the daemon decided on a policy that this client does not know; use the same version of "
        "both");
  }
  return UseStaging(welcome);
}

absl::Status LoadSession::UseStaging(DaemonWelcome& welcome) {
  absl::StatusOr<HeldCatalog> catalog = MapDaemonCatalog(welcome.catalog_fd, *files_);
  if (!catalog.ok()) {
    return absl::UnavailableError(
        absl::StrCat("the daemon's catalog is not of the files that this rank sees: ",
                     catalog.status().message()));
  }
  absl::StatusOr<std::unique_ptr<StagingBoardView>> board = StagingBoardView::Map(welcome.board_fd);
  if (!board.ok()) {
    return absl::UnavailableError(
        absl::StrCat("the daemon's staging board is unusable: ", board.status().message()));
  }
  if (welcome.generation != (*board)->generation()) {
    return absl::UnavailableError("the daemon's staging board is of another run of the daemon");
  }
  absl::StatusOr<std::unique_ptr<StagedExtents>> extents =
      StagedExtents::Create({.board = *std::move(board),
                             .shard_bytes = files_->shard_bytes(),
                             .daemon = welcome.session.get(),
                             .loss = loss_});
  if (!extents.ok()) {
    return absl::UnavailableError(
        absl::StrCat("the daemon's staging board is unusable: ", extents.status().message()));
  }
  given_.effective = welcome.decision.effective;
  given_.activated = welcome.decision.activated;
  given_.reason = OneLine(welcome.decision.reason);
  daemon_ = std::move(welcome.session);
  extents_ = *std::move(extents);
  // The daemon reads; a fault of ours on a page that it has read must not begin to read ahead.
  for (const OpenShard& shard : files_->shards()) shard.mapping.FaultInHugePages();
  SetCatalog(*std::move(catalog));
  // Nobody will ask for them, and what nobody will ask for may go.
  for (const uint32_t index : held_catalog_->not_served_of_daemon) daemon_->SendConsumed(index);
  return absl::OkStatus();
}

absl::Status LoadSession::BecomeNative(std::string reason) {
  ASSIGN_OR_RETURN(HeldCatalog catalog, ReadNativeCatalog(*files_));
  SetCatalog(std::move(catalog));
  given_.effective = Policy::kNative;
  given_.reason = std::move(reason);
  return absl::OkStatus();
}

void LoadSession::SayIfNotMapped() {
  const absl::Status error = files_->mapping_error();
  if (error.ok()) return;
  absl::StrAppend(&given_.reason, given_.reason.empty() ? "" : "; ",
                  "files cannot be mapped, so every slice is read into memory of its own: ",
                  OneLine(error.message()));
}

void LoadSession::SetCatalog(HeldCatalog catalog) {
  catalog_ = std::make_shared<const Catalog>(catalog.owner, catalog.view);
  viewed_ = std::make_unique<std::atomic<bool>[]>(catalog.view.tensor_count());
  consumed_ = std::make_unique<std::atomic<bool>[]>(catalog.view.tensor_count());
  held_catalog_.emplace(std::move(catalog));
}

absl::Status LoadSession::ResolveDemand(const SessionOptions& options) {
  if (options.choose_demand) {
    demand_.emplace();
    for (const ChosenSlice& slice : options.choose_demand(*catalog_)) {
      if (slice.tensor_index >= held_catalog_->view.tensor_count()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "the demand names a tensor that does not exist: index ", slice.tensor_index));
      }
      RETURN_IF_ERROR(AddDemand(slice.tensor_index, slice.ranges));
    }
  } else if (options.demand.has_value()) {
    demand_.emplace();
    for (const DemandedSlice& slice : *options.demand) {
      const std::optional<size_t> index = held_catalog_->view.Find(slice.tensor);
      if (!index.has_value()) {
        return absl::InvalidArgumentError(
            absl::StrCat("the demand names a tensor that does not exist: ", slice.tensor));
      }
      RETURN_IF_ERROR(AddDemand(*index, slice.ranges));
    }
  }
  return absl::OkStatus();
}

absl::Status LoadSession::AddDemand(size_t tensor_index, absl::Span<const Range> ranges) {
  ASSIGN_OR_RETURN(const SlicePlan plan, PlanSlice(tensor_index, ranges));
  if (plan.bytes() == 0) return absl::OkStatus();
  const uint64_t tensor_begin = held_catalog_->view.tensor(tensor_index).begin;
  demand_->push_back({.tensor_index = static_cast<uint32_t>(tensor_index),
                      .begin = plan.file_begin() - tensor_begin,
                      .end = plan.file_end() - tensor_begin});
  return absl::OkStatus();
}

void LoadSession::SendDemand() const {
  if (held_catalog_->not_served_of_daemon.empty()) return daemon_->SendDemand(*demand_);
  std::vector<DemandedBytes> items = *demand_;
  for (DemandedBytes& item : items)
    item.tensor_index = held_catalog_->IndexAtDaemon(item.tensor_index);
  daemon_->SendDemand(items);
}

bool LoadSession::AnyDemandedBegun() const {
  const auto demanded = DemandedExtents();
  return std::any_of(demanded.begin(), demanded.end(), [this](const auto& range) {
    return extents_->AnyBegun(range.first, range.second);
  });
}

bool LoadSession::BoardHolds(uint32_t shard_index, uint64_t begin, uint64_t end) const {
  if (demand_seen_.load(std::memory_order_relaxed)) return true;
  if (absl::Now() < demand_sent_at_ + kProgressPeriod) {
    return AllCached(files_->shards()[shard_index].fd.get(), begin, end);
  }
  demand_seen_.store(true, std::memory_order_relaxed);
  return true;
}

void LoadSession::AwaitDemandSeen(absl::Time deadline) const {
  // Whatever it answers, and should it not answer, nothing comes of it but some bytes more.
  (void)daemon_->GetProgress(std::min(deadline, demand_sent_at_ + kProgressPeriod));
}

void LoadSession::MakeReadAhead(const SessionOptions& options) {
  BlockFiller::Options filling;
  filling.files = files_;
  filling.others_want_the_rest = options.local_size > 1;
  filling.threads_max =
      std::clamp<size_t>(kFillThreadsOfNode / options.local_size, kFillThreadsMin, kFillThreadsMax);
  const CatalogView& view = held_catalog_->view;
  if (demand_.has_value()) {
    std::vector<ReadAhead::Part>& wanted = filling.wanted.emplace();
    wanted.reserve(demand_->size());
    for (const DemandedBytes& item : *demand_) {
      const TensorEntryView tensor = view.tensor(item.tensor_index);
      wanted.push_back({.shard_index = tensor.shard_index,
                        .begin = tensor.begin + item.begin,
                        .end = tensor.begin + item.end});
    }
    for (uint32_t i = 0; i < view.shard_count(); ++i) {
      filling.data_begins.push_back(view.shard(i).data_begin);
    }
  }
  std::optional<std::vector<ReadAhead::Part>> order = filling.wanted;
  filler_ = std::make_unique<BlockFiller>(std::move(filling));
  auto advise = [filler = filler_.get()](const ReadAhead::Part& part) { filler->Ask(part); };
  read_ahead_ = order.has_value()
                    ? std::make_unique<ReadAhead>(*std::move(order), std::move(advise))
                    : std::make_unique<ReadAhead>(files_->shard_bytes(), std::move(advise));
}

Decision LoadSession::decision() const {
  Decision decision = given_;
  if (InForkedChild()) {
    // The parent's locks may be held by threads that this process does not have.
    decision.effective = Policy::kNative;
    decision.reason = "this process is a forked child of the session's";
    return decision;
  }
  if (extents_ == nullptr) return decision;
  extents_->LookAtDaemon();
  if (loss_->lost()) {
    decision.effective = Policy::kNative;
    decision.reason = absl::StrCat(OneLine(loss_->reason()), "; the rest is read natively");
  }
  return decision;
}

absl::StatusOr<SlicePlan> LoadSession::PlanSlice(size_t tensor_index,
                                                 absl::Span<const Range> ranges) const {
  const TensorEntryView tensor = held_catalog_->view.tensor(tensor_index);
  std::vector<DimensionRange> dimensions;
  dimensions.reserve(ranges.size());
  for (const Range& range : ranges) {
    dimensions.push_back({.start = range.start, .stop = range.stop});
  }
  absl::StatusOr<SlicePlan> plan =
      SlicePlan::Create(tensor.dtype, tensor.shape, dimensions, tensor.begin);
  if (plan.ok()) return plan;
  return absl::Status(plan.status().code(),
                      absl::StrCat("tensor ", tensor.name, ": ", plan.status().message()));
}

absl::StatusOr<Slice> LoadSession::GetSlice(absl::string_view tensor,
                                            absl::Span<const Range> ranges) const {
  RETURN_IF_ERROR(CheckUsable());
  const std::optional<size_t> index = held_catalog_->view.Find(tensor);
  if (!index.has_value()) return absl::NotFoundError(absl::StrCat("no tensor named ", tensor));
  return GetSlice(*index, ranges);
}

absl::StatusOr<Slice> LoadSession::GetSlice(size_t tensor_index,
                                            absl::Span<const Range> ranges) const {
  RETURN_IF_ERROR(CheckUsable());
  if (tensor_index >= held_catalog_->view.tensor_count()) {
    return absl::NotFoundError(absl::StrCat("no tensor of index ", tensor_index, "; there are ",
                                            held_catalog_->view.tensor_count()));
  }
  ASSIGN_OR_RETURN(SlicePlan plan, PlanSlice(tensor_index, ranges));
  const uint32_t shard_index = held_catalog_->view.tensor(tensor_index).shard_index;
  return Slice(std::make_shared<const Slice::State>(shared_from_this(), std::move(plan),
                                                    tensor_index, shard_index));
}

void LoadSession::MarkViewed(size_t tensor_index) const {
  viewed_[tensor_index].store(true, std::memory_order_relaxed);
}

void LoadSession::MarkConsumed(size_t tensor_index) {
  if (!CheckUsable().ok() || tensor_index >= held_catalog_->view.tensor_count()) return;
  if (daemon_ == nullptr || loss_->lost()) return;
  if (consumed_[tensor_index].exchange(true, std::memory_order_relaxed)) return;
  daemon_->SendConsumed(held_catalog_->IndexAtDaemon(tensor_index));
  // The daemon stages nothing for a rank that asked for it: mostly since there is no room. What was
  // looked at in place must go before what was read ahead, which the kernel would choose; what was
  // copied goes first by itself.
  if (extents_ != nullptr || given_.requested == Policy::kNative) return;
  if (!viewed_[tensor_index].load(std::memory_order_relaxed)) return;
  const TensorEntryView tensor = held_catalog_->view.tensor(tensor_index);
  const OpenShard& shard = files_->shards()[tensor.shard_index];
  if (shard.mapped) shard.mapping.LetGo(tensor.begin, tensor.end);
}

absl::Status LoadSession::CheckFilesUnchanged() const {
  RETURN_IF_ERROR(CheckUsable());
  std::vector<absl::Status> statuses;
  for (const OpenShard& shard : files_->shards()) {
    statuses.push_back(CheckUnchanged(shard, shard.bytes));
  }
  return JoinErrors(statuses);
}

absl::StatusOr<StagingStatus> LoadSession::GetStagingStatus(absl::Time deadline) const {
  RETURN_IF_ERROR(CheckUsable());
  if (extents_ == nullptr) return absl::UnavailableError(given_.reason);
  while (true) {
    extents_->LookAtDaemon();
    if (loss_->lost()) return absl::UnavailableError(OneLine(loss_->reason()));
    // In short steps: a daemon that stands still answers never, and only its board tells.
    const absl::Time look_again = absl::Now() + kProgressPeriod;
    absl::StatusOr<StagingStatus> status = daemon_->GetProgress(std::min(deadline, look_again));
    if (!absl::IsDeadlineExceeded(status.status()) || look_again >= deadline) return status;
    RETURN_IF_ERROR(CheckUsable());
  }
}

std::vector<std::pair<uint64_t, uint64_t>> LoadSession::DemandedExtents() const {
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  const auto add = [&](uint32_t shard_index, uint64_t begin, uint64_t end) {
    if (begin != end) ranges.push_back(extents_->Covering(shard_index, begin, end));
  };
  const CatalogView& view = held_catalog_->view;
  if (demand_.has_value()) {
    for (const DemandedBytes& item : *demand_) {
      const TensorEntryView tensor = view.tensor(item.tensor_index);
      add(tensor.shard_index, tensor.begin + item.begin, tensor.begin + item.end);
    }
    return ranges;
  }
  for (uint32_t i = 0; i < view.shard_count(); ++i) {
    const ShardEntryView shard = view.shard(i);
    add(i, shard.data_begin, shard.bytes);
  }
  return ranges;
}

absl::StatusOr<StagingStatus> LoadSession::WaitUntilStaged(
    absl::Time deadline, const std::function<void(const StagingStatus&)>& progress) const {
  RETURN_IF_ERROR(CheckUsable());
  if (extents_ == nullptr) return absl::UnavailableError(given_.reason);
  const std::vector<std::pair<uint64_t, uint64_t>> demanded = DemandedExtents();
  bool settled = false;
  while (true) {
    const absl::Time asked = absl::Now();
    ASSIGN_OR_RETURN(StagingStatus status, GetStagingStatus(deadline));
    // The daemon may have answered before it saw our demand; the board shows whether it has.
    status.complete =
        status.complete && (settled || extents_->WaitUntilSettled(demanded, absl::InfinitePast()));
    if (progress != nullptr) progress(status);
    if (status.complete) return status;
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError("not all that is demanded is staged yet");
    }
    // Should the board and the daemon differ, the daemon is not asked without a pause.
    if (settled) absl::SleepFor(std::min(kSettledPause, deadline - absl::Now()));
    settled = extents_->WaitUntilSettled(demanded, std::min(asked + kProgressPeriod, deadline));
    RETURN_IF_ERROR(CheckUsable());
    extents_->LookAtDaemon();
  }
}

std::vector<ReadPlace> LoadSession::ListReadPlaces() const {
  std::vector<ReadPlace> places;
  for (const ReadPlaces::Place& place : read_places_.List()) {
    places.push_back({.file = files_->shards()[place.shard_index].path,
                      .offset = place.offset,
                      .waits_for_daemon = place.waits_for_daemon});
  }
  return places;
}

void LoadSession::Close() {
  if (InForkedChild()) return;
  if (closed_.exchange(true, std::memory_order_acq_rel)) return;
  loss_->Close();
  if (filler_ != nullptr) filler_->Stop();
  if (daemon_ != nullptr) daemon_->Close();
}

absl::Status LoadSession::CheckUsable() const {
  if (InForkedChild()) {
    return absl::FailedPreconditionError(
        "a session cannot be used in a forked child; open one there");
  }
  if (closed_.load(std::memory_order_acquire)) {
    return absl::FailedPreconditionError("the session is closed");
  }
  return absl::OkStatus();
}

bool LoadSession::IsThereAlready(uint32_t shard_index, uint64_t begin, uint64_t end) const {
  const OpenShard& shard = files_->shards()[shard_index];
  if (!shard.mapped || extents_->AllAre(ExtentState::kResident, shard_index, begin, end)) {
    return false;
  }
  // In this order: what the daemon has begun to read is cached, too, before it can be used.
  return LooksCached(shard.fd.get(), shard.mapping.bytes(), begin, end) &&
         !extents_->AnyIs(ExtentState::kReading, shard_index, begin, end);
}

absl::StatusOr<Reader> LoadSession::WaitForBytes(uint32_t shard_index, uint64_t begin, uint64_t end,
                                                 uint64_t ahead_end, absl::Time deadline) const {
  RETURN_IF_ERROR(CheckUsable());
  if (extents_ == nullptr || loss_->lost()) return Reader::kSelf;
  if (IsThereAlready(shard_index, begin, end)) return Reader::kDaemon;
  for (int asked = 0;; ++asked) {
    ASSIGN_OR_RETURN(const Reader reader,
                     extents_->Wait(shard_index, begin, end, ahead_end, deadline));
    if (reader == Reader::kSelf || BoardHolds(shard_index, begin, end)) return reader;
    if (asked == kDemandQuestionsMax) {
      demand_seen_.store(true, std::memory_order_relaxed);
      return reader;
    }
    AwaitDemandSeen(deadline);
  }
}

}  // namespace forestage
