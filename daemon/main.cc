// forestaged. Exit codes: 0 drained after SIGTERM or SIGINT, or printed what was asked for;
// 1 cannot start, or ended by a second signal; 2 a setting is wrong.
#include <malloc.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "spdlog/sinks/stdout_color_sinks.h"
#include "spdlog/spdlog.h"

#include "common/descriptor_limit.h"
#include "common/socket_path.h"
#include "common/units.h"
#include "daemon/config.h"
#include "daemon/limits.h"
#include "daemon/server.h"
#include "daemon/shutdown_signals.h"

namespace forestage {
namespace {

constexpr int kStartFailedExitCode = 1;
constexpr int kWrongSettingExitCode = 2;
constexpr int kHeapPieceBytesMax = 1024 * 1024;
// From the first signal to the end of the process, also when the drain itself hangs.
// Longer than kDrainTimeout, shorter than what a service manager or orchestrator waits.
constexpr absl::Duration kShutdownGrace = absl::Milliseconds(9500);

StartInputs InputsOfThisProcess(int argc, char** argv) {
  StartInputs inputs;
  inputs.arguments.assign(argv + 1, argv + argc);
  for (char** entry = environ; *entry != nullptr; ++entry) inputs.environment.emplace_back(*entry);
  return inputs;
}

void SetUpLog(const std::string& level) {
  spdlog::set_default_logger(spdlog::stderr_color_mt("forestaged"));
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %^%l%$ %v");
  spdlog::set_level(spdlog::level::from_str(level));
}

void LogSettings(const StartRequest& request) {
  spdlog::info("starting version={} pid={}", std::string(DaemonVersion()), getpid());
  for (const std::string& warning : request.warnings) spdlog::warn("{}", warning);
  for (const EffectiveSetting& setting : request.settings) {
    if (setting.source == "default") continue;
    spdlog::info("setting {}={} source=\"{}\"", setting.name, setting.value, setting.source);
  }
}

// What follows from the settings, so that nobody has to compute it.
void LogDerivedFigures(const Config& config) {
  spdlog::info(
      "limits descriptor_socket={} extent={} in_flight_max={} node_in_flight_max={} "
      "read_bytes_per_second_max={} lanes_max={} sessions_max={}",
      DescriptorSocketPath(config.socket_path), FormatByteSize(config.extent_bytes),
      FormatByteSize(config.in_flight_bytes_max), FormatByteSize(config.node_in_flight_bytes_max),
      config.read_rate_limits.ToString(), config.lanes_max, config.sessions_max);
}

// Large pieces of memory go back to the system as they are freed. By itself glibc raises both
// thresholds with what it sees freed, and then every heap keeps tens of MiB for ever.
void SetUpHeap() {
  mallopt(M_MMAP_THRESHOLD, kHeapPieceBytesMax);
  mallopt(M_TRIM_THRESHOLD, kHeapPieceBytesMax);
}

// Some distributions build Abseil so that each Lock() looks for cycles of locks. The tests' builds
// keep that.
void SetUpLocks() {
#ifdef NDEBUG
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif
}

int FailStart(const absl::Status& status) {
  spdlog::error("cannot start: {}", std::string(status.message()));
  return kStartFailedExitCode;
}

int Serve(const Config& config) {
  absl::StatusOr<std::unique_ptr<ShutdownSignals>> signals = ShutdownSignals::Create();
  if (!signals.ok()) return FailStart(signals.status());
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Create(config);
  if (!server.ok()) return FailStart(server.status());
  LogDerivedFigures(config);
  if (const absl::Status started = (*server)->Start(); !started.ok()) return FailStart(started);

  spdlog::info("got {}", (*signals)->Wait());
  (*signals)->ExitAtNextSignal(kShutdownGrace);
  if (const absl::Status drained = (*server)->Drain(kDrainTimeout); !drained.ok()) {
    // A destructor would wait for what Drain gave up on.
    spdlog::warn("ended, though {}", std::string(drained.message()));
    spdlog::shutdown();
    _exit(0);
  }
  server->reset();
  spdlog::info("ended");
  return 0;
}

int Main(int argc, char** argv) {
  const absl::StatusOr<StartRequest> request = ReadStartRequest(InputsOfThisProcess(argc, argv));
  if (!request.ok()) {
    for (const absl::string_view line : absl::StrSplit(request.status().message(), '\n')) {
      std::fprintf(stderr, "forestaged: %.*s\n", static_cast<int>(line.size()), line.data());
    }
    return kWrongSettingExitCode;
  }
  if (request->text.has_value()) {
    for (const std::string& warning : request->warnings) {
      std::fprintf(stderr, "forestaged: warning: %s\n", warning.c_str());
    }
    const bool written = std::fputs(request->text->c_str(), stdout) >= 0;
    return written && std::fflush(stdout) == 0 ? 0 : kStartFailedExitCode;
  }
  SetUpLog(request->config.log_level);
  SetUpHeap();
  SetUpLocks();
  RaiseDescriptorLimit(kDescriptorsWanted);
  LogSettings(*request);
  return Serve(request->config);
}

}  // namespace
}  // namespace forestage

int main(int argc, char** argv) { return forestage::Main(argc, argv); }
