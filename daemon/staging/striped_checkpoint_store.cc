#include "daemon/staging/striped_checkpoint_store.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <optional>
#include <random>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "spdlog/spdlog.h"

#include "checkpoint/catalog.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/sha256.h"
#include "common/check.h"
#include "common/file_change.h"
#include "common/parallel_for.h"
#include "common/staging_board.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "daemon/limits.h"

namespace forestage {
namespace {

// One status that names all errors; its code is that of the first which is not the files' fault,
// since that one may go away by itself.
absl::Status Join(absl::Span<const absl::Status> statuses) {
  std::vector<std::string> messages;
  absl::StatusCode code = absl::StatusCode::kOk;
  for (const absl::Status& status : statuses) {
    if (status.ok()) continue;
    messages.emplace_back(status.message());
    if (code == absl::StatusCode::kOk || code == absl::StatusCode::kInvalidArgument) {
      code = status.code();
    }
  }
  if (messages.empty()) return absl::OkStatus();
  return absl::Status(code, absl::StrJoin(messages, "; "));
}

FileStamp StampOf(const CacheIdentity& identity) {
  return {.device = identity.device,
          .inode = identity.inode,
          .bytes = identity.bytes,
          .mtime_ns = identity.mtime_ns,
          .ctime_ns = identity.ctime_ns};
}

absl::Status ChangedStatus(absl::string_view name, const FileStamp& then, const FileStamp& now) {
  return absl::InvalidArgumentError(FileChangedMessage(name, "the rank looked at it", then, now,
                                                       "load again once nothing changes it"));
}

// What the client sent is what it announced, and may be served.
absl::StatusOr<CheckpointKey> CheckAll(absl::Span<const ReceivedShard> shards) {
  CheckpointKey key(shards.size());
  std::vector<absl::Status> statuses(shards.size());
  ParallelFor(shards.size(), kHeaderReadersMax, [&](size_t i) {
    const ReceivedShard& shard = shards[i];
    const absl::StatusOr<CacheIdentity> identity = ShardFile::Check(shard.name, shard.fd.get());
    if (!identity.ok()) {
      statuses[i] = identity.status();
      return;
    }
    if (identity->bytes != shard.size_bytes || identity->mtime_ns != shard.mtime_ns) {
      FileStamp announced = StampOf(*identity);
      announced.bytes = shard.size_bytes;
      announced.mtime_ns = shard.mtime_ns;
      statuses[i] = ChangedStatus(shard.name, announced, StampOf(*identity));
    }
    key[i] = {shard.name, *identity};
  });
  RETURN_IF_ERROR(Join(statuses));
  return key;
}

absl::StatusOr<std::vector<std::unique_ptr<ShardFile>>> OpenAll(std::vector<ReceivedShard> shards,
                                                                const CheckpointKey& key,
                                                                MountTable& mounts) {
  std::vector<std::unique_ptr<ShardFile>> files(shards.size());
  std::vector<absl::Status> statuses(shards.size());
  ParallelFor(shards.size(), kHeaderReadersMax, [&](size_t i) {
    absl::StatusOr<std::unique_ptr<ShardFile>> file =
        ShardFile::Open(std::move(shards[i].name), std::move(shards[i].fd), &mounts);
    if (!file.ok()) {
      statuses[i] = file.status();
      return;
    }
    files[i] = *std::move(file);
    const CacheIdentity& then = key[i].second;
    if (files[i]->identity() != then) {
      statuses[i] = ChangedStatus(files[i]->name(), StampOf(then), StampOf(files[i]->identity()));
    }
  });
  RETURN_IF_ERROR(Join(statuses));
  return files;
}

absl::StatusOr<std::vector<std::byte>> ReadCatalog(
    absl::Span<const std::unique_ptr<ShardFile>> files, HeaderQuota::Hold& hold) {
  std::vector<CatalogShard> shards(files.size());
  std::vector<absl::Status> statuses(files.size());
  std::atomic<bool> refused = false;
  ParallelFor(files.size(), kHeaderReadersMax, [&](size_t i) {
    if (refused) return;
    absl::StatusOr<SafetensorsHeader> header = ReadHeader(
        files[i]->fd(), files[i]->name(), [&](uint64_t bytes) { return hold.Add(bytes); });
    if (!header.ok()) {
      // Told once, not for each shard.
      if (absl::IsResourceExhausted(header.status()) && refused.exchange(true)) return;
      statuses[i] = header.status();
      return;
    }
    // The file that was checked must be the file that is staged.
    const absl::Status unchanged = files[i]->CheckUnchanged();
    if (absl::IsFailedPrecondition(unchanged)) {
      statuses[i] = absl::InvalidArgumentError(unchanged.message());
    }
    shards[i] = {.name = files[i]->name(),
                 .mtime_ns = files[i]->identity().mtime_ns,
                 .header = *std::move(header)};
  });
  RETURN_IF_ERROR(Join(statuses));
  return BuildCatalog(shards);
}

absl::Status StoppingStatus() {
  return absl::UnavailableError("the daemon is stopping; nothing is staged any more");
}

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

// The same on every machine and in every release; names that differ in a digit lie far apart.
uint64_t NodeHash(absl::string_view node_name) {
  Sha256 sha256;
  sha256.Update({reinterpret_cast<const std::byte*>(node_name.data()), node_name.size()});
  const Sha256Digest digest = sha256.Finish();
  uint64_t hash = 0;
  for (size_t i = 0; i < sizeof(hash); ++i) hash = hash << 8 | digest[i];
  return hash;
}

}  // namespace

absl::StatusOr<StripedCheckpointStore::Options> StripedCheckpointStore::OptionsFrom(
    const Config& config, StagingObserver* observer) {
  ASSIGN_OR_RETURN(ReaderSelection reader, SelectReader(config.reader));
  return Options{.extent_bytes = config.extent_bytes,
                 .lanes_max = config.lanes_max,
                 .in_flight_bytes_max = config.in_flight_bytes_max,
                 .node_in_flight_bytes_max = config.node_in_flight_bytes_max,
                 .read_rate_limits = config.read_rate_limits,
                 .read_order = config.read_order,
                 .node_hash = NodeHash(config.node_name.empty() ? HostName() : config.node_name),
                 .observer = observer,
                 .reader = std::move(reader)};
}

absl::StatusOr<std::unique_ptr<StripedCheckpointStore>> StripedCheckpointStore::Create(
    Options options) {
  CHECK(options.lanes_max > 0 && options.extent_bytes >= PageBytes() &&
        (options.extent_bytes & (options.extent_bytes - 1)) == 0);
  std::random_device random;
  const uint64_t generation = (uint64_t{random()} << 32) | random();
  return std::unique_ptr<StripedCheckpointStore>(
      new StripedCheckpointStore(std::move(options), generation));
}

StripedCheckpointStore::StripedCheckpointStore(Options options, uint64_t generation)
    : options_(std::move(options)),
      generation_(generation),
      budget_(FlightBudget::Create({.mount_bytes_max = options_.in_flight_bytes_max,
                                    .node_bytes_max = options_.node_in_flight_bytes_max})),
      header_quota_(std::make_unique<HeaderQuota>(HeaderQuota::Options{
          .bytes_max = options_.header_bytes_max,
          .user_bytes_max = static_cast<uint64_t>(static_cast<double>(options_.header_bytes_max) *
                                                  kHeldHeaderShareOfUser)})),
      heartbeat_([this] { KeepHeartbeat(); }) {}

StripedCheckpointStore::~StripedCheckpointStore() {
  {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
  }
  heartbeat_.join();
}

absl::StatusOr<std::shared_ptr<StagedCheckpoint>> StripedCheckpointStore::Acquire(
    const std::string& path_label, std::vector<ReceivedShard> shards, size_t lane_count) {
  if (shards.empty()) return absl::InvalidArgumentError(path_label + ": no shard was sent");
  const std::unique_ptr<OpeningWatch::Entry> opening =
      openings_.Begin(path_label, shards.front().uid, absl::Now());
  ASSIGN_OR_RETURN(const CheckpointKey key, CheckAll(shards));
  EntryIterator entry;
  ASSIGN_OR_RETURN(std::shared_ptr<StagedCheckpoint> held, FindOrReserve(key, &entry));
  // Its files are open already, and on some file systems one more open() would cost their pages.
  if (held != nullptr) return held;

  const size_t lanes = std::clamp<size_t>(lane_count, 1, options_.lanes_max);
  std::weak_ptr<Stager> stager;
  absl::StatusOr<std::shared_ptr<StripedCheckpoint>> built =
      Build(path_label, std::move(shards), key, lanes, &stager);
  // Headers are large and their threads' heaps many: what parsing took is given back to the system.
  malloc_trim(0);
  absl::MutexLock lock(&mutex_);
  if (!built.ok() || stopped_) {
    entries_.erase(entry);
    if (!built.ok()) return built.status();
    (*built)->Stop();
    return StoppingStatus();
  }
  entry->building = false;
  entry->checkpoint = *built;
  entry->stager = stager;
  return *std::move(built);
}

absl::StatusOr<std::shared_ptr<StagedCheckpoint>> StripedCheckpointStore::FindOrReserve(
    const CheckpointKey& key, EntryIterator* entry) {
  absl::MutexLock lock(&mutex_);
  const auto is_mine = [&key](const Entry& candidate) { return candidate.key == key; };
  const auto not_being_built = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto found = std::find_if(entries_.begin(), entries_.end(), is_mine);
    return found == entries_.end() || !found->building;
  };
  mutex_.Await(absl::Condition(&not_being_built));
  if (stopped_) return StoppingStatus();
  ForgetEnded();
  const auto found = std::find_if(entries_.begin(), entries_.end(), is_mine);
  if (found != entries_.end()) {
    if (std::shared_ptr<StagedCheckpoint> held = found->checkpoint.lock()) return held;
    entries_.erase(found);
  }
  *entry = entries_.insert(entries_.end(), {.key = key});
  return std::shared_ptr<StagedCheckpoint>();
}

void StripedCheckpointStore::ForgetEnded() {
  entries_.remove_if([](const Entry& entry) {
    if (entry.building) return false;
    if (entry.checkpoint.expired()) return true;
    // Stopped by its holder, who has not let go yet: it will read nothing any more.
    const std::shared_ptr<Stager> stager = entry.stager.lock();
    return stager == nullptr || stager->stopping();
  });
}

absl::StatusOr<std::shared_ptr<StripedCheckpoint>> StripedCheckpointStore::Build(
    const std::string& path_label, std::vector<ReceivedShard> shards, const CheckpointKey& key,
    size_t lane_count, std::weak_ptr<Stager>* stager) const {
  const uid_t uid = shards.front().uid;
  ASSIGN_OR_RETURN(std::vector<std::unique_ptr<ShardFile>> files,
                   OpenAll(std::move(shards), key, *mounts_));
  const absl::Time begun = absl::Now();
  std::shared_ptr<HeaderQuota::Hold> headers = header_quota_->MakeHold(uid);
  ASSIGN_OR_RETURN(std::vector<std::byte> catalog, ReadCatalog(files, *headers));
  spdlog::info("catalog built path=\"{}\" shards={} bytes={} seconds={:.6f}",
               absl::CEscape(path_label), files.size(), catalog.size(),
               absl::ToDoubleSeconds(absl::Now() - begun));
  std::vector<uint64_t> sizes;
  for (const std::unique_ptr<ShardFile>& file : files) sizes.push_back(file->bytes());
  const uint64_t extent_count = ExtentMap(sizes, options_.extent_bytes).extent_count();
  RETURN_IF_ERROR(headers->Add(extent_count * kHeldBytesPerExtent));
  ASSIGN_OR_RETURN(std::shared_ptr<StagingBoard> board,
                   StagingBoard::Create({.extent_count = extent_count,
                                         .extent_bytes = options_.extent_bytes,
                                         .generation = generation_}));
  auto made =
      std::make_shared<Stager>(Stager::Options{.path_label = path_label,
                                               .files = std::move(files),
                                               .extent_bytes = options_.extent_bytes,
                                               .budget = budget_,
                                               .read_rate_limits = options_.read_rate_limits,
                                               .read_order = options_.read_order,
                                               .node_hash = options_.node_hash,
                                               .lane_count = lane_count,
                                               .board = std::move(board),
                                               .observer = options_.observer,
                                               .held_file_system = options_.held_file_system,
                                               .hold_max = options_.hold_max});
  *stager = made;
  return StripedCheckpoint::Create({.path_label = path_label,
                                    .catalog_bytes = std::move(catalog),
                                    .headers = std::move(headers),
                                    .stager = std::move(made),
                                    .lane_count = lane_count,
                                    .make_reader = options_.reader.make_reader});
}

std::vector<std::shared_ptr<StagedCheckpoint>> StripedCheckpointStore::List() const {
  std::vector<std::shared_ptr<StagedCheckpoint>> held;
  absl::MutexLock lock(&mutex_);
  for (const Entry& entry : entries_) {
    if (std::shared_ptr<StagedCheckpoint> checkpoint = entry.checkpoint.lock()) {
      held.push_back(std::move(checkpoint));
    }
  }
  return held;
}

void StripedCheckpointStore::Stop() {
  absl::MutexLock lock(&mutex_);
  stopped_ = true;
  for (const Entry& entry : entries_) {
    if (const std::shared_ptr<Stager> stager = entry.stager.lock()) stager->Stop();
  }
}

void StripedCheckpointStore::KeepHeartbeat() {
  absl::MutexLock lock(&mutex_);
  while (!mutex_.AwaitWithTimeout(absl::Condition(&ending_), kBoardHeartbeatPeriod)) {
    for (const Entry& entry : entries_) {
      if (const std::shared_ptr<Stager> stager = entry.stager.lock()) {
        stager->board()->Beat();
        stager->ReportStuckReads(absl::Now());
      }
    }
    for (const OpeningWatch::Stuck& stuck : openings_.NewlyStuck(absl::Now())) {
      spdlog::warn(
          "open stuck path=\"{}\" uid={} seconds={:.0f}; its storage does not answer for "
          "attributes or headers; ranks that have waited for their time read it themselves",
          absl::CEscape(stuck.path_label), stuck.uid, absl::ToDoubleSeconds(stuck.time));
    }
  }
}

}  // namespace forestage
