#include "daemon/telemetry/metrics_endpoint.h"

#include <cerrno>
#include <exception>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "common/errno_status.h"
#include "common/status_macros.h"
#include "common/thread_start.h"
#include "common/unique_fd.h"

namespace forestage {
namespace {

constexpr size_t kThreads = 2;
constexpr absl::Duration kWakePeriod = absl::Milliseconds(10);

// Calls bind or connect, which have one signature, with this address.
int CallWithAddress(int (*call)(int, const sockaddr*, socklen_t), int socket_fd,
                    const LoopbackAddress& address) {
  sockaddr_in ipv4 = {};
  ipv4.sin_family = AF_INET;
  ipv4.sin_port = htons(address.port);
  inet_pton(AF_INET, address.host.c_str(), &ipv4.sin_addr);
  return call(socket_fd, reinterpret_cast<const sockaddr*>(&ipv4), sizeof(ipv4));
}

UniqueFd MakeSocket() {
  return UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

std::string What(const LoopbackAddress& address) {
  return absl::StrCat("metrics address ", address.ToString());
}

// Tries what the exporter will do, for an error that says what is wrong: the exporter's own does
// not.
absl::Status CheckBindable(const LoopbackAddress& address) {
  const UniqueFd socket_fd = MakeSocket();
  if (!socket_fd.valid()) return ErrnoStatus(errno, What(address));
  const int on = 1;
  setsockopt(socket_fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (CallWithAddress(bind, socket_fd.get(), address) == 0 && listen(socket_fd.get(), 1) == 0) {
    return absl::OkStatus();
  }
  if (errno == EADDRINUSE) {
    return absl::UnavailableError(
        absl::StrCat(What(address),
                     " is in use by another process; choose another port, port 0 for a free one, "
                     "or none"));
  }
  return ErrnoStatus(errno, What(address));
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Create(
    const LoopbackAddress& address) {
  RETURN_IF_ERROR(CheckBindable(address));
  // The exporter reports by exceptions; they end here.
  try {
    auto exposer = std::make_unique<prometheus::Exposer>(address.ToString(), kThreads);
    const std::vector<int> ports = exposer->GetListeningPorts();
    if (ports.size() != 1) {
      return absl::UnavailableError(absl::StrCat(What(address), " cannot be served"));
    }
    LoopbackAddress real_address = address;
    real_address.port = static_cast<uint16_t>(ports.front());
    return std::unique_ptr<MetricsEndpoint>(
        new MetricsEndpoint(std::move(real_address), std::move(exposer)));
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat(What(address), " cannot be served: ", error.what()));
  }
}

MetricsEndpoint::MetricsEndpoint(LoopbackAddress address,
                                 std::unique_ptr<prometheus::Exposer> exposer)
    : address_(std::move(address)), exposer_(std::move(exposer)) {}

MetricsEndpoint::~MetricsEndpoint() {
  // The exporter's listening thread looks only every two seconds whether it shall end, unless
  // somebody connects.
  absl::Notification ended;
  const auto end = [&] {
    exposer_.reset();
    ended.Notify();
  };
  absl::StatusOr<std::thread> ending = StartThread(end);
  if (!ending.ok()) {
    end();
    return;
  }
  while (!ended.WaitForNotificationWithTimeout(kWakePeriod)) {
    const UniqueFd socket_fd = MakeSocket();
    if (socket_fd.valid()) (void)CallWithAddress(connect, socket_fd.get(), address_);
  }
  ending->join();
}

void MetricsEndpoint::Add(const std::shared_ptr<prometheus::Collectable>& metrics) {
  exposer_->RegisterCollectable(metrics);
}

}  // namespace forestage
