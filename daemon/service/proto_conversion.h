// Between the messages of the gRPC API and the types of the session core.
#pragma once

#include "absl/time/time.h"

#include "daemon/memory/memory_ledger.h"
#include "daemon/session/session_registry.h"
#include "daemon/session/session_terms.h"
#include "daemon/staging/staged_checkpoint.h"
#include "forestage/v1/session.pb.h"
#include "forestage/v1/status.pb.h"

namespace forestage {

// Values of enums that we do not know are as if unspecified: auto and eager. Checks nothing.
SessionTerms FromProto(const v1::OpenRequest& request);

v1::Policy ToProto(SessionPolicy policy);
v1::Agreement ToProto(SessionAgreement agreement);
v1::Decision ToProto(const SessionDecision& decision);
v1::Progress ToProto(const StagingProgress& progress);
v1::CheckpointReady ToProto(const CheckpointSummary& summary);
v1::MemoryStatus ToProto(const MemoryStanding& standing);
v1::SessionStatus ToProto(const SessionSnapshot& snapshot);
// `flights`: of all mounts.
v1::MountStatus ToProto(const MountTable::Seen& seen, absl::Span<const MountFlight> flights);

}  // namespace forestage
