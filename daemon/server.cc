#include "daemon/server.h"

#include <algorithm>
#include <chrono>
#include <initializer_list>
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
#include <sys/resource.h>
#include <sys/socket.h>

#include "common/socket_path.h"
#include "common/status_macros.h"
#include "daemon/delivery/descriptor_exchange.h"
#include "daemon/delivery/socket_group.h"
#include "daemon/delivery/unix_listener.h"
#include "daemon/limits.h"
#include "daemon/memory/memory_ledger.h"
#include "daemon/service/connection_acceptor.h"
#include "daemon/service/peer_table.h"
#include "daemon/service/session_directory.h"
#include "daemon/service/session_service.h"
#include "daemon/service/status_refusal_service.h"
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
  void OnLargestUserBytes(uint64_t bytes) override { telemetry_.SetLargestUserBytes(bytes); }

 private:
  Telemetry& telemetry_;
};

// What no daemon on a path may do to another that serves it is done before anything else.
struct Listeners {
  std::unique_ptr<UnixListener> ranks;
  std::unique_ptr<UnixListener> descriptors;
  std::unique_ptr<UnixListener> administrators;
};

std::string AdminPathOf(const Config& config) {
  return config.admin_socket_path.empty() ? AdminSocketPath(config.socket_path)
                                          : config.admin_socket_path;
}

absl::StatusOr<Listeners> BindListeners(const Config& config) {
  ASSIGN_OR_RETURN(const std::optional<gid_t> group, ResolveSocketGroup(config.socket_group));
  const mode_t mode = config.socket_mode;
  Listeners listeners;
  ASSIGN_OR_RETURN(
      listeners.ranks,
      UnixListener::Bind(
          {.path = config.socket_path, .type = SOCK_STREAM, .mode = mode, .group = group}));
  ASSIGN_OR_RETURN(listeners.descriptors,
                   UnixListener::Bind({.path = DescriptorSocketPath(config.socket_path),
                                       .type = SOCK_SEQPACKET,
                                       .mode = mode,
                                       .group = group}));
  ASSIGN_OR_RETURN(
      listeners.administrators,
      UnixListener::Bind(
          {.path = AdminPathOf(config), .type = SOCK_STREAM, .mode = 0600, .owners_only = true}));
  return listeners;
}

SessionRegistry::Options RegistryOptions(const Config& config, MemoryLedger* memory) {
  rlimit descriptors = {};
  getrlimit(RLIMIT_NOFILE, &descriptors);
  return {.sessions_max = config.sessions_max,
          .sessions_per_user_max = config.sessions_per_user_max,
          .descriptors_per_user_max = static_cast<size_t>(
              static_cast<double>(descriptors.rlim_cur) * kDescriptorShareOfUser),
          .staged_bytes_per_user_max = config.staged_bytes_per_user_max,
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

// Headers are what takes memory of the process itself, so they get a part of what bounds it. Not of
// memory-limit, which is about page cache.
uint64_t HeaderBytesMax() {
  const MemoryStanding standing = MemoryLedger(MemoryBudget::Options()).Standing();
  return std::clamp(standing.available_bytes.value_or(UINT64_MAX) / kHeldHeaderMemoryPart,
                    kHeldHeaderBytesMin, kHeldHeaderBytesMax);
}

// A server of these services, with health and reflection.
absl::StatusOr<std::unique_ptr<grpc::Server>> MakeGrpcServer(
    std::initializer_list<grpc::Service*> services) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kGrpcReceiveBytesMax);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsPerConnectionMax);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS,
                             static_cast<int>(absl::ToInt64Milliseconds(kGrpcIdleTimeout)));
  for (grpc::Service* const service : services) builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return absl::InternalError("gRPC made no server");
  return server;
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
  Parts()
      : peers_({.connections_max = kConnectionsMax,
                .connections_per_user_max = kConnectionsPerUserMax}),
        admin_peers_({.connections_max = kAdminConnectionsMax,
                      .connections_per_user_max = kAdminConnectionsMax}) {}
  absl::Status MakeSessions(const Config& config);
  absl::Status MakeSockets(Listeners listeners);

  std::string socket_path_;
  std::string admin_socket_path_;
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
  std::unique_ptr<StatusRefusalService> status_refusal_service_;
  std::unique_ptr<StatusService> status_service_;
  // Two servers, so that no call of a rank's connection can reach what administrators are told.
  std::unique_ptr<grpc::Server> rank_server_;
  PeerTable admin_peers_;
  std::unique_ptr<grpc::Server> admin_server_;
  std::unique_ptr<DescriptorExchange> exchange_;
  std::unique_ptr<ConnectionAcceptor> acceptor_;
  std::unique_ptr<ConnectionAcceptor> admin_acceptor_;
  std::optional<absl::Status> drained_;
};

absl::StatusOr<std::unique_ptr<Server::Parts>> Server::Parts::Create(const Config& config) {
  std::unique_ptr<Parts> parts(new Parts());
  ASSIGN_OR_RETURN(Listeners listeners, BindListeners(config));
  parts->socket_path_ = config.socket_path;
  parts->admin_socket_path_ = AdminPathOf(config);
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
  options.header_bytes_max = HeaderBytesMax();
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
  status_refusal_service_ = std::make_unique<StatusRefusalService>(admin_socket_path_);
  status_service_ = std::make_unique<StatusService>(
      StatusService::Options{.daemon_version = std::string(DaemonVersion()),
                             .generation = store_->generation(),
                             .started_at = absl::Now(),
                             .metrics_address = telemetry_->address()},
      *registry_, *store_, *memory_);
  ASSIGN_OR_RETURN(rank_server_,
                   MakeGrpcServer({session_service_.get(), status_refusal_service_.get()}));
  ASSIGN_OR_RETURN(admin_server_, MakeGrpcServer({status_service_.get()}));
  ASSIGN_OR_RETURN(exchange_,
                   DescriptorExchange::Create({}, std::move(listeners.descriptors), *directory_));
  ASSIGN_OR_RETURN(acceptor_, ConnectionAcceptor::Create(
                                  std::move(listeners.ranks), peers_,
                                  [this](UniqueFd connection) {
                                    grpc::AddInsecureChannelFromFd(rank_server_.get(),
                                                                   connection.Release());
                                  },
                                  [this] { session_service_->Sweep(); }));
  ASSIGN_OR_RETURN(admin_acceptor_,
                   ConnectionAcceptor::Create(std::move(listeners.administrators), admin_peers_,
                                              [this](UniqueFd connection) {
                                                grpc::AddInsecureChannelFromFd(
                                                    admin_server_.get(), connection.Release());
                                              }));
  return absl::OkStatus();
}

absl::Status Server::Parts::Start() {
  loop_ = std::make_unique<SessionLoop>(*exit_watch_, *registry_);
  // The descriptor socket first: whoever has a session finds it.
  exchange_->Start();
  acceptor_->Start();
  LogMemory(*memory_);
  admin_acceptor_->Start();
  spdlog::info("serving socket={} admin_socket={} reader={} reader_reason=\"{}\" metrics={}",
               socket_path_, admin_socket_path_, store_->reader_name(),
               absl::CEscape(store_->reader_reason()),
               telemetry_->address().empty() ? "none" : telemetry_->address());
  return absl::OkStatus();
}

absl::Status Server::Parts::Drain(absl::Duration within) {
  if (drained_.has_value()) return *drained_;
  const absl::Time deadline = absl::Now() + within;
  spdlog::info("draining within={}", absl::FormatDuration(within));
  acceptor_->Stop();
  admin_acceptor_->Stop();
  exchange_->StopAccepting();
  for (grpc::Server* const server : {rank_server_.get(), admin_server_.get()}) {
    if (grpc::HealthCheckServiceInterface* const health = server->GetHealthCheckService()) {
      health->SetServingStatus(false);
    }
  }
  // Sessions hear of it before their boards close.
  registry_->BeginDrain();
  store_->Stop();
  registry_->EndAll();
  exchange_->Stop();
  const auto calls_deadline = DeadlineAfter(within * kDrainShareForCalls);
  rank_server_->Shutdown(calls_deadline);
  admin_server_->Shutdown(calls_deadline);
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
  if (admin_acceptor_ != nullptr) (void)Drain(kDrainTimeout);
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
