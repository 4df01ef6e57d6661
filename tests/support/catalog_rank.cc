// catalog_rank: one rank that opens a checkpoint for its catalog, for tests and measurements of
// checkpoints with very many tensors. It reads none.
//
// Writes one JSON document a line: {"event": "ready"}, and when a line has come on standard input
// {"event": "opened", "open_seconds", "open_cpu_seconds", "effective", "reason", "tensors",
// "shards", "digest"}, with --queries N also "prefix_query_seconds" (the mean of N queries), then
// {"event": "done"} at the next line. {"event": "error", "message"} and exit code 1 when the open
// fails. The digest is over every tensor's name, shard and range, in alphabetical order.

#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <openssl/evp.h>

#include "common/check.h"
#include "forestage/session.h"
#include "tests/support/rank_events.h"

namespace forestage {
namespace {

struct Options {
  std::string directory;
  SessionOptions session;
  bool everything = false;
  uint64_t queries = 0;
};

double ProcessSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return absl::ToDoubleSeconds(absl::DurationFromTimespec(now));
}

std::string DigestOf(const Catalog& catalog) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        &EVP_MD_CTX_free);
  CHECK(EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1);
  const auto [first, last] = catalog.WithPrefix("");
  for (size_t position = first; position < last; ++position) {
    const TensorInfo tensor = catalog.tensor(catalog.AlphabeticalIndex(position));
    const std::string line =
        absl::StrCat(tensor.name, " ", tensor.shard, " ", tensor.begin, " ", tensor.end, "\n");
    CHECK(EVP_DigestUpdate(context.get(), line.data(), line.size()) == 1);
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  CHECK(EVP_DigestFinal_ex(context.get(), digest, &size) == 1);
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest), size});
}

// Prefixes of names all over the catalog: a layer's, an expert's, a whole name.
std::vector<std::string> SomePrefixes(const Catalog& catalog) {
  std::mt19937_64 random(1);
  std::vector<std::string> prefixes;
  for (int i = 0; i < 1024; ++i) {
    const absl::string_view name = catalog.tensor(random() % catalog.tensor_count()).name;
    prefixes.emplace_back(name.substr(0, 1 + random() % name.size()));
  }
  return prefixes;
}

double SecondsOfQuery(const Catalog& catalog, uint64_t queries) {
  const std::vector<std::string> prefixes = SomePrefixes(catalog);
  size_t found = 0;
  const absl::Time begun = absl::Now();
  for (uint64_t i = 0; i < queries; ++i) {
    found += catalog.WithPrefix(prefixes[i % prefixes.size()]).size();
  }
  const absl::Duration elapsed = absl::Now() - begun;
  // Each prefix is of a name.
  CHECK(found >= queries);
  return absl::ToDoubleSeconds(elapsed) / static_cast<double>(queries);
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("One rank that opens a checkpoint for its catalog; for tests and measurements.");
  app.add_option("directory", options.directory, "The checkpoint")->required();
  app.add_option("--socket", options.session.socket_path, "The daemon's socket");
  app.add_option("--group", options.session.group_name, "Name of the group");
  app.add_option("--rank", options.session.local_rank, "Local rank");
  app.add_option("--size", options.session.local_size, "Local size");
  app.add_flag("--everything", options.everything, "Demand everything, instead of nothing");
  app.add_option("--queries", options.queries, "Measure so many prefix queries");
  CLI11_PARSE(app, argc, argv);
  if (!options.everything) options.session.demand.emplace();

  Say({{"event", "ready"}});
  WaitForLine();
  const absl::Time begun = absl::Now();
  const double cpu_begun = ProcessSeconds();
  const absl::StatusOr<std::unique_ptr<Session>> session =
      Session::Open(options.directory, options.session);
  if (!session.ok()) {
    Say({{"event", "error"}, {"message", std::string(session.status().message())}});
    return 1;
  }
  const Catalog& catalog = *(*session)->catalog();
  Json opened = {{"event", "opened"},
                 {"open_seconds", absl::ToDoubleSeconds(absl::Now() - begun)},
                 {"open_cpu_seconds", ProcessSeconds() - cpu_begun},
                 {"tensors", catalog.tensor_count()},
                 {"shards", catalog.shard_count()}};
  const Decision decision = (*session)->decision();
  opened["effective"] = std::string(PolicyName(decision.effective));
  opened["reason"] = decision.reason;
  opened["digest"] = DigestOf(catalog);
  if (options.queries > 0 && catalog.tensor_count() > 0) {
    opened["prefix_query_seconds"] = SecondsOfQuery(catalog, options.queries);
  }
  Say(opened);
  WaitForLine();
  Say({{"event", "done"}});
  return 0;
}

}  // namespace
}  // namespace forestage

int main(int argc, char** argv) { return forestage::Main(argc, argv); }
