#include "client/cli/daemon_stub.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "client/src/socket_connect.h"
#include "google/protobuf/empty.pb.h"
#include "google/protobuf/unknown_field_set.h"
#include "google/protobuf/util/json_util.h"
#include "grpcpp/create_channel_posix.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/channel_arguments.h"
#include <sys/socket.h>

#include "common/status_macros.h"
#include "common/unique_fd.h"
#include "forestage/v1/status.grpc.pb.h"

namespace forestage {
namespace {

// The daemon's answer grows with what it holds; a tool has no reason to refuse it.
constexpr int kResponseBytesMax = 64 * 1024 * 1024;
constexpr char kHealthMethod[] = "/grpc.health.v1.Health/Check";

std::string PolicyText(v1::Policy policy) {
  switch (policy) {
    case v1::POLICY_AUTO:
      return "auto";
    case v1::POLICY_NATIVE:
      return "native";
    case v1::POLICY_RANK_STRIPED_READ_AHEAD:
      return "rank_striped_read_ahead";
    default:
      return absl::StrCat("unknown (", static_cast<int>(policy), ")");
  }
}

enum class Audience { kRanks, kAdministrators };

// Every error that means "no daemon" is UNAVAILABLE.
absl::Status WithOneCode(const absl::Status& status) {
  return absl::IsNotFound(status) ? absl::UnavailableError(status.message()) : status;
}

absl::StatusOr<UniqueFd> Connect(const DaemonSocket& daemon_socket, Audience audience) {
  if (audience == Audience::kRanks) {
    absl::StatusOr<UniqueFd> socket = ConnectToRanksSocket(daemon_socket, absl::InfinitePast());
    if (!socket.ok()) return WithOneCode(socket.status());
    return socket;
  }
  absl::StatusOr<UniqueFd> socket =
      ConnectUnixSocket(daemon_socket, SOCK_STREAM, absl::InfinitePast());
  if (socket.ok() || absl::IsUnauthenticated(socket.status())) return socket;
  const absl::Status& status = socket.status();
  constexpr char kOptions[] = "--admin-socket or FORESTAGE_ADMIN_SOCKET";
  if (absl::IsNotFound(status) || absl::IsUnavailable(status)) {
    return WithOneCode(absl::NotFoundError(
        absl::StrCat("no daemon answers at ", status.message(),
                     "; start forestaged, or give its administrators' socket with ", kOptions)));
  }
  if (absl::IsPermissionDenied(status)) {
    return absl::PermissionDeniedError(
        absl::StrCat("may not connect to ", status.message(),
                     "; this socket is for administrators: run as root or as the daemon's user. "
                     "Loading needs no such right"));
  }
  return absl::Status(status.code(), absl::StrCat("cannot connect to ", status.message(),
                                                  "; give the daemon's socket with ", kOptions));
}

absl::Status ToAbsl(const grpc::Status& status, const std::string& socket_path) {
  if (status.ok()) return absl::OkStatus();
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
      return absl::AbortedError(absl::StrCat(
          "the daemon at ", socket_path, " closed the connection without an answer; see its log (",
          status.error_message(), ")"));
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return absl::DeadlineExceededError(
          absl::StrCat("the daemon on ", socket_path,
                       " does not answer in time; look at its log, or restart it"));
    default:
      return absl::Status(
          static_cast<absl::StatusCode>(status.error_code()),
          absl::StrCat("the daemon on ", socket_path, " says: ", status.error_message()));
  }
}

DaemonSessionRow ToRow(const v1::SessionStatus& session) {
  DaemonSessionRow row;
  row.group = session.group().name();
  row.local_rank = session.local_rank();
  row.local_size = session.group().local_size();
  row.pid = session.pid();
  if (session.has_decision()) {
    row.policy = PolicyText(session.decision().effective());
    row.reason = session.decision().reason();
  }
  row.age_seconds = session.age_seconds();
  row.consumed_bytes = session.consumed_bytes();
  row.major_faults = session.major_faults();
  return row;
}

DaemonCheckpointRow ToRow(const v1::CheckpointStatus& checkpoint) {
  DaemonCheckpointRow row;
  row.path = checkpoint.path();
  row.shard_count = checkpoint.shard_count();
  row.tensor_count = checkpoint.tensor_count();
  row.total_bytes = checkpoint.total_bytes();
  row.wanted_bytes = checkpoint.progress().wanted_bytes();
  row.resident_bytes = checkpoint.progress().resident_bytes();
  row.failed_bytes = checkpoint.progress().failed_bytes();
  row.read_bytes = checkpoint.progress().read_bytes();
  row.staging_seconds = checkpoint.progress().staging_seconds();
  row.complete = checkpoint.progress().complete();
  row.bytes_per_second = checkpoint.progress().bytes_per_second();
  if (checkpoint.progress().has_seconds_left())
    row.seconds_left = checkpoint.progress().seconds_left();
  for (const v1::StuckRead& read : checkpoint.progress().stuck_reads())
    row.stuck_reads.push_back({.file = read.file(),
                               .offset = read.offset(),
                               .bytes = read.bytes(),
                               .seconds = read.seconds()});
  for (const std::string& error : checkpoint.read_errors()) row.read_errors.push_back(error);
  for (const v1::SessionStatus& session : checkpoint.sessions())
    row.sessions.push_back(ToRow(session));
  return row;
}

DaemonMountRow ToRow(const v1::MountStatus& mount) {
  DaemonMountRow row;
  row.device = mount.device();
  row.type = mount.type();
  row.mount_point = mount.mount_point();
  row.way = mount.way();
  row.advice_bytes = mount.advice_bytes();
  row.files_opened = mount.files_opened();
  row.files_residency_unknown = mount.files_residency_unknown();
  row.in_flight_bytes = mount.in_flight_bytes();
  row.in_flight_limit_bytes = mount.in_flight_limit_bytes();
  row.stuck_bytes = mount.stuck_bytes();
  row.read_bytes_per_second_max = mount.read_bytes_per_second_max();
  row.held_back = mount.held_back();
  for (const std::string& weakness : mount.weaknesses()) row.weaknesses.push_back(weakness);
  return row;
}

absl::StatusOr<std::string> ToJson(const v1::GetStatusResponse& response) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto printed = google::protobuf::util::MessageToJsonString(response, &json, options);
  if (!printed.ok()) {
    return absl::InternalError(
        absl::StrCat("cannot print the daemon's answer as JSON: ", printed.ToString()));
  }
  return json;
}

// grpc.health.v1.HealthCheckResponse.status, the only field: number 1, an enum.
std::string HealthWord(const google::protobuf::Empty& response) {
  const google::protobuf::UnknownFieldSet& fields =
      google::protobuf::Empty::GetReflection()->GetUnknownFields(response);
  uint64_t status = 0;
  for (int i = 0; i < fields.field_count(); ++i) {
    const google::protobuf::UnknownField& field = fields.field(i);
    if (field.number() == 1 && field.type() == google::protobuf::UnknownField::TYPE_VARINT)
      status = field.varint();
  }
  switch (status) {
    case 1:
      return "SERVING";
    case 2:
      return "NOT_SERVING";
    case 3:
      return "SERVICE_UNKNOWN";
    default:
      return "UNKNOWN";
  }
}

}  // namespace

class DaemonStub::Channel {
 public:
  static absl::StatusOr<std::unique_ptr<Channel>> Open(const DaemonSocket& daemon_socket,
                                                       Audience audience) {
    ASSIGN_OR_RETURN(UniqueFd socket, Connect(daemon_socket, audience));
    return std::make_unique<Channel>(daemon_socket.path, audience, std::move(socket));
  }
  Channel(const std::string& socket_path, Audience audience, UniqueFd socket)
      : socket_path_(socket_path),
        served_(audience == Audience::kAdministrators ? CheckServed(socket_path, socket.get())
                                                      : absl::OkStatus()) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(kResponseBytesMax);
    channel_ = grpc::CreateCustomInsecureChannelFromFd("forestaged", socket.Release(), arguments);
  }
  const std::shared_ptr<grpc::Channel>& get() const { return channel_; }

  // The error of a call on this channel.
  absl::Status ErrorOf(const grpc::Status& status) const {
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE && !served_.ok()) return served_;
    return ToAbsl(status, socket_path_);
  }

 private:
  const std::string socket_path_;
  const absl::Status served_;
  std::shared_ptr<grpc::Channel> channel_;
};

DaemonStub::DaemonStub(absl::StatusOr<std::unique_ptr<Channel>> channel)
    : channel_(std::move(channel)) {}

DaemonStub DaemonStub::ForRanks(const GlobalOptions& global) {
  return DaemonStub(Channel::Open({.path = global.socket_path, .daemon_user = global.daemon_user},
                                  Audience::kRanks));
}

DaemonStub DaemonStub::ForAdministrators(const GlobalOptions& global) {
  return DaemonStub(
      Channel::Open({.path = global.admin_socket_path, .daemon_user = global.daemon_user},
                    Audience::kAdministrators));
}

DaemonStub::~DaemonStub() = default;

absl::StatusOr<DaemonStatus> DaemonStub::GetStatus(absl::Time deadline) const {
  RETURN_IF_ERROR(channel_.status());
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(deadline));
  v1::GetStatusResponse response;
  RETURN_IF_ERROR(
      (*channel_)->ErrorOf(v1::StatusService::NewStub((*channel_)->get())
                               ->GetStatus(&context, v1::GetStatusRequest(), &response)));
  DaemonStatus status;
  status.version = response.daemon_version();
  status.pid = response.pid();
  status.uptime_seconds = response.uptime_seconds();
  status.draining = response.draining();
  status.reader = response.reader();
  status.reader_reason = response.reader_reason();
  status.metrics_address = response.metrics_address();
  const v1::MemoryStatus& memory = response.memory();
  status.memory_leased_bytes = memory.leased_bytes();
  if (memory.has_available_bytes()) status.memory_available_bytes = memory.available_bytes();
  status.memory_bound = memory.bound();
  status.memory_unknown.assign(memory.unknown().begin(), memory.unknown().end());
  for (const v1::UserStatus& user : memory.users())
    status.users.push_back({.uid = user.uid(), .staged_bytes = user.staged_bytes()});
  if (memory.has_user_bytes_max()) status.user_bytes_max = memory.user_bytes_max();
  for (const v1::CheckpointStatus& checkpoint : response.checkpoints())
    status.checkpoints.push_back(ToRow(checkpoint));
  for (const v1::MountStatus& mount : response.mounts()) status.mounts.push_back(ToRow(mount));
  ASSIGN_OR_RETURN(status.json, ToJson(response));
  return status;
}

absl::StatusOr<std::string> DaemonStub::CheckHealth(absl::Time deadline) const {
  RETURN_IF_ERROR(channel_.status());
  // The distribution's gRPC has no client of its health service. A request for the whole server has
  // no field set, so that Empty stands for it, and keeps the answer's field as an unknown one.
  using google::protobuf::Empty;
  grpc::TemplatedGenericStub<Empty, Empty> stub((*channel_)->get());
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(deadline));
  const Empty request;
  Empty response;
  grpc::Status status;
  absl::Notification done;
  stub.UnaryCall(&context, kHealthMethod, grpc::StubOptions(), &request, &response,
                 [&](grpc::Status result) {
                   status = std::move(result);
                   done.Notify();
                 });
  done.WaitForNotification();
  RETURN_IF_ERROR((*channel_)->ErrorOf(status));
  return HealthWord(response);
}

bool IsNoDaemon(const absl::Status& status) { return absl::IsUnavailable(status); }

}  // namespace forestage
