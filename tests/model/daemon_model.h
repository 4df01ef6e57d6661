// A node in one thread: the daemon's own sessions, groups, memory ledger, store, stager, lanes and
// boards, and ranks that use the client's own rules of waiting, with every event begun by chance
// from a seed. After each event the invariants of docs/semantics.md are checked.
//
// What is not real: storage (ModelStorage), processes (an eventfd is a pidfd), the clock of
// sessions, the threads that open and release checkpoints (ModelQueue), and gRPC and sockets, of
// which only the calls are left that they make.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

#include "common/temporary_directory_for_test.h"
#include "daemon/session/session_registry.h"
#include "tests/model/model_files.h"
#include "tests/model/model_queue.h"
#include "tests/model/model_random.h"
#include "tests/model/model_rank.h"
#include "tests/model/model_storage.h"
#include "tests/model/model_store.h"

namespace forestage {

class DaemonModel {
 public:
  // A mistake that the checks must find.
  enum class Mistake {
    kNone,
    kCheckpointForgetsToRemoveSessions,
    kReaderLies,
    kLaneMissesItsWake,
    kSomebodyKeepsACheckpoint,
    kWaiterLooksBeforeItCounts,
  };
  struct Options {
    uint64_t seed = 0;
    size_t events_max = 160;
    Mistake mistake = Mistake::kNone;
    // Events that do not happen, to find out which ones a violation needs.
    std::set<std::string> without = {};
    // Says each line of the trace at once, for runs that crash.
    bool says_trace = false;
  };
  // How often what happened, over many runs.
  using Coverage = std::map<std::string, uint64_t>;
  // What all runs share.
  struct World {
    ModelFiles files;
    TemporaryDirectoryForTest memory_root;
  };
  struct Outcome {
    // The first thing that must not be; empty: none.
    std::string violation;
    std::vector<std::string> trace;
  };

  DaemonModel(const Options& options, World& world, Coverage& coverage);
  ~DaemonModel();
  Outcome Play();
  static std::vector<std::string> EventNames();

 private:
  class Link;
  class Listener;
  struct Event {
    absl::string_view name;
    uint64_t weight = 0;
    void (DaemonModel::*run)() = nullptr;
    // May happen while a checkpoint's files are being opened.
    bool meanwhile = false;
  };
  using Wanted = bool (*)(const ModelRank&);

  // The daemon.
  void StartDaemon();
  void StopDaemon();
  std::shared_ptr<SessionListener> ListenerFor(ModelRank& rank);
  void OnBuilt(const ModelCheckpoint& checkpoint);
  void Meanwhile();

  // What it says; called under its locks.
  void OnOpened(ModelRank& rank, const SessionToken& token);
  void OnCheckpoint(ModelRank& rank, const CheckpointSummary& summary);
  void OnDecision(ModelRank& rank, const SessionDecision& decision);
  void OnProgress(ModelRank& rank, const StagingProgress& progress);
  void OnDraining(ModelRank& rank);
  void OnEnded(ModelRank& rank, const absl::Status& status);
  void OnDelivery(ModelRank& rank, absl::StatusOr<SessionDelivery> delivery);

  // Events.
  static const std::vector<Event>& Events();
  void RunOneEvent(bool meanwhile);
  void Open();
  void Send();
  void AskForDelivery();
  void Demand();
  void Use();
  void BeginWait();
  void StepWait();
  void Consume();
  void AskForProgress();
  void Close();
  void Reject();
  void Kill();
  void EndStream();
  void StepLoop();
  void PassTime();
  void Prepare();
  void Release();
  void RunLane();
  void EndRead();
  void ChangeFile();
  void ChangeMemory();
  void ChangeReaders();
  void Drain();
  void Crash();

  // Parts of events.
  ModelProcess& SomeProcess();
  SessionTerms SomeTerms(size_t path);
  absl::StatusCode ExpectedOfOpen(const ModelRank& rank, const std::string& key) const;
  // At most so many sessions count for its user.
  size_t UsersSessions(const ModelRank& rank) const;
  // Who has its seat in its group.
  const ModelRank* HolderOf(const ModelRank& rank, const std::string& key) const;
  void JoinGroup(ModelRank& rank, const std::string& key);
  // A rank of a strict group loads by itself before it was told anything.
  void OnRankFailed(const SessionTerms& terms, const std::string& key);
  ModelRank* SomeRank(Wanted wanted);
  void UseExtent(ModelRank& rank, uint64_t index);
  void SetMemory(uint64_t bytes);

  // The end of a run.
  void Settle();
  void RunUntilQuiet();
  void EndEverything();
  void CheckEverythingIsZero();
  void CheckQuotaIsFree();

  // Checks.
  void CheckAll();
  void CheckSessions();
  void CheckGroups();
  void CheckReadingBeginsWithTheFirst(const std::string& key, const ModelGroup& group);
  void CheckMemory();
  void CheckDemands();
  void CheckBoards();
  void CheckExtent(const ModelBoardWatch& board, uint64_t index, ExtentState before,
                   ExtentState now);
  // What the session demands of the extent was verified.
  void CheckDemandedPages(const ModelBoardWatch& board, uint64_t index, SessionId session);
  void CheckWaits();
  void CheckDecision(const ModelRank& rank, const SessionDecision& decision);
  const ModelCheckpoint* AliveOf(ModelStorage::Epoch epoch) const;
  const ModelCheckpoint* CheckpointOf(const ModelRank& rank) const;

  void Note(const std::string& line);
  void Count(const std::string& what) { ++coverage_[what]; }
  // Keeps the first.
  void Violate(const std::string& what);
  void Expect(bool holds, absl::string_view what) {
    if (!holds) Violate(std::string(what));
  }

  const Options options_;
  World& world_;
  Coverage& coverage_;
  ModelRandom random_;
  Outcome outcome_;

  absl::Time now_ = absl::UnixEpoch();
  // By event: some events do not happen at all in some runs.
  std::vector<uint64_t> weights_;
  bool within_event_ = false;
  // There was room for everything, always.
  bool memory_was_plenty_ = true;
  bool stopping_daemon_ = false;
  uint64_t in_flight_bytes_max_ = 0;

  std::list<ModelProcess> processes_;
  std::list<ModelRank> ranks_;
  std::map<std::string, std::shared_ptr<ModelGroup>> groups_;
  // By group: which rank failed last, of how many, and when.
  struct Failure {
    uint32_t local_rank = 0;
    uint32_t local_size = 0;
    absl::Time at;
  };
  std::map<std::string, Failure> failures_;
  // What ends while a rank is opened was replaced by it.
  bool opening_ = false;
  bool decided_while_opening_ = false;
  std::list<ModelBoardWatch> boards_;
  std::set<uint64_t> generations_;
  // By files and their times.
  std::map<std::string, CheckpointSignature> signatures_;

  // Outlives daemons: lanes may end after their store.
  ModelStorage storage_;
  std::unique_ptr<MemoryLedger> ledger_;
  std::unique_ptr<ModelStore> store_;
  std::unique_ptr<ExitWatch> exit_watch_;
  std::unique_ptr<SessionRegistry> registry_;
  // Of the registry; null when it has none.
  ModelQueue* preparations_ = nullptr;
  ModelQueue* releases_ = nullptr;
  // Steps of a drain that were taken.
  int drain_steps_ = 0;
  std::vector<std::shared_ptr<StagedCheckpoint>> kept_;
};

}  // namespace forestage
