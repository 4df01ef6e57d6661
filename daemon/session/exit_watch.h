// Waits for the exit of the processes behind sessions.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "common/peer_identity.h"
#include "common/unique_fd.h"
#include "daemon/staging/staged_checkpoint.h"

namespace forestage {

// Thread-safe; one thread waits.
class ExitWatch {
 public:
  static absl::StatusOr<std::unique_ptr<ExitWatch>> Create();

  // From now on the session is named by Wait() when its process has exited. Without a pidfd (old
  // kernel, other PID namespace) it never is, and only the end of its stream ends the session.
  absl::Status Watch(SessionId session, const PeerIdentity& peer) ABSL_LOCKS_EXCLUDED(mutex_);
  void Forget(SessionId session) ABSL_LOCKS_EXCLUDED(mutex_);

  // Sessions whose process has exited; empty at the deadline or after Wake(). Names a session again
  // and again until it is forgotten.
  std::vector<SessionId> Wait(absl::Time deadline);
  void Wake();

 private:
  ExitWatch(UniqueFd epoll, UniqueFd wake);

  const UniqueFd epoll_;
  const UniqueFd wake_;
  absl::Mutex mutex_;
  // Our own duplicates, so that they leave the epoll set with us.
  std::map<SessionId, UniqueFd> pidfds_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace forestage
