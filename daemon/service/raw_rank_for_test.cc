// A rank as a process of its own, for tests: raw_rank_for_test SOCKET GROUP RANK SIZE FILE...
// Opens a session, writes its token in hexadecimal and, after its files were sent, its decision,
// one line each, to standard output. Then it holds the session until it is killed or its input
// ends.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"

#include "daemon/service/raw_session_client.h"

int main(int argc, char** argv) {
  if (argc < 6) return 2;
  const std::vector<std::string> files(argv + 5, argv + argc);
  forestage::RawSessionClient client(argv[1]);
  const auto request = forestage::RawSessionClient::MakeOpenRequest(
      argv[2], static_cast<uint32_t>(std::atoi(argv[3])), static_cast<uint32_t>(std::atoi(argv[4])),
      files);
  const auto opened = client.Open(request);
  if (!opened.ok()) {
    std::printf("error %s\n", opened.status().ToString().c_str());
    return 1;
  }
  std::printf("%s\n", absl::BytesToHexString(opened->token()).c_str());
  std::fflush(stdout);
  const auto socket = client.ConnectDescriptors();
  if (!socket.ok() || !client.SendShards(socket->get(), files, 100).ok()) return 1;
  const auto event = client.WaitFor(forestage::v1::SessionEvent::kDecision);
  if (!event.ok()) return 1;
  std::printf("%s\n", forestage::v1::Policy_Name(event->decision().effective()).c_str());
  std::fflush(stdout);
  char byte = 0;
  return read(STDIN_FILENO, &byte, 1) < 0 ? 1 : 0;
}
