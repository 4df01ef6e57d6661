#include "daemon/staging/lane.h"

#include <utility>

#include "absl/synchronization/notification.h"

#include "common/check.h"

namespace forestage {

// What the thread uses; shared, since the thread may outlive its lane.
struct Lane::Body {
  std::shared_ptr<Stager> stager;
  size_t index = 0;
  std::unique_ptr<StorageReader> reader;
  absl::Notification ended;
};

Lane::Lane(std::shared_ptr<Stager> stager, size_t index, std::unique_ptr<StorageReader> reader)
    : body_(std::make_shared<Body>()) {
  body_->stager = std::move(stager);
  body_->index = index;
  body_->reader = std::move(reader);
  body_->stager->AttachLane(body_->reader.get());
  thread_ = std::thread([body = body_] { Run(body); });
}

Lane::~Lane() { CHECK(!thread_.joinable()); }

bool Lane::JoinOrLeave(absl::Time deadline) {
  if (body_->ended.WaitForNotificationWithDeadline(deadline)) {
    thread_.join();
    return true;
  }
  thread_.detach();
  return false;
}

void Lane::Run(const std::shared_ptr<Body>& body) {
  Stager& stager = *body->stager;
  StorageReader& reader = *body->reader;
  bool cancelled = false;
  while (true) {
    while (reader.in_flight() < reader.in_flight_max()) {
      const std::optional<ReadRequest> request = stager.Take(body->index);
      if (!request.has_value()) break;
      reader.Start(*request);
    }
    if (stager.stopping()) {
      if (reader.in_flight() == 0) break;
      if (!std::exchange(cancelled, true)) reader.Cancel();
    }
    for (const ReadResult& result : reader.Wait(stager.NextTake())) {
      stager.Finish(body->index, result);
    }
  }
  stager.DetachLane(&reader);
  body->reader.reset();
  body->ended.Notify();
}

}  // namespace forestage
