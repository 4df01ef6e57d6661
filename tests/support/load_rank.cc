// load_rank: one rank of a group as a process of its own, through the public client library, for
// tests of ranks that are late, wait in the middle, take a part, close early or die.
//
// Writes one JSON document a line: {"event": "opened", "decision"}, with --pause-after {"event":
// "paused"}, with --hold {"event": "holding", ...}, with --close {"event": "closed"} when the
// session is closed, at last {"event": "done", "decision", "bytes", "digests": {tensor: SHA-256}};
// {"event": "error", "message"} and exit code 1 instead when the load fails. Goes on from "paused"
// and "holding" when a line comes on standard input, or its end.
//
// With --forks it forks at each SIGUSR1, wherever its load is, and writes {"event": "forked",
// "child": PID}: the child keeps every descriptor but standard output and lives until the other
// end of its standard input is closed.

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <openssl/evp.h>

#include "common/status_macros.h"
#include "forestage/session.h"
#include "tests/support/rank_events.h"

namespace forestage {
namespace {

struct Options {
  std::string directory;
  SessionOptions session;
  std::string policy = "auto";
  bool strict = false;
  double agreement_timeout_seconds = 60;
  double open_timeout_seconds = 30;
  std::vector<std::string> demand;
  int pause_after = -1;
  bool close = false;
  bool hold = false;
  bool copy = false;
  bool forks = false;
};

Json ToJson(const Decision& decision) {
  return {{"requested", std::string(PolicyName(decision.requested))},
          {"effective", std::string(PolicyName(decision.effective))},
          {"activated", decision.activated},
          {"reason", decision.reason}};
}

std::string Sha256(absl::Span<const std::byte> bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr);
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest), size});
}

absl::StatusOr<std::string> DigestOf(const Slice& slice, bool copy) {
  if (copy) {
    std::vector<std::byte> bytes(slice.bytes());
    RETURN_IF_ERROR(slice.CopyTo(absl::MakeSpan(bytes)));
    return Sha256(bytes);
  }
  ASSIGN_OR_RETURN(const SliceView view, slice.View());
  return Sha256(view.bytes());
}

// "NAME", or "NAME[FIRST:LAST]" for rows [FIRST, LAST) of a tensor.
DemandedSlice ParseDemand(const std::string& text) {
  const size_t bracket = text.find('[');
  if (bracket == std::string::npos) return {.tensor = text};
  Range rows;
  const size_t colon = text.find(':', bracket);
  rows.start = std::stoull(text.substr(bracket + 1, colon - bracket - 1));
  rows.stop = std::stoull(text.substr(colon + 1));
  return {.tensor = text.substr(0, bracket), .ranges = {rows}};
}

// What the rank takes, in order.
std::vector<DemandedSlice> SlicesOf(const Options& options, const Catalog& catalog) {
  if (options.session.demand.has_value()) return *options.session.demand;
  std::vector<DemandedSlice> slices;
  for (size_t i = 0; i < catalog.tensor_count(); ++i) {
    slices.push_back({.tensor = std::string(catalog.tensor(i).name)});
  }
  return slices;
}

absl::Status Load(const Options& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<Session> session,
                   Session::Open(options.directory, options.session));
  Say({{"event", "opened"}, {"decision", ToJson(session->decision())}});
  const std::shared_ptr<const Catalog> catalog = session->catalog();
  Json digests = Json::object();
  uint64_t bytes = 0;
  int taken = 0;
  for (const DemandedSlice& demanded : SlicesOf(options, *catalog)) {
    if (taken++ == options.pause_after) {
      Say({{"event", "paused"}});
      WaitForLine();
      if (options.close) {
        session.reset();
        Say({{"event", "closed"}});
        return absl::OkStatus();
      }
    }
    ASSIGN_OR_RETURN(const Slice slice, session->GetSlice(demanded.tensor, demanded.ranges));
    ASSIGN_OR_RETURN(digests[demanded.tensor], DigestOf(slice, options.copy));
    bytes += slice.bytes();
    const std::optional<size_t> index = catalog->Find(demanded.tensor);
    if (!index.has_value()) return absl::NotFoundError(absl::StrCat("no ", demanded.tensor));
    session->MarkConsumed(*index);
  }
  if (options.hold) {
    Say({{"event", "holding"}, {"decision", ToJson(session->decision())}});
    WaitForLine();
  }
  Say({{"event", "done"},
       {"decision", ToJson(session->decision())},
       {"bytes", bytes},
       {"digests", digests}});
  return absl::OkStatus();
}

// Never returns.
void LiveUntilInputIsClosed() {
  close(STDOUT_FILENO);
  pollfd input = {.fd = STDIN_FILENO, .events = 0, .revents = 0};
  while ((input.revents & (POLLHUP | POLLERR | POLLNVAL)) == 0) poll(&input, 1, -1);
  _exit(0);
}

// Before any thread starts, which all must have the signal blocked.
void ForkAtEachSignal() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([signals] {
    for (int signal = 0; sigwait(&signals, &signal) == 0;) {
      const pid_t child = fork();
      if (child == 0) LiveUntilInputIsClosed();
      Say({{"event", "forked"}, {"child", child}});
    }
  }).detach();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("One rank that loads a checkpoint through the client library; for tests.");
  app.add_option("directory", options.directory, "The checkpoint")->required();
  app.add_option("--socket", options.session.socket_path, "The daemon's socket");
  app.add_option("--group", options.session.group_name, "Name of the group");
  app.add_option("--nonce", options.session.launch_nonce, "Launch nonce");
  app.add_option("--rank", options.session.local_rank, "Local rank");
  app.add_option("--size", options.session.local_size, "Local size");
  app.add_option("--policy", options.policy, "What to ask for")
      ->check(CLI::IsMember({"auto", "native", "rank_striped_read_ahead"}));
  app.add_flag("--strict", options.strict, "Strict agreement");
  app.add_option("--agreement-timeout", options.agreement_timeout_seconds, "In seconds");
  app.add_option("--open-timeout", options.open_timeout_seconds, "In seconds");
  app.add_option("--demand", options.demand,
                 "What to take, in order, NAME or NAME[FIRST:LAST]; default: all")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--pause-after", options.pause_after, "Pause before this tensor");
  app.add_flag("--close", options.close, "Close the session at the pause, instead of going on");
  app.add_flag("--hold", options.hold, "Keep the session open after the load");
  app.add_flag("--copy", options.copy, "CopyTo instead of View");
  app.add_flag("--forks", options.forks, "Fork at each SIGUSR1");
  CLI11_PARSE(app, argc, argv);

  for (const Policy policy : {Policy::kAuto, Policy::kNative, Policy::kRankStripedReadAhead}) {
    if (options.policy == PolicyName(policy)) options.session.policy = policy;
  }
  if (options.strict) options.session.agreement = Agreement::kStrict;
  options.session.agreement_timeout = absl::Seconds(options.agreement_timeout_seconds);
  options.session.open_timeout = absl::Seconds(options.open_timeout_seconds);
  if (!options.demand.empty()) options.session.demand.emplace();
  for (const std::string& name : options.demand)
    options.session.demand->push_back(ParseDemand(name));

  if (options.forks) ForkAtEachSignal();
  const absl::Status status = Load(options);
  if (status.ok()) return 0;
  Say({{"event", "error"},
       {"code", absl::StatusCodeToString(status.code())},
       {"message", std::string(status.message())}});
  return 1;
}

}  // namespace
}  // namespace forestage

int main(int argc, char** argv) { return forestage::Main(argc, argv); }
