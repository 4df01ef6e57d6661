#include "daemon/staging/lane.h"

#include <utility>

#include "absl/synchronization/notification.h"

#include "common/check.h"
#include "common/thread_start.h"

namespace forestage {

// What the thread uses; shared, since the thread may outlive its lane.
struct Lane::Body {
  std::shared_ptr<Stager> stager;
  size_t index = 0;
  std::unique_ptr<StorageReader> reader;
  absl::Notification ended;
};

absl::StatusOr<std::unique_ptr<Lane>> Lane::Start(std::shared_ptr<Stager> stager, size_t index,
                                                  std::unique_ptr<StorageReader> reader) {
  auto body = std::make_shared<Body>();
  body->stager = std::move(stager);
  body->index = index;
  body->reader = std::move(reader);
  body->stager->AttachLane(body->reader.get());
  absl::StatusOr<std::thread> thread = StartThread([body] { Run(body); });
  if (!thread.ok()) {
    body->stager->DetachLane(body->reader.get());
    return thread.status();
  }
  return std::unique_ptr<Lane>(new Lane(std::move(body), *std::move(thread)));
}

Lane::Lane(std::shared_ptr<Body> body, std::thread thread)
    : body_(std::move(body)), thread_(std::move(thread)) {}

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
    absl::Time again = absl::InfiniteFuture();
    while (reader.in_flight() < reader.in_flight_max()) {
      const Stager::Work work = stager.Take(body->index);
      again = work.again;
      if (!work.request.has_value()) break;
      reader.Start(*work.request);
    }
    if (stager.stopping()) {
      if (reader.in_flight() == 0) break;
      if (!std::exchange(cancelled, true)) reader.Cancel();
    }
    for (const ReadResult& result : reader.Wait(again)) {
      stager.Finish(body->index, result);
    }
  }
  stager.DetachLane(&reader);
  body->reader.reset();
  body->ended.Notify();
}

}  // namespace forestage
