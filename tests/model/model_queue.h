// Work that the daemon gives away, done when the daemon model says so.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>

#include "daemon/session/work_queue.h"

namespace forestage {

// Used from the model's thread only.
class ModelQueue : public WorkQueue {
 public:
  // `on_end` is called last.
  explicit ModelQueue(std::function<void()> on_end) : on_end_(std::move(on_end)) {}
  ~ModelQueue() override {
    while (!work_.empty()) Run(0);
    on_end_();
  }

  void Submit(WorkOwner, std::function<void()> work) override { work_.push_back(std::move(work)); }
  bool WaitUntilIdle(absl::Time) override { return work_.empty() && running_ == 0; }

  size_t size() const { return work_.size(); }
  // With what is running.
  size_t held() const { return work_.size() + running_; }
  // Whoever runs is one of several threads: any piece may be next, also while another one runs.
  void Run(size_t index) {
    std::function<void()> work = std::move(work_[index]);
    work_.erase(work_.begin() + static_cast<std::ptrdiff_t>(index));
    ++running_;
    work();
    work = nullptr;
    --running_;
  }

 private:
  const std::function<void()> on_end_;
  std::deque<std::function<void()>> work_;
  size_t running_ = 0;
};

}  // namespace forestage
