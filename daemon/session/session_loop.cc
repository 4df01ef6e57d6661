#include "daemon/session/session_loop.h"

#include "absl/time/time.h"

namespace forestage {

SessionLoop::SessionLoop(ExitWatch& exit_watch, SessionRegistry& registry)
    : exit_watch_(exit_watch), registry_(registry), thread_([this] { Run(); }) {}

SessionLoop::~SessionLoop() {
  stopping_ = true;
  exit_watch_.Wake();
  thread_.join();
}

void SessionLoop::Run() {
  absl::Time next = absl::InfinitePast();
  while (!stopping_) {
    for (const SessionId session : exit_watch_.Wait(next)) registry_.OnProcessExit(session);
    next = registry_.Tick();
  }
}

}  // namespace forestage
