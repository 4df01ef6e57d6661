#include "daemon/service/session_service.h"

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "spdlog/spdlog.h"

#include "common/status_macros.h"
#include "daemon/service/grpc_status.h"
#include "daemon/service/proto_conversion.h"

namespace forestage {
namespace {

// One stream. gRPC calls the On...Done methods, one read at a time; the registry calls the
// listener's methods under its lock. Events wait in a queue, since gRPC takes one write at a time.
// The queue is short whatever the client does: each kind of event comes once, but progress, of
// which the newest stands for all that follow each other. A client that does not read (it may be
// stopped) keeps its session; when the session has ended, it is cut off after a while.
class SessionStream final : public grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionEvent>,
                            public SessionListener {
 public:
  // Called when gRPC is done with the stream.
  using OnGone = std::function<void(SessionStream*)>;

  // A stream whose `peer` is an error ends with it.
  static std::shared_ptr<SessionStream> Create(const SessionService::Options& options,
                                               SessionRegistry& registry,
                                               absl::StatusOr<PeerIdentity> peer,
                                               grpc::CallbackServerContext* context,
                                               OnGone on_gone) {
    auto stream = std::shared_ptr<SessionStream>(
        new SessionStream(options, registry, std::move(peer), context, std::move(on_gone)));
    stream->self_ = stream;
    return stream;
  }
  // One of these two, once, after Create.
  void Begin() { StartRead(&request_); }
  void RefuseAtOnce(const absl::Status& status) { RefuseWith(status); }

  const absl::StatusOr<PeerIdentity>& peer() const { return peer_; }

  void OnSweep(absl::Time now) {
    bool late_open = false;
    bool late_end = false;
    {
      absl::MutexLock lock(&mutex_);
      late_open = !end_.has_value() && !opening_ && now >= begun_at_ + options_.open_timeout;
      late_end = end_.has_value() && now >= ended_at_ + options_.end_timeout;
    }
    if (late_open) {
      RefuseWith(absl::DeadlineExceededError(
          absl::StrCat("no whole `open` within ", absl::FormatDuration(options_.open_timeout))));
    }
    if (late_end) CutOff();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      EndOfReads();
      return;
    }
    if (opened_.has_value()) {
      Dispatch(*opened_);
    } else {
      const absl::Status status = Open();
      if (!status.ok()) return RefuseWith(status);
    }
    if (!HasEnded()) {
      StartRead(&request_);
    } else if (opened_.has_value()) {
      // The end came while the session was being opened, so nobody else closes it.
      registry_.Close(*opened_);
    }
  }

  void OnWriteDone(bool ok) override {
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
      if (!ok) queue_.clear();
    }
    Pump();
  }

  void OnDone() override {
    LeaveContext();
    on_gone_(this);
    // The registry may still hold us for a moment; the last of the two deletes.
    const std::shared_ptr<SessionStream> self = std::move(self_);
  }

  void OnOpened(const SessionToken& token) override {
    v1::SessionEvent event;
    v1::SessionOpened* opened = event.mutable_opened();
    opened->set_token(std::string(token.begin(), token.end()));
    opened->set_generation(options_.generation);
    opened->set_daemon_version(options_.daemon_version);
    Send(std::move(event));
  }
  void OnCheckpoint(const CheckpointSummary& summary) override {
    v1::SessionEvent event;
    *event.mutable_checkpoint() = ToProto(summary);
    Send(std::move(event));
  }
  void OnDecision(const SessionDecision& decision) override {
    v1::SessionEvent event;
    *event.mutable_decision() = ToProto(decision);
    Send(std::move(event));
  }
  void OnProgress(const StagingProgress& progress) override {
    v1::SessionEvent event;
    *event.mutable_progress() = ToProto(progress);
    Send(std::move(event));
  }
  void OnDraining() override {
    v1::SessionEvent event;
    event.mutable_draining();
    Send(std::move(event));
  }
  void OnEnded(const absl::Status& status) override { FinishWith(status); }

 private:
  SessionStream(const SessionService::Options& options, SessionRegistry& registry,
                absl::StatusOr<PeerIdentity> peer, grpc::CallbackServerContext* context,
                OnGone on_gone)
      : options_(options),
        registry_(registry),
        on_gone_(std::move(on_gone)),
        peer_(std::move(peer)),
        begun_at_(absl::Now()),
        context_(context) {}

  absl::Status Open() {
    {
      absl::MutexLock lock(&mutex_);
      if (end_.has_value()) return absl::CancelledError("the stream has ended");
      opening_ = true;
    }
    if (request_.request_case() != v1::SessionRequest::kOpen) {
      return absl::InvalidArgumentError("the first message of a session must be `open`");
    }
    RETURN_IF_ERROR(peer_.status());
    ASSIGN_OR_RETURN(opened_, registry_.Open(FromProto(request_.open()), *peer_, self_));
    return absl::OkStatus();
  }

  void Dispatch(SessionId id) {
    switch (request_.request_case()) {
      case v1::SessionRequest::kOpen:
        registry_.Reject(id, "a second `open` on one stream");
        break;
      case v1::SessionRequest::kDemand: {
        std::vector<DemandItem> items;
        items.reserve(static_cast<size_t>(request_.demand().items_size()));
        for (const v1::Demand::Item& item : request_.demand().items()) {
          items.push_back(
              {.tensor_index = item.tensor_index(), .begin = item.begin(), .end = item.end()});
        }
        registry_.AddDemand(id, items);
        break;
      }
      case v1::SessionRequest::kUrgent:
        registry_.AddUrgent(id, std::vector<uint64_t>(request_.urgent().extent_indexes().begin(),
                                                      request_.urgent().extent_indexes().end()));
        break;
      case v1::SessionRequest::kConsumed:
        registry_.MarkConsumed(id,
                               std::vector<uint32_t>(request_.consumed().tensor_indexes().begin(),
                                                     request_.consumed().tensor_indexes().end()));
        break;
      case v1::SessionRequest::kProgress:
        registry_.RequestProgress(id, request_.progress().major_faults());
        break;
      case v1::SessionRequest::REQUEST_NOT_SET:
        // A newer client's request that we do not know.
        break;
    }
  }

  // The client is done, has gone, or the call was cancelled or has ended from our side.
  void EndOfReads() {
    if (opened_.has_value()) {
      registry_.Close(*opened_);
    } else {
      RefuseWith(absl::InvalidArgumentError("the stream ended before `open`"));
    }
  }

  void RefuseWith(const absl::Status& status) {
    if (options_.on_open_refused != nullptr) options_.on_open_refused(status);
    FinishWith(status);
  }

  void Send(v1::SessionEvent event) ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      absl::MutexLock lock(&mutex_);
      if (end_.has_value()) return;
      // A client that does not read gets the newest progress, not all of it.
      if (event.has_progress() && !queue_.empty() && queue_.back().has_progress()) {
        queue_.back() = std::move(event);
      } else {
        queue_.push_back(std::move(event));
      }
    }
    Pump();
  }

  void FinishWith(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      absl::MutexLock lock(&mutex_);
      if (end_.has_value()) return;
      end_ = ToGrpcStatus(status);
      ended_at_ = absl::Now();
    }
    Pump();
  }

  bool HasEnded() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return end_.has_value();
  }

  // Begins the next write, or the end after the last one. The lock is not held while gRPC is
  // called.
  void Pump() ABSL_LOCKS_EXCLUDED(mutex_) {
    bool finish = false;
    {
      absl::MutexLock lock(&mutex_);
      if (writing_ || finished_) return;
      if (!queue_.empty()) {
        current_ = std::move(queue_.front());
        queue_.pop_front();
        writing_ = true;
      } else if (end_.has_value()) {
        finished_ = true;
        finish = true;
      } else {
        return;
      }
    }
    if (finish) {
      Finish(FinalStatus());
    } else {
      StartWrite(&current_);
    }
  }

  grpc::Status FinalStatus() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return *end_;
  }

  // Ends the call without waiting for its client. The context is gRPC's until OnDone returns, which
  // therefore waits for us, unless gRPC calls it from within TryCancel.
  void CutOff() ABSL_LOCKS_EXCLUDED(context_mutex_) {
    absl::MutexLock lock(&context_mutex_);
    if (context_ == nullptr) return;
    if (!cut_off_.exchange(true)) {
      spdlog::info("stream cut off pid={} uid={}: its client has not read for {} how it ended",
                   peer_.ok() ? peer_->pid : 0, peer_.ok() ? int64_t{peer_->uid} : -1,
                   absl::FormatDuration(options_.end_timeout));
    }
    canceller_ = std::this_thread::get_id();
    context_->TryCancel();
    canceller_ = std::thread::id();
  }
  void LeaveContext() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (canceller_ == std::this_thread::get_id()) {
      context_ = nullptr;
      return;
    }
    absl::MutexLock lock(&context_mutex_);
    context_ = nullptr;
  }

  const SessionService::Options& options_;
  SessionRegistry& registry_;
  const OnGone on_gone_;
  // Until OnDone.
  std::shared_ptr<SessionStream> self_;

  // Of the thread that handles reads; one at a time.
  const absl::StatusOr<PeerIdentity> peer_;
  v1::SessionRequest request_;
  std::optional<SessionId> opened_;

  const absl::Time begun_at_;

  absl::Mutex context_mutex_;
  grpc::CallbackServerContext* context_ ABSL_GUARDED_BY(context_mutex_);
  std::atomic<bool> cut_off_ = false;
  std::atomic<std::thread::id> canceller_ = std::thread::id();

  absl::Mutex mutex_;
  // The first message has come whole.
  bool opening_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<v1::SessionEvent> queue_ ABSL_GUARDED_BY(mutex_);
  std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mutex_);
  absl::Time ended_at_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  // Of the write in flight.
  v1::SessionEvent current_;
};

}  // namespace

// The streams that gRPC has, by user.
class SessionService::Streams {
 public:
  // RESOURCE_EXHAUSTED: the user has as many as one may have; the stream is kept in sight all the
  // same, but not counted.
  absl::Status Add(const std::shared_ptr<SessionStream>& stream, size_t of_user_max)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    Tracked& tracked = streams_[stream.get()];
    tracked.stream = stream;
    if (!stream->peer().ok()) return absl::OkStatus();
    size_t& count = count_of_[stream->peer()->uid];
    if (count >= of_user_max) {
      return absl::ResourceExhaustedError(absl::StrCat("uid ", stream->peer()->uid, " has ", count,
                                                       " streams, the most that one user may"));
    }
    ++count;
    tracked.counted = true;
    return absl::OkStatus();
  }
  void Remove(SessionStream* stream) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const auto tracked = streams_.find(stream);
    const bool counted = tracked->second.counted;
    streams_.erase(tracked);
    if (!counted) return;
    const auto count = count_of_.find(stream->peer()->uid);
    if (--count->second == 0) count_of_.erase(count);
  }
  std::vector<std::shared_ptr<SessionStream>> All() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    std::vector<std::shared_ptr<SessionStream>> streams;
    for (const auto& [key, tracked] : streams_) {
      if (std::shared_ptr<SessionStream> stream = tracked.stream.lock()) {
        streams.push_back(std::move(stream));
      }
    }
    return streams;
  }

 private:
  struct Tracked {
    std::weak_ptr<SessionStream> stream;
    bool counted = false;
  };

  mutable absl::Mutex mutex_;
  std::map<SessionStream*, Tracked> streams_ ABSL_GUARDED_BY(mutex_);
  std::map<uid_t, size_t> count_of_ ABSL_GUARDED_BY(mutex_);
};

SessionService::SessionService(Options options, SessionRegistry& registry, const PeerTable& peers)
    : options_(std::move(options)),
      registry_(registry),
      peers_(peers),
      streams_(std::make_shared<Streams>()) {}

SessionService::~SessionService() = default;

grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionEvent>* SessionService::OpenSession(
    grpc::CallbackServerContext* context) {
  const std::shared_ptr<SessionStream> stream =
      SessionStream::Create(options_, registry_, peers_.Find(context->peer()), context,
                            [streams = streams_](SessionStream* gone) { streams->Remove(gone); });
  const absl::Status added = streams_->Add(stream, options_.streams_per_user_max);
  if (added.ok()) {
    stream->Begin();
  } else {
    stream->RefuseAtOnce(added);
  }
  return stream.get();
}

size_t SessionService::stream_count() const { return streams_->All().size(); }

void SessionService::Sweep() {
  const absl::Time now = absl::Now();
  for (const std::shared_ptr<SessionStream>& stream : streams_->All()) stream->OnSweep(now);
}

}  // namespace forestage
