#include "daemon/server.h"

#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "spdlog/spdlog.h"
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server_posix.h>
#include <sys/socket.h>

#include "common/socket_path.h"
#include "common/status_macros.h"
#include "daemon/delivery/descriptor_exchange.h"
#include "daemon/delivery/unix_listener.h"
#include "daemon/limits.h"
#include "daemon/memory/memory_ledger.h"
#include "daemon/service/connection_acceptor.h"
#include "daemon/service/peer_table.h"
#include "daemon/service/session_directory.h"
#include "daemon/service/session_service.h"
#include "daemon/service/status_service.h"
#include "daemon/session/exit_watch.h"
#include "daemon/session/session_loop.h"
#include "daemon/session/session_registry.h"
#include "daemon/staging/striped_checkpoint_store.h"
#include "daemon/telemetry/telemetry.h"

namespace forestage {
namespace {

// Of the time for a drain, how much calls may take to end by themselves before they are cancelled.
constexpr double kDrainShareForCalls = 0.5;

// Counts of sessions, to metrics.
class TelemetrySessionObserver : public SessionObserver {
 public:
  explicit TelemetrySessionObserver(Telemetry& telemetry) : telemetry_(telemetry) {}
  void OnSessionCount(size_t open) override { telemetry_.SetSessions(open); }
  void OnGroupCount(size_t open) override { telemetry_.SetGroups(open); }
  void OnSessionEnded(absl::string_view outcome) override { telemetry_.OnSessionEnded(outcome); }
  void OnDecision(absl::string_view effective, absl::string_view reason_class) override {
    telemetry_.OnDecision(effective, reason_class);
  }
  void OnConsumed(uint64_t bytes) override { telemetry_.OnConsumed(bytes); }
  void OnMajorFaults(uint64_t count) override { telemetry_.OnMajorFaults(count); }
  void OnAdmissionRefused(absl::string_view bound) override {
    telemetry_.OnAdmissionRefused(bound);
  }
  void OnLeasedBytes(uint64_t bytes) override { telemetry_.SetLeasedBytes(bytes); }

 private:
  Telemetry& telemetry_;
};

// What no daemon on a path may do to another that serves it is done before anything else.
struct Listeners {
  std::unique_ptr<UnixListener> grpc;
  std::unique_ptr<UnixListener> descriptors;
};

absl::StatusOr<Listeners> BindListeners(const Config& config) {
  Listeners listeners;
  ASSIGN_OR_RETURN(listeners.grpc, UnixListener::Bind(config.socket_path, SOCK_STREAM));
  ASSIGN_OR_RETURN(listeners.descriptors,
                   UnixListener::Bind(DescriptorSocketPath(config.socket_path), SOCK_SEQPACKET));
  return listeners;
}

SessionRegistry::Options RegistryOptions(const Config& config, MemoryLedger* memory) {
  return {.sessions_max = config.sessions_max,
          .lanes_max = config.lanes_max,
          .agreement_timeout = config.agreement_timeout,
          .descriptor_timeout = config.descriptor_timeout,
          .now = [] { return absl::Now(); },
          .memory = memory};
}

// What may be staged, and what bounds it. Once: later figures stand in decisions and in the status.
void LogMemory(const MemoryLedger& memory) {
  const MemoryStanding standing = memory.Standing();
  spdlog::info(
      "memory available={} bound=\"{}\" unknown=\"{}\"",
      standing.available_bytes.has_value() ? FormatMemory(*standing.available_bytes) : "unbounded",
      absl::CEscape(standing.bound), absl::CEscape(absl::StrJoin(standing.unknown, "; ")));
}

std::chrono::system_clock::time_point DeadlineAfter(absl::Duration duration) {
  return absl::ToChronoTime(absl::Now() + duration);
}

}  // namespace

// In the order of construction: later parts use earlier ones.
class Server::Parts {
 public:
  static absl::StatusOr<std::unique_ptr<Parts>> Create(const Config& config);
  absl::Status Start();
  absl::Status Drain(absl::Duration within);
  std::string metrics_address() const { return telemetry_->address(); }
  ~Parts();

 private:
  Parts() : peers_(kConnectionsMax) {}
  absl::Status MakeSessions(const Config& config);
  absl::Status MakeSockets(Listeners listeners);
  absl::Status MakeGrpcServer();

  std::string socket_path_;
  std::unique_ptr<Telemetry> telemetry_;
  std::unique_ptr<TelemetrySessionObserver> observer_;
  std::unique_ptr<StripedCheckpointStore> store_;
  std::unique_ptr<MemoryLedger> memory_;
  std::unique_ptr<ExitWatch> exit_watch_;
  std::unique_ptr<SessionRegistry> registry_;
  std::unique_ptr<SessionLoop> loop_;
  std::unique_ptr<SessionDirectory> directory_;
  PeerTable peers_;
  std::unique_ptr<SessionService> session_service_;
  std::unique_ptr<StatusService> status_service_;
  std::unique_ptr<grpc::Server> grpc_server_;
  std::unique_ptr<DescriptorExchange> exchange_;
  std::unique_ptr<ConnectionAcceptor> acceptor_;
  std::optional<absl::Status> drained_;
};

absl::StatusOr<std::unique_ptr<Server::Parts>> Server::Parts::Create(const Config& config) {
  std::unique_ptr<Parts> parts(new Parts());
  ASSIGN_OR_RETURN(Listeners listeners, BindListeners(config));
  parts->socket_path_ = config.socket_path;
  ASSIGN_OR_RETURN(parts->telemetry_,
                   Telemetry::Create({.address = config.metrics_address,
                                      .daemon_version = std::string(DaemonVersion())}));
  parts->observer_ = std::make_unique<TelemetrySessionObserver>(*parts->telemetry_);
  RETURN_IF_ERROR(parts->MakeSessions(config));
  RETURN_IF_ERROR(parts->MakeSockets(std::move(listeners)));
  return parts;
}

absl::Status Server::Parts::MakeSessions(const Config& config) {
  ASSIGN_OR_RETURN(StripedCheckpointStore::Options options,
                   StripedCheckpointStore::OptionsFrom(config, telemetry_.get()));
  ASSIGN_OR_RETURN(store_, StripedCheckpointStore::Create(std::move(options)));
  telemetry_->SetStore(store_.get());
  ASSIGN_OR_RETURN(exit_watch_, ExitWatch::Create());
  memory_ = std::make_unique<MemoryLedger>(MemoryBudget::Options{
      .root = "", .headroom = config.memory_headroom, .limit_bytes = config.memory_limit_bytes});
  registry_ = std::make_unique<SessionRegistry>(RegistryOptions(config, memory_.get()), *store_,
                                                *exit_watch_, observer_.get());
  directory_ = std::make_unique<SessionDirectory>(*registry_);
  return absl::OkStatus();
}

absl::Status Server::Parts::MakeSockets(Listeners listeners) {
  session_service_ = std::make_unique<SessionService>(
      SessionService::Options{
          .generation = store_->generation(),
          .daemon_version = std::string(DaemonVersion()),
          .on_open_refused =
              [this](const absl::Status& status) { telemetry_->OnOpenRefused(status); }},
      *registry_, peers_);
  status_service_ = std::make_unique<StatusService>(
      StatusService::Options{.daemon_version = std::string(DaemonVersion()),
                             .generation = store_->generation(),
                             .started_at = absl::Now(),
                             .metrics_address = telemetry_->address()},
      *registry_, *store_, *memory_);
  RETURN_IF_ERROR(MakeGrpcServer());
  ASSIGN_OR_RETURN(exchange_,
                   DescriptorExchange::Create({}, std::move(listeners.descriptors), *directory_));
  ASSIGN_OR_RETURN(
      acceptor_,
      ConnectionAcceptor::Create(std::move(listeners.grpc), peers_, [this](UniqueFd connection) {
        grpc::AddInsecureChannelFromFd(grpc_server_.get(), connection.Release());
      }));
  return absl::OkStatus();
}

absl::Status Server::Parts::MakeGrpcServer() {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kGrpcReceiveBytesMax);
  builder.RegisterService(session_service_.get());
  builder.RegisterService(status_service_.get());
  grpc_server_ = builder.BuildAndStart();
  if (grpc_server_ == nullptr) return absl::InternalError("gRPC made no server");
  return absl::OkStatus();
}

absl::Status Server::Parts::Start() {
  loop_ = std::make_unique<SessionLoop>(*exit_watch_, *registry_);
  // The descriptor socket first: whoever has a session finds it.
  exchange_->Start();
  acceptor_->Start();
  LogMemory(*memory_);
  spdlog::info("serving socket={} reader={} reader_reason=\"{}\" metrics={}", socket_path_,
               store_->reader_name(), store_->reader_reason(),
               telemetry_->address().empty() ? "none" : telemetry_->address());
  return absl::OkStatus();
}

absl::Status Server::Parts::Drain(absl::Duration within) {
  if (drained_.has_value()) return *drained_;
  const absl::Time deadline = absl::Now() + within;
  spdlog::info("draining within={}", absl::FormatDuration(within));
  acceptor_->Stop();
  exchange_->StopAccepting();
  if (grpc::HealthCheckServiceInterface* const health = grpc_server_->GetHealthCheckService()) {
    health->SetServingStatus(false);
  }
  // Sessions hear of it before their boards close.
  registry_->BeginDrain();
  store_->Stop();
  registry_->EndAll();
  exchange_->Stop();
  grpc_server_->Shutdown(DeadlineAfter(within * kDrainShareForCalls));
  loop_.reset();
  telemetry_->SetStore(nullptr);
  drained_ = absl::OkStatus();
  if (!registry_->WaitUntilIdle(deadline)) {
    drained_ = absl::DeadlineExceededError(
        "storage still holds threads of the daemon; leaving without them");
  }
  spdlog::info("drained status=\"{}\"", drained_->ToString());
  return *drained_;
}

Server::Parts::~Parts() {
  // A Create that failed half-way has no parts to drain.
  if (acceptor_ != nullptr) (void)Drain(kDrainTimeout);
  if (telemetry_ != nullptr) telemetry_->SetStore(nullptr);
}

Server::Server(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Server::~Server() = default;

absl::StatusOr<std::unique_ptr<Server>> Server::Create(const Config& config) {
  ASSIGN_OR_RETURN(std::unique_ptr<Parts> parts, Parts::Create(config));
  return std::unique_ptr<Server>(new Server(std::move(parts)));
}

absl::Status Server::Start() { return parts_->Start(); }
absl::Status Server::Drain(absl::Duration within) { return parts_->Drain(within); }
std::string Server::metrics_address() const { return parts_->metrics_address(); }

}  // namespace forestage
