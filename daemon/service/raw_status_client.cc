#include "daemon/service/raw_status_client.h"

#include <utility>

#include "absl/time/clock.h"
#include <grpcpp/generic/generic_stub.h>

namespace forestage {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

void SetDeadline(grpc::ClientContext& context) {
  context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
}

// One request and one response as bytes, over any kind of method: the messages of health and
// reflection have no generated code in the distribution's packages.
absl::StatusOr<std::string> CallWithBytes(const std::shared_ptr<grpc::Channel>& channel,
                                          const std::string& method, const std::string& request) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  SetDeadline(context);
  grpc::CompletionQueue queue;
  const auto stream = stub.PrepareCall(&context, method, &queue);
  void* tag = nullptr;
  bool ok = false;
  const auto wait = [&] { return queue.Next(&tag, &ok) && ok; };
  stream->StartCall(nullptr);
  grpc::ByteBuffer response;
  grpc::Slice slice(request);
  if (wait()) {
    stream->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
    if (wait()) {
      stream->Read(&response, nullptr);
      wait();
    }
  }
  grpc::Status status;
  stream->Finish(&status, nullptr);
  wait();
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  if (!status.ok()) return FromGrpc(status);
  std::vector<grpc::Slice> slices;
  if (!response.Dump(&slices).ok()) return absl::InternalError("a response without bytes");
  std::string bytes;
  for (const grpc::Slice& part : slices) {
    bytes.append(reinterpret_cast<const char*>(part.begin()), part.size());
  }
  return bytes;
}

}  // namespace

RawStatusClient::RawStatusClient(const std::string& socket_path)
    : channel_(grpc::CreateChannel("unix:" + socket_path, grpc::InsecureChannelCredentials())),
      stub_(v1::StatusService::NewStub(channel_)) {}

absl::StatusOr<v1::GetStatusResponse> RawStatusClient::GetStatus() {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::GetStatusResponse response;
  const grpc::Status status = stub_->GetStatus(&context, {}, &response);
  if (!status.ok()) return FromGrpc(status);
  return response;
}

absl::StatusOr<v1::ListTensorsResponse> RawStatusClient::ListTensors(
    const v1::ListTensorsRequest& request) {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::ListTensorsResponse response;
  const grpc::Status status = stub_->ListTensors(&context, request, &response);
  if (!status.ok()) return FromGrpc(status);
  return response;
}

absl::StatusOr<bool> RawStatusClient::IsServing() {
  // An empty HealthCheckRequest asks for the whole server.
  const auto response = CallWithBytes(channel_, "/grpc.health.v1.Health/Check", "");
  if (!response.ok()) return response.status();
  // HealthCheckResponse: field 1, SERVING = 1.
  return *response == std::string("\x08\x01", 2);
}

absl::StatusOr<std::string> RawStatusClient::ReflectedServices() {
  // ServerReflectionRequest: field 7, list_services, an empty string.
  return CallWithBytes(channel_, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                       std::string("\x3a\x00", 2));
}

}  // namespace forestage
