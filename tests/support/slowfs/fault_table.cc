#include "tests/support/slowfs/fault_table.h"

#include <cerrno>
#include <utility>

namespace forestage {

std::optional<FaultKind> FaultKindByName(absl::string_view name) {
  if (name == "eio") return FaultKind::kEio;
  if (name == "estale") return FaultKind::kEstale;
  if (name == "enomem") return FaultKind::kEnomem;
  if (name == "eintr") return FaultKind::kEintr;
  if (name == "eagain") return FaultKind::kEagain;
  if (name == "short") return FaultKind::kShort;
  if (name == "eof") return FaultKind::kEof;
  return std::nullopt;
}

int ErrorNumberOf(FaultKind kind) {
  switch (kind) {
    case FaultKind::kEio:
      return EIO;
    case FaultKind::kEstale:
      return ESTALE;
    case FaultKind::kEnomem:
      return ENOMEM;
    case FaultKind::kEintr:
      return EINTR;
    case FaultKind::kEagain:
      return EAGAIN;
    case FaultKind::kShort:
    case FaultKind::kEof:
      return 0;
  }
  return 0;
}

void FaultTable::Add(Fault fault) {
  absl::MutexLock lock(&mutex_);
  faults_.push_back(std::move(fault));
}

void FaultTable::Clear() {
  absl::MutexLock lock(&mutex_);
  faults_.clear();
}

std::optional<Fault> FaultTable::Hit(absl::string_view path, uint64_t offset, uint64_t size,
                                     int reader) {
  absl::MutexLock lock(&mutex_);
  for (Fault& fault : faults_) {
    if (fault.remaining == 0 || !fault.range.Touches(path, offset, size, reader)) continue;
    --fault.remaining;
    return fault;
  }
  return std::nullopt;
}

}  // namespace forestage
