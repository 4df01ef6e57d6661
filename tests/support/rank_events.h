// How a rank process of a test talks with the test: events out, a line in.
#pragma once

#include <unistd.h>

#include <cstdio>

#include <nlohmann/json.hpp>

namespace forestage {

using Json = nlohmann::json;

// One line of JSON on standard output, whatever bytes names have.
inline void Say(const Json& event) {
  std::printf("%s\n", event.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  std::fflush(stdout);
}

// Until the test has written a line, or gone.
inline void WaitForLine() {
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) == 1 && byte != '\n') {
  }
}

}  // namespace forestage
