#include "client/src/daemon_connection.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/src/descriptor_client.h"
#include "client/src/socket_connect.h"
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/client_callback.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "common/error_list.h"
#include "common/socket_path.h"
#include "common/staging_board.h"
#include "common/status_macros.h"
#include "common/utf8_text.h"
#include "forestage/v1/session.grpc.pb.h"

namespace forestage {
namespace {

// No event is near this; a peer that sends more is not a daemon of ours.
constexpr int kEventBytesMax = 1024 * 1024;
constexpr size_t kItemsPerDemandMessage = 100'000;
constexpr size_t kIndexesPerMessage = 50'000;
// Consumed tensors are only counted by the daemon: a message for each of a hundred thousand small
// ones would cost more than to read them. They go together, and at the latest with the last
// message.
constexpr absl::Duration kConsumedPeriod = absl::Milliseconds(20);
// How much longer than its agreement_timeout a rank waits for the daemon to say that it passed.
constexpr absl::Duration kAgreementGrace = absl::Seconds(2);
// How long Close waits for the daemon to end the stream, and then for gRPC to cancel it.
constexpr absl::Duration kCloseTimeout = absl::Milliseconds(500);
// The daemon's first answer needs no storage: one that does not come is a daemon that is stopped.
constexpr absl::Duration kGreetingTimeout = absl::Seconds(5);
// The descriptor socket exists before the other one, so only its backlog is waited for.
constexpr absl::Duration kDescriptorConnectTimeout = absl::Seconds(2);
// Longest texts that this rank says of itself; the daemon refuses longer ones.
constexpr size_t kCommandBytesMax = 256;
constexpr size_t kCpuListBytesMax = 1024;
constexpr size_t kPathBytesMax = 4096;
constexpr char kClientVersion[] = FORESTAGE_VERSION;

v1::Policy ToProto(Policy policy) {
  switch (policy) {
    case Policy::kAuto:
      return v1::POLICY_AUTO;
    case Policy::kNative:
      return v1::POLICY_NATIVE;
    case Policy::kRankStripedReadAhead:
      return v1::POLICY_RANK_STRIPED_READ_AHEAD;
  }
  return v1::POLICY_AUTO;
}

// kAuto, which no daemon may decide, stands for what this client does not know.
Policy FromProto(v1::Policy policy) {
  switch (policy) {
    case v1::POLICY_NATIVE:
      return Policy::kNative;
    case v1::POLICY_RANK_STRIPED_READ_AHEAD:
      return Policy::kRankStripedReadAhead;
    default:
      return Policy::kAuto;
  }
}

// "forestage load ..." as in /proc/self/cmdline; empty when it cannot be read.
std::string OwnCommand() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string command((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::replace(command.begin(), command.end(), '\0', ' ');
  command.resize(std::min(command.size(), kCommandBytesMax));
  return Utf8Text(absl::StripAsciiWhitespace(command)).substr(0, 4 * kCommandBytesMax);
}

std::string OwnCpuList() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    absl::string_view value = line;
    if (absl::ConsumePrefix(&value, "Cpus_allowed_list:")) {
      return std::string(absl::StripAsciiWhitespace(value).substr(0, kCpuListBytesMax));
    }
  }
  return "";
}

v1::SessionRequest MakeOpenMessage(const DaemonOpenRequest& request) {
  v1::SessionRequest message;
  v1::OpenRequest& open = *message.mutable_open();
  open.mutable_group()->set_name(Utf8Text(request.group_name));
  open.mutable_group()->set_launch_nonce(Utf8Text(request.launch_nonce));
  open.mutable_group()->set_local_size(request.local_size);
  open.set_local_rank(request.local_rank);
  open.set_policy(ToProto(request.policy));
  open.set_agreement(request.agreement == Agreement::kStrict ? v1::AGREEMENT_STRICT
                                                             : v1::AGREEMENT_EAGER);
  const int64_t timeout_ms = absl::ToInt64Milliseconds(request.agreement_timeout);
  // 0 would be the daemon's default.
  open.set_agreement_timeout_ms(
      static_cast<uint32_t>(std::clamp<int64_t>(timeout_ms, 1, UINT32_MAX)));
  open.mutable_client()->set_version(kClientVersion);
  open.mutable_client()->set_command(OwnCommand());
  open.mutable_client()->set_device_uuid(Utf8Text(request.device_uuid));
  open.mutable_client()->set_cpu_list(OwnCpuList());
  open.set_path(Utf8Text(request.path).substr(0, kPathBytesMax));
  for (const OfferedShard& shard : request.shards) {
    v1::Shard& entry = *open.add_shards();
    entry.set_name(shard.name);
    entry.set_size_bytes(shard.bytes);
    entry.set_mtime_ns(shard.mtime_ns);
  }
  open.set_demand_follows(request.demand_follows);
  return message;
}

StagingStatus FromProto(const v1::Progress& progress) {
  std::vector<StuckRead> stuck_reads;
  for (const v1::StuckRead& read : progress.stuck_reads()) {
    stuck_reads.push_back({.file = read.file(),
                           .offset = read.offset(),
                           .bytes = read.bytes(),
                           .seconds = read.seconds()});
  }
  return {.wanted_bytes = progress.wanted_bytes(),
          .resident_bytes = progress.resident_bytes(),
          .failed_bytes = progress.failed_bytes(),
          .read_bytes = progress.read_bytes(),
          .staging_seconds = progress.staging_seconds(),
          .complete = progress.complete(),
          .bytes_per_second = progress.bytes_per_second(),
          .seconds_left =
              progress.has_seconds_left() ? std::optional(progress.seconds_left()) : std::nullopt,
          .stuck_reads = std::move(stuck_reads)};
}

uint64_t OwnMajorFaults() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_majflt);
}

// What a call needs of gRPC until OnDone. Never destroyed on one of gRPC's own threads: the last
// channel of a process joins them.
struct Call {
  explicit Call(std::shared_ptr<grpc::Channel> on)
      : channel(std::move(on)), stub(v1::SessionService::NewStub(channel)) {}
  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<v1::SessionService::Stub> stub;
  grpc::ClientContext context;
};

// One OpenSession stream. gRPC's threads call the On... reactions; everything else comes from the
// client's threads. It owns itself from Start until OnDone, since gRPC may call until then.
//
// Reading: one read is outstanding from Start until it fails. Writing: at most one message is with
// gRPC (`writing_`); what is to be sent waits in queues, which the session bounds (each extent and
// tensor is sent once), so that no caller ever blocks on the daemon.
class SessionStream : public grpc::ClientBidiReactor<v1::SessionRequest, v1::SessionEvent> {
 public:
  // `call` lives until HasEnded().
  static std::shared_ptr<SessionStream> Start(Call& call, const v1::SessionRequest& open,
                                              std::shared_ptr<DaemonLoss> loss)
      ABSL_NO_THREAD_SAFETY_ANALYSIS {
    std::shared_ptr<SessionStream> stream(new SessionStream(call, std::move(loss)));
    stream->self_ = stream;
    call.stub->async()->OpenSession(&call.context, stream.get());
    // Writes may be started from outside a reaction until writing ends.
    stream->AddHold();
    stream->outgoing_ = open;
    stream->writing_ = true;
    stream->StartWrite(&stream->outgoing_);
    stream->StartRead(&stream->incoming_);
    stream->StartCall();
    return stream;
  }

  // Waits for what the daemon says first. The stream's own error when it ends before;
  // DEADLINE_EXCEEDED.
  absl::StatusOr<v1::SessionOpened> WaitForOpened(absl::Time deadline) {
    return AwaitEvent(&SessionStream::opened_, deadline, "its answer");
  }
  absl::StatusOr<v1::CheckpointReady> WaitForCheckpoint(absl::Time deadline) {
    return WaitForEvent(&SessionStream::checkpoint_, deadline, "it to read the shards' headers");
  }
  absl::StatusOr<v1::Decision> WaitForDecision(absl::Time deadline) {
    return WaitForEvent(&SessionStream::decision_, deadline, "its decision");
  }

  // UNAVAILABLE when the daemon does not answer on the stream either: it is stopped, or hangs.
  absl::Status CheckAlive();

  // Why the daemon ended the stream, if it does so within a moment, else `otherwise`: the stream
  // knows more than the descriptor socket that breaks with it.
  absl::Status EndOr(const absl::Status& otherwise) ABSL_LOCKS_EXCLUDED(mutex_);

  void QueueDemand(absl::Span<const DemandedBytes> items) ABSL_LOCKS_EXCLUDED(mutex_);
  void QueueUrgent(absl::Span<const uint64_t> extent_indexes) ABSL_LOCKS_EXCLUDED(mutex_);
  void QueueConsumed(uint32_t tensor_index) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<StagingStatus> GetProgress(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the stream: sends what is queued, then cancels. Blocks at most twice kCloseTimeout.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);
  // OnDone has been called: gRPC needs nothing of this call any more.
  bool HasEnded() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return end_.has_value();
  }

  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone(const grpc::Status& status) override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  SessionStream(Call& call, std::shared_ptr<DaemonLoss> loss)
      : call_(call), loss_(std::move(loss)) {}

  // Waits as long as the daemon lives.
  template <typename Event>
  absl::StatusOr<Event> WaitForEvent(std::optional<Event> SessionStream::*member,
                                     absl::Time deadline, absl::string_view what)
      ABSL_LOCKS_EXCLUDED(mutex_);
  template <typename Event>
  absl::StatusOr<Event> AwaitEvent(std::optional<Event> SessionStream::*member, absl::Time deadline,
                                   absl::string_view what) ABSL_LOCKS_EXCLUDED(mutex_);
  void TakeEvent(v1::SessionEvent& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives the next message to gRPC, or ends writing.
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool TakeNextMessage() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndWriting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Constant after construction.
  Call& call_;  // not touched after OnDone
  const std::shared_ptr<DaemonLoss> loss_;

  // With gRPC while a read or a write is outstanding.
  v1::SessionEvent incoming_;
  v1::SessionRequest outgoing_;

  absl::Mutex mutex_;
  std::shared_ptr<SessionStream> self_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::SessionOpened> opened_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::CheckpointReady> checkpoint_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::Decision> decision_ ABSL_GUARDED_BY(mutex_);
  StagingStatus progress_ ABSL_GUARDED_BY(mutex_);
  uint64_t progress_count_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mutex_);

  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<DemandedBytes> demand_ ABSL_GUARDED_BY(mutex_);
  bool demand_pending_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<uint64_t> urgent_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> consumed_ ABSL_GUARDED_BY(mutex_);
  absl::Time consumed_due_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool progress_wanted_ ABSL_GUARDED_BY(mutex_) = false;
};

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

template <typename Event>
absl::StatusOr<Event> SessionStream::WaitForEvent(std::optional<Event> SessionStream::*member,
                                                  absl::Time deadline, absl::string_view what) {
  // In short steps: only what it is asked shows whether a daemon that says nothing lives.
  while (true) {
    const absl::Time look = absl::Now() + kAnswerPatience;
    absl::StatusOr<Event> event = AwaitEvent(member, std::min(deadline, look), what);
    if (event.ok() || look >= deadline || !absl::IsDeadlineExceeded(event.status()) || HasEnded()) {
      return event;
    }
    const absl::Status alive = CheckAlive();
    if (!alive.ok()) return HasEnded() ? AwaitEvent(member, absl::InfinitePast(), what) : alive;
  }
}

template <typename Event>
absl::StatusOr<Event> SessionStream::AwaitEvent(std::optional<Event> SessionStream::*member,
                                                absl::Time deadline, absl::string_view what) {
  absl::MutexLock lock(&mutex_);
  const std::optional<Event>& event = this->*member;
  const auto decided = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return event.has_value() || end_.has_value() || loss_->lost();
  };
  mutex_.AwaitWithDeadline(absl::Condition(&decided), deadline);
  if (event.has_value()) return *event;
  if (end_.has_value()) {
    return end_->ok() ? absl::UnavailableError("it ended the session at once") : FromGrpc(*end_);
  }
  if (loss_->lost()) return absl::UnavailableError(loss_->reason());
  return absl::DeadlineExceededError(absl::StrCat("timed out waiting for ", what));
}

absl::Status SessionStream::CheckAlive() {
  // Twice, since it may be this process that stood still for a while.
  for (int half = 0; half < 2; ++half) {
    const absl::Status answer = GetProgress(absl::Now() + kBoardHeartbeatTimeout / 2).status();
    if (!absl::IsDeadlineExceeded(answer)) return answer;
  }
  return absl::UnavailableError(absl::StrCat("the daemon stands still: it has not answered for ",
                                             absl::FormatDuration(kBoardHeartbeatTimeout)));
}

absl::Status SessionStream::EndOr(const absl::Status& otherwise) {
  absl::MutexLock lock(&mutex_);
  const auto ended = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return end_.has_value(); };
  mutex_.AwaitWithTimeout(absl::Condition(&ended), kCloseTimeout);
  return end_.has_value() && !end_->ok() ? FromGrpc(*end_) : otherwise;
}

void SessionStream::TakeEvent(v1::SessionEvent& event) {
  switch (event.event_case()) {
    case v1::SessionEvent::kOpened:
      opened_ = std::move(*event.mutable_opened());
      return;
    case v1::SessionEvent::kCheckpoint:
      checkpoint_ = std::move(*event.mutable_checkpoint());
      return;
    case v1::SessionEvent::kDecision:
      decision_ = std::move(*event.mutable_decision());
      return;
    case v1::SessionEvent::kProgress:
      progress_ = FromProto(event.progress());
      ++progress_count_;
      return;
    case v1::SessionEvent::kDraining:
      loss_->Lose("the daemon is draining: it stops");
      return;
    case v1::SessionEvent::EVENT_NOT_SET:
      return;  // of a newer daemon
  }
}

void SessionStream::OnReadDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  if (!ok) {
    EndWriting();
    return;
  }
  TakeEvent(incoming_);
  incoming_.Clear();
  StartRead(&incoming_);
}

void SessionStream::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  writing_ = false;
  if (!ok) {
    EndWriting();
  } else {
    WriteNext();
  }
}

void SessionStream::EndWriting() {
  if (writing_ended_) return;
  writing_ended_ = true;
  RemoveHold();
}

void SessionStream::WriteNext() {
  if (writing_ || writing_ended_) return;
  if (TakeNextMessage()) {
    writing_ = true;
    StartWrite(&outgoing_);
  } else if (closing_) {
    StartWritesDone();
    EndWriting();
  }
}

bool SessionStream::TakeNextMessage() {
  outgoing_.Clear();
  if (demand_pending_) {
    v1::Demand& demand = *outgoing_.mutable_demand();
    while (!demand_.empty() && static_cast<size_t>(demand.items_size()) < kItemsPerDemandMessage) {
      v1::Demand::Item& item = *demand.add_items();
      item.set_tensor_index(demand_.front().tensor_index);
      item.set_begin(demand_.front().begin);
      item.set_end(demand_.front().end);
      demand_.pop_front();
    }
    demand.set_more(!demand_.empty());
    demand_pending_ = !demand_.empty();
    return true;
  }
  if (!urgent_.empty()) {
    const size_t count = std::min(urgent_.size(), kIndexesPerMessage);
    outgoing_.mutable_urgent()->mutable_extent_indexes()->Add(urgent_.begin(),
                                                              urgent_.begin() + count);
    urgent_.erase(urgent_.begin(), urgent_.begin() + count);
    return true;
  }
  const absl::Time now = absl::Now();
  if (!consumed_.empty() && (closing_ || progress_wanted_ || now >= consumed_due_)) {
    consumed_due_ = now + kConsumedPeriod;
    const size_t count = std::min(consumed_.size(), kIndexesPerMessage);
    outgoing_.mutable_consumed()->mutable_tensor_indexes()->Add(consumed_.begin(),
                                                                consumed_.begin() + count);
    consumed_.erase(consumed_.begin(), consumed_.begin() + count);
    return true;
  }
  if (progress_wanted_) {
    progress_wanted_ = false;
    outgoing_.mutable_progress()->set_major_faults(OwnMajorFaults());
    return true;
  }
  return false;
}

void SessionStream::QueueDemand(absl::Span<const DemandedBytes> items) {
  absl::MutexLock lock(&mutex_);
  demand_.insert(demand_.end(), items.begin(), items.end());
  demand_pending_ = true;
  WriteNext();
}

void SessionStream::QueueUrgent(absl::Span<const uint64_t> extent_indexes) {
  absl::MutexLock lock(&mutex_);
  urgent_.insert(urgent_.end(), extent_indexes.begin(), extent_indexes.end());
  WriteNext();
}

void SessionStream::QueueConsumed(uint32_t tensor_index) {
  absl::MutexLock lock(&mutex_);
  consumed_.push_back(tensor_index);
  WriteNext();
}

absl::StatusOr<StagingStatus> SessionStream::GetProgress(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  const uint64_t seen = progress_count_;
  progress_wanted_ = true;
  WriteNext();
  const auto decided = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return progress_count_ > seen || writing_ended_ || closing_;
  };
  mutex_.AwaitWithDeadline(absl::Condition(&decided), deadline);
  if (progress_count_ > seen) return progress_;
  if (writing_ended_ || closing_) {
    return absl::UnavailableError(loss_->lost() ? loss_->reason()
                                                : "the session with the daemon has ended");
  }
  return absl::DeadlineExceededError("timed out waiting for the daemon's progress");
}

void SessionStream::OnDone(const grpc::Status& status) {
  std::shared_ptr<SessionStream> self;
  absl::MutexLock lock(&mutex_);
  end_ = status;
  loss_->Lose(
      absl::StrCat("the daemon closed the stream: ",
                   status.ok() ? "the session ended" : OneLine(FromGrpc(status).ToString())));
  // Deleted after the lock is given back, if the connection has gone already.
  self = std::move(self_);
}

void SessionStream::Close() {
  absl::MutexLock lock(&mutex_);
  closing_ = true;
  WriteNext();
  const auto ended = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return end_.has_value(); };
  if (mutex_.AwaitWithTimeout(absl::Condition(&ended), kCloseTimeout)) return;
  call_.context.TryCancel();
  mutex_.AwaitWithTimeout(absl::Condition(&ended), kCloseTimeout);
}

class DaemonConnection : public DaemonSession {
 public:
  DaemonConnection(std::unique_ptr<Call> call, const v1::SessionRequest& open,
                   std::shared_ptr<DaemonLoss> loss)
      : call_(std::move(call)), stream_(SessionStream::Start(*call_, open, std::move(loss))) {}
  ~DaemonConnection() override {
    Close();
    // gRPC may use the call for ever, if it cannot even cancel: better a leak than a crash.
    if (!stream_->HasEnded()) static_cast<void>(call_.release());
  }

  void SendDemand(absl::Span<const DemandedBytes> items) override { stream_->QueueDemand(items); }
  void SendUrgent(absl::Span<const uint64_t> extent_indexes) override {
    stream_->QueueUrgent(extent_indexes);
  }
  void SendConsumed(uint32_t tensor_index) override { stream_->QueueConsumed(tensor_index); }
  absl::StatusOr<StagingStatus> GetProgress(absl::Time deadline) override {
    return stream_->GetProgress(deadline);
  }
  void Close() override { stream_->Close(); }
  SessionStream& stream() { return *stream_; }

 private:
  std::unique_ptr<Call> call_;
  const std::shared_ptr<SessionStream> stream_;
};

std::shared_ptr<grpc::Channel> MakeChannel(UniqueFd socket) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kEventBytesMax);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  // No keepalive: it would declare a daemon dead that is only stopped; the board's heartbeat tells.
  // A channel on a connected descriptor never reconnects: it stays with whom ConnectUnixSocket has
  // found to listen.
  return grpc::CreateCustomInsecureChannelFromFd("forestaged", socket.Release(), arguments);
}

absl::StatusOr<DescriptorClient> ConnectDescriptorSocket(const DaemonOpenRequest& request,
                                                         const SessionToken& token,
                                                         SessionStream& stream,
                                                         absl::Time deadline) {
  absl::StatusOr<DescriptorClient> exchange = DescriptorClient::Connect(
      {.path = DescriptorSocketPath(request.socket_path), .daemon_user = request.daemon_user},
      token, std::min(deadline, absl::Now() + kDescriptorConnectTimeout),
      [&stream] { return stream.CheckAlive(); });
  if (exchange.ok() || absl::IsUnauthenticated(exchange.status())) return exchange;
  return absl::Status(
      exchange.status().code(),
      absl::StrCat("its descriptor socket cannot be used (mount the sockets' directory, not one "
                   "socket): ",
                   exchange.status().message()));
}

// Sends the shards' descriptors; opens those shards first that are only named, with what the daemon
// lends of them.
absl::Status HandOver(const DaemonOpenRequest& request, const SessionToken& token,
                      SessionStream& stream, DescriptorClient& exchange, absl::Time deadline) {
  std::vector<OfferedShard> shards = request.shards;
  if (request.open_shards != nullptr) {
    absl::StatusOr<std::vector<UniqueFd>> lent = exchange.Borrow(shards, deadline);
    if (absl::IsUnavailable(lent.status()) || absl::IsDeadlineExceeded(lent.status())) {
      return lent.status();
    }
    if (!lent.ok()) {
      // A daemon that does not lend, or has no room for it, closes the connection after its reply.
      ASSIGN_OR_RETURN(exchange, ConnectDescriptorSocket(request, token, stream, deadline));
      lent.emplace();
    }
    ASSIGN_OR_RETURN(const std::vector<int> opened, request.open_shards(*std::move(lent)));
    for (size_t i = 0; i < shards.size(); ++i) shards[i].fd = opened[i];
  }
  return exchange.SendShards(shards, deadline);
}

absl::StatusOr<DaemonWelcome> Converse(const DaemonOpenRequest& request, SessionStream& stream) {
  const absl::Time deadline = absl::Now() + request.open_timeout;
  ASSIGN_OR_RETURN(const v1::SessionOpened opened,
                   stream.WaitForOpened(std::min(deadline, absl::Now() + kGreetingTimeout)));
  SessionToken token = {};
  if (opened.token().size() != token.size()) {
    return absl::InternalError(absl::StrCat("a token of ", opened.token().size(), " bytes"));
  }
  std::memcpy(token.data(), opened.token().data(), token.size());
  ASSIGN_OR_RETURN(DescriptorClient exchange,
                   ConnectDescriptorSocket(request, token, stream, deadline));
  if (const absl::Status sent = HandOver(request, token, stream, exchange, deadline); !sent.ok()) {
    return stream.EndOr(sent);
  }
  ASSIGN_OR_RETURN(const v1::CheckpointReady ready, stream.WaitForCheckpoint(deadline));
  absl::StatusOr<DeliveredDescriptors> delivered = exchange.Fetch(deadline);
  if (!delivered.ok()) return stream.EndOr(delivered.status());
  const absl::Time decision_deadline =
      request.agreement == Agreement::kStrict
          ? std::max(deadline, absl::Now() + request.agreement_timeout + kAgreementGrace)
          : deadline;
  ASSIGN_OR_RETURN(const v1::Decision decision, stream.WaitForDecision(decision_deadline));
  return DaemonWelcome{.session = nullptr,
                       .decision = {.requested = request.policy,
                                    .effective = FromProto(decision.effective()),
                                    .activated = decision.activated(),
                                    .reason = decision.reason()},
                       .catalog_fd = std::move(delivered->catalog),
                       .board_fd = std::move(delivered->board),
                       .generation = opened.generation()};
}

// What a person can do about an error of an open.
absl::string_view Fix(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kAlreadyExists:
      return "give each rank its own local_rank, and each launch its own nonce";
    case absl::StatusCode::kPermissionDenied:
      return "join the group of the daemon's sockets (its setting socket-group), or run as its "
             "user";
    case absl::StatusCode::kResourceExhausted:
      return "see the daemon's limits";
    case absl::StatusCode::kUnauthenticated:
      return "no descriptor was sent there";
    case absl::StatusCode::kUnimplemented:
      return "use daemon and client of one version";
    case absl::StatusCode::kDeadlineExceeded:
      return "look at the daemon's log and `forestage status`";
    case absl::StatusCode::kInvalidArgument:
      return "this rank checks the files itself";
    case absl::StatusCode::kUnavailable:
      return "it ended or was killed before its decision, or it is no forestaged that listens "
             "there; see its log and the kernel's, and start it again";
    default:
      return "see the daemon's log; is it forestaged that listens there?";
  }
}

}  // namespace

absl::StatusOr<DaemonWelcome> OpenDaemonConnection(const DaemonOpenRequest& request,
                                                   std::shared_ptr<DaemonLoss> loss) {
  ASSIGN_OR_RETURN(UniqueFd socket, ConnectToRanksSocket({.path = request.socket_path,
                                                          .daemon_user = request.daemon_user},
                                                         absl::Now() + request.daemon_wait));
  auto connection =
      std::make_unique<DaemonConnection>(std::make_unique<Call>(MakeChannel(std::move(socket))),
                                         MakeOpenMessage(request), std::move(loss));
  absl::StatusOr<DaemonWelcome> welcome = Converse(request, connection->stream());
  if (!welcome.ok()) {
    const absl::Status& status = welcome.status();
    return absl::Status(status.code(), absl::StrCat("the daemon at ", request.socket_path,
                                                    " did not serve: ", OneLine(status.ToString()),
                                                    " (", Fix(status), ")"));
  }
  welcome->session = std::move(connection);
  return welcome;
}

}  // namespace forestage
