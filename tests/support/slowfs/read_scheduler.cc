#include "tests/support/slowfs/read_scheduler.h"

#include <algorithm>
#include <cerrno>

#include "absl/time/clock.h"

namespace forestage {
namespace {

constexpr size_t kWorkers = 8;

}  // namespace

ReadScheduler::ReadScheduler() {
  for (size_t i = 0; i < kWorkers; ++i) workers_.emplace_back([this] { Work(); });
}

ReadScheduler::~ReadScheduler() = default;

uint64_t ReadScheduler::Add(Read read) {
  absl::MutexLock lock(&mutex_);
  const uint64_t id = next_id_++;
  waiting_[id].read = std::move(read);
  return id;
}

void ReadScheduler::Start(uint64_t id) {
  absl::MutexLock lock(&mutex_);
  Waiting& waiting = waiting_.at(id);
  waiting.started = true;
  const absl::Time now = absl::Now();
  if (stopped_) waiting.error_number = EIO;
  if (waiting.error_number != 0) return SetDue(id, waiting, now);
  if (IsHeld(waiting.read)) {
    waiting.held = true;
    return;
  }
  absl::Time due = now + latency_;
  if (bytes_per_second_ > 0) {
    device_free_ =
        std::max(device_free_, now) + absl::Seconds(static_cast<double>(waiting.read.size) /
                                                    static_cast<double>(bytes_per_second_));
    due = std::max(due, device_free_);
  }
  SetDue(id, waiting, due);
}

void ReadScheduler::Interrupt(uint64_t id) {
  absl::MutexLock lock(&mutex_);
  const auto found = waiting_.find(id);
  if (!interruptible_ || found == waiting_.end()) return;
  found->second.error_number = EINTR;
  found->second.held = false;
  if (found->second.started) SetDue(id, found->second, absl::Now());
}

void ReadScheduler::SetLatency(absl::Duration latency) {
  absl::MutexLock lock(&mutex_);
  latency_ = latency;
}

void ReadScheduler::SetBandwidth(uint64_t bytes_per_second) {
  absl::MutexLock lock(&mutex_);
  bytes_per_second_ = bytes_per_second;
}

void ReadScheduler::SetInterruptible(bool interruptible) {
  absl::MutexLock lock(&mutex_);
  interruptible_ = interruptible;
}

void ReadScheduler::Hold(FileRange range) {
  absl::MutexLock lock(&mutex_);
  holds_.push_back(std::move(range));
}

size_t ReadScheduler::Release(absl::string_view name) {
  absl::MutexLock lock(&mutex_);
  holds_.erase(
      std::remove_if(holds_.begin(), holds_.end(),
                     [&](const FileRange& range) { return name.empty() || range.name == name; }),
      holds_.end());
  size_t released = 0;
  for (auto& [id, waiting] : waiting_) {
    if (!waiting.held || IsHeld(waiting.read)) continue;
    waiting.held = false;
    SetDue(id, waiting, absl::Now());
    ++released;
  }
  return released;
}

size_t ReadScheduler::held_count() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<size_t>(std::count_if(waiting_.begin(), waiting_.end(),
                                           [](const auto& entry) { return entry.second.held; }));
}

void ReadScheduler::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    holds_.clear();
    for (auto& [id, waiting] : waiting_) {
      waiting.held = false;
      waiting.error_number = EIO;
      if (waiting.started) SetDue(id, waiting, absl::Now());
    }
    changed_.SignalAll();
  }
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
}

bool ReadScheduler::IsHeld(const Read& read) const {
  return std::any_of(holds_.begin(), holds_.end(), [&](const FileRange& range) {
    return range.Touches(read.path, read.offset, read.size, read.reader);
  });
}

void ReadScheduler::SetDue(uint64_t id, Waiting& waiting, absl::Time due) {
  due_.erase({waiting.due, id});
  waiting.due = due;
  due_.insert({due, id});
  // One worker waits for the first that is due; who takes it wakes the next worker.
  if (due_.begin()->second == id) changed_.Signal();
}

void ReadScheduler::Work() {
  mutex_.Lock();
  while (true) {
    const absl::Time next = due_.empty() ? absl::InfiniteFuture() : due_.begin()->first;
    if (next > absl::Now()) {
      if (stopped_ && due_.empty()) break;
      changed_.WaitWithDeadline(&mutex_, next);
      continue;
    }
    const uint64_t id = due_.begin()->second;
    due_.erase(due_.begin());
    auto node = waiting_.extract(id);
    if (!due_.empty()) changed_.Signal();
    mutex_.Unlock();
    node.mapped().read.answer(node.mapped().error_number);
    mutex_.Lock();
  }
  mutex_.Unlock();
}

}  // namespace forestage
