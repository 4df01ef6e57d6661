// Who opens a file on which a second open would do harm, and who gets the descriptor of that open.
//
// A session shows the shards that it reaches; for each it gets a descriptor that another session of
// the same user has sent, or is told to open the file itself. Sessions that ask while another one
// opens wait for it. A file of a user, and what its name stands for:
//
//   unknown --told to open it--> opening by a session --its descriptors came--> lent
//      ^---------- the session ended, or came without it --/                      |
//      ^---------- nobody holds the descriptor any more --------------------------/
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include <sys/types.h>

#include "common/unique_fd.h"
#include "daemon/session/lendable_file.h"
#include "daemon/staging/staged_checkpoint.h"

namespace forestage {

// Not thread-safe: the registry's lock guards it. Nothing blocks; callbacks are called in the calls
// below and must not call back.
class ShardLending {
 public:
  using AskId = uint64_t;
  // One entry a file; null: open it yourself. The session that gets them keeps them alive.
  using Loans = std::vector<SharedFd>;
  using Done = std::function<void(absl::StatusOr<Loans>)>;

  // A session asks for `count` files, which Show() names. `done` is called once: when none of them
  // is being opened by another session, at `deadline`, or when the session has left (CANCELLED).
  AskId Ask(SessionId session, uid_t uid, size_t count, absl::Time deadline, Done done);
  // nullopt: may not be lent. Without effect when the ask was answered already.
  void Show(AskId ask, std::vector<std::optional<LendableFile>> files);

  // Whether a descriptor of this file is of use.
  bool Wants(uid_t uid, const LendableFile& file) const;
  // The descriptors of a session that has asked have come, these of them to be lent. What else it
  // was told to open is open to others again.
  void Offer(SessionId session, uid_t uid, std::vector<std::pair<LendableFile, SharedFd>> files);
  // The session has ended. What it borrowed stays with those that borrowed it, too.
  void Leave(SessionId session);
  // Answers what is overdue. Returns when the next one will be.
  absl::Time Expire(absl::Time now);

 private:
  using Key = std::pair<uid_t, FileName>;
  struct Entry {
    std::optional<SessionId> opener;
    std::weak_ptr<const UniqueFd> descriptor;
    uint64_t mount_restrictions = 0;
  };
  struct Asked {
    SessionId session = 0;
    uid_t uid = 0;
    size_t count = 0;
    absl::Time deadline;
    Done done;
    // Empty until shown.
    std::vector<std::optional<LendableFile>> files;
  };

  bool MustWait(const Asked& asked) const;
  void Answer(const Asked& asked);
  // Those whose wait is over, in the order in which they came.
  void AnswerReady();
  void GiveUpOpening(SessionId session);

  AskId next_ask_ = 1;
  std::map<AskId, Asked> asks_;
  std::map<Key, Entry> entries_;
  // What each session has sent or borrowed.
  std::map<SessionId, std::vector<SharedFd>> held_;
};

}  // namespace forestage
