#include "common/errno_status.h"

#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace forestage {
namespace {

constexpr char kErrnoPayload[] = "forestage.errno";

absl::StatusCode CodeOf(int error_number) {
  switch (error_number) {
    case EIO:
    case ESTALE:
    case ENODEV:
    case ENXIO:
    case EAGAIN:
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
    case EREMOTEIO:
    case EHOSTDOWN:
    case ENOTCONN:
      return absl::StatusCode::kUnavailable;
    case ETIMEDOUT:
      return absl::StatusCode::kDeadlineExceeded;
    default:
      return absl::ErrnoToStatusCode(error_number);
  }
}

}  // namespace

absl::Status ErrnoStatus(int error_number, absl::string_view what) {
  const char* name = strerrorname_np(error_number);
  absl::Status status(
      CodeOf(error_number),
      absl::StrCat(what, ": ",
                   strerrordesc_np(error_number) != nullptr ? strerrordesc_np(error_number)
                                                            : "unknown error",
                   " (", name != nullptr ? name : absl::StrCat(error_number), ")"));
  status.SetPayload(kErrnoPayload, absl::Cord(absl::StrCat(error_number)));
  return status;
}

int ErrnoOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kErrnoPayload);
  int error_number = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &error_number)) return 0;
  return error_number;
}

}  // namespace forestage
