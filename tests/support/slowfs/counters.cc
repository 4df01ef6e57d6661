#include "tests/support/slowfs/counters.h"

#include <algorithm>

#include <nlohmann/json.hpp>

namespace forestage {

void Counters::InFlight::Add(uint64_t request_bytes) {
  ++requests;
  bytes += request_bytes;
  requests_peak = std::max(requests_peak, requests);
  bytes_peak = std::max(bytes_peak, bytes);
}

void Counters::InFlight::Remove(uint64_t request_bytes) {
  --requests;
  bytes -= request_bytes;
}

void Counters::InFlight::Reset() {
  requests_peak = requests;
  bytes_peak = bytes;
}

void Counters::CountOpen() {
  absl::MutexLock lock(&mutex_);
  ++opens_;
}

void Counters::CountRequest(absl::string_view path, uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  File& file = files_[std::string(path)];
  file.request_bytes_max = std::max(file.request_bytes_max, bytes);
  file.in_flight.Add(bytes);
  in_flight_.Add(bytes);
}

void Counters::CountAnswer(absl::string_view path, uint64_t bytes, uint64_t given_bytes) {
  absl::MutexLock lock(&mutex_);
  File& file = files_[std::string(path)];
  ++file.requests;
  file.bytes += given_bytes;
  file.in_flight.Remove(bytes);
  in_flight_.Remove(bytes);
}

void Counters::CountFault(absl::string_view path) {
  absl::MutexLock lock(&mutex_);
  ++files_[std::string(path)].faults;
}

void Counters::Reset() {
  absl::MutexLock lock(&mutex_);
  opens_ = 0;
  in_flight_.Reset();
  for (auto entry = files_.begin(); entry != files_.end();) {
    File fresh;
    fresh.in_flight = entry->second.in_flight;
    fresh.in_flight.Reset();
    if (fresh.in_flight.requests == 0) {
      entry = files_.erase(entry);
    } else {
      entry++->second = fresh;
    }
  }
}

std::string Counters::ToJson(uint64_t held) const {
  absl::MutexLock lock(&mutex_);
  uint64_t requests = 0;
  uint64_t bytes = 0;
  uint64_t faults = 0;
  uint64_t request_bytes_max = 0;
  nlohmann::json files = nlohmann::json::object();
  for (const auto& [path, file] : files_) {
    requests += file.requests;
    bytes += file.bytes;
    faults += file.faults;
    request_bytes_max = std::max(request_bytes_max, file.request_bytes_max);
    files[path] = {{"requests", file.requests},
                   {"bytes", file.bytes},
                   {"request_bytes_max", file.request_bytes_max},
                   {"faults", file.faults},
                   {"in_flight", file.in_flight.requests},
                   {"in_flight_peak", file.in_flight.requests_peak},
                   {"in_flight_bytes_peak", file.in_flight.bytes_peak}};
  }
  const nlohmann::json all = {{"opens", opens_},
                              {"requests", requests},
                              {"bytes", bytes},
                              {"request_bytes_max", request_bytes_max},
                              {"in_flight", in_flight_.requests},
                              {"in_flight_peak", in_flight_.requests_peak},
                              {"in_flight_bytes_peak", in_flight_.bytes_peak},
                              {"faults", faults},
                              {"held", held},
                              {"files", files}};
  return all.dump();
}

}  // namespace forestage
