#include "daemon/session/shard_lending.h"

#include <algorithm>

#include "absl/status/status.h"

namespace forestage {

ShardLending::AskId ShardLending::Ask(SessionId session, uid_t uid, size_t count,
                                      absl::Time deadline, Done done) {
  const AskId id = next_ask_++;
  asks_[id] = {.session = session,
               .uid = uid,
               .count = count,
               .deadline = deadline,
               .done = std::move(done),
               .files = {}};
  return id;
}

void ShardLending::Show(AskId ask, std::vector<std::optional<LendableFile>> files) {
  const auto found = asks_.find(ask);
  if (found == asks_.end()) return;
  found->second.files = std::move(files);
  AnswerReady();
}

bool ShardLending::MustWait(const Asked& asked) const {
  return std::any_of(asked.files.begin(), asked.files.end(), [&](const auto& file) {
    if (!file.has_value()) return false;
    const auto entry = entries_.find({asked.uid, file->name});
    return entry != entries_.end() && entry->second.descriptor.expired() &&
           entry->second.opener.value_or(asked.session) != asked.session;
  });
}

void ShardLending::Answer(const Asked& asked) {
  Loans loans(asked.count);
  for (size_t i = 0; i < asked.files.size(); ++i) {
    const std::optional<LendableFile>& file = asked.files[i];
    if (!file.has_value()) continue;
    Entry& entry = entries_[{asked.uid, file->name}];
    SharedFd descriptor = entry.descriptor.lock();
    if (descriptor == nullptr) {
      entry.opener = asked.session;
    } else if ((file->mount_restrictions & ~entry.mount_restrictions) == 0) {
      held_[asked.session].push_back(descriptor);
      loans[i] = std::move(descriptor);
    }
  }
  asked.done(std::move(loans));
}

void ShardLending::AnswerReady() {
  for (auto ask = asks_.begin(); ask != asks_.end();) {
    if (ask->second.files.empty() || MustWait(ask->second)) {
      ++ask;
    } else {
      Answer(ask->second);
      ask = asks_.erase(ask);
    }
  }
}

bool ShardLending::Wants(uid_t uid, const LendableFile& file) const {
  const auto entry = entries_.find({uid, file.name});
  return entry == entries_.end() || entry->second.descriptor.expired();
}

void ShardLending::Offer(SessionId session, uid_t uid,
                         std::vector<std::pair<LendableFile, SharedFd>> files) {
  for (auto& [file, descriptor] : files) {
    if (!Wants(uid, file)) continue;
    Entry& entry = entries_[{uid, file.name}];
    entry.opener.reset();
    entry.descriptor = descriptor;
    entry.mount_restrictions = file.mount_restrictions;
    held_[session].push_back(std::move(descriptor));
  }
  GiveUpOpening(session);
  AnswerReady();
}

void ShardLending::GiveUpOpening(SessionId session) {
  for (auto& [key, entry] : entries_) {
    if (entry.opener == session) entry.opener.reset();
  }
  std::erase_if(entries_, [](const auto& entry) {
    return !entry.second.opener.has_value() && entry.second.descriptor.expired();
  });
}

void ShardLending::Leave(SessionId session) {
  for (auto ask = asks_.begin(); ask != asks_.end();) {
    if (ask->second.session != session) {
      ++ask;
      continue;
    }
    ask->second.done(absl::CancelledError("the session has ended"));
    ask = asks_.erase(ask);
  }
  held_.erase(session);
  GiveUpOpening(session);
  AnswerReady();
}

absl::Time ShardLending::Expire(absl::Time now) {
  absl::Time next = absl::InfiniteFuture();
  for (auto ask = asks_.begin(); ask != asks_.end();) {
    if (now < ask->second.deadline) {
      next = std::min(next, ask->second.deadline);
      ++ask;
      continue;
    }
    Answer(ask->second);
    ask = asks_.erase(ask);
  }
  return next;
}

}  // namespace forestage
