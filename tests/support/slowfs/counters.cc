#include "tests/support/slowfs/counters.h"

#include <nlohmann/json.hpp>

namespace forestage {

void Counters::CountOpen() {
  absl::MutexLock lock(&mutex_);
  ++opens_;
}

void Counters::CountRead(absl::string_view path, uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  File& file = files_[std::string(path)];
  ++file.requests;
  file.bytes += bytes;
}

void Counters::CountFault() {
  absl::MutexLock lock(&mutex_);
  ++faults_;
}

void Counters::Reset() {
  absl::MutexLock lock(&mutex_);
  opens_ = 0;
  faults_ = 0;
  files_.clear();
}

std::string Counters::ToJson(uint64_t held) const {
  absl::MutexLock lock(&mutex_);
  uint64_t requests = 0;
  uint64_t bytes = 0;
  nlohmann::json files = nlohmann::json::object();
  for (const auto& [path, file] : files_) {
    requests += file.requests;
    bytes += file.bytes;
    files[path] = {{"requests", file.requests}, {"bytes", file.bytes}};
  }
  const nlohmann::json all = {{"opens", opens_},   {"requests", requests}, {"bytes", bytes},
                              {"faults", faults_}, {"held", held},         {"files", files}};
  return all.dump();
}

}  // namespace forestage
