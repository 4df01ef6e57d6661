// The Unix socket through which a running slowfs is told what to do.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "common/unique_fd.h"

namespace forestage {

// Takes one connection at a time, on its own thread: reads one line, writes the answer's line and
// closes. A connection that says nothing is dropped after a second.
class ControlSocket {
 public:
  using Handler = std::function<std::string(absl::string_view line)>;
  static absl::StatusOr<std::unique_ptr<ControlSocket>> Listen(const std::string& path,
                                                               Handler handler);
  // Stops and removes the socket's file.
  ~ControlSocket();

 private:
  ControlSocket(std::string path, Handler handler, UniqueFd listener, UniqueFd stop);
  void Serve() const;
  void Answer(const UniqueFd& connection) const;

  const std::string path_;
  const Handler handler_;
  const UniqueFd listener_;
  const UniqueFd stop_;  // an eventfd
  std::thread thread_;
};

}  // namespace forestage
