#include "daemon/service/grpc_status.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace forestage {
namespace {

// gRPC carries the message in a header, percent-encoded, and clients take headers of 8 KiB in all
// by default. A list of damaged shards can be longer.
constexpr size_t kMessageBytesMax = 2048;

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  std::string message(status.message());
  if (message.size() > kMessageBytesMax) {
    const size_t left_out = message.size() - kMessageBytesMax;
    message.resize(kMessageBytesMax);
    absl::StrAppend(&message, " ... and ", left_out, " more bytes; see the daemon's log");
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message);
}

}  // namespace forestage
