// gRPC adapter for people and tools: what the daemon holds, and catalogs page by page.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"

#include "daemon/memory/memory_ledger.h"
#include "daemon/session/session_registry.h"
#include "daemon/staging/staged_checkpoint.h"
#include "forestage/v1/status.grpc.pb.h"

namespace forestage {

// Thread-safe; gRPC calls it.
class StatusService final : public v1::StatusService::CallbackService {
 public:
  struct Options {
    std::string daemon_version;
    uint64_t generation = 0;
    absl::Time started_at;
    std::string metrics_address;
  };
  // All must outlive it.
  StatusService(Options options, SessionRegistry& registry, const CheckpointStore& store,
                const MemoryLedger& memory);

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest* request,
                                      v1::GetStatusResponse* response) override;
  grpc::ServerUnaryReactor* ListTensors(grpc::CallbackServerContext* context,
                                        const v1::ListTensorsRequest* request,
                                        v1::ListTensorsResponse* response) override;

 private:
  void FillStatus(v1::GetStatusResponse& response) const;
  absl::Status FillTensors(const v1::ListTensorsRequest& request,
                           v1::ListTensorsResponse& response) const;
  absl::Status FillPage(const CatalogView& catalog, const v1::ListTensorsRequest& request,
                        v1::ListTensorsResponse& response) const;
  absl::StatusOr<size_t> ParsePageToken(const std::string& token, size_t first, size_t last) const;

  const Options options_;
  SessionRegistry& registry_;
  const CheckpointStore& store_;
  const MemoryLedger& memory_;
};

}  // namespace forestage
