// The thread that ends sessions whose process has exited and keeps the registry's deadlines.
#pragma once

#include <atomic>
#include <thread>

#include "daemon/session/exit_watch.h"
#include "daemon/session/session_registry.h"

namespace forestage {

class SessionLoop {
 public:
  // Both must outlive it. The thread runs from here until the destructor.
  SessionLoop(ExitWatch& exit_watch, SessionRegistry& registry);
  ~SessionLoop();
  SessionLoop(const SessionLoop&) = delete;
  SessionLoop& operator=(const SessionLoop&) = delete;

 private:
  void Run();

  ExitWatch& exit_watch_;
  SessionRegistry& registry_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace forestage
