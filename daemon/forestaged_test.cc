// The program as its caller sees it: what it prints, how it ends.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/child_process.h"
#include "common/socket_path.h"
#include "common/status_matchers.h"
#include "common/temporary_directory_for_test.h"
#include "daemon/config.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A directory for the sockets of one test, and forestaged in it.
class ForestagedTest : public ::testing::Test {
 protected:
  std::string socket() const { return directory_.File("d.sock"); }

  // Starts it with no setting from outside but these arguments; `output_name` takes what it writes.
  std::unique_ptr<ChildProcess> Start(const std::vector<std::string>& arguments,
                                      const std::string& output_name) const {
    const std::string output_path = directory_.File(output_name);
    std::filesystem::remove(output_path);
    return std::make_unique<ChildProcess>([&] {
      const int output = open(output_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      ASSERT_GE(output, 0);
      ASSERT_EQ(dup2(output, STDOUT_FILENO), STDOUT_FILENO);
      ASSERT_EQ(dup2(output, STDERR_FILENO), STDERR_FILENO);
      std::vector<char*> argv = {const_cast<char*>(FORESTAGED)};
      for (const std::string& argument : arguments) {
        argv.push_back(const_cast<char*>(argument.c_str()));
      }
      argv.push_back(nullptr);
      char config[] = "FORESTAGED_CONFIG=/dev/null";
      char* environment[] = {config, nullptr};
      execve(FORESTAGED, argv.data(), environment);
      ADD_FAILURE() << "execve: " << errno;
    });
  }
  std::string Output(const std::string& name) const {
    std::ifstream input(directory_.File(name));
    return {std::istreambuf_iterator<char>(input), std::istreambuf_iterator<char>()};
  }
  // Starts it on this test's socket and returns when it serves.
  std::unique_ptr<ChildProcess> StartServing() const {
    std::unique_ptr<ChildProcess> daemon =
        Start({"--socket", socket(), "--metrics-address=none"}, "log");
    // The log is a file, which cannot be waited for.
    while (Output("log").find(" serving ") == std::string::npos && kill(daemon->pid(), 0) == 0 &&
           Output("log").find("cannot start") == std::string::npos) {
      usleep(1000);
    }
    return daemon;
  }

 private:
  const TemporaryDirectoryForTest directory_;
};

TEST_F(ForestagedTest, PrintsItsVersionAndEndsWithZero) {
  EXPECT_EQ(Start({"--version"}, "out")->Wait(), 0);
  EXPECT_EQ(Output("out"), absl::StrCat("forestaged ", DaemonVersion(), "\n"));
}

TEST_F(ForestagedTest, PrintsItsConfigurationAndEndsWithZero) {
  EXPECT_EQ(Start({"--print-config", "--lanes-max=3", "--memory-limit=0"}, "out")->Wait(), 0);
  EXPECT_THAT(Output("out"),
              AllOf(HasSubstr("lanes-max = \"3\"  # flag --lanes-max\n"),
                    HasSubstr("forestaged: warning: memory-limit (flag --memory-limit) is '0'")));
}

TEST_F(ForestagedTest, EndsWithTwoWhenSettingsAreWrongAndNamesThem) {
  EXPECT_EQ(Start({"--socket", socket(), "--lanes-max=0", "--reader=fast"}, "out")->Wait(), 2);
  EXPECT_THAT(Output("out"), AllOf(HasSubstr("forestaged: lanes-max (flag --lanes-max) is '0'"),
                                   HasSubstr("forestaged: reader (flag --reader) is 'fast'")));
  EXPECT_FALSE(std::filesystem::exists(socket()));
  EXPECT_EQ(Start({"--no-such-flag"}, "out")->Wait(), 2);
}

TEST_F(ForestagedTest, EndsWithOneWhenItCannotServe) {
  EXPECT_EQ(Start({"--socket", "/proc/none/d.sock", "--metrics-address=none"}, "out")->Wait(), 1);
  EXPECT_THAT(Output("out"), AllOf(HasSubstr("cannot start"), HasSubstr("/proc/none")));
}

TEST_F(ForestagedTest, ASecondOneOnTheSameSocketEndsWithOneAndTheFirstGoesOn) {
  const std::unique_ptr<ChildProcess> first = StartServing();
  EXPECT_EQ(Start({"--socket", socket(), "--metrics-address=none"}, "out")->Wait(), 1);
  EXPECT_THAT(Output("out"), AllOf(HasSubstr("cannot start"), HasSubstr(socket())));
  EXPECT_TRUE(std::filesystem::exists(socket()));
  kill(first->pid(), SIGTERM);
  EXPECT_EQ(first->Wait(), 0);
}

TEST_F(ForestagedTest, DrainsOnEitherSignalRemovesItsSocketsAndEndsWithZero) {
  for (const int number : {SIGTERM, SIGINT}) {
    const std::unique_ptr<ChildProcess> daemon = StartServing();
    EXPECT_TRUE(std::filesystem::exists(socket()));
    EXPECT_TRUE(std::filesystem::exists(DescriptorSocketPath(socket())));
    kill(daemon->pid(), number);
    EXPECT_EQ(daemon->Wait(), 0) << Output("log");
    EXPECT_FALSE(std::filesystem::exists(socket()));
    EXPECT_FALSE(std::filesystem::exists(DescriptorSocketPath(socket())));
  }
}

TEST_F(ForestagedTest, SaysWhatItServesAndWithWhichLimits) {
  const std::unique_ptr<ChildProcess> daemon = StartServing();
  EXPECT_THAT(Output("log"),
              AllOf(HasSubstr("starting version="), HasSubstr("setting metrics-address=none"),
                    HasSubstr("extent=8MiB in_flight_max=256MiB node_in_flight_max=1GiB "
                              "read_bytes_per_second_max=none lanes_max=8"),
                    HasSubstr("reader=")));
  kill(daemon->pid(), SIGTERM);
  EXPECT_EQ(daemon->Wait(), 0);
}

}  // namespace
}  // namespace forestage
