#include "daemon/service/status_service.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

#include "common/status_macros.h"
#include "common/utf8_text.h"
#include "daemon/limits.h"
#include "daemon/service/grpc_status.h"
#include "daemon/service/proto_conversion.h"

namespace forestage {
namespace {

std::string SignatureBytes(const StagedCheckpoint& checkpoint) {
  const CheckpointSignature signature = checkpoint.catalog().signature();
  return std::string(signature.begin(), signature.end());
}

grpc::ServerUnaryReactor* FinishUnary(grpc::CallbackServerContext* context,
                                      const absl::Status& status) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

void FillTensor(const CatalogView& catalog, const TensorEntryView& tensor,
                v1::TensorDescription& message) {
  message.set_name(std::string(tensor.name));
  message.set_shard(std::string(catalog.shard(tensor.shard_index).name));
  message.set_dtype(std::string(DtypeName(tensor.dtype)));
  for (const uint64_t extent : tensor.shape) message.add_shape(extent);
  message.set_begin(tensor.begin);
  message.set_end(tensor.end);
}

}  // namespace

StatusService::StatusService(Options options, SessionRegistry& registry,
                             const CheckpointStore& store, const MemoryLedger& memory)
    : options_(std::move(options)), registry_(registry), store_(store), memory_(memory) {}

grpc::ServerUnaryReactor* StatusService::GetStatus(grpc::CallbackServerContext* context,
                                                   const v1::GetStatusRequest* /*request*/,
                                                   v1::GetStatusResponse* response) {
  FillStatus(*response);
  return FinishUnary(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* StatusService::ListTensors(grpc::CallbackServerContext* context,
                                                     const v1::ListTensorsRequest* request,
                                                     v1::ListTensorsResponse* response) {
  return FinishUnary(context, FillTensors(*request, *response));
}

void StatusService::FillStatus(v1::GetStatusResponse& response) const {
  response.set_daemon_version(options_.daemon_version);
  response.set_generation(options_.generation);
  response.set_pid(static_cast<uint32_t>(getpid()));
  response.set_uptime_seconds(absl::ToDoubleSeconds(absl::Now() - options_.started_at));
  response.set_draining(registry_.draining());
  response.set_reader(store_.reader_name());
  response.set_reader_reason(store_.reader_reason());
  response.set_metrics_address(options_.metrics_address);
  const std::vector<MountFlight> flights = store_.Flights();
  for (const MountTable::Seen& seen : store_.mounts()) {
    *response.add_mounts() = ToProto(seen, flights);
  }
  *response.mutable_memory() = ToProto(memory_.Standing());
  for (const auto& [uid, bytes] : registry_.StagedBytesOfUsers()) {
    v1::UserStatus& user = *response.mutable_memory()->add_users();
    user.set_uid(uid);
    user.set_staged_bytes(bytes);
  }
  if (const uint64_t max = registry_.staged_bytes_per_user_max(); max != kNoMemoryLimit) {
    response.mutable_memory()->set_user_bytes_max(max);
  }
  const std::vector<SessionSnapshot> sessions = registry_.Snapshot();
  for (std::shared_ptr<StagedCheckpoint>& checkpoint : store_.List()) {
    v1::CheckpointStatus& message = *response.add_checkpoints();
    const CatalogView& catalog = checkpoint->catalog();
    message.set_path(checkpoint->path_label());
    message.set_signature(SignatureBytes(*checkpoint));
    message.set_shard_count(static_cast<uint32_t>(catalog.shard_count()));
    message.set_tensor_count(catalog.tensor_count());
    message.set_total_bytes(catalog.total_bytes());
    *message.mutable_progress() = ToProto(checkpoint->progress());
    for (const std::string& error : checkpoint->read_errors())
      message.add_read_errors(Utf8Text(error));
    for (const SessionSnapshot& session : sessions) {
      if (session.checkpoint == checkpoint.get()) *message.add_sessions() = ToProto(session);
    }
    registry_.ReleaseLater(std::move(checkpoint));
  }
}

absl::Status StatusService::FillTensors(const v1::ListTensorsRequest& request,
                                        v1::ListTensorsResponse& response) const {
  absl::Status status = absl::NotFoundError("no checkpoint of this signature is staged");
  for (std::shared_ptr<StagedCheckpoint>& checkpoint : store_.List()) {
    if (absl::IsNotFound(status) && SignatureBytes(*checkpoint) == request.signature()) {
      status = FillPage(checkpoint->catalog(), request, response);
    }
    registry_.ReleaseLater(std::move(checkpoint));
  }
  return status;
}

absl::StatusOr<size_t> StatusService::ParsePageToken(const std::string& token, size_t first,
                                                     size_t last) const {
  if (token.empty()) return first;
  const std::vector<std::string> parts = absl::StrSplit(token, ':');
  uint64_t position = 0;
  if (parts.size() != 2 || parts[0] != absl::StrCat(absl::Hex(options_.generation)) ||
      !absl::SimpleAtoi(parts[1], &position) || position < first || position > last) {
    return absl::InvalidArgumentError(
        "page_token is not one that this daemon made for this prefix");
  }
  return position;
}

absl::Status StatusService::FillPage(const CatalogView& catalog,
                                     const v1::ListTensorsRequest& request,
                                     v1::ListTensorsResponse& response) const {
  const auto [first, last] = catalog.PrefixRange(request.prefix());
  ASSIGN_OR_RETURN(size_t position, ParsePageToken(request.page_token(), first, last));
  const uint32_t page_size = request.page_size() == 0
                                 ? kListTensorsPageSizeMax
                                 : std::min(request.page_size(), kListTensorsPageSizeMax);
  size_t name_bytes = 0;
  for (uint32_t i = 0; i < page_size && position < last; ++i, ++position) {
    const TensorEntryView tensor = catalog.tensor(catalog.alphabetical(position));
    name_bytes += tensor.name.size();
    if (i > 0 && name_bytes > kListTensorsNameBytesMax) break;
    FillTensor(catalog, tensor, *response.add_tensors());
  }
  if (position < last) {
    response.set_next_page_token(absl::StrCat(absl::Hex(options_.generation), ":", position));
  }
  return absl::OkStatus();
}

}  // namespace forestage
