#include "tests/support/slowfs/source_tree.h"

#include <fcntl.h>

#include <cerrno>

#include "absl/strings/str_cat.h"

#include "common/errno_status.h"

namespace forestage {

absl::StatusOr<std::unique_ptr<SourceTree>> SourceTree::Open(const std::string& source) {
  UniqueFd fd(open(source.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("open ", source));
  struct stat attributes;
  if (fstat(fd.get(), &attributes) != 0) return ErrnoStatus(errno, absl::StrCat("stat ", source));
  std::unique_ptr<SourceTree> tree(new SourceTree());
  absl::MutexLock lock(&tree->mutex_);
  tree->ids_[{attributes.st_dev, attributes.st_ino}] = 1;
  tree->nodes_.push_back(std::make_unique<Node>(Node{1, "", std::move(fd)}));
  return tree;
}

const SourceTree::Node& SourceTree::node(uint64_t id) const {
  absl::MutexLock lock(&mutex_);
  return *nodes_.at(id - 1);
}

int SourceTree::Lookup(uint64_t parent, const char* name, uint64_t* id, struct stat* attributes) {
  const Node& directory = node(parent);
  UniqueFd fd(openat(directory.fd.get(), name, O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid()) return errno;
  if (fstat(fd.get(), attributes) != 0) return errno;
  absl::MutexLock lock(&mutex_);
  const auto [entry, is_new] =
      ids_.insert({{attributes->st_dev, attributes->st_ino}, nodes_.size() + 1});
  *id = entry->second;
  if (is_new) {
    std::string path =
        directory.path.empty() ? std::string(name) : absl::StrCat(directory.path, "/", name);
    nodes_.push_back(std::make_unique<Node>(Node{*id, std::move(path), std::move(fd)}));
  }
  return 0;
}

}  // namespace forestage
