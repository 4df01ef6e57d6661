// Loads every tensor of a checkpoint as one rank of a group, and prints what was loaded and how.
//
//   load_all DIR [GROUP RANK RANKS]
//
// Start it once a rank with the same GROUP and RANKS; alone it is a group of its own. It works with
// and without a daemon, and the bytes are the same.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "forestage/session.h"

namespace {

absl::Status LoadAll(const std::string& directory, const forestage::SessionOptions& options) {
  // Opens the files, joins the group, and gets the catalog. Only the checkpoint itself can make
  // this fail; a missing daemon cannot.
  absl::StatusOr<std::unique_ptr<forestage::Session>> session =
      forestage::Session::Open(directory, options);
  if (!session.ok()) return session.status();

  uint64_t bytes = 0;
  unsigned checksum = 0;
  const std::shared_ptr<const forestage::Catalog> catalog = (*session)->catalog();
  // In file order, which is the order in which the daemon stages when no other is demanded.
  for (size_t index = 0; index < catalog->tensor_count(); ++index) {
    absl::StatusOr<forestage::Slice> slice = (*session)->GetSlice(index);
    if (!slice.ok()) return slice.status();
    // Waits until the bytes are in memory; the view points into the page cache.
    absl::StatusOr<forestage::SliceView> view = slice->View();
    if (!view.ok()) return view.status();
    // Here an engine would copy the bytes to its GPU.
    for (std::byte byte : view->bytes()) checksum += static_cast<unsigned>(byte);
    bytes += view->bytes().size();
    (*session)->MarkConsumed(index);
  }

  const forestage::Decision decision = (*session)->decision();
  std::printf("%zu tensors, %llu bytes, sum of bytes %u\n", catalog->tensor_count(),
              static_cast<unsigned long long>(bytes), checksum);
  std::printf("requested %s, effective %s%s%s\n",
              std::string(forestage::PolicyName(decision.requested)).c_str(),
              std::string(forestage::PolicyName(decision.effective)).c_str(),
              decision.reason.empty() ? "" : ": ", decision.reason.c_str());
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 5) {
    std::fprintf(stderr, "usage: %s DIR [GROUP RANK RANKS]\n", argv[0]);
    return 2;
  }
  forestage::SessionOptions options;
  if (argc == 5) {
    options.group_name = argv[2];
    options.local_rank = static_cast<uint32_t>(std::strtoul(argv[3], nullptr, 10));
    options.local_size = static_cast<uint32_t>(std::strtoul(argv[4], nullptr, 10));
  }
  const absl::Status status = LoadAll(argv[1], options);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}
