#include "daemon/memory/memory_ledger.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "common/check.h"
#include "common/units.h"

namespace forestage {
namespace {

uint64_t Less(uint64_t from, uint64_t what) { return from - std::min(from, what); }
uint64_t Sum(uint64_t one, uint64_t other) { return one + std::min(other, kNoMemoryLimit - one); }

std::string FormatRounded(uint64_t bytes, double (*round)(double)) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  constexpr double kPlaces = 100;
  if (bytes < kKiB) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes) / static_cast<double>(kKiB);
  size_t unit = 0;
  for (; value >= static_cast<double>(kKiB) && unit + 1 < std::size(kUnits); ++unit) {
    value /= static_cast<double>(kKiB);
  }
  return absl::StrFormat("%.2f %s", round(value * kPlaces) / kPlaces, kUnits[unit]);
}

void AppendTerm(absl::string_view sign, uint64_t bytes, absl::string_view what, std::string& text) {
  if (bytes > 0) absl::StrAppend(&text, " ", sign, " ", FormatMemory(bytes), " ", what);
}

}  // namespace

std::string FormatMemory(uint64_t bytes) { return FormatRounded(bytes, std::floor); }

class MemoryLedger::Lease : public MemoryLease {
 public:
  Lease(MemoryLedger& ledger, const MemoryRequest& request) : ledger_(ledger), request_(request) {}
  ~Lease() override { ledger_.Return(*this); }
  const MemoryRequest& request() const { return request_; }

 private:
  MemoryLedger& ledger_;
  const MemoryRequest request_;
};

MemoryLedger::MemoryLedger(MemoryBudget::Options options) : budget_(std::move(options)) {}

MemoryLedger::~MemoryLedger() {
  absl::MutexLock lock(&mutex_);
  CHECK(leased_bytes_ == 0);
}

std::shared_ptr<const MemoryLease> MemoryLedger::SharedLease(const void* checkpoint) const {
  const auto found = entries_.find(checkpoint);
  return found == entries_.end() ? nullptr : found->second.lease.lock();
}

std::shared_ptr<const MemoryLease> MemoryLedger::Take(const MemoryRequest& request) {
  MemoryRequest bounded = request;
  bounded.wanted_bytes = std::min(request.wanted_bytes, kNoMemoryLimit - leased_bytes_);
  bounded.resident_bytes = std::min(request.resident_bytes, bounded.wanted_bytes);
  auto lease = std::make_shared<const Lease>(*this, bounded);
  // An entry whose last holder is just going stays in the sums until it has gone.
  entries_[request.checkpoint] = {.wanted_bytes = bounded.wanted_bytes,
                                  .resident_bytes = bounded.resident_bytes,
                                  .lease = lease};
  leased_bytes_ += bounded.wanted_bytes;
  leased_resident_bytes_ += bounded.resident_bytes;
  return lease;
}

void MemoryLedger::Return(const Lease& lease) {
  absl::MutexLock lock(&mutex_);
  leased_bytes_ -= lease.request().wanted_bytes;
  leased_resident_bytes_ -= lease.request().resident_bytes;
  const auto found = entries_.find(lease.request().checkpoint);
  if (found != entries_.end() && found->second.lease.expired()) entries_.erase(found);
}

std::optional<MemoryLedger::Tightest> MemoryLedger::FindTightest(
    const MemoryReading& reading, const MemoryRequest& request) const {
  std::optional<Tightest> tightest;
  const uint64_t resident =
      Sum(leased_resident_bytes_, std::min(request.resident_bytes, request.wanted_bytes));
  for (const MemoryBound& bound : reading.bounds) {
    Tightest candidate = {.bound = bound, .others_bytes = leased_bytes_};
    candidate.elsewhere_bytes = Less(resident, bound.file_bytes_max);
    candidate.available_bytes =
        Less(Sum(bound.available_bytes(), candidate.elsewhere_bytes), leased_bytes_);
    candidate.fits = request.wanted_bytes <= candidate.available_bytes;
    if (!tightest.has_value() || candidate.available_bytes < tightest->available_bytes) {
      tightest = std::move(candidate);
    }
  }
  return tightest;
}

std::string MemoryLedger::Arithmetic(const Tightest& tightest) {
  const MemoryBound& bound = tightest.bound;
  std::string text = absl::StrCat(bound.name, " ", FormatMemory(bound.limit_bytes));
  AppendTerm("-", bound.used_bytes, "in use", text);
  AppendTerm("-", bound.headroom_bytes, "headroom", text);
  AppendTerm("-", tightest.others_bytes, "leased to other checkpoints", text);
  AppendTerm("+", tightest.elsewhere_bytes, "in memory already and charged elsewhere", text);
  return text;
}

MemoryAdmission MemoryLedger::Admit(const MemoryRequest& request) {
  absl::MutexLock lock(&mutex_);
  MemoryAdmission admission;
  admission.lease = SharedLease(request.checkpoint);
  if (admission.lease != nullptr) return admission;
  const std::optional<Tightest> tightest = FindTightest(budget_.Read(), request);
  if (!tightest.has_value() || tightest->fits) {
    admission.lease = Take(request);
    return admission;
  }
  admission.bound_kind = tightest->bound.kind;
  admission.reason =
      absl::StrCat("checkpoint needs ", FormatMemory(request.wanted_bytes), " of memory, ",
                   FormatMemory(tightest->available_bytes), " available: ", Arithmetic(*tightest));
  return admission;
}

bool MemoryLedger::Fits(const MemoryRequest& request) const {
  absl::MutexLock lock(&mutex_);
  // Not locked into a pointer here: it could be the last one, whose end takes our mutex.
  const auto found = entries_.find(request.checkpoint);
  if (found != entries_.end() && !found->second.lease.expired()) return true;
  const std::optional<Tightest> tightest = FindTightest(budget_.Read(), request);
  return !tightest.has_value() || tightest->fits;
}

std::shared_ptr<const MemoryLease> MemoryLedger::Renew(const MemoryRequest& request) {
  absl::MutexLock lock(&mutex_);
  std::shared_ptr<const MemoryLease> shared = SharedLease(request.checkpoint);
  return shared != nullptr ? shared : Take(request);
}

uint64_t MemoryLedger::leased_bytes() const {
  absl::MutexLock lock(&mutex_);
  return leased_bytes_;
}

MemoryStanding MemoryLedger::Standing() const {
  absl::MutexLock lock(&mutex_);
  MemoryReading reading = budget_.Read();
  MemoryStanding standing;
  standing.leased_bytes = leased_bytes_;
  const std::optional<Tightest> tightest = FindTightest(reading, {});
  if (tightest.has_value()) {
    standing.available_bytes = tightest->available_bytes;
    standing.bound = Arithmetic(*tightest);
  }
  standing.unknown = std::move(reading.unknown);
  return standing;
}

}  // namespace forestage
