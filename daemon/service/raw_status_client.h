// A tool's side of the status, health and reflection services, bare, for tests.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include <grpcpp/grpcpp.h>

#include "forestage/v1/status.grpc.pb.h"

namespace forestage {

// Thread-safe. Every call ends after 30 seconds with an error.
class RawStatusClient {
 public:
  explicit RawStatusClient(const std::string& socket_path);

  absl::StatusOr<v1::GetStatusResponse> GetStatus();
  absl::StatusOr<v1::ListTensorsResponse> ListTensors(const v1::ListTensorsRequest& request);
  // grpc.health.v1: true when serving.
  absl::StatusOr<bool> IsServing();
  // Names of the services that reflection lists.
  absl::StatusOr<std::string> ReflectedServices();

 private:
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::StatusService::Stub> stub_;
};

}  // namespace forestage
