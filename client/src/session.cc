#include "forestage/session.h"

#include <unistd.h>

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/src/daemon_connection.h"
#include "client/src/load_session.h"

namespace forestage {
namespace {

// As OpenDaemonConnection. FAILED_PRECONDITION in a child of a process that had asked a daemon
// before: gRPC's threads are not in the child, and its locks may be held for ever.
absl::StatusOr<DaemonWelcome> OpenInFirstProcess(const DaemonOpenRequest& request,
                                                 std::shared_ptr<DaemonLoss> loss) {
  static std::atomic<pid_t> first_process = 0;
  pid_t expected = 0;
  if (!first_process.compare_exchange_strong(expected, getpid()) && expected != getpid()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "process ", getpid(), " was forked by one that had asked a daemon (", expected,
        "); for the daemon's help start it by exec, as `spawn` does, or fork it earlier"));
  }
  return OpenDaemonConnection(request, std::move(loss));
}

}  // namespace

// Also the owner of the load: in a forked child its destructor leaves everything as it is.
class Session::Implementation {
 public:
  explicit Implementation(std::shared_ptr<LoadSession> load_session)
      : load(std::move(load_session)) {}
  ~Implementation() {
    load->Close();
    LoadSession::Drop(std::move(load));
  }

  std::shared_ptr<LoadSession> load;
};

Session::Session(std::shared_ptr<Implementation> implementation)
    : implementation_(std::move(implementation)) {}

Session::~Session() = default;

absl::StatusOr<std::unique_ptr<Session>> Session::Open(const std::string& directory,
                                                       const SessionOptions& options) {
  absl::StatusOr<std::shared_ptr<LoadSession>> load =
      LoadSession::Open(directory, options, OpenInFirstProcess);
  if (!load.ok()) return load.status();
  return std::unique_ptr<Session>(new Session(std::make_shared<Implementation>(*std::move(load))));
}

std::shared_ptr<const Catalog> Session::catalog() const { return implementation_->load->catalog(); }

Decision Session::decision() const { return implementation_->load->decision(); }

absl::StatusOr<Slice> Session::GetSlice(absl::string_view tensor,
                                        absl::Span<const Range> ranges) const {
  return implementation_->load->GetSlice(tensor, ranges);
}

absl::StatusOr<Slice> Session::GetSlice(size_t tensor_index, absl::Span<const Range> ranges) const {
  return implementation_->load->GetSlice(tensor_index, ranges);
}

void Session::MarkConsumed(size_t tensor_index) {
  implementation_->load->MarkConsumed(tensor_index);
}

absl::StatusOr<StagingStatus> Session::GetStagingStatus(absl::Time deadline) const {
  return implementation_->load->GetStagingStatus(deadline);
}

absl::StatusOr<StagingStatus> Session::WaitUntilStaged(
    absl::Time deadline, const std::function<void(const StagingStatus&)>& progress) const {
  return implementation_->load->WaitUntilStaged(deadline, progress);
}

absl::Status Session::CheckFilesUnchanged() const {
  return implementation_->load->CheckFilesUnchanged();
}

std::vector<ReadPlace> Session::ReadPlaces() const {
  return implementation_->load->ListReadPlaces();
}

void Session::Close() { implementation_->load->Close(); }

}  // namespace forestage
