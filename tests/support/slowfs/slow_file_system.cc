#include "tests/support/slowfs/slow_file_system.h"

#define FUSE_USE_VERSION 312
#include <dirent.h>
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include <fuse3/fuse_lowlevel.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>

#include "common/errno_status.h"
#include "common/status_macros.h"

namespace forestage {
namespace {

// libfuse's default of 12 background requests would hide what many readers do.
constexpr unsigned kBackgroundRequestsMax = 512;
// Only slow attributes need more than a few.
constexpr unsigned kThreadsMax = 128;
// How soon a held call goes on.
constexpr absl::Duration kHoldInterval = absl::Milliseconds(10);

std::string ProcPath(const UniqueFd& fd) { return absl::StrCat("/proc/self/fd/", fd.get()); }

SlowFileSystem* FileSystemOf(fuse_req_t request) {
  return static_cast<SlowFileSystem*>(fuse_req_userdata(request));
}

// A whole read, unless the file is shorter.
ssize_t ReadFully(int fd, char* buffer, size_t size, uint64_t offset) {
  size_t done = 0;
  while (done < size) {
    const ssize_t count = pread(fd, buffer + done, size - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return -1;
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  return static_cast<ssize_t>(done);
}

// These bytes in the file's mapping, so that they are copied once less; the server's time is not
// what is to be measured. nullptr where they are not, or not any more.
const char* InMapping(const OpenFile& file, size_t size, uint64_t offset) {
  struct stat attributes = {};
  if (file.mapping == nullptr || fstat(file.fd.get(), &attributes) != 0) return nullptr;
  const uint64_t end = offset + size;
  if (end > file.mapping->bytes().size() || end > static_cast<uint64_t>(attributes.st_size)) {
    return nullptr;
  }
  return reinterpret_cast<const char*>(file.mapping->bytes().data()) + offset;
}

absl::StatusOr<FileRange> ParseRange(const std::vector<std::string>& words) {
  FileRange range;
  range.name = words.at(1);
  if (!absl::SimpleAtoi(words.at(2), &range.begin) ||
      (words.at(3) != "end" && !absl::SimpleAtoi(words.at(3), &range.end)) ||
      range.begin >= range.end) {
    return absl::InvalidArgumentError("a range is BEGIN END in bytes, END may be 'end'");
  }
  return range;
}

// "pid=N" and "count=N" after the fixed words.
absl::Status ParseOption(const std::string& word, int* pid, uint64_t* count) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(word, absl::MaxSplits('=', 1));
  if (parts.first == "pid" && absl::SimpleAtoi(parts.second, pid)) return absl::OkStatus();
  if (parts.first == "count" && count != nullptr && absl::SimpleAtoi(parts.second, count)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown option '", word, "'"));
}

}  // namespace

// The callbacks of libfuse.
struct FuseOperations {
  static void Init(void*, fuse_conn_info* connection) {
    connection->max_background = kBackgroundRequestsMax;
    connection->congestion_threshold = kBackgroundRequestsMax;
  }

  // Set in Mount through the session's options: max_read must be told twice.
  static void InitWithLimit(void* file_system, fuse_conn_info* connection) {
    Init(file_system, connection);
    connection->max_read = static_cast<SlowFileSystem*>(file_system)->options_.request_bytes_max;
  }

  static void Lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
    SlowFileSystem* self = FileSystemOf(request);
    self->WaitWhile(self->hold_stats_);
    fuse_entry_param entry = {};
    uint64_t id = 0;
    const int error = self->tree_->Lookup(parent, name, &id, &entry.attr);
    if (error != 0) {
      fuse_reply_err(request, error);
      return;
    }
    entry.ino = id;
    entry.attr_timeout = self->options_.attribute_timeout_seconds;
    entry.entry_timeout = self->options_.attribute_timeout_seconds;
    fuse_reply_entry(request, &entry);
  }

  static void GetAttributes(fuse_req_t request, fuse_ino_t id, fuse_file_info*) {
    SlowFileSystem* self = FileSystemOf(request);
    self->WaitWhile(self->hold_stats_);
    absl::SleepFor(absl::Milliseconds(self->attribute_latency_ms_.load()));
    struct stat attributes;
    if (fstat(self->tree_->node(id).fd.get(), &attributes) != 0) {
      fuse_reply_err(request, errno);
      return;
    }
    fuse_reply_attr(request, &attributes, self->options_.attribute_timeout_seconds);
  }

  static void ReadLink(fuse_req_t request, fuse_ino_t id) {
    char target[PATH_MAX + 1];
    const ssize_t size =
        readlinkat(FileSystemOf(request)->tree_->node(id).fd.get(), "", target, PATH_MAX);
    if (size < 0) {
      fuse_reply_err(request, errno);
      return;
    }
    target[size] = '\0';
    fuse_reply_readlink(request, target);
  }

  static void Open(fuse_req_t request, fuse_ino_t id, fuse_file_info* info) {
    SlowFileSystem* self = FileSystemOf(request);
    if ((info->flags & O_ACCMODE) != O_RDONLY) {
      fuse_reply_err(request, EROFS);
      return;
    }
    self->WaitWhile(self->hold_opens_);
    const SourceTree::Node& node = self->tree_->node(id);
    UniqueFd fd(open(ProcPath(node.fd).c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd.valid()) {
      fuse_reply_err(request, errno);
      return;
    }
    self->counters_.CountOpen();
    std::shared_ptr<const FileMapping> mapping = self->mappings_.Get(id, fd.get());
    info->fh = self->open_files_.Add({node.path, std::move(fd), std::move(mapping), {}});
    info->keep_cache = self->keep_cache_;
    info->direct_io = self->direct_io_;
    // An opener that was killed meanwhile never releases.
    if (fuse_reply_open(request, info) != 0) self->open_files_.Remove(info->fh);
  }

  static void Flush(fuse_req_t request, fuse_ino_t, fuse_file_info*) {
    SlowFileSystem* self = FileSystemOf(request);
    self->WaitWhile(self->hold_closes_);
    fuse_reply_err(request, 0);
  }

  static void Release(fuse_req_t request, fuse_ino_t, fuse_file_info* info) {
    FileSystemOf(request)->open_files_.Remove(info->fh);
    fuse_reply_err(request, 0);
  }

  static void Read(fuse_req_t request, fuse_ino_t, size_t size, off_t offset,
                   fuse_file_info* info) {
    SlowFileSystem* self = FileSystemOf(request);
    const std::shared_ptr<const OpenFile> file = self->open_files_.Get(info->fh);
    self->counters_.CountRequest(file->path, size);
    ReadScheduler::Read read;
    read.path = file->path;
    read.offset = static_cast<uint64_t>(offset);
    read.size = size;
    read.reader = fuse_req_ctx(request)->pid;
    read.answer = [=](int error) { Answer(self, request, *file, size, offset, error); };
    const uint64_t id = self->scheduler_.Add(std::move(read));
    // Calls back at once when the interrupt was there first.
    fuse_req_interrupt_func(request, &Interrupted, reinterpret_cast<void*>(id));
    self->scheduler_.Start(id);
  }

  static void Interrupted(fuse_req_t request, void* id) {
    FileSystemOf(request)->scheduler_.Interrupt(reinterpret_cast<uint64_t>(id));
  }

  static void Answer(SlowFileSystem* self, fuse_req_t request, const OpenFile& file, size_t size,
                     off_t offset, int error) {
    const uint64_t begin = static_cast<uint64_t>(offset);
    size_t given = size;
    if (error == 0) {
      const std::optional<Fault> fault =
          self->faults_.Hit(file.path, begin, size, fuse_req_ctx(request)->pid);
      if (fault.has_value()) {
        self->counters_.CountFault(file.path);
        error = ErrorNumberOf(fault->kind);
        // At least a byte: none at all says that the file ends.
        if (fault->kind == FaultKind::kShort) given = std::max<size_t>(given / 2, 1);
        if (fault->kind == FaultKind::kEof) {
          given = fault->range.begin > begin ? fault->range.begin - begin : 0;
        }
      }
    }
    // A new buffer for each request would be mapped and faulted in anew each time.
    static thread_local std::vector<char> buffer;
    const char* bytes = InMapping(file, given, begin);
    ssize_t count = bytes == nullptr ? 0 : static_cast<ssize_t>(given);
    if (error == 0 && bytes == nullptr) {
      if (buffer.size() < given) buffer.resize(given);
      count = ReadFully(file.fd.get(), buffer.data(), given, begin);
      if (count < 0) error = errno;
      bytes = buffer.data();
    }
    // Before the answer: who has the bytes finds them counted.
    self->counters_.CountAnswer(file.path, size, error == 0 ? static_cast<uint64_t>(count) : 0);
    if (error != 0) {
      fuse_reply_err(request, error);
    } else {
      fuse_reply_buf(request, bytes, static_cast<size_t>(count));
    }
  }

  static void OpenDirectory(fuse_req_t request, fuse_ino_t id, fuse_file_info* info) {
    const SourceTree::Node& node = FileSystemOf(request)->tree_->node(id);
    DIR* directory = opendir(ProcPath(node.fd).c_str());
    if (directory == nullptr) {
      fuse_reply_err(request, errno);
      return;
    }
    OpenFile file = {node.path, UniqueFd(), nullptr, {}};
    while (const dirent* entry = readdir(directory)) {
      file.names.emplace_back(entry->d_name, entry->d_ino);
    }
    closedir(directory);
    OpenFiles& open_files = FileSystemOf(request)->open_files_;
    info->fh = open_files.Add(std::move(file));
    if (fuse_reply_open(request, info) != 0) open_files.Remove(info->fh);
  }

  static void ReadDirectory(fuse_req_t request, fuse_ino_t, size_t size, off_t offset,
                            fuse_file_info* info) {
    const std::shared_ptr<const OpenFile> directory =
        FileSystemOf(request)->open_files_.Get(info->fh);
    const auto& names = directory->names;
    std::vector<char> buffer(size);
    size_t used = 0;
    for (size_t i = static_cast<size_t>(offset); i < names.size(); ++i) {
      struct stat attributes = {};
      attributes.st_ino = names[i].second;
      const size_t entry_bytes =
          fuse_add_direntry(request, buffer.data() + used, size - used, names[i].first.c_str(),
                            &attributes, static_cast<off_t>(i + 1));
      if (entry_bytes > size - used) break;
      used += entry_bytes;
    }
    fuse_reply_buf(request, buffer.data(), used);
  }

  static void StatFs(fuse_req_t request, fuse_ino_t id) {
    struct statvfs attributes;
    const SourceTree::Node& node = FileSystemOf(request)->tree_->node(id);
    if (statvfs(ProcPath(node.fd).c_str(), &attributes) != 0) {
      fuse_reply_err(request, errno);
      return;
    }
    fuse_reply_statfs(request, &attributes);
  }
};

SlowFileSystem::SlowFileSystem(const Options& options) : options_(options) {}

SlowFileSystem::~SlowFileSystem() {
  scheduler_.Stop();
  if (session_ != nullptr) fuse_session_destroy(session_);
}

absl::StatusOr<std::unique_ptr<SlowFileSystem>> SlowFileSystem::Create(const Options& options) {
  std::unique_ptr<SlowFileSystem> file_system(new SlowFileSystem(options));
  ASSIGN_OR_RETURN(file_system->tree_, SourceTree::Open(options.source));
  return file_system;
}

absl::Status SlowFileSystem::Mount() {
  fuse_lowlevel_ops operations = {};
  operations.init =
      options_.request_bytes_max == 0 ? &FuseOperations::Init : &FuseOperations::InitWithLimit;
  operations.lookup = &FuseOperations::Lookup;
  operations.getattr = &FuseOperations::GetAttributes;
  operations.readlink = &FuseOperations::ReadLink;
  operations.open = &FuseOperations::Open;
  if (options_.flushes) operations.flush = &FuseOperations::Flush;
  operations.release = &FuseOperations::Release;
  operations.read = &FuseOperations::Read;
  operations.opendir = &FuseOperations::OpenDirectory;
  operations.readdir = &FuseOperations::ReadDirectory;
  operations.releasedir = &FuseOperations::Release;
  operations.statfs = &FuseOperations::StatFs;

  std::string mount_options = "ro,allow_other,default_permissions,fsname=slowfs,subtype=slowfs";
  if (options_.request_bytes_max > 0) {
    absl::StrAppend(&mount_options, ",max_read=", options_.request_bytes_max);
  }
  fuse_args arguments = FUSE_ARGS_INIT(0, nullptr);
  fuse_opt_add_arg(&arguments, "slowfs");
  fuse_opt_add_arg(&arguments, "-o");
  fuse_opt_add_arg(&arguments, mount_options.c_str());
  session_ = fuse_session_new(&arguments, &operations, sizeof(operations), this);
  fuse_opt_free_args(&arguments);
  if (session_ == nullptr) return absl::InternalError("fuse_session_new failed; see stderr");
  if (fuse_set_signal_handlers(session_) != 0) {
    return absl::InternalError("fuse_set_signal_handlers failed");
  }
  if (fuse_session_mount(session_, options_.mount.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot mount on ", options_.mount,
                                               "; is /dev/fuse there and may this user mount?"));
  }
  return absl::OkStatus();
}

absl::Status SlowFileSystem::Run() {
  fuse_loop_config* loop = fuse_loop_cfg_create();
  fuse_loop_cfg_set_max_threads(loop, kThreadsMax);
  const int result = fuse_session_loop_mt(session_, loop);
  fuse_loop_cfg_destroy(loop);
  // Before the unmount, which closes the device that answers go to.
  scheduler_.Stop();
  fuse_session_unmount(session_);
  fuse_remove_signal_handlers(session_);
  if (result < 0) return ErrnoStatus(-result, "fuse_session_loop_mt");
  return absl::OkStatus();
}

void SlowFileSystem::WaitWhile(const std::atomic<bool>& held) {
  if (!held) return;
  ++held_calls_;
  while (held && fuse_session_exited(session_) == 0) absl::SleepFor(kHoldInterval);
  --held_calls_;
}

std::string SlowFileSystem::Command(absl::string_view line) {
  const std::vector<std::string> words =
      absl::StrSplit(line, absl::ByAnyChar(" \t\r\n"), absl::SkipEmpty());
  const absl::StatusOr<std::string> answer = Execute(words);
  if (!answer.ok()) return absl::StrCat("error ", answer.status().message());
  return *answer;
}

absl::StatusOr<std::string> SlowFileSystem::Execute(const std::vector<std::string>& words) {
  const std::string command = words.empty() ? "" : words[0];
  if (command == "stats") return counters_.ToJson(scheduler_.held_count() + held_calls_);
  if (command == "reset_stats") {
    counters_.Reset();
    return std::string("ok");
  }
  if (command == "clear_faults") {
    faults_.Clear();
    return std::string("ok");
  }
  if (command == "release") {
    return absl::StrCat("ok ", scheduler_.Release(words.size() > 1 ? words[1] : ""));
  }
  if (command == "set" && words.size() == 3) {
    RETURN_IF_ERROR(Set(words[1], words[2]));
    return std::string("ok");
  }
  if (command == "hold" && words.size() >= 4) {
    ASSIGN_OR_RETURN(FileRange range, ParseRange(words));
    for (size_t i = 4; i < words.size(); ++i) {
      RETURN_IF_ERROR(ParseOption(words[i], &range.pid, nullptr));
    }
    scheduler_.Hold(std::move(range));
    return std::string("ok");
  }
  if (command == "fault" && words.size() >= 5) {
    Fault fault;
    ASSIGN_OR_RETURN(fault.range, ParseRange(words));
    const std::optional<FaultKind> kind = FaultKindByName(words[4]);
    if (!kind.has_value())
      return absl::InvalidArgumentError("kinds are eio, estale, enomem, eintr, eagain, short, eof");
    fault.kind = *kind;
    for (size_t i = 5; i < words.size(); ++i) {
      RETURN_IF_ERROR(ParseOption(words[i], &fault.range.pid, &fault.remaining));
    }
    faults_.Add(std::move(fault));
    return std::string("ok");
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown command '", command, "' or wrong number of words; see README.md"));
}

absl::Status SlowFileSystem::Set(const std::string& name, const std::string& value) {
  if (name == "keep_cache" || name == "direct_io" || name == "interruptible" ||
      name == "hold_opens" || name == "hold_stats" || name == "hold_closes") {
    if (value != "on" && value != "off") {
      return absl::InvalidArgumentError(absl::StrCat(name, " is on or off"));
    }
    const bool on = value == "on";
    if (name == "keep_cache") keep_cache_ = on;
    if (name == "direct_io") direct_io_ = on;
    if (name == "hold_opens") hold_opens_ = on;
    if (name == "hold_stats") hold_stats_ = on;
    if (name == "hold_closes") hold_closes_ = on;
    if (name == "interruptible") scheduler_.SetInterruptible(on);
    return absl::OkStatus();
  }
  double number = 0;
  if (!absl::SimpleAtod(value, &number) || !(number >= 0) || number > 1e9) {
    return absl::InvalidArgumentError(absl::StrCat("'", value, "' is no value of ", name));
  }
  if (name == "attribute_latency_ms") {
    attribute_latency_ms_ = number;
  } else if (name == "latency_ms") {
    scheduler_.SetLatency(absl::Milliseconds(number));
  } else if (name == "bandwidth_mib_s") {
    scheduler_.SetBandwidth(static_cast<uint64_t>(number * 1024 * 1024));
  } else if (name == "read_ahead_kb") {
    return SetReadAhead(static_cast<uint64_t>(number));
  } else {
    return absl::InvalidArgumentError(absl::StrCat("unknown setting '", name, "'"));
  }
  return absl::OkStatus();
}

absl::Status SlowFileSystem::SetReadAhead(uint64_t kibibytes) const {
  struct stat attributes;
  if (stat(options_.mount.c_str(), &attributes) != 0) {
    return ErrnoStatus(errno, absl::StrCat("stat ", options_.mount));
  }
  const std::string path = absl::StrCat("/sys/class/bdi/", major(attributes.st_dev), ":",
                                        minor(attributes.st_dev), "/read_ahead_kb");
  std::ofstream file(path);
  file << kibibytes << std::flush;
  if (!file.good()) return absl::UnavailableError(absl::StrCat("cannot write ", path));
  return absl::OkStatus();
}

}  // namespace forestage
