// slowfs: a read-only pass-through file system for tests that can be slow, fail and hang. See
// README.md beside this file.

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include <CLI/CLI.hpp>
#include <sys/stat.h>

#include "tests/support/slowfs/control_socket.h"
#include "tests/support/slowfs/slow_file_system.h"

namespace {

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "slowfs: %s\n", std::string(status.message()).c_str());
  return 1;
}

// The mount answers from now on; settings that need it are made here.
void Announce(forestage::SlowFileSystem& file_system, const std::string& mount,
              const std::vector<std::string>& commands) {
  struct stat attributes;
  static_cast<void>(stat(mount.c_str(), &attributes));
  for (const std::string& command : commands) {
    const std::string answer = file_system.Command(command);
    if (answer.rfind("ok", 0) == 0) continue;
    std::fprintf(stderr, "slowfs: %s: %s\n", command.c_str(), answer.c_str());
    kill(getpid(), SIGTERM);
    return;
  }
  std::printf("ready\n");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("A read-only pass-through file system that can be slow, fail and hang.");
  forestage::SlowFileSystem::Options options;
  std::string control;
  std::string latency_ms = "0";
  std::string attribute_latency_ms = "0";
  std::string bandwidth_mib_s = "0";
  std::string keep_cache = "on";
  std::string read_ahead_kb;
  app.add_option("--source", options.source, "Directory to show")->required();
  app.add_option("--mount", options.mount, "Where to show it")->required();
  app.add_option("--control", control, "Unix socket for commands (outside the mount)")->required();
  app.add_option("--max-request-bytes", options.request_bytes_max,
                 "Largest read request; 0: the kernel's limit");
  app.add_option("--attribute-timeout", options.attribute_timeout_seconds,
                 "Seconds for which the kernel may keep names and attributes");
  app.add_option("--latency-ms", latency_ms, "Time until a read is answered");
  app.add_option("--attribute-latency-ms", attribute_latency_ms,
                 "Time until attributes that the kernel does not know any more are told");
  app.add_option("--bandwidth-mib-s", bandwidth_mib_s, "Over all files; 0: no limit");
  app.add_option("--keep-cache", keep_cache, "on; off: each open drops the file's page cache");
  app.add_flag("--flushes", options.flushes, "Each close is a request that the closer waits for");
  app.add_option("--read-ahead-kb", read_ahead_kb, "Of the mount; default: the kernel's");
  CLI11_PARSE(app, argc, argv);

  std::vector<std::string> commands = {
      absl::StrCat("set latency_ms ", latency_ms),
      absl::StrCat("set attribute_latency_ms ", attribute_latency_ms),
      absl::StrCat("set bandwidth_mib_s ", bandwidth_mib_s),
      absl::StrCat("set keep_cache ", keep_cache)};
  if (!read_ahead_kb.empty()) commands.push_back(absl::StrCat("set read_ahead_kb ", read_ahead_kb));

  // Signals are for the thread that runs the session: it unblocks them, all others inherit this.
  sigset_t endings = {};
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&endings, number);
  pthread_sigmask(SIG_BLOCK, &endings, nullptr);

  auto file_system = forestage::SlowFileSystem::Create(options);
  if (!file_system.ok()) return Fail(file_system.status());
  auto socket = forestage::ControlSocket::Listen(
      control, [&](absl::string_view line) { return (*file_system)->Command(line); });
  if (!socket.ok()) return Fail(socket.status());
  const absl::Status mounted = (*file_system)->Mount();
  if (!mounted.ok()) return Fail(mounted);
  std::thread announcer([&] { Announce(**file_system, options.mount, commands); });
  pthread_sigmask(SIG_UNBLOCK, &endings, nullptr);
  const absl::Status result = (*file_system)->Run();
  announcer.join();
  return result.ok() ? 0 : Fail(result);
}
