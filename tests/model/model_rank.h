// What the daemon model knows of ranks, their processes and groups, and of boards.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/src/daemon_loss.h"
#include "client/src/staged_extents.h"

#include "common/file_mapping.h"
#include "common/peer_identity.h"
#include "common/staging_board.h"
#include "daemon/session/session_registry.h"
#include "tests/model/model_files.h"
#include "tests/model/model_storage.h"

namespace forestage {

struct ModelProcess {
  uint64_t number = 0;
  PeerIdentity peer;
  bool alive = true;
};

// One life of a group: from its first session to its last.
struct ModelGroup {
  uint32_t local_size = 0;
  SessionAgreement agreement = SessionAgreement::kEager;
  absl::Time deadline;
  SessionPolicy first_wish = SessionPolicy::kAuto;
  std::set<struct ModelRank*> members;
  // Somebody was told a decision.
  bool decided = false;
  // Strict: a rank could not take part before that.
  bool failed = false;
  std::optional<SessionPolicy> policy;
  std::optional<CheckpointSignature> striped_signature;
};

// A board that the daemon has made, seen through a mapping of our own.
struct ModelBoardWatch {
  ModelStorage::Epoch epoch = 0;
  uint64_t inode = 0;
  FileMapping mapping;
  std::unique_ptr<StagingBoardView> view;
  struct Place {
    std::string file;
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  std::vector<Place> places;  // by extent
  // As they were last seen.
  std::vector<ExtentState> states;
  bool closed = false;

  uint32_t change_count() const {
    return reinterpret_cast<const BoardHeader*>(mapping.bytes().data())
        ->change_count.load(std::memory_order_acquire);
  }
};

// A thread of a rank that waits for an extent, between two of its steps.
struct ModelWait {
  uint64_t extent = 0;
  uint32_t seen = 0;
  bool asleep = false;
  // It has looked already, before it counted: a mistake.
  bool looked = false;
};

struct ModelRank {
  uint64_t number = 0;
  ModelProcess* process = nullptr;
  size_t checkpoint = 0;
  std::vector<ModelFiles::Shard> files;
  std::vector<uint64_t> shard_bytes;
  SessionTerms terms;
  std::shared_ptr<ModelGroup> group;
  std::string group_key;

  SessionId id = 0;
  size_t sent = 0;
  // When the session is given up unless it is ready.
  absl::Time ready_deadline;

  // What it was told.
  std::optional<SessionToken> token;
  std::optional<CheckpointSummary> ready;
  std::optional<SessionDecision> decision;
  std::optional<absl::Status> ended;
  bool told_draining = false;
  int deliveries_asked = 0;
  int deliveries_answered = 0;

  // Its own side, once its descriptors have come.
  std::shared_ptr<DaemonLoss> loss = std::make_shared<DaemonLoss>();
  std::unique_ptr<DaemonSession> link;
  std::unique_ptr<StagedExtents> extents;
  const ModelBoardWatch* board = nullptr;
  std::vector<ModelWait> waits;

  // The daemon has a session of it.
  bool lives() const { return id != 0 && !ended.has_value(); }
  // Its program runs and uses the session.
  bool acts() const { return lives() && process->alive; }
};

}  // namespace forestage
