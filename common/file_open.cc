#include "common/file_open.h"

#include <cerrno>

#include "common/interruptions.h"

namespace forestage {

UniqueFd OpenForReading(const std::string& path) {
  return OpenWithFlags(path, O_RDONLY | O_NOCTTY | O_NONBLOCK);
}

UniqueFd OpenWithFlags(const std::string& path, int flags) {
  Interruptions interruptions;
  int fd = -1;
  do {
    fd = open(path.c_str(), flags | O_CLOEXEC);
  } while (fd < 0 && interruptions.MayRetry(errno));
  return UniqueFd(fd);
}

}  // namespace forestage
