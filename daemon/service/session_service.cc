#include "daemon/service/session_service.h"

#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "common/status_macros.h"
#include "daemon/service/grpc_status.h"
#include "daemon/service/proto_conversion.h"

namespace forestage {
namespace {

// One stream. gRPC calls the On...Done methods, one read at a time; the registry calls the
// listener's methods under its lock. Events wait in a queue, since gRPC takes one write at a time.
class SessionStream final : public grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionEvent>,
                            public SessionListener {
 public:
  // A stream whose `peer` is an error ends with it.
  static SessionStream* Begin(const SessionService::Options& options, SessionRegistry& registry,
                              absl::StatusOr<PeerIdentity> peer) {
    auto stream =
        std::shared_ptr<SessionStream>(new SessionStream(options, registry, std::move(peer)));
    stream->self_ = stream;
    SessionStream* const reactor = stream.get();
    reactor->StartRead(&reactor->request_);
    return reactor;
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
    if (!HasEnded()) StartRead(&request_);
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
                absl::StatusOr<PeerIdentity> peer)
      : options_(options), registry_(registry), peer_(std::move(peer)) {}

  absl::Status Open() {
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

  const SessionService::Options& options_;
  SessionRegistry& registry_;
  // Until OnDone.
  std::shared_ptr<SessionStream> self_;

  // Of the thread that handles reads; one at a time.
  const absl::StatusOr<PeerIdentity> peer_;
  v1::SessionRequest request_;
  std::optional<SessionId> opened_;

  absl::Mutex mutex_;
  std::deque<v1::SessionEvent> queue_ ABSL_GUARDED_BY(mutex_);
  std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  // Of the write in flight.
  v1::SessionEvent current_;
};

}  // namespace

SessionService::SessionService(Options options, SessionRegistry& registry, const PeerTable& peers)
    : options_(std::move(options)), registry_(registry), peers_(peers) {}

grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionEvent>* SessionService::OpenSession(
    grpc::CallbackServerContext* context) {
  return SessionStream::Begin(options_, registry_, peers_.Find(context->peer()));
}

}  // namespace forestage
