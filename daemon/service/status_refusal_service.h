// The status service as ranks see it: every call is refused, with where it is served.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

#include "forestage/v1/status.grpc.pb.h"

namespace forestage {

// What a daemon holds is the business of its administrators; docs/security.md. Thread-safe; gRPC
// calls it.
class StatusRefusalService final : public v1::StatusService::CallbackService {
 public:
  explicit StatusRefusalService(absl::string_view admin_socket_path);

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest* request,
                                      v1::GetStatusResponse* response) override;
  grpc::ServerUnaryReactor* ListTensors(grpc::CallbackServerContext* context,
                                        const v1::ListTensorsRequest* request,
                                        v1::ListTensorsResponse* response) override;

 private:
  grpc::ServerUnaryReactor* Refuse(grpc::CallbackServerContext* context) const;

  const std::string why_;
};

}  // namespace forestage
