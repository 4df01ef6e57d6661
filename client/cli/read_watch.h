// Tells of a rank whose read does not come: only the rank knows what it touches in a mapping.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

#include "forestage/session.h"

namespace forestage {

// Not thread-safe.
class ReadWatch {
 public:
  // To be called often, with where reads stand. One that has stood there for kStallPatience; each
  // place is told once, until nothing stands there any more.
  std::optional<ReadPlace> Look(const std::vector<ReadPlace>& places, absl::Time now);

 private:
  struct Seen {
    absl::Time since;
    bool told = false;
  };
  static std::string KeyOf(const ReadPlace& place);

  std::map<std::string, Seen> seen_;
};

// "own read of /models/a.safetensors at offset 4096", or "the daemon's read of ...".
std::string ReadPlaceText(const ReadPlace& place);

}  // namespace forestage
