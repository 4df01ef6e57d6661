#include "daemon/delivery/descriptor_exchange.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "spdlog/spdlog.h"
#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "common/errno_status.h"
#include "common/status_macros.h"
#include "daemon/delivery/descriptor_request.h"

namespace forestage {
namespace {

constexpr uint64_t kListenerKey = 0;
constexpr uint64_t kWakeKey = 1;
constexpr uint64_t kFirstConnectionKey = 2;
// How often idle connections are looked for.
constexpr int kSweepMilliseconds = 1000;
// Connections taken in one turn, so that a flood of them does not starve the others.
constexpr int kAcceptsPerTurn = 16;
// So that connections with little in them are bounded, too.
constexpr size_t kLoansPerMessageMin = 16;

absl::Status NoDescriptorLeft(uint32_t wanted) {
  return absl::ResourceExhaustedError(
      absl::StrCat("the daemon can take none of ", wanted,
                   " descriptors, since it has as many as it may have open (RLIMIT_NOFILE); raise "
                   "LimitNOFILE"));
}

}  // namespace

struct DescriptorExchange::Connection {
  uint64_t key = 0;
  UniqueFd socket;
  PeerIdentity peer;
  absl::Time last_heard;
  // A delivery or a loan is asked for and not answered yet.
  bool waiting = false;
  bool closing = false;
  // In the last answer; each message counts for at least kLoansPerMessageMin.
  size_t loans = 0;

  // Of these, what the other side has not read yet.
  size_t UnreadLoans() const {
    int unread_bytes = 0;
    if (loans == 0 || ioctl(socket.get(), SIOCOUTQ, &unread_bytes) != 0) return 0;
    return unread_bytes == 0 ? 0 : loans;
  }
};

// Deliveries and loans on their way from the threads that finish them to the exchange's. Outlives
// the exchange as long as a session may still answer.
class DescriptorExchange::Answers {
 public:
  struct Answer {
    uint64_t key = 0;
    absl::Status status;
    std::optional<DeliveredDescriptors> delivered;
    std::optional<std::vector<SharedFd>> loans;
  };
  explicit Answers(UniqueFd wake) : wake_(std::move(wake)) {}

  int wake_fd() const { return wake_.get(); }
  void Wake() {
    const uint64_t one = 1;
    (void)!write(wake_.get(), &one, sizeof(one));
  }
  void Add(Answer answer) ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      absl::MutexLock lock(&mutex_);
      answers_.push_back(std::move(answer));
    }
    Wake();
  }
  std::vector<Answer> Take() ABSL_LOCKS_EXCLUDED(mutex_) {
    uint64_t value = 0;
    (void)!read(wake_.get(), &value, sizeof(value));
    absl::MutexLock lock(&mutex_);
    return std::exchange(answers_, {});
  }

 private:
  const UniqueFd wake_;
  absl::Mutex mutex_;
  std::vector<Answer> answers_ ABSL_GUARDED_BY(mutex_);
};

DescriptorExchange::DescriptorExchange(const Options& options,
                                       std::unique_ptr<UnixListener> listener,
                                       DeliveryDirectory& directory, UniqueFd epoll,
                                       std::shared_ptr<Answers> answers)
    : options_(options),
      directory_(directory),
      epoll_(std::move(epoll)),
      answers_(std::move(answers)),
      listener_(std::move(listener)),
      next_key_(kFirstConnectionKey) {}

absl::StatusOr<std::unique_ptr<DescriptorExchange>> DescriptorExchange::Create(
    const Options& options, std::unique_ptr<UnixListener> listener, DeliveryDirectory& directory) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return ErrnoStatus(errno, "epoll_create1");
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return ErrnoStatus(errno, "eventfd");
  std::unique_ptr<DescriptorExchange> exchange(
      new DescriptorExchange(options, std::move(listener), directory, std::move(epoll),
                             std::make_shared<Answers>(std::move(wake))));
  RETURN_IF_ERROR(exchange->Watch(exchange->listener_->fd(), kListenerKey));
  RETURN_IF_ERROR(exchange->Watch(exchange->answers_->wake_fd(), kWakeKey));
  return exchange;
}

DescriptorExchange::~DescriptorExchange() { Stop(); }

void DescriptorExchange::Start() {
  thread_ = std::thread([this] { Run(); });
}

void DescriptorExchange::StopAccepting() {
  accepting_ = false;
  if (thread_.joinable()) {
    answers_->Wake();
  } else {
    listener_->Close();
  }
}

void DescriptorExchange::Stop() {
  stopping_ = true;
  answers_->Wake();
  if (thread_.joinable()) thread_.join();
  connections_.clear();
  unread_.clear();
  listener_->Close();
}

absl::Status DescriptorExchange::Watch(int fd, uint64_t key) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = key;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return ErrnoStatus(errno, "epoll_ctl");
  }
  return absl::OkStatus();
}

void DescriptorExchange::Run() {
  while (!stopping_) {
    std::array<epoll_event, 64> events;
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                 connections_.empty() && unread_.empty() ? -1 : kSweepMilliseconds);
    for (int i = 0; i < count; ++i) {
      const uint64_t key = events[static_cast<size_t>(i)].data.u64;
      if (key == kListenerKey) {
        Accept();
      } else if (key == kWakeKey) {
        SendAnswers();
      } else {
        OnReadable(key);
      }
    }
    if (!accepting_ && listener_->fd() >= 0) listener_->Close();
    CloseIdle();
  }
}

void DescriptorExchange::Accept() {
  for (int i = 0; i < kAcceptsPerTurn && listener_->fd() >= 0; ++i) {
    absl::StatusOr<UnixListener::Connection> accepted = listener_->Accept();
    if (absl::IsNotFound(accepted.status())) return;
    if (!accepted.ok()) continue;
    auto connection = std::make_unique<Connection>();
    connection->key = next_key_++;
    connection->socket = std::move(accepted->socket);
    connection->peer = std::move(accepted->peer);
    connection->last_heard = absl::Now();
    if (const absl::Status place = CheckPlaceFor(connection->peer.uid); !place.ok()) {
      Reply(*connection, place, 0, nullptr);
      continue;
    }
    if (!Watch(connection->socket.get(), connection->key).ok()) continue;
    connections_[connection->key] = std::move(connection);
  }
}

absl::Status DescriptorExchange::CheckPlaceFor(uid_t uid) const {
  if (connections_.size() >= options_.connections_max) {
    return absl::ResourceExhaustedError("the descriptor socket has no place for a connection");
  }
  const auto of_user =
      std::count_if(connections_.begin(), connections_.end(),
                    [uid](const auto& entry) { return entry.second->peer.uid == uid; });
  if (static_cast<size_t>(of_user) >= options_.connections_per_user_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the descriptor socket has no place for another connection of uid ", uid));
  }
  return absl::OkStatus();
}

void DescriptorExchange::OnReadable(uint64_t key) {
  const auto found = connections_.find(key);
  if (found == connections_.end()) return;
  Connection& connection = *found->second;
  const absl::StatusOr<DescriptorMessage> peeked =
      PeekDescriptorMessage(connection.socket.get(), kDescriptorMessageBytesMax);
  if (absl::IsDeadlineExceeded(peeked.status())) return;
  if (peeked.ok()) {
    connection.last_heard = absl::Now();
    Handle(connection, *peeked);
  } else {
    connection.closing = true;
  }
  if (connection.closing) Close(found);
}

void DescriptorExchange::Handle(Connection& connection, const DescriptorMessage& peeked) {
  if (connection.waiting) {
    // One request, one reply: whoever does not wait for it is no client of ours. What it sent goes
    // with the connection.
    connection.closing = true;
    return;
  }
  if (peeked.bytes_truncated) {
    return Refuse(connection, absl::InvalidArgumentError("the message is too long"));
  }
  const absl::StatusOr<DescriptorRequest> request = ParseDescriptorRequest(peeked.bytes);
  if (!request.ok()) return Refuse(connection, request.status());
  const absl::StatusOr<uint64_t> session = directory_.FindByToken(request->token, connection.peer);
  if (!session.ok()) return Refuse(connection, session.status());

  switch (request->kind) {
    case DescriptorRequestKind::kDelivery:
      return AwaitDelivery(connection, *session);
    case DescriptorRequestKind::kShardBatch:
      return TakeShards(connection, *session, *request);
    case DescriptorRequestKind::kBorrow:
      return LendShards(connection, *session, *request);
  }
}

void DescriptorExchange::AwaitDelivery(Connection& connection, uint64_t session) {
  DiscardDescriptorMessage(connection.socket.get());
  connection.waiting = true;
  directory_.WhenReady(session, [answers = answers_, key = connection.key](
                                    absl::StatusOr<DeliveredDescriptors> delivered) {
    Answers::Answer answer;
    answer.key = key;
    if (delivered.ok()) {
      answer.delivered = *std::move(delivered);
    } else {
      answer.status = std::move(delivered).status();
    }
    answers->Add(std::move(answer));
  });
}

std::optional<std::vector<UniqueFd>> DescriptorExchange::ReceiveBatch(
    Connection& connection, uint64_t session, const DescriptorRequest& request,
    const DeliveryAccount& account) {
  // No other thread receives from it, so this is the message that was looked at.
  absl::StatusOr<DescriptorMessage> message =
      ReceiveDescriptorMessage(connection.socket.get(), kDescriptorMessageBytesMax,
                               absl::InfinitePast(), request.descriptor_count);
  if (!message.ok()) {
    connection.closing = true;
    return std::nullopt;
  }
  const size_t arrived = message->descriptors.size();
  const bool cut_short = message->descriptors_truncated && arrived < request.descriptor_count;
  if (arrived == 0 && cut_short) {
    Reply(connection, NoDescriptorLeft(request.descriptor_count), 0, nullptr);
    return std::nullopt;
  }
  if (!cut_short && (arrived != request.descriptor_count || message->descriptors_truncated)) {
    const std::string why =
        message->descriptors_truncated
            ? absl::StrCat("a batch of ", request.descriptor_count, " came with more descriptors")
            : absl::StrCat("a batch of ", request.descriptor_count, " came with ", arrived,
                           " descriptors");
    directory_.RefuseShards(session, std::move(message->descriptors), account, why);
    Reply(connection, absl::InvalidArgumentError(why), 0, nullptr);
    return std::nullopt;
  }
  return std::move(message->descriptors);
}

void DescriptorExchange::TakeShards(Connection& connection, uint64_t session,
                                    const DescriptorRequest& request) {
  absl::StatusOr<DeliveryAccount> account =
      directory_.AdmitShards(session, request.first_shard_index, request.descriptor_count);
  if (!account.ok()) return Refuse(connection, account.status());
  std::optional<std::vector<UniqueFd>> shards =
      ReceiveBatch(connection, session, request, *account);
  if (!shards.has_value()) return;
  const absl::StatusOr<uint32_t> accepted = directory_.AddShards(
      session, request.first_shard_index, *std::move(shards), *std::move(account));
  Reply(connection, accepted.status(), accepted.ok() ? *accepted : 0, nullptr);
}

void DescriptorExchange::LendShards(Connection& connection, uint64_t session,
                                    const DescriptorRequest& request) {
  absl::StatusOr<DeliveryAccount> account =
      directory_.AdmitNamedShards(session, request.first_shard_index, request.descriptor_count);
  if (!account.ok()) return Refuse(connection, account.status());
  std::optional<std::vector<UniqueFd>> named = ReceiveBatch(connection, session, request, *account);
  if (!named.has_value()) return;
  connection.waiting = true;
  directory_.LendShards(
      session, *std::move(named), PeerGroupsOf(connection.socket.get()), *std::move(account),
      [answers = answers_, key = connection.key](absl::StatusOr<std::vector<SharedFd>> loans) {
        Answers::Answer answer;
        answer.key = key;
        if (loans.ok()) {
          answer.loans = *std::move(loans);
        } else {
          answer.status = std::move(loans).status();
        }
        answers->Add(std::move(answer));
      });
}

void DescriptorExchange::Refuse(Connection& connection, const absl::Status& status) {
  DiscardDescriptorMessage(connection.socket.get());
  Reply(connection, status, 0, nullptr);
}

void DescriptorExchange::SendAnswers() {
  for (Answers::Answer& answer : answers_->Take()) {
    const auto found = connections_.find(answer.key);
    if (found == connections_.end()) continue;
    Connection& connection = *found->second;
    connection.waiting = false;
    connection.last_heard = absl::Now();
    if (answer.loans.has_value()) {
      ReplyLoans(connection, *std::move(answer.loans));
    } else {
      Reply(connection, answer.status, 0,
            answer.delivered.has_value() ? &*answer.delivered : nullptr);
    }
    if (connection.closing) Close(found);
  }
}

void DescriptorExchange::Reply(Connection& connection, const absl::Status& status,
                               uint32_t accepted_count, const DeliveredDescriptors* delivered) {
  const DescriptorReply reply = MakeDescriptorReply(status, accepted_count);
  std::vector<int> descriptors;
  if (delivered != nullptr) {
    descriptors = {delivered->catalog.get(), delivered->board.get()};
  }
  if (!status.ok()) {
    spdlog::debug("descriptor exchange refused pid={} status=\"{}\"", connection.peer.pid,
                  status.ToString());
  }
  Send(connection, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(&reply), sizeof(reply)),
       descriptors);
  if (!status.ok()) connection.closing = true;
}

size_t DescriptorExchange::UnreadLoans(uid_t uid) const {
  size_t loans = 0;
  for (const auto& [key, connection] : connections_) {
    if (connection->peer.uid == uid) loans += connection->UnreadLoans();
  }
  for (const auto& connection : unread_) {
    if (connection->peer.uid == uid) loans += connection->UnreadLoans();
  }
  return loans;
}

void DescriptorExchange::Close(std::map<uint64_t, std::unique_ptr<Connection>>::iterator entry) {
  std::unique_ptr<Connection> connection = std::move(entry->second);
  connections_.erase(entry);
  if (connection->UnreadLoans() == 0) return;
  shutdown(connection->socket.get(), SHUT_RDWR);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection->socket.get(), nullptr);
  unread_.push_back(std::move(connection));
}

void DescriptorExchange::ReplyLoans(Connection& connection, std::vector<SharedFd> loans) {
  const auto lent = static_cast<size_t>(std::count_if(
      loans.begin(), loans.end(), [](const SharedFd& loan) { return loan != nullptr; }));
  connection.loans = lent == 0 ? 0 : std::max(lent, kLoansPerMessageMin);
  if (UnreadLoans(connection.peer.uid) + connection.loans > options_.loans_unread_per_user_max) {
    loans.clear();
    connection.loans = 0;
  }
  BorrowReply reply;
  reply.reply = MakeDescriptorReply(absl::OkStatus(), 0);
  std::vector<int> descriptors;
  for (size_t i = 0; i < loans.size(); ++i) {
    if (loans[i] == nullptr) continue;
    reply.lent[i / 8] = static_cast<uint8_t>(reply.lent[i / 8] | 1 << i % 8);
    descriptors.push_back(loans[i]->get());
  }
  Send(connection, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(&reply), sizeof(reply)),
       descriptors);
}

void DescriptorExchange::Send(Connection& connection, absl::Span<const std::byte> message,
                              const std::vector<int>& descriptors) {
  // A client that does not read its replies fills the socket: the send would block.
  connection.closing =
      !SendDescriptorMessage(connection.socket.get(), message, descriptors, absl::InfinitePast())
           .ok();
}

void DescriptorExchange::CloseIdle() {
  const absl::Time oldest = absl::Now() - options_.idle_timeout;
  for (auto entry = connections_.begin(); entry != connections_.end();) {
    const auto next = std::next(entry);
    const Connection& connection = *entry->second;
    const bool idle = !connection.waiting && connection.last_heard < oldest;
    // A child that the process forked may have it open.
    if (idle || ProcessExited(connection.peer)) Close(entry);
    entry = next;
  }
  std::erase_if(unread_, [](const auto& connection) { return connection->UnreadLoans() == 0; });
}

}  // namespace forestage
