// forestage ls: what a checkpoint holds.
#pragma once

#include <string>

#include "client/cli/exit_code.h"
#include "client/cli/global_options.h"
#include "client/cli/local_catalog.h"
#include "client/cli/output.h"

namespace forestage {

struct LsOptions {
  std::string directory;
  // Only tensors whose name begins so.
  std::string prefix;
};

// Needs no daemon and asks none.
ExitCode RunLs(const GlobalOptions& global, const LsOptions& options);

// As `ls` and `doctor` have it.
Json CopyJson(const IgnoredCopy& copy);

// The document of `ls --json`; docs/cli.md has its keys. Tensors are in file order.
Json LsJson(const LocalCatalog& catalog, const std::string& prefix);
// The same facts for people.
std::string LsText(const LocalCatalog& catalog, const std::string& prefix);

}  // namespace forestage
