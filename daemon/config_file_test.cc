#include "daemon/config_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "common/status_matchers.h"
#include "common/temporary_directory_for_test.h"
#include "common/unique_fd.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

auto Entry(const std::string& name, const std::string& value, size_t line) {
  return AllOf(Field(&ConfigFileEntry::name, name), Field(&ConfigFileEntry::value, value),
               Field(&ConfigFileEntry::line, line));
}

TEST(ConfigFileTest, TakesQuotedAndBareValuesAndComments) {
  const ConfigFileText text = ParseConfigFile(
      "\xef\xbb\xbf# Gr\xc3\xbc\xc3\x9f"
      "e\n"
      "\n"
      "  lanes-max = 4  # bare\r\n"
      "extent-size=\"8MiB\"# quoted\n"
      "\tsocket = '/run/a \\ # b.sock'\n"
      "socket-group = \"\"\n"
      "admin-socket = \"/a\\\\b\\\"c;#\"");
  EXPECT_THAT(text.errors, IsEmpty());
  EXPECT_THAT(text.entries,
              ElementsAre(Entry("lanes-max", "4", 3), Entry("extent-size", "8MiB", 4),
                          Entry("socket", "/run/a \\ # b.sock", 5), Entry("socket-group", "", 6),
                          Entry("admin-socket", "/a\\b\"c;#", 7)));
}

TEST(ConfigFileTest, EachLineOutsideOfTheFormatHasOneErrorWithItsNumber) {
  const std::pair<const char*, const char*> cases[] = {
      {"; old style", "line 1: a comment begins with '#', not with ';'"},
      {"[default]", "line 1: '[default]' begins a section"},
      {"[daemon] # x", "line 1: '[daemon]' begins a section"},
      {"lanes-max", "line 1: 'lanes-max' has no value; write lanes-max = \"...\""},
      {"lanes-max # = 4", "line 1: 'lanes-max' has no value"},
      {"lanes-max =", "line 1: 'lanes-max' has no value; an empty one is written \"\""},
      {"lanes-max = # 4", "line 1: 'lanes-max' has no value; an empty one"},
      {"= 4", "line 1: no name before '='"},
      {"lanes-max = [2, 3]", "line 1: 'lanes-max' takes one value"},
      {"lanes-max = {a = 1}", "line 1: 'lanes-max' takes one value"},
      {"socket = \"/run/x", "line 1: 'socket': the closing \" is missing"},
      {"socket = '/run/x\"", "line 1: 'socket': the closing ' is missing"},
      {"socket = \"/run/x\" y", "line 1: 'socket': 'y' behind the value"},
      {"socket = \"\"\"/run/x\"\"\"", "line 1: 'socket': '\"/run/x\"\"\"' behind the value"},
      {"socket = \"a\\nb\"", "line 1: 'socket': '\\' stands before"},
      {"# caf\xe9", "line 1: not UTF-8 text"},
      {"lanes-max = \x1b[31m4", "line 1: byte 0x1b is no text"},
      {"lanes-max = 2\rlanes-max = 3", "line 1: byte 0x0d is no text"},
  };
  for (const auto& [text, error] : cases) {
    const ConfigFileText parsed = ParseConfigFile(text);
    EXPECT_THAT(parsed.errors, ElementsAre(StartsWith(error))) << text;
    EXPECT_THAT(parsed.entries, IsEmpty()) << text;
  }
}

TEST(ConfigFileTest, ZeroBytesAreNoText) {
  EXPECT_THAT(ParseConfigFile(absl::string_view("lanes-max = 2\0\n", 15)).errors,
              ElementsAre("line 1: byte 0x00 is no text"));
}

TEST(ConfigFileTest, AllThatIsWrongIsTold) {
  const ConfigFileText text = ParseConfigFile(
      "lanes-max\n"
      "sessions-max = 5\n"
      "; x\n"
      "[a]\n"
      "lanes-max = 2\n"
      "sessions-max = 6\n");
  EXPECT_THAT(text.errors,
              ElementsAre(StartsWith("line 1: "), StartsWith("line 3: "), StartsWith("line 4: "),
                          "line 6: 'sessions-max' stands on line 2 already"));
  ASSERT_THAT(text.entries, ElementsAre(Entry("sessions-max", "5", 2), Entry("lanes-max", "2", 5)));
  EXPECT_FALSE(text.entries[0].in_section);
  EXPECT_TRUE(text.entries[1].in_section);
}

TEST(ConfigFileTest, ErrorsOfAFileOfAnotherKindAreCounted) {
  std::string text;
  for (int i = 0; i < 70; ++i) absl::StrAppend(&text, "some text\n");
  const ConfigFileText parsed = ParseConfigFile(text);
  EXPECT_THAT(parsed.errors, SizeIs(51));
  EXPECT_EQ(parsed.errors.back(), "and 20 more; is it a configuration file?");
}

TEST(ConfigFileTest, WhatIsNoRegularFileIsRefusedAtOnce) {
  const TemporaryDirectoryForTest directory;
  const std::string fifo = directory.File("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(ReadConfigFile(fifo), StatusIs(absl::StatusCode::kInvalidArgument,
                                             fifo + " is a FIFO, not a regular file"));
  EXPECT_THAT(ReadConfigFile(directory.path()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is a directory, not")));
  EXPECT_THAT(ReadConfigFile("/dev/zero"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is a device, not")));
  const std::string path = directory.File("socket");
  const UniqueFd socket_file(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(socket_file.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
            0);
  EXPECT_THAT(ReadConfigFile(path),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is a socket, not")));
}

TEST(ConfigFileTest, NullDeviceIsAnEmptyFile) {
  ASSERT_OK_AND_ASSIGN(const std::string text, ReadConfigFile("/dev/null"));
  EXPECT_EQ(text, "");
}

TEST(ConfigFileTest, AFileThatIsFarTooLargeIsRefused) {
  const TemporaryDirectoryForTest directory;
  const std::string path = directory.File("large");
  std::ofstream(path) << "lanes-max = 2\n";
  std::filesystem::resize_file(path, uint64_t{1} << 40);
  EXPECT_THAT(ReadConfigFile(path),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is larger than 1MiB")));
}

}  // namespace
}  // namespace forestage
