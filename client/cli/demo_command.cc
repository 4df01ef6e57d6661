#include "client/cli/demo_command.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/cli/byte_format.h"
#include "client/cli/demo_writer.h"
#include "client/cli/output.h"
#include "client/cli/progress_bar.h"

#include "common/errno_status.h"
#include "common/status_macros.h"
#include "common/utf8_text.h"

namespace forestage {
namespace {

constexpr char kIndexName[] = "model.safetensors.index.json";
constexpr char kConfigName[] = "config.json";
// Of the space left on the disk that the checkpoint may not fill.
constexpr uint64_t kSlackBytes = 1024 * 1024;

absl::Status PrepareDirectory(const std::string& directory, bool force) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return ErrnoStatus(error.value(), absl::StrCat("cannot create ", LineText(directory)));
  const bool empty = std::filesystem::is_empty(directory, error);
  if (error)
    return ErrnoStatus(error.value(), absl::StrCat("cannot look into ", LineText(directory)));
  if (empty || force) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(LineText(directory),
                   " is not empty; choose another directory, or --force to write into this one"));
}

// Also of a directory that is to be made.
absl::Status CheckSpace(const std::string& directory, uint64_t bytes) {
  std::error_code error;
  std::filesystem::path existing = std::filesystem::absolute(directory, error);
  while (!error && !std::filesystem::exists(existing, error) && existing.has_relative_path())
    existing = existing.parent_path();
  const std::filesystem::space_info space = std::filesystem::space(existing, error);
  if (error || space.available >= bytes + kSlackBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the file system of ", LineText(directory), " has ",
                   FormatBytes(space.available), " left and ", FormatBytes(bytes),
                   " are needed; choose another directory or a smaller --size"));
}

// Files that get their real names together. Removes what is left of them when it goes.
class PendingFiles {
 public:
  explicit PendingFiles(std::string directory) : directory_(std::move(directory)) {}
  ~PendingFiles() {
    for (const std::string& name : names_) unlink(TemporaryPath(name).c_str());
  }
  PendingFiles(const PendingFiles&) = delete;
  PendingFiles& operator=(const PendingFiles&) = delete;

  // Where to write the file that will have this name.
  std::string Add(const std::string& name) {
    names_.push_back(name);
    // Left there by a run that was killed.
    unlink(TemporaryPath(name).c_str());
    return TemporaryPath(name);
  }

  // In the order of Add, so the file that makes the others a checkpoint goes last.
  absl::Status Rename() {
    // Whatever it described is about to be replaced.
    unlink(absl::StrCat(directory_, "/", kIndexName).c_str());
    while (!names_.empty()) {
      const std::string path = absl::StrCat(directory_, "/", names_.front());
      if (std::rename(TemporaryPath(names_.front()).c_str(), path.c_str()) != 0)
        return ErrnoStatus(errno, absl::StrCat("cannot rename a new file to ", LineText(path)));
      names_.erase(names_.begin());
    }
    return absl::OkStatus();
  }

 private:
  std::string TemporaryPath(const std::string& name) const {
    return absl::StrCat(directory_, "/.", name, ".partial");
  }

  const std::string directory_;
  std::vector<std::string> names_;
};

// A checkpoint that is decided but not written.
struct DemoPlan {
  DemoModel model;
  std::vector<std::string> shard_names;
  std::vector<std::vector<DemoTensor>> shards;
  uint64_t total_bytes = 0;  // of all tensors
};

absl::StatusOr<DemoPlan> MakePlan(const DemoOptions& options) {
  DemoPlan plan;
  ASSIGN_OR_RETURN(plan.model, MakeDemoModel(options.architecture, options.size_bytes));
  ASSIGN_OR_RETURN(const auto dealt, DealToShards(plan.model.tensors, options.shard_count));
  for (size_t i = 0; i < dealt.size(); ++i) {
    plan.shard_names.push_back(
        absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, dealt.size()));
    std::vector<DemoTensor>& shard = plan.shards.emplace_back();
    for (size_t index : dealt[i]) {
      shard.push_back(plan.model.tensors[index]);
      plan.total_bytes += DemoTensorBytes(shard.back());
    }
  }
  return plan;
}

std::string MakeIndex(const DemoPlan& plan) {
  std::map<std::string, std::string> shard_of_tensor;
  for (size_t i = 0; i < plan.shards.size(); ++i) {
    for (const DemoTensor& tensor : plan.shards[i])
      shard_of_tensor[tensor.name] = plan.shard_names[i];
  }
  Json index;
  index["metadata"] = {{"total_size", plan.total_bytes}};
  index["weight_map"] = shard_of_tensor;
  return index.dump(2) + "\n";
}

absl::Status WritePlan(const DemoPlan& plan, const std::string& directory, ProgressBar::Style style,
                       const TerminationSignals& signals) {
  PendingFiles files(directory);
  ProgressBar progress("writing", style);
  uint64_t written_bytes = 0;
  const auto advance = [&](uint64_t bytes) {
    written_bytes += bytes;
    progress.Update(written_bytes, plan.total_bytes);
    return !signals.received();
  };
  for (size_t i = 0; i < plan.shards.size(); ++i) {
    RETURN_IF_ERROR(WriteDemoShard(files.Add(plan.shard_names[i]), plan.shards[i], advance));
  }
  RETURN_IF_ERROR(WriteDemoText(files.Add(kConfigName), plan.model.config.dump(2) + "\n"));
  RETURN_IF_ERROR(WriteDemoText(files.Add(kIndexName), MakeIndex(plan)));
  RETURN_IF_ERROR(files.Rename());
  progress.Finish();
  return absl::OkStatus();
}

void PrintResult(const GlobalOptions& global, const DemoPlan& plan, const DemoOptions& options,
                 double seconds) {
  if (!global.json) {
    PrintText(absl::StrCat(FormatCount(plan.model.tensors.size(), "tensor"), ", ",
                           FormatBytes(plan.total_bytes), " in ",
                           FormatCount(plan.shards.size(), "shard"), " written to ",
                           LineText(options.directory), " in ", FormatSeconds(seconds), "\n"));
    return;
  }
  Json document;
  document["directory"] = options.directory;
  document["architecture"] = plan.model.config["model_type"];
  document["bytes"] = plan.total_bytes;
  document["tensors"] = plan.model.tensors.size();
  document["shards"] = plan.shard_names;
  document["seconds"] = seconds;
  PrintJson(document);
}

}  // namespace

ExitCode RunDemo(const GlobalOptions& global, const DemoOptions& options,
                 const TerminationSignals& signals) {
  const absl::Time begun = absl::Now();
  const absl::StatusOr<DemoPlan> plan = MakePlan(options);
  if (!plan.ok()) return Fail(global, ExitCode::kUsage, plan.status());
  // First, so that a refusal leaves no empty directory.
  absl::Status status = CheckSpace(options.directory, plan->total_bytes);
  if (status.ok()) status = PrepareDirectory(options.directory, options.force);
  if (status.ok()) {
    status = WritePlan(*plan, options.directory,
                       global.json ? ProgressBar::Style::kNone : ProgressBar::Style::kAutomatic,
                       signals);
  }
  if (absl::IsCancelled(status))
    return Fail(global, ExitCode::kFailed, "interrupted; what was written is removed again");
  if (!status.ok()) return Fail(global, ExitCode::kFailed, status);
  PrintResult(global, *plan, options, absl::ToDoubleSeconds(absl::Now() - begun));
  return ExitCode::kOk;
}

}  // namespace forestage
