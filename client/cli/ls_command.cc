#include "client/cli/ls_command.h"

#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/byte_format.h"
#include "client/cli/name_escaping.h"
#include "client/cli/text_table.h"

namespace forestage {
namespace {

std::string ShapeText(absl::Span<const uint64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

std::string ShardsText(const CatalogView& view) {
  TextTable table(
      {{"SHARD"}, {"SIZE", TextTable::Align::kRight}, {"TENSORS", TextTable::Align::kRight}});
  for (size_t i = 0; i < view.shard_count(); ++i) {
    const ShardEntryView shard = view.shard(i);
    table.AddRow(
        {EscapeName(shard.name), FormatBytes(shard.bytes), absl::StrCat(shard.tensor_count)});
  }
  return table.ToString();
}

std::string TensorsText(const CatalogView& view, const std::string& prefix) {
  TextTable table(
      {{"TENSOR"}, {"DTYPE"}, {"SHAPE"}, {"SIZE", TextTable::Align::kRight}, {"SHARD"}});
  size_t shown = 0;
  for (size_t i = 0; i < view.tensor_count(); ++i) {
    const TensorEntryView tensor = view.tensor(i);
    if (!absl::StartsWith(tensor.name, prefix)) continue;
    ++shown;
    table.AddRow({EscapeName(tensor.name), std::string(DtypeName(tensor.dtype)),
                  ShapeText(tensor.shape), FormatBytes(tensor.end - tensor.begin),
                  EscapeName(view.shard(tensor.shard_index).name)});
  }
  if (shown > 0) return table.ToString();
  if (prefix.empty()) return "no tensors\n";
  return absl::StrCat("no tensor's name begins with '", EscapeName(prefix), "'\n");
}

}  // namespace

Json CopyJson(const IgnoredCopy& copy) {
  return {{"tensor", copy.tensor},
          {"shard", copy.shard},
          {"served_from", copy.served_from},
          {"differs", copy.differs}};
}

Json LsJson(const LocalCatalog& catalog, const std::string& prefix) {
  const CatalogView& view = catalog.view();
  Json shards = Json::array();
  for (size_t i = 0; i < view.shard_count(); ++i) {
    const ShardEntryView shard = view.shard(i);
    shards.push_back({{"name", std::string(shard.name)},
                      {"bytes", shard.bytes},
                      {"tensors", shard.tensor_count}});
  }
  Json tensors = Json::array();
  for (size_t i = 0; i < view.tensor_count(); ++i) {
    const TensorEntryView tensor = view.tensor(i);
    if (!absl::StartsWith(tensor.name, prefix)) continue;
    Json entry;
    entry["name"] = std::string(tensor.name);
    entry["shard"] = std::string(view.shard(tensor.shard_index).name);
    entry["dtype"] = std::string(DtypeName(tensor.dtype));
    entry["shape"] = std::vector<uint64_t>(tensor.shape.begin(), tensor.shape.end());
    entry["begin"] = tensor.begin;
    entry["end"] = tensor.end;
    tensors.push_back(std::move(entry));
  }
  Json ignored = Json::array();
  for (const IgnoredFile& file : catalog.selection().ignored)
    ignored.push_back({{"name", file.name}, {"reason", file.reason}});
  Json copies = Json::array();
  for (const IgnoredCopy& copy : catalog.ignored_copies()) copies.push_back(CopyJson(copy));
  Json document;
  document["total_bytes"] = view.total_bytes();
  document["shards"] = std::move(shards);
  document["tensors"] = std::move(tensors);
  document["ignored"] = std::move(ignored);
  document["ignored_copies"] = std::move(copies);
  return document;
}

std::string LsText(const LocalCatalog& catalog, const std::string& prefix) {
  const CatalogView& view = catalog.view();
  const FileSelection& selection = catalog.selection();
  std::string text = absl::StrCat(ShardsText(view), "\n", TensorsText(view, prefix), "\n");
  if (!selection.ignored.empty()) {
    TextTable table({{"IGNORED FILE"}, {"REASON"}});
    for (const IgnoredFile& file : selection.ignored)
      table.AddRow({EscapeName(file.name), file.reason});
    absl::StrAppend(&text, table.ToString(), "\n");
  }
  if (!catalog.ignored_copies().empty()) {
    TextTable table({{"IGNORED COPY"}, {"IN SHARD"}, {"SERVED FROM"}});
    for (const IgnoredCopy& copy : catalog.ignored_copies()) {
      table.AddRow({EscapeName(copy.tensor), EscapeName(copy.shard), EscapeName(copy.served_from)});
    }
    absl::StrAppend(&text, table.ToString(), "\n");
  }
  absl::StrAppend(&text, FormatCount(view.tensor_count(), "tensor"), " in ",
                  FormatCount(view.shard_count(), "shard"), ", ", FormatBytes(view.total_bytes()),
                  "; selected by ",
                  selection.index_name.empty() ? "file names" : EscapeName(selection.index_name),
                  "\n");
  return text;
}

ExitCode RunLs(const GlobalOptions& global, const LsOptions& options) {
  const absl::StatusOr<std::unique_ptr<const LocalCatalog>> catalog =
      LocalCatalog::Read(options.directory);
  if (!catalog.ok()) return Fail(global, ExitCode::kFailed, catalog.status());
  if (global.json) {
    PrintJson(LsJson(**catalog, options.prefix));
  } else {
    PrintText(LsText(**catalog, options.prefix));
  }
  return ExitCode::kOk;
}

}  // namespace forestage
