// Which failure of the pieces of one request is the request's.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace forestage {

// Pieces are read side by side, so that one far behind may fail first. The error of a request is
// that of the piece that comes first in the file, so that it names where the trouble begins. Not
// thread-safe.
class FirstFailure {
 public:
  // OK while no piece has failed.
  const absl::Status& status() const { return status_; }
  // Whether a piece that begins there can still change the outcome.
  bool Wants(uint64_t piece_begin) const { return !cancelled_ && piece_begin < failed_at_; }
  // Requires: !status.ok().
  void OnPieceFailed(uint64_t piece_begin, absl::Status status);
  // Nothing changes the outcome any more; `status` is it unless a piece has failed.
  void Cancel(absl::Status status);

 private:
  absl::Status status_;
  // Where the piece of status_ begins.
  uint64_t failed_at_ = UINT64_MAX;
  bool cancelled_ = false;
};

}  // namespace forestage
