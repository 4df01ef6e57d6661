// One rank of a group, for tests: loads everything, compares it with its own direct read, says what
// it got, and stays in its group until its input ends.
//
//   rank_for_test DIR SOCKET GROUP RANK RANKS eager|strict AGREEMENT_MS [in-a-child]
//
// "in-a-child": all of it in a child that it forks first, as launchers do.
//
// Writes "open EFFECTIVE REASON" when its session is open, then "loaded EFFECTIVE MISMATCHES".
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include <sys/wait.h>

#include "forestage/session.h"

namespace {

bool Matches(const std::string& directory, const forestage::TensorInfo& tensor,
             absl::Span<const std::byte> bytes) {
  std::ifstream file(directory + "/" + std::string(tensor.shard), std::ios::binary);
  std::vector<char> expected(tensor.bytes());
  file.seekg(static_cast<std::streamoff>(tensor.begin));
  file.read(expected.data(), static_cast<std::streamsize>(expected.size()));
  return file.good() && bytes.size() == expected.size() &&
         (bytes.empty() || std::memcmp(bytes.data(), expected.data(), bytes.size()) == 0);
}

std::string Effective(const forestage::Session& session) {
  return std::string(forestage::PolicyName(session.decision().effective));
}

// Of each view; FORESTAGE_TEST_VIEW_SECONDS.
absl::Time Deadline() {
  const char* const seconds = std::getenv("FORESTAGE_TEST_VIEW_SECONDS");
  if (seconds == nullptr) return absl::InfiniteFuture();
  return absl::Now() + absl::Seconds(std::atoi(seconds));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 9) {
    const pid_t child = fork();
    int status = -1;
    if (child != 0) return waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
  } else if (argc != 8) {
    return 2;
  }
  const std::string directory = argv[1];
  forestage::SessionOptions options;
  options.socket_path = argv[2];
  options.daemon_wait = absl::Seconds(30);
  options.group_name = argv[3];
  options.local_rank = static_cast<uint32_t>(std::atoi(argv[4]));
  options.local_size = static_cast<uint32_t>(std::atoi(argv[5]));
  options.agreement = std::strcmp(argv[6], "strict") == 0 ? forestage::Agreement::kStrict
                                                          : forestage::Agreement::kEager;
  options.agreement_timeout = absl::Milliseconds(std::atoi(argv[7]));
  const auto session = forestage::Session::Open(directory, options);
  if (!session.ok()) {
    std::printf("error %s\n", session.status().ToString().c_str());
    return 1;
  }
  std::printf("open %s %s\n", Effective(**session).c_str(), (*session)->decision().reason.c_str());
  std::fflush(stdout);
  const auto catalog = (*session)->catalog();
  size_t mismatches = 0;
  for (size_t i = 0; i < catalog->tensor_count(); ++i) {
    const auto slice = (*session)->GetSlice(i);
    const auto view =
        slice.ok() ? slice->View(Deadline()) : absl::StatusOr<forestage::SliceView>(slice.status());
    if (absl::IsDeadlineExceeded(view.status())) {
      std::printf("late %s\n", view.status().ToString().c_str());
      std::fflush(stdout);
      // The threads that read stay behind; so would this process until they are done.
      _exit(0);
    }
    if (!view.ok() || !Matches(directory, catalog->tensor(i), view->bytes())) ++mismatches;
    (*session)->MarkConsumed(i);
  }
  std::printf("loaded %s %zu\n", Effective(**session).c_str(), mismatches);
  std::fflush(stdout);
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) > 0) continue;
  return 0;
}
