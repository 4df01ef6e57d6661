// A client of the descriptor exchange that sends any messages with any number of descriptors, over
// a real socket: every answer is well-formed, no descriptor stays, and a client that keeps the
// rules is served afterwards as if nothing had been.
//
// An input is a list of messages: one byte says how many descriptors go with it (modulo 8) and
// whether it is raw (bit 7) or a request with some fields changed; one byte is its length; then so
// many bytes.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include <sys/socket.h>
#include <sys/un.h>

#include "common/check.h"
#include "common/descriptor_passing.h"
#include "common/memfd.h"
#include "daemon/delivery/descriptor_exchange.h"

namespace forestage {
namespace {

constexpr SessionToken kToken = {1, 2, 3};
constexpr uint32_t kShards = 6;

// One session of kShards shards, anew for each connection; ready at once.
class DirectoryFake : public DeliveryDirectory {
 public:
  absl::StatusOr<uint64_t> FindByToken(const SessionToken& token,
                                       const PeerIdentity& /*peer*/) override {
    if (token != kToken) return absl::PermissionDeniedError("no token");
    return 7;
  }
  absl::StatusOr<DeliveryAccount> AdmitShards(uint64_t /*session*/, uint32_t first_index,
                                              size_t count) override {
    absl::MutexLock lock(&mutex_);
    CHECK(count >= 1 && count <= kDescriptorsPerMessageMax);
    if (first_index != received_.size() || count > kShards - first_index) {
      return absl::InvalidArgumentError("a gap");
    }
    admitted_ = count;
    return std::make_shared<int>(0);
  }
  absl::StatusOr<uint32_t> AddShards(uint64_t /*session*/, uint32_t first_index,
                                     std::vector<UniqueFd> descriptors,
                                     DeliveryAccount account) override {
    absl::MutexLock lock(&mutex_);
    CHECK(account != nullptr && first_index == received_.size());
    CHECK(!descriptors.empty() && descriptors.size() <= admitted_);
    for (UniqueFd& descriptor : descriptors) {
      CHECK(fcntl(descriptor.get(), F_GETFD) == FD_CLOEXEC);
      received_.push_back(std::move(descriptor));
    }
    return static_cast<uint32_t>(received_.size());
  }
  void RefuseShards(uint64_t /*session*/, std::vector<UniqueFd> descriptors,
                    DeliveryAccount account, absl::string_view why) override {
    absl::MutexLock lock(&mutex_);
    CHECK(account != nullptr && !why.empty() && descriptors.size() <= admitted_);
  }
  absl::StatusOr<DeliveryAccount> AdmitNamedShards(uint64_t /*session*/, uint32_t first_index,
                                                   size_t count) override {
    absl::MutexLock lock(&mutex_);
    CHECK(count >= 1 && count <= kDescriptorsPerMessageMax);
    if (!received_.empty() || first_index != named_ || count > kShards - first_index) {
      return absl::InvalidArgumentError("a gap");
    }
    admitted_ = count;
    return std::make_shared<int>(0);
  }
  // Lends every second one.
  void LendShards(uint64_t /*session*/, std::vector<UniqueFd> named, std::vector<gid_t> /*groups*/,
                  DeliveryAccount account,
                  std::function<void(absl::StatusOr<std::vector<SharedFd>>)> done) override {
    std::vector<SharedFd> loans(named.size());
    {
      absl::MutexLock lock(&mutex_);
      CHECK(account != nullptr && !named.empty() && named.size() <= admitted_);
      for (size_t i = named_ % 2; i < named.size(); i += 2) loans[i] = lent_;
      named_ += named.size();
    }
    done(std::move(loans));
  }
  void WhenReady(uint64_t /*session*/,
                 std::function<void(absl::StatusOr<DeliveredDescriptors>)> done) override {
    done(DeliveredDescriptors{.catalog = *MakeFixedSizeMemfd("catalog", 1),
                              .board = *MakeFixedSizeMemfd("board", 1)});
  }
  void Forget() {
    absl::MutexLock lock(&mutex_);
    received_.clear();
    named_ = 0;
  }

 private:
  absl::Mutex mutex_;
  std::vector<UniqueFd> received_ ABSL_GUARDED_BY(mutex_);
  size_t admitted_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t named_ ABSL_GUARDED_BY(mutex_) = 0;
  const SharedFd lent_ = std::make_shared<const UniqueFd>(*MakeFixedSizeMemfd("lent", 1));
};

// Goes when the fuzzer ends.
const char* MakeFolder() {
  static char name[] = "/tmp/descriptor_exchange_fuzz.XXXXXX";
  CHECK(mkdtemp(name) != nullptr);
  std::atexit([] {
    std::error_code ignored;
    std::filesystem::remove_all(name, ignored);
  });
  return name;
}

// The exchange of this process, for all inputs.
struct World {
  World() {
    auto listener = UnixListener::Bind({.path = path, .type = SOCK_SEQPACKET});
    CHECK(listener.ok());
    auto created = DescriptorExchange::Create({}, std::move(*listener), directory);
    CHECK(created.ok());
    exchange = std::move(*created);
    exchange->Start();
  }
  UniqueFd Connect() const {
    UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    CHECK(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
    return fd;
  }

  const std::string path = std::string(MakeFolder()) + "/d.sock";
  DirectoryFake directory;
  std::unique_ptr<DescriptorExchange> exchange;
};

absl::Time Soon() { return absl::Now() + absl::Seconds(20); }

absl::Span<const std::byte> BytesOf(const DescriptorRequest& request) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(&request), sizeof(request));
}

// False when the daemon closed the connection.
bool SendAndCheckAnswer(int socket, absl::Span<const std::byte> bytes,
                        const std::vector<int>& descriptors) {
  if (!SendDescriptorMessage(socket, bytes, descriptors, Soon()).ok()) return false;
  const auto answer = ReceiveDescriptorMessage(socket, kDescriptorMessageBytesMax, Soon());
  CHECK(!absl::IsDeadlineExceeded(answer.status()));
  if (!answer.ok()) return false;
  DescriptorReply reply;
  const bool lends = answer->bytes.size() == sizeof(BorrowReply);
  CHECK(lends || answer->bytes.size() == sizeof(reply));
  std::memcpy(&reply, answer->bytes.data(), sizeof(reply));
  CHECK(reply.message[sizeof(reply.message) - 1] == '\0');
  CHECK((reply.code == 0) == (reply.message[0] == '\0'));
  CHECK(reply.accepted_count <= kShards);
  CHECK(answer->descriptors.empty() ||
        (reply.code == 0 && (lends || answer->descriptors.size() == 2)));
  if (lends) {
    BorrowReply loans;
    std::memcpy(&loans, answer->bytes.data(), sizeof(loans));
    size_t lent = 0;
    for (const uint8_t byte : loans.lent) lent += static_cast<size_t>(std::popcount(byte));
    CHECK(reply.code == 0 && lent == answer->descriptors.size() && lent <= kShards);
  }
  return reply.code == 0;
}

void SendAll(const World& world, int file, absl::Span<const uint8_t> input) {
  const UniqueFd client = world.Connect();
  while (input.size() > 2) {
    const std::vector<int> descriptors(input[0] % 8, file);
    const bool raw = (input[0] & 0x80) != 0;
    const size_t length = std::min<size_t>(input[1], input.size() - 2);
    const absl::Span<const uint8_t> body = input.subspan(2, length);
    input.remove_prefix(2 + length);
    DescriptorRequest request;
    request.token = kToken;
    // Changes of a sound request get behind the first checks.
    for (size_t i = 0; i + 1 < body.size(); i += 2) {
      reinterpret_cast<uint8_t*>(&request)[body[i] % sizeof(request)] = body[i + 1];
    }
    const auto bytes =
        raw ? absl::MakeConstSpan(reinterpret_cast<const std::byte*>(body.data()), body.size())
            : BytesOf(request);
    if (bytes.empty() || !SendAndCheckAnswer(client.get(), bytes, descriptors)) return;
  }
}

// Without pipes, which the fuzzer has to its symbolizer.
size_t OpenDescriptors() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (!gone && target.rfind("pipe:", 0) != 0) ++count;
  }
  return count;
}

}  // namespace
}  // namespace forestage

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  using namespace forestage;  // NOLINT: a fuzz target is a program of its own
  static World* const world = new World();
  static const int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
  static const size_t at_rest = OpenDescriptors();
  SendAll(*world, file, absl::MakeConstSpan(input, size));
  world->directory.Forget();
  {
    const UniqueFd honest = world->Connect();
    DescriptorRequest request;
    request.token = kToken;
    request.descriptor_count = 2;
    request.kind = DescriptorRequestKind::kBorrow;
    CHECK(SendAndCheckAnswer(honest.get(), BytesOf(request), {file, file}));
    request.kind = DescriptorRequestKind::kShardBatch;
    CHECK(SendAndCheckAnswer(honest.get(), BytesOf(request), {file, file}));
    request.kind = DescriptorRequestKind::kDelivery;
    CHECK(SendAndCheckAnswer(honest.get(), BytesOf(request), {}));
  }
  world->directory.Forget();
  // The exchange's thread closes its ends when it sees that ours are closed.
  for (const absl::Time deadline = Soon(); OpenDescriptors() > at_rest;) {
    CHECK(absl::Now() < deadline);
  }
  return 0;
}
