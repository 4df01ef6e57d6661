#include "daemon/service/status_refusal_service.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "daemon/service/grpc_status.h"

namespace forestage {

StatusRefusalService::StatusRefusalService(absl::string_view admin_socket_path)
    : why_(absl::StrCat("this is the socket for ranks; what the daemon holds is told on its "
                        "administrators' socket, ",
                        admin_socket_path, ", to root and the daemon's own user")) {}

grpc::ServerUnaryReactor* StatusRefusalService::GetStatus(grpc::CallbackServerContext* context,
                                                          const v1::GetStatusRequest* /*request*/,
                                                          v1::GetStatusResponse* /*response*/) {
  return Refuse(context);
}

grpc::ServerUnaryReactor* StatusRefusalService::ListTensors(
    grpc::CallbackServerContext* context, const v1::ListTensorsRequest* /*request*/,
    v1::ListTensorsResponse* /*response*/) {
  return Refuse(context);
}

grpc::ServerUnaryReactor* StatusRefusalService::Refuse(grpc::CallbackServerContext* context) const {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(absl::PermissionDeniedError(why_)));
  return reactor;
}

}  // namespace forestage
