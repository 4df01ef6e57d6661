#include "daemon/storage/first_failure.h"

#include <utility>

#include "common/check.h"

namespace forestage {

void FirstFailure::OnPieceFailed(uint64_t piece_begin, absl::Status status) {
  CHECK(!status.ok());
  if (!Wants(piece_begin)) return;
  status_ = std::move(status);
  failed_at_ = piece_begin;
}

void FirstFailure::Cancel(absl::Status status) {
  CHECK(!status.ok());
  if (status_.ok()) status_ = std::move(status);
  cancelled_ = true;
}

}  // namespace forestage
