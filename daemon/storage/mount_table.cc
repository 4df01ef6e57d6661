#include "daemon/storage/mount_table.h"

#include <cerrno>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "spdlog/spdlog.h"
#include <sys/stat.h>
#include <sys/statfs.h>

#include "common/errno_status.h"
#include "common/mount_id.h"
#include "common/mount_weakness.h"
#include "common/status_macros.h"
#include "daemon/limits.h"
#include "daemon/storage/mount.h"

namespace forestage {
namespace {

bool SameFacts(const MountFacts& a, const MountFacts& b) {
  return a.type == b.type && a.mount_point == b.mount_point &&
         a.advice_bytes_max == b.advice_bytes_max;
}

// Nothing that was not to be logged again.
bool SameVerdicts(const MountProbe& a, const MountProbe& b) {
  return SameFacts(a.mount, b.mount) && a.way() == b.way();
}

void LogMount(const MountProbe& probe) {
  const MountFacts& mount = probe.mount;
  const std::string verdicts =
      absl::StrJoin(VerdictsOf(probe), " ", [](std::string* text, const NamedVerdict& named) {
        absl::StrAppend(text, named.name, "=", AnswerName(named.verdict.answer));
      });
  const std::string weaknesses = absl::StrJoin(
      WeaknessesOf(probe), ",",
      [](std::string* text, const Weakness& weakness) { absl::StrAppend(text, weakness.id); });
  spdlog::info(
      "mount device={} type={} at=\"{}\" way={} advice_bytes_max={} {} overlay={} "
      "mincore_reason=\"{}\" weaknesses={}",
      DeviceText(mount.device), mount.type,
      mount.mount_point.empty() ? "not in this mount namespace"
                                : absl::Utf8SafeCEscape(mount.mount_point),
      std::string(ReadingWayName(probe.way())), mount.advice_bytes_max, verdicts,
      mount.overlay ? "yes" : "no", absl::Utf8SafeCEscape(probe.mincore.reason),
      weaknesses.empty() ? "none" : weaknesses);
}

}  // namespace

absl::StatusOr<MountFacts> MountTable::FactsOf(int fd) {
  struct stat attributes = {};
  if (fstat(fd, &attributes) != 0) return ErrnoStatus(errno, "fstat");
  struct statfs file_system = {};
  if (fstatfs(fd, &file_system) != 0) return ErrnoStatus(errno, "fstatfs");
  const absl::Time now = absl::Now();
  {
    absl::MutexLock lock(&mutex_);
    const Entry* entry =
        FindSame(attributes.st_dev, static_cast<uint32_t>(file_system.f_type), UniqueMountIdOf(fd));
    if (entry != nullptr && now - entry->facts_read_at < options_.facts_kept) {
      return entry->seen.probe.mount;
    }
  }
  ASSIGN_OR_RETURN(MountFacts facts, ReadMountFacts(fd, options_.probe));
  absl::MutexLock lock(&mutex_);
  Entry* entry = FindSame(facts.device, facts.magic, facts.mount_id);
  if (entry == nullptr) {
    if (entries_.size() >= kMountsKept) entries_.pop_front();
    entry = &entries_.emplace_back();
  }
  entry->logged = entry->logged && SameFacts(entry->seen.probe.mount, facts);
  entry->seen.probe.mount = facts;
  entry->facts_read_at = now;
  entry->own_mount_id.reset();
  if (facts.mount_id.has_value() && !MountIsGone(*facts.mount_id)) {
    entry->own_mount_id = facts.mount_id;
  }
  return facts;
}

MountTable::Use MountTable::OnFileOpened(const MountProbe& probe) {
  absl::MutexLock lock(&mutex_);
  Entry* entry = Find(probe.mount.device, probe.mount.magic);
  // Forgotten meanwhile, for want of room.
  if (entry == nullptr) return nullptr;
  Use use = entry->use.lock();
  if (use == nullptr) entry->use = use = std::make_shared<const int>(0);
  ++entry->seen.files_opened;
  if (entry->mount == nullptr) entry->mount = Mount::For(probe.mount.device);
  // An empty file, of which nothing can be asked, says nothing of its mount.
  const bool empty_file = probe.mapping.answer == Answer::kUnknown;
  if (empty_file && entry->logged) return use;
  if (!probe.mincore.yes() && !empty_file) ++entry->seen.files_residency_unknown;
  const bool news = !entry->logged || !SameVerdicts(entry->seen.probe, probe);
  // A file that cannot be asked about says more of a mount than one that can.
  const bool weaker = !probe.mincore.yes() || entry->seen.files_residency_unknown == 0;
  if (entry->logged && !weaker && !entry->seen_empty_file) return use;
  entry->seen_empty_file = empty_file;
  entry->seen.probe = probe;
  entry->logged = true;
  if (news) LogMount(probe);
  return use;
}

std::vector<MountTable::Seen> MountTable::List() const {
  std::vector<Seen> seen;
  absl::MutexLock lock(&mutex_);
  for (const Entry& entry : entries_) {
    if (entry.seen.files_opened == 0 || IsGone(entry)) continue;
    MountProbe& probe = seen.emplace_back(entry.seen).probe;
    const FillWay way = entry.mount->fill_way();
    if (way == FillWay::kUnknown) continue;
    probe.faults = {.answer = way == FillWay::kFaults ? Answer::kYes : Answer::kNo,
                    .reason = "seen when the first block was read"};
  }
  return seen;
}

bool MountTable::IsGone(const Entry& entry) {
  return entry.use.expired() && entry.own_mount_id.has_value() && MountIsGone(*entry.own_mount_id);
}

MountTable::Entry* MountTable::FindSame(uint64_t device, uint32_t magic,
                                        std::optional<uint64_t> mount_id) {
  Entry* entry = Find(device, magic);
  if (entry == nullptr || entry->seen.files_opened == 0 || !entry->use.expired()) return entry;
  if (!mount_id.has_value()) {
    // The next probe counts, whatever it finds.
    entry->seen.files_residency_unknown = 0;
    entry->facts_read_at = absl::InfinitePast();
    return entry;
  }
  if (entry->seen.probe.mount.mount_id == mount_id) return entry;
  entries_.remove_if([entry](const Entry& other) { return &other == entry; });
  return nullptr;
}

MountTable::Entry* MountTable::Find(uint64_t device, uint32_t magic) {
  for (Entry& entry : entries_) {
    if (entry.seen.probe.mount.device == device && entry.seen.probe.mount.magic == magic) {
      return &entry;
    }
  }
  return nullptr;
}

}  // namespace forestage
