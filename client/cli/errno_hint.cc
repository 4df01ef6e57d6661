#include "client/cli/errno_hint.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace forestage {
namespace {

struct Hint {
  // What messages have of it.
  absl::string_view mark;
  absl::string_view name;
  // '#' stands for the uid.
  absl::string_view advice;
};

constexpr Hint kHints[] = {
    {"(EACCES)", "EACCES",
     "give uid # the right to read the files named, and to search every directory above them "
     "(chmod, chgrp, or setfacl)"},
    {"(EPERM)", "EPERM",
     "uid # is refused by more than the file's mode: look at its attributes, at the container's "
     "profile and at the mount's options"},
    {"(EIO)", "EIO",
     "the storage could not give these bytes: look at the kernel's log and at the disk or server "
     "behind the mount, then try again; if it stays, fetch the files again"},
    {"(ESTALE)", "ESTALE",
     "the file was replaced or removed on its server while it was open here: load or stage again, "
     "so that it is opened anew; if it stays, mount again"},
    {"(ENOMEM)", "ENOMEM",
     "the kernel had no memory for the call: free some or raise the limit of the cgroup, then try "
     "again"},
    {"(EINTR)", "EINTR",
     "signals interrupted the call again and again: look for what sends them, then try again"},
    {"(EAGAIN)", "EAGAIN",
     "the storage or the kernel was too busy to take the request: try again, with less at one "
     "time"},
    {"(ETIMEDOUT)", "ETIMEDOUT",
     "the server behind the mount did not answer in time: look at it and at the network, then try "
     "again"},
    {"(EREMOTEIO)", "EREMOTEIO",
     "the server behind the mount reported an error: look at its log, then try again"},
    {"(EHOSTDOWN)", "EHOSTDOWN",
     "the server behind the mount is not reached: look at it and at the network, then try again"},
    {"(ENOTCONN)", "ENOTCONN",
     "the server behind the mount is gone (a FUSE daemon that ended, for one): mount again"},
    {"(ENXIO)", "ENXIO",
     "the device behind the mount is gone: look at the kernel's log, and mount again"},
    {"the file ends ", "end of file",
     "the file is shorter than when it was opened, or its server gives less than it says: look who "
     "writes to it, fetch it again if it stays short, then load or stage again"},
};

// Of messages about sockets, with advice of their own.
constexpr absl::string_view kOwnAdvice[] = {"connect to ", "no daemon answers at "};

}  // namespace

std::vector<std::string> ErrnoHints(absl::string_view message, uid_t uid) {
  std::vector<std::string> hints;
  for (const absl::string_view own : kOwnAdvice) {
    if (absl::StrContains(message, own)) return hints;
  }
  for (const Hint& hint : kHints) {
    if (!absl::StrContains(message, hint.mark)) continue;
    hints.push_back(absl::StrCat(hint.name, ": ",
                                 absl::StrReplaceAll(hint.advice, {{"#", absl::StrCat(uid)}})));
  }
  return hints;
}

}  // namespace forestage
