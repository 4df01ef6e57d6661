// Runs the real slowfs on a real mount and tries each of its knobs.

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <nlohmann/json.hpp>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <sys/wait.h>

#include "common/unique_fd.h"

namespace forestage {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
namespace fs = std::filesystem;

constexpr size_t kFileBytes = 4 * 1024 * 1024;
constexpr long kFuseMagic = 0x65735546;

bool IsMounted(const fs::path& path) {
  std::ifstream mounts("/proc/self/mounts");
  std::string line;
  while (std::getline(mounts, line)) {
    if (line.find(" " + path.string() + " ") != std::string::npos) return true;
  }
  return false;
}

class SlowfsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (access("/dev/fuse", R_OK | W_OK) != 0) {
      if (std::getenv("FORESTAGE_TEST_WITHOUT_FUSE") != nullptr) {
        GTEST_SKIP() << "no usable /dev/fuse, and FORESTAGE_TEST_WITHOUT_FUSE is set";
      }
      FAIL() << "/dev/fuse cannot be used; set FORESTAGE_TEST_WITHOUT_FUSE=1 to go without";
    }
    char name[] = "/tmp/slowfs.XXXXXX";
    directory_ = mkdtemp(name);
    fs::create_directories(source() / "sub");
    fs::create_directory(mount());
    const unsigned seed = std::random_device()();
    RecordProperty("seed", std::to_string(seed));
    std::mt19937 random(seed);
    bytes_.resize(kFileBytes);
    for (char& byte : bytes_) byte = static_cast<char>(random());
    std::ofstream(source() / "weights.bin", std::ios::binary) << bytes_;
    std::ofstream(source() / "sub" / "other.bin", std::ios::binary) << bytes_;
    fs::create_symlink("weights.bin", source() / "link.bin");
  }

  void TearDown() override {
    if (pid_ > 0) {
      kill(pid_, SIGTERM);
      EXPECT_EQ(WaitForExit(), 0);
      EXPECT_FALSE(IsMounted(mount()));
      EXPECT_FALSE(fs::exists(control()));
    }
    if (!directory_.empty()) fs::remove_all(directory_);
  }

  fs::path source() const { return directory_ / "source"; }
  fs::path mount() const { return directory_ / "mount"; }
  fs::path control() const { return directory_ / "control"; }
  fs::path file() const { return mount() / "weights.bin"; }

  void Start(std::vector<std::string> flags = {}) {
    int output[2];
    ASSERT_EQ(pipe2(output, O_CLOEXEC), 0);
    std::vector<std::string> words = {SLOWFS_PATH, "--source",  source(), "--mount",
                                      mount(),     "--control", control()};
    words.insert(words.end(), flags.begin(), flags.end());
    pid_ = fork();
    if (pid_ == 0) {
      dup2(output[1], STDOUT_FILENO);
      std::vector<char*> arguments;
      for (std::string& word : words) arguments.push_back(word.data());
      arguments.push_back(nullptr);
      execv(SLOWFS_PATH, arguments.data());
      _exit(127);
    }
    close(output[1]);
    const UniqueFd ready(output[0]);
    std::string line;
    char byte;
    while (read(ready.get(), &byte, 1) == 1 && byte != '\n') line += byte;
    ASSERT_EQ(line, "ready");
  }

  int WaitForExit() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }

  std::string Command(const std::string& line) const {
    const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, control().c_str());
    if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
      return absl::StrCat("connect: ", std::strerror(errno));
    }
    const std::string sent = line + "\n";
    if (send(fd.get(), sent.data(), sent.size(), 0) < 0) return "send failed";
    std::string answer;
    char buffer[4096];
    ssize_t count;
    while ((count = recv(fd.get(), buffer, sizeof(buffer), 0)) > 0) {
      answer.append(buffer, static_cast<size_t>(count));
    }
    if (!answer.empty() && answer.back() == '\n') answer.pop_back();
    return answer;
  }

  nlohmann::json Stats() const { return nlohmann::json::parse(Command("stats")); }

  void WaitUntilHeld(size_t count = 1) const {
    while (Stats()["held"] < count) std::this_thread::yield();
  }

  // Reads of a fresh descriptor; the page cache of the file is dropped first.
  static ssize_t ReadAt(const fs::path& path, std::string* buffer, uint64_t offset) {
    const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
    posix_fadvise(fd.get(), 0, 0, POSIX_FADV_RANDOM);
    return pread(fd.get(), buffer->data(), buffer->size(), static_cast<off_t>(offset));
  }

  fs::path directory_;
  std::string bytes_;
  pid_t pid_ = -1;
};

TEST_F(SlowfsTest, ShowsTheSourceUnchanged) {
  Start();
  struct statfs file_system;
  ASSERT_EQ(statfs(mount().c_str(), &file_system), 0);
  EXPECT_EQ(file_system.f_type, kFuseMagic);
  std::string buffer(kFileBytes, '\0');
  ASSERT_EQ(ReadAt(file(), &buffer, 0), static_cast<ssize_t>(kFileBytes));
  EXPECT_EQ(buffer, bytes_);
  EXPECT_EQ(fs::read_symlink(mount() / "link.bin"), "weights.bin");
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(mount()))
    names.push_back(entry.path().filename());
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("weights.bin", "sub", "link.bin"));
}

TEST_F(SlowfsTest, InodeNumberAndTimesAreThoseOfTheSource) {
  Start({"--attribute-timeout", "0"});
  struct stat original;
  ASSERT_EQ(stat((source() / "weights.bin").c_str(), &original), 0);
  for (int i = 0; i < 3; ++i) {
    const UniqueFd fd(open(file().c_str(), O_RDONLY | O_CLOEXEC));
    struct stat shown;
    ASSERT_EQ(fstat(fd.get(), &shown), 0);
    EXPECT_EQ(shown.st_ino, original.st_ino);
    EXPECT_EQ(shown.st_size, original.st_size);
    EXPECT_EQ(shown.st_mtim.tv_sec, original.st_mtim.tv_sec);
    EXPECT_EQ(shown.st_mtim.tv_nsec, original.st_mtim.tv_nsec);
  }
}

TEST_F(SlowfsTest, RefusesToWrite) {
  Start();
  const UniqueFd written(open(file().c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_EQ(errno, EROFS);
  EXPECT_FALSE(written.valid());
  const UniqueFd made(open((mount() / "new").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  EXPECT_EQ(errno, EROFS);
  EXPECT_FALSE(made.valid());
}

TEST_F(SlowfsTest, MapsFilesShared) {
  Start();
  const UniqueFd fd(open(file().c_str(), O_RDONLY | O_CLOEXEC));
  void* address = mmap(nullptr, kFileBytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  ASSERT_NE(address, MAP_FAILED);
  EXPECT_EQ(std::memcmp(address, bytes_.data(), kFileBytes), 0);
  munmap(address, kFileBytes);
}

TEST_F(SlowfsTest, LatencyDelaysEachRequest) {
  Start({"--latency-ms", "40"});
  std::string buffer(4096, '\0');
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(ReadAt(file(), &buffer, 0), 4096);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(40));
  EXPECT_EQ(Command("set latency_ms 0"), "ok");
}

TEST_F(SlowfsTest, LatencyOfAttributesDelaysStatAndNotReads) {
  Start({"--attribute-latency-ms", "40", "--attribute-timeout", "3600"});
  const UniqueFd fd(open(file().c_str(), O_RDONLY | O_CLOEXEC));
  struct stat attributes;
  ASSERT_EQ(fstat(fd.get(), &attributes), 0);
  EXPECT_EQ(Command("set attribute_latency_ms 3600000"), "ok");
  std::string buffer(4096, '\0');
  EXPECT_EQ(ReadAt(file(), &buffer, 0), 4096);
  EXPECT_EQ(Command("set attribute_latency_ms 40"), "ok");
  struct statx asked;
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(statx(fd.get(), "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_SIZE, &asked), 0);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(40));
}

TEST_F(SlowfsTest, BandwidthBoundsTheRateOverAllFiles) {
  Start({"--bandwidth-mib-s", "40"});
  const auto begin = std::chrono::steady_clock::now();
  auto other = std::async(std::launch::async, [&] {
    std::string buffer(kFileBytes, '\0');
    return ReadAt(mount() / "sub" / "other.bin", &buffer, 0);
  });
  std::string buffer(kFileBytes, '\0');
  EXPECT_EQ(ReadAt(file(), &buffer, 0), static_cast<ssize_t>(kFileBytes));
  EXPECT_EQ(other.get(), static_cast<ssize_t>(kFileBytes));
  // 8 MiB at 40 MiB/s.
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(200));
}

TEST_F(SlowfsTest, RequestsAreNotLargerThanTheMaximum) {
  Start({"--max-request-bytes", "65536"});
  std::string buffer(kFileBytes, '\0');
  ASSERT_EQ(ReadAt(file(), &buffer, 0), static_cast<ssize_t>(kFileBytes));
  EXPECT_EQ(buffer, bytes_);
  EXPECT_GE(Stats()["requests"], kFileBytes / 65536);
  EXPECT_EQ(Stats()["request_bytes_max"], 65536);
}

TEST_F(SlowfsTest, RequestsAreAsLargeAsTheKernelMakesThemWithoutAMaximum) {
  Start({"--read-ahead-kb", "4096"});
  const UniqueFd fd(open(file().c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(posix_fadvise(fd.get(), 0, kFileBytes, POSIX_FADV_WILLNEED), 0);
  std::string buffer(kFileBytes, '\0');
  ASSERT_EQ(pread(fd.get(), buffer.data(), kFileBytes, 0), static_cast<ssize_t>(kFileBytes));
  EXPECT_GE(Stats()["request_bytes_max"], 512 * 1024);
}

TEST_F(SlowfsTest, HundredsOfReadsWaitAtOnceAndAreCountedByFile) {
  constexpr size_t kReaders = 200;
  Start();
  EXPECT_EQ(Command("set direct_io on"), "ok");
  EXPECT_EQ(Command("hold weights.bin 0 end"), "ok");
  std::string other(4096, '\0');
  ASSERT_EQ(ReadAt(mount() / "sub" / "other.bin", &other, 0), 4096);
  std::vector<std::future<ssize_t>> readers;
  for (size_t i = 0; i < kReaders; ++i) {
    readers.push_back(std::async(std::launch::async, [this, i] {
      std::string buffer(4096, '\0');
      return ReadAt(file(), &buffer, i * 4096);
    }));
  }
  WaitUntilHeld(kReaders);
  EXPECT_EQ(Stats()["in_flight"], kReaders);
  EXPECT_THAT(Command("release"), StartsWith(absl::StrCat("ok ", kReaders)));
  for (std::future<ssize_t>& reader : readers) EXPECT_EQ(reader.get(), 4096);
  const nlohmann::json stats = Stats();
  EXPECT_EQ(stats["in_flight"], 0);
  EXPECT_EQ(stats["in_flight_peak"], kReaders);
  EXPECT_EQ(stats["in_flight_bytes_peak"], kReaders * 4096);
  EXPECT_EQ(stats["files"]["weights.bin"]["in_flight_peak"], kReaders);
  EXPECT_EQ(stats["files"]["sub/other.bin"]["in_flight_peak"], 1);
  EXPECT_EQ(Command("reset_stats"), "ok");
  EXPECT_EQ(Stats()["in_flight_peak"], 0);
}

// One WILLNEED is as many requests at once as it takes, and none of them waits for another.
TEST_F(SlowfsTest, ReadAheadHasManyRequestsInFlight) {
  constexpr size_t kRequestBytes = 64 * 1024;
  Start({"--read-ahead-kb", "4096", "--max-request-bytes", absl::StrCat(kRequestBytes)});
  EXPECT_EQ(Command("hold weights.bin 0 end"), "ok");
  const UniqueFd fd(open(file().c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(posix_fadvise(fd.get(), 0, kFileBytes, POSIX_FADV_WILLNEED), 0);
  WaitUntilHeld(kFileBytes / kRequestBytes);
  EXPECT_EQ(Command("release"), absl::StrCat("ok ", kFileBytes / kRequestBytes));
  std::string buffer(kFileBytes, '\0');
  ASSERT_EQ(pread(fd.get(), buffer.data(), kFileBytes, 0), static_cast<ssize_t>(kFileBytes));
  EXPECT_EQ(Stats()["in_flight_peak"], kFileBytes / kRequestBytes);
}

TEST_F(SlowfsTest, CountsRequestsBytesAndOpensByFile) {
  Start();
  std::string buffer(kFileBytes, '\0');
  ASSERT_EQ(ReadAt(mount() / "sub" / "other.bin", &buffer, 0), static_cast<ssize_t>(kFileBytes));
  nlohmann::json stats = Stats();
  EXPECT_EQ(stats["bytes"], kFileBytes);
  EXPECT_EQ(stats["files"]["sub/other.bin"]["bytes"], kFileBytes);
  EXPECT_EQ(stats["files"]["sub/other.bin"]["requests"], stats["requests"]);
  EXPECT_GE(stats["requests"], 1);
  EXPECT_EQ(stats["opens"], 1);
  EXPECT_EQ(Command("reset_stats"), "ok");
  EXPECT_EQ(Stats()["bytes"], 0);
}

// Whether the pages that one descriptor read are still there after another open.
bool SecondOpenKeepsPages(const fs::path& path) {
  const UniqueFd first(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string buffer(kFileBytes, '\0');
  EXPECT_EQ(pread(first.get(), buffer.data(), kFileBytes, 0), static_cast<ssize_t>(kFileBytes));
  const UniqueFd second(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  void* address = mmap(nullptr, kFileBytes, PROT_READ, MAP_SHARED, first.get(), 0);
  std::vector<unsigned char> resident(kFileBytes / 4096);
  EXPECT_EQ(mincore(address, kFileBytes, resident.data()), 0);
  munmap(address, kFileBytes);
  return (resident[resident.size() / 2] & 1) != 0;
}

TEST_F(SlowfsTest, KeepCacheDecidesWhetherASecondOpenDropsPages) {
  Start();
  EXPECT_TRUE(SecondOpenKeepsPages(file()));
  EXPECT_EQ(Command("set keep_cache off"), "ok");
  EXPECT_FALSE(SecondOpenKeepsPages(file()));
  EXPECT_EQ(Command("set keep_cache on"), "ok");
  EXPECT_TRUE(SecondOpenKeepsPages(file()));
}

TEST_F(SlowfsTest, FaultsHitTheirFileAndRangeOnly) {
  Start();
  EXPECT_EQ(Command("fault weights.bin 1048576 1052672 eio"), "ok");
  std::string buffer(4096, '\0');
  EXPECT_EQ(ReadAt(file(), &buffer, 0), 4096);
  EXPECT_EQ(ReadAt(mount() / "sub" / "other.bin", &buffer, 1048576), 4096);
  EXPECT_EQ(ReadAt(file(), &buffer, 1048576), -1);
  EXPECT_EQ(errno, EIO);
  EXPECT_GE(Stats()["faults"], 1);
  EXPECT_EQ(Command("clear_faults"), "ok");
  EXPECT_EQ(ReadAt(file(), &buffer, 1048576), 4096);
  EXPECT_EQ(buffer, bytes_.substr(1048576, 4096));
}

TEST_F(SlowfsTest, AFaultWithACountHeals) {
  Start();
  // Direct reads: one request a call, none of the kernel's own retries.
  EXPECT_EQ(Command("set direct_io on"), "ok");
  EXPECT_EQ(Command("fault * 0 end estale count=2"), "ok");
  std::string buffer(4096, '\0');
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(ReadAt(file(), &buffer, 0), -1);
    EXPECT_EQ(errno, ESTALE);
  }
  EXPECT_EQ(ReadAt(file(), &buffer, 0), 4096);
}

TEST_F(SlowfsTest, EachErrorIsAnsweredAsItIs) {
  Start();
  EXPECT_EQ(Command("set direct_io on"), "ok");
  const std::vector<std::pair<std::string, int>> kinds = {
      {"eio", EIO}, {"estale", ESTALE}, {"enomem", ENOMEM}, {"eintr", EINTR}, {"eagain", EAGAIN}};
  for (const auto& [kind, error_number] : kinds) {
    EXPECT_EQ(Command(absl::StrCat("fault weights.bin 0 end ", kind, " count=1")), "ok");
    std::string buffer(4096, '\0');
    EXPECT_EQ(ReadAt(file(), &buffer, 0), -1) << kind;
    EXPECT_EQ(errno, error_number) << kind;
    EXPECT_EQ(ReadAt(file(), &buffer, 0), 4096) << kind;
  }
  EXPECT_EQ(Stats()["faults"], kinds.size());
  EXPECT_EQ(Stats()["files"]["weights.bin"]["faults"], kinds.size());
  EXPECT_EQ(Stats()["bytes"], kinds.size() * 4096);
}

TEST_F(SlowfsTest, AFaultOfAProcessHitsNobodyElse) {
  Start();
  EXPECT_EQ(Command("set direct_io on"), "ok");
  EXPECT_EQ(Command(absl::StrCat("fault weights.bin 0 end eio pid=", getpid())), "ok");
  std::string buffer(4096, '\0');
  // Another thread of the process counts as the process.
  EXPECT_EQ(std::async(std::launch::async, [&] { return ReadAt(file(), &buffer, 0); }).get(), -1);
  const pid_t child = fork();
  if (child == 0) _exit(ReadAt(file(), &buffer, 0) == 4096 ? 0 : 1);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST_F(SlowfsTest, ShortReadsAndEarlyEnds) {
  Start();
  EXPECT_EQ(Command("set direct_io on"), "ok");
  EXPECT_EQ(Command("fault weights.bin 0 4096 short count=1"), "ok");
  EXPECT_EQ(Command("fault weights.bin 1049600 end eof"), "ok");
  std::string buffer(4096, '\0');
  EXPECT_EQ(ReadAt(file(), &buffer, 0), 2048);
  EXPECT_EQ(ReadAt(file(), &buffer, 0), 4096);
  EXPECT_EQ(ReadAt(file(), &buffer, 1048576), 1024);
  EXPECT_EQ(ReadAt(file(), &buffer, 2097152), 0);
}

TEST_F(SlowfsTest, HeldReadsWaitUntilReleasedWhileOthersGoOn) {
  Start();
  EXPECT_EQ(Command("hold weights.bin 1048576 1052672"), "ok");
  std::string held(4096, '\0');
  auto reading = std::async(std::launch::async, [&] { return ReadAt(file(), &held, 1048576); });
  WaitUntilHeld();
  std::string buffer(4096, '\0');
  EXPECT_EQ(ReadAt(mount() / "sub" / "other.bin", &buffer, 1048576), 4096);
  EXPECT_EQ(reading.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  EXPECT_THAT(Command("release other.bin"), StartsWith("ok 0"));
  EXPECT_THAT(Command("release weights.bin"), StartsWith("ok 1"));
  EXPECT_EQ(reading.get(), 4096);
  EXPECT_EQ(held, bytes_.substr(1048576, 4096));
}

TEST_F(SlowfsTest, AnInterruptibleHoldEndsWithItsKilledReader) {
  Start();
  EXPECT_EQ(Command("set direct_io on"), "ok");
  EXPECT_EQ(Command("set interruptible on"), "ok");
  EXPECT_EQ(Command("hold weights.bin 0 end"), "ok");
  const pid_t child = fork();
  if (child == 0) {
    std::string buffer(4096, '\0');
    ReadAt(file(), &buffer, 0);
    _exit(0);
  }
  WaitUntilHeld();
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(Stats()["held"], 0);
}

TEST_F(SlowfsTest, SigtermUnmountsWhileReadsAreHeld) {
  Start();
  EXPECT_EQ(Command("hold * 0 end"), "ok");
  std::string buffer(4096, '\0');
  auto reading = std::async(std::launch::async, [&] { return ReadAt(file(), &buffer, 0); });
  WaitUntilHeld();
  kill(pid_, SIGTERM);
  EXPECT_EQ(WaitForExit(), 0);
  EXPECT_EQ(reading.get(), -1);
  EXPECT_FALSE(IsMounted(mount()));
}

TEST_F(SlowfsTest, ReadAheadOfTheMountCanBeSet) {
  Start({"--read-ahead-kb", "64"});
  struct stat attributes;
  ASSERT_EQ(stat(mount().c_str(), &attributes), 0);
  const std::string path = absl::StrCat("/sys/class/bdi/", major(attributes.st_dev), ":",
                                        minor(attributes.st_dev), "/read_ahead_kb");
  int kibibytes = 0;
  std::ifstream(path) >> kibibytes;
  EXPECT_EQ(kibibytes, 64);
  EXPECT_EQ(Command("set read_ahead_kb 1024"), "ok");
  std::ifstream(path) >> kibibytes;
  EXPECT_EQ(kibibytes, 1024);
}

TEST_F(SlowfsTest, WrongCommandsAreNamedAndChangeNothing) {
  Start();
  EXPECT_THAT(Command("flush"), HasSubstr("unknown command 'flush'"));
  EXPECT_THAT(Command(""), StartsWith("error "));
  EXPECT_THAT(Command("set latency_ms soon"), HasSubstr("'soon'"));
  EXPECT_THAT(Command("set keep_cache maybe"), HasSubstr("on or off"));
  EXPECT_THAT(Command("set colour 1"), HasSubstr("colour"));
  EXPECT_THAT(Command("fault weights.bin 0 end sometimes"), HasSubstr("kinds"));
  EXPECT_THAT(Command("fault weights.bin 8 4 eio"), HasSubstr("range"));
  EXPECT_THAT(Command("hold weights.bin 0 end colour=1"), HasSubstr("colour=1"));
  std::string buffer(4096, '\0');
  EXPECT_EQ(ReadAt(file(), &buffer, 0), 4096);
}

}  // namespace
}  // namespace forestage
