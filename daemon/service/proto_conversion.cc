#include "daemon/service/proto_conversion.h"

#include <string>

#include "absl/strings/escaping.h"

#include "common/mount_probe.h"
#include "common/mount_weakness.h"
#include "common/utf8_text.h"

namespace forestage {

SessionTerms FromProto(const v1::OpenRequest& request) {
  SessionTerms terms;
  terms.group_name = request.group().name();
  terms.launch_nonce = request.group().launch_nonce();
  terms.local_size = request.group().local_size();
  terms.local_rank = request.local_rank();
  if (request.policy() == v1::POLICY_NATIVE) {
    terms.policy = SessionPolicy::kNative;
  } else if (request.policy() == v1::POLICY_RANK_STRIPED_READ_AHEAD) {
    terms.policy = SessionPolicy::kRankStripedReadAhead;
  }
  if (request.agreement() == v1::AGREEMENT_STRICT) terms.agreement = SessionAgreement::kStrict;
  terms.agreement_timeout = absl::Milliseconds(request.agreement_timeout_ms());
  terms.client_version = request.client().version();
  terms.client_command = request.client().command();
  terms.device_uuid = request.client().device_uuid();
  terms.cpu_list = request.client().cpu_list();
  terms.path = request.path();
  terms.shards.reserve(static_cast<size_t>(request.shards_size()));
  for (const v1::Shard& shard : request.shards()) {
    terms.shards.push_back(
        {.name = shard.name(), .size_bytes = shard.size_bytes(), .mtime_ns = shard.mtime_ns()});
  }
  terms.demand_follows = request.demand_follows();
  return terms;
}

v1::Policy ToProto(SessionPolicy policy) {
  switch (policy) {
    case SessionPolicy::kAuto:
      return v1::POLICY_AUTO;
    case SessionPolicy::kNative:
      return v1::POLICY_NATIVE;
    case SessionPolicy::kRankStripedReadAhead:
      return v1::POLICY_RANK_STRIPED_READ_AHEAD;
  }
  return v1::POLICY_UNSPECIFIED;
}

v1::Agreement ToProto(SessionAgreement agreement) {
  return agreement == SessionAgreement::kStrict ? v1::AGREEMENT_STRICT : v1::AGREEMENT_EAGER;
}

v1::Decision ToProto(const SessionDecision& decision) {
  v1::Decision message;
  message.set_requested(ToProto(decision.requested));
  message.set_effective(ToProto(decision.effective));
  message.set_activated(decision.activated);
  // Reasons name files.
  message.set_reason(Utf8Text(decision.reason));
  return message;
}

v1::Progress ToProto(const StagingProgress& progress) {
  v1::Progress message;
  message.set_wanted_bytes(progress.wanted_bytes);
  message.set_resident_bytes(progress.resident_bytes);
  message.set_failed_bytes(progress.failed_bytes);
  message.set_read_bytes(progress.read_bytes);
  message.set_staging_seconds(progress.staging_seconds);
  message.set_complete(progress.complete);
  message.set_bytes_per_second(progress.bytes_per_second);
  if (progress.time_left.has_value()) {
    message.set_seconds_left(absl::ToDoubleSeconds(*progress.time_left));
  }
  for (const UnansweredRead& read : progress.stuck_reads) {
    v1::StuckRead& stuck = *message.add_stuck_reads();
    stuck.set_file(Utf8Text(read.file));
    stuck.set_offset(read.offset);
    stuck.set_bytes(read.bytes);
    stuck.set_seconds(absl::ToDoubleSeconds(read.age));
  }
  return message;
}

v1::CheckpointReady ToProto(const CheckpointSummary& summary) {
  v1::CheckpointReady message;
  message.set_signature(std::string(summary.signature.begin(), summary.signature.end()));
  message.set_extent_bytes(summary.extent_bytes);
  message.set_extent_count(summary.extent_count);
  message.set_tensor_count(summary.tensor_count);
  return message;
}

v1::MemoryStatus ToProto(const MemoryStanding& standing) {
  v1::MemoryStatus message;
  message.set_leased_bytes(standing.leased_bytes);
  if (standing.available_bytes.has_value()) message.set_available_bytes(*standing.available_bytes);
  message.set_bound(standing.bound);
  for (const std::string& unknown : standing.unknown) message.add_unknown(unknown);
  return message;
}

v1::SessionStatus ToProto(const SessionSnapshot& snapshot) {
  v1::SessionStatus message;
  message.mutable_group()->set_name(snapshot.group_name);
  message.mutable_group()->set_launch_nonce(snapshot.launch_nonce);
  message.mutable_group()->set_local_size(snapshot.local_size);
  message.set_local_rank(snapshot.local_rank);
  message.set_pid(static_cast<uint32_t>(snapshot.peer.pid));
  message.set_uid(snapshot.peer.uid);
  message.set_agreement(ToProto(snapshot.agreement));
  if (snapshot.decision.has_value()) *message.mutable_decision() = ToProto(*snapshot.decision);
  message.set_age_seconds(absl::ToDoubleSeconds(snapshot.age));
  message.set_consumed_bytes(snapshot.consumed_bytes);
  message.set_major_faults(snapshot.major_faults);
  return message;
}

v1::MountStatus ToProto(const MountTable::Seen& seen, absl::Span<const MountFlight> flights) {
  const MountProbe& probe = seen.probe;
  v1::MountStatus message;
  message.set_device(DeviceText(probe.mount.device));
  message.set_type(probe.mount.type);
  message.set_mount_point(Utf8Text(absl::Utf8SafeCEscape(probe.mount.mount_point)));
  message.set_way(std::string(ReadingWayName(probe.way())));
  message.set_advice_bytes(probe.mount.advice_bytes_max);
  message.set_files_opened(seen.files_opened);
  message.set_files_residency_unknown(seen.files_residency_unknown);
  for (const NamedVerdict& named : VerdictsOf(probe)) {
    v1::MountVerdict& verdict = *message.add_verdicts();
    verdict.set_name(std::string(named.name));
    verdict.set_answer(std::string(AnswerName(named.verdict.answer)));
    verdict.set_reason(Utf8Text(named.verdict.reason));
  }
  for (const Weakness& weakness : WeaknessesOf(probe)) message.add_weaknesses(weakness.id);
  for (const MountFlight& flight : flights) {
    if (flight.device != probe.mount.device) continue;
    message.set_in_flight_bytes(flight.in_flight_bytes);
    message.set_in_flight_limit_bytes(flight.limit_bytes);
    message.set_stuck_bytes(flight.stuck_bytes);
    message.set_read_bytes_per_second_max(flight.bytes_per_second_max);
    message.set_held_back(flight.held_back);
  }
  return message;
}

}  // namespace forestage
