#include "client/cli/errno_hint.h"

#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/errno_status.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

TEST(ErrnoHintTest, EveryTypedErrorOfADiskHasOne) {
  for (const int error_number : {EIO, ESTALE, ENOMEM, EINTR, EAGAIN, EACCES, EPERM, ETIMEDOUT,
                                 EREMOTEIO, EHOSTDOWN, ENOTCONN, ENXIO}) {
    const absl::Status status = ErrnoStatus(error_number, "read /a at offset 4096");
    EXPECT_THAT(ErrnoHints(status.message(), 7),
                ElementsAre(StartsWith(absl::StrCat(strerrorname_np(error_number), ": "))));
  }
}

TEST(ErrnoHintTest, SaysWhomToGrantWhatAndWhatToOpenAnew) {
  EXPECT_THAT(ErrnoHints(ErrnoStatus(EACCES, "open /a").message(), 1234),
              ElementsAre(AllOf(HasSubstr("uid 1234"), HasSubstr("read"), HasSubstr("search"))));
  EXPECT_THAT(ErrnoHints(ErrnoStatus(ESTALE, "read /a").message(), 0),
              ElementsAre(HasSubstr("load or stage again")));
}

TEST(ErrnoHintTest, AFileThatEndsEarlyHasOneWhoeverFoundIt) {
  for (const absl::string_view message :
       {"/a at offset 5: the file ends here; it had 9 bytes when it was opened",
        "reading a at offset 5: the file ends there; it had 9 bytes"}) {
    EXPECT_THAT(ErrnoHints(message, 0), ElementsAre(StartsWith("end of file: ")));
  }
}

TEST(ErrnoHintTest, OfAListEachKindIsSaidOnce) {
  const std::string list = absl::StrCat(ErrnoStatus(ESTALE, "read /a").message(), "\n",
                                        ErrnoStatus(EIO, "read /b").message(), "\n",
                                        ErrnoStatus(EIO, "read /c").message());
  EXPECT_THAT(ErrnoHints(list, 0), ElementsAre(StartsWith("EIO: "), StartsWith("ESTALE: ")));
}

TEST(ErrnoHintTest, WhatSaysItselfWhatToDoHasNone) {
  EXPECT_THAT(ErrnoHints("'/a' is missing; fetch it again", 0), IsEmpty());
  EXPECT_THAT(ErrnoHints(ErrnoStatus(ENOENT, "'/models/none'").message(), 0), IsEmpty());
  EXPECT_THAT(
      ErrnoHints("may not connect to /run/x.sock: Permission denied (EACCES): be in the group", 0),
      IsEmpty());
}

}  // namespace
}  // namespace forestage
