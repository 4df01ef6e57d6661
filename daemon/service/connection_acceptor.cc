#include "daemon/service/connection_acceptor.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include <sys/eventfd.h>

#include "common/errno_status.h"
#include "daemon/limits.h"

namespace forestage {

ConnectionAcceptor::ConnectionAcceptor(std::unique_ptr<UnixListener> listener, PeerTable& peers,
                                       Handover handover, Sweep sweep, UniqueFd wake)
    : listener_(std::move(listener)),
      peers_(peers),
      handover_(std::move(handover)),
      sweep_(std::move(sweep)),
      wake_(std::move(wake)) {}

absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> ConnectionAcceptor::Create(
    std::unique_ptr<UnixListener> listener, PeerTable& peers, Handover handover, Sweep sweep) {
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return ErrnoStatus(errno, "eventfd");
  return std::unique_ptr<ConnectionAcceptor>(new ConnectionAcceptor(
      std::move(listener), peers, std::move(handover), std::move(sweep), std::move(wake)));
}

ConnectionAcceptor::~ConnectionAcceptor() { Stop(); }

void ConnectionAcceptor::Start() {
  thread_ = std::thread([this] { Run(); });
}

void ConnectionAcceptor::Stop() {
  stopping_ = true;
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
  listener_->Close();
}

void ConnectionAcceptor::Run() {
  absl::Time next_sweep = absl::Now() + kPeerSweepPeriod;
  while (!stopping_) {
    pollfd entries[2] = {{.fd = listener_->fd(), .events = POLLIN, .revents = 0},
                         {.fd = wake_.get(), .events = POLLIN, .revents = 0}};
    const int ready =
        poll(entries, 2, static_cast<int>(absl::ToInt64Milliseconds(kPeerSweepPeriod)));
    // A flood of connections must not keep the sweep away.
    if (const absl::Time now = absl::Now(); now >= next_sweep) {
      peers_.Sweep();
      if (sweep_ != nullptr) sweep_();
      next_sweep = now + kPeerSweepPeriod;
    }
    if (ready > 0 && (entries[0].revents & POLLIN) != 0) AcceptOne();
  }
}

void ConnectionAcceptor::AcceptOne() {
  absl::StatusOr<UnixListener::Connection> accepted = listener_->Accept();
  if (!accepted.ok()) return;
  // Before gRPC can see a call of it.
  const absl::Status added = peers_.Add(accepted->socket.get(), accepted->peer);
  if (!added.ok()) {
    (void)listener_->Refuse(
        absl::Status(added.code(), absl::StrCat(added.message(), " (uid ", accepted->peer.uid,
                                                ", pid ", accepted->peer.pid, ")")));
    return;
  }
  handover_(std::move(accepted->socket));
}

}  // namespace forestage
