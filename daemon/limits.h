// Bounds of the daemon that are not settings. One block a part.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

#include "common/units.h"

namespace forestage {

// Staging.

// Mounts whose probes are kept and listed, and for how long what was read of one holds without
// another look.
inline constexpr size_t kMountsKept = 256;
inline constexpr absl::Duration kMountFactsKept = absl::Seconds(10);
// Bytes in flight on one mount: what it begins with, and the least that it is tried with, where the
// setting in-flight-max allows so much.
inline constexpr uint64_t kMountFlightBytesStart = 32 * kMiB;
inline constexpr uint64_t kMountFlightBytesMin = 16 * kMiB;
// Of a checkpoint that reading does not begin with for the node's sake, what comes first all the
// same: as much as a mount has in flight at first, so that no rank's first tensor waits longer.
inline constexpr uint64_t kReadFirstBytes = kMountFlightBytesStart;
// A read that takes longer is reported, and does not count against the node's budget any more.
inline constexpr absl::Duration kStuckReadTime = absl::Seconds(10);
// So many of them are named to those who ask how far staging is.
inline constexpr size_t kStuckReadsShown = 8;
// Requests that one reader takes at a time.
inline constexpr size_t kReaderRequestsMax = 64;
// Pieces that one io_uring reader has at the kernel, and kernel worker threads that serve them: a
// piece that waits for its device may hold one.
inline constexpr size_t kUringPiecesMax = 128;
// How long nothing is read ahead of a checkpoint on storage that a process of this node serves,
// since ranks of a group open their sessions; and for how many times as long, after that, no other
// such moment begins.
inline constexpr absl::Duration kReadAheadHoldMax = absl::Milliseconds(200);
inline constexpr int kReadAheadHoldRest = 4;
// Threads of one thread-pool reader.
inline constexpr size_t kReaderThreads = 8;
// Buffer for bytes that are read only so that they are in the page cache. An io_uring reader has
// one, a thread-pool reader one a thread.
inline constexpr size_t kScratchBytes = 256 * kKiB;
// Rounds of "look for holes, read them" before the pages are populated through the mapping.
inline constexpr int kFillRoundsMax = 3;
// Parts of one extent that one demand keeps apart; beyond it the smallest gaps are read too.
inline constexpr size_t kPartsPerExtentMax = 64;
// Shards opened and headers read at a time for one checkpoint.
inline constexpr size_t kHeaderReadersMax = 8;
// Text of headers of all checkpoints that are held, in bytes: at most, and as a part of the memory
// that was available at the start. What is made of it takes some times as much. Of it, what one
// user may have.
inline constexpr uint64_t kHeldHeaderBytesMax = 512 * kMiB;
inline constexpr uint64_t kHeldHeaderBytesMin = 4 * kMiB;
inline constexpr uint64_t kHeldHeaderMemoryPart = 16;
inline constexpr double kHeldHeaderShareOfUser = 0.75;
// An extent counts as so much of it, for its place on the board and in the queue: a sparse file has
// millions.
inline constexpr uint64_t kHeldBytesPerExtent = 4;
// Errors of reads kept, and logged, for one checkpoint.
inline constexpr size_t kReadErrorsKept = 32;
// How long the end of a checkpoint waits for lanes whose device does not answer before it leaves
// them behind.
inline constexpr absl::Duration kLaneStopTimeout = absl::Seconds(2);

// Sessions, groups and the two sockets.

// Open files that the daemon asks for at its start, as far as its hard limit allows: the shards of
// some large checkpoints, and what sessions need beside them.
inline constexpr uint64_t kDescriptorsWanted = 64 * 1024;
// Longest group name and launch nonce, in bytes.
inline constexpr size_t kGroupNameBytesMax = 256;
// Longest path label, in bytes (PATH_MAX).
inline constexpr size_t kPathLabelBytesMax = 4096;
// Longest text by which a client describes itself, in bytes.
inline constexpr size_t kClientTextBytesMax = 1024;
// Most local ranks of a group.
inline constexpr uint32_t kLocalSizeMax = 256;
// Most shards of a checkpoint.
inline constexpr size_t kShardsPerSessionMax = 16 * 1024;
// Longest shard name, in bytes (NAME_MAX).
inline constexpr size_t kShardNameBytesMax = 255;
// How long a strict group that has ended, since a rank of it could not take part, is remembered for
// its other ranks, which may open later; how many such, and how long the reason may be, in bytes.
inline constexpr absl::Duration kRankFailureKept = absl::Seconds(10);
inline constexpr size_t kRankFailuresMax = 64;
inline constexpr size_t kRankFailureBytesMax = 1024;
// Longest time that a group may take to become complete under strict agreement.
inline constexpr absl::Duration kAgreementTimeoutMax = absl::Hours(1);
// Most items of one message of a demand, and of all demands of one session together.
inline constexpr size_t kDemandItemsPerMessageMax = 100'000;
inline constexpr size_t kDemandItemsPerSessionMax = 4'000'000;
// Most extents of one urgent message; a client waits for few at a time.
inline constexpr size_t kUrgentExtentsPerMessageMax = 65'536;
// Largest gRPC message that is taken, in bytes: an open request with kShardsPerSessionMax shards
// and a demand of kDemandItemsPerMessageMax items both fit. A client that sends half of such a
// message holds as much memory of the daemon.
inline constexpr int kGrpcReceiveBytesMax = 6 * 1024 * 1024;
// How often a session is told of progress while staging is not complete.
inline constexpr absl::Duration kProgressPeriod = absl::Milliseconds(500);
// Threads that open shards and read headers for sessions, and that take down checkpoints nobody
// holds any more. Both block on storage; they are started as they are needed. Ranks of a group wait
// in such a thread while the first of them reads the headers, so a large group needs many.
inline constexpr size_t kPreparationThreadsMax = 64;
inline constexpr size_t kReleaseThreadsMax = 8;
// Of these, how many may work for one user at a time: his storage may never answer.
inline constexpr size_t kPreparationThreadsPerUserMax = 40;
inline constexpr size_t kReleaseThreadsPerUserMax = 5;
// And of these, how many on one file system: what else he loads shall go on.
inline constexpr size_t kPreparationThreadsPerStorageMax = 12;
inline constexpr size_t kReleaseThreadsPerStorageMax = 2;
// Part of the daemon's descriptors (RLIMIT_NOFILE) that shards of one user may take.
inline constexpr double kDescriptorShareOfUser = 0.75;
// Connections of the descriptor socket that may wait for one session to be ready; a client has one.
inline constexpr size_t kWaitersPerSessionMax = 4;
// How long a rank that asks for a lent descriptor is kept waiting for whoever is opening the file.
inline constexpr absl::Duration kLendTimeout = absl::Seconds(4);
// Lent descriptors that one user's processes may leave unread in their sockets. The kernel counts
// those as the daemon's own, and sends no more beyond its RLIMIT_NOFILE.
inline constexpr size_t kLoansUnreadPerUserMax = 4096;
// Open connections on each of the two sockets for ranks, and on the administrators' socket.
inline constexpr size_t kConnectionsMax = 1024;
inline constexpr size_t kAdminConnectionsMax = 64;
// Of the former, how many one user may have.
inline constexpr size_t kConnectionsPerUserMax = 768;
// gRPC calls at one time on one connection, and of one user on all of his connections: a rank has
// one, but an open may be on its way.
inline constexpr int kStreamsPerConnectionMax = 64;
inline constexpr size_t kStreamsPerUserMax = 512;
// A gRPC connection without a call for so long is closed, half-made ones too.
inline constexpr absl::Duration kGrpcIdleTimeout = absl::Seconds(60);
// How long a stream may take from its begin to its whole `open`, and from its end to the moment its
// client has read it; then it is cut off.
inline constexpr absl::Duration kStreamOpenTimeout = absl::Seconds(30);
inline constexpr absl::Duration kStreamEndTimeout = absl::Seconds(5);
// How often closed connections and overdue streams are looked for.
inline constexpr absl::Duration kPeerSweepPeriod = absl::Seconds(1);
// A connection of the descriptor socket that says nothing for so long is closed.
inline constexpr absl::Duration kDescriptorIdleTimeout = absl::Seconds(60);
// Page size of ListTensors.
inline constexpr uint32_t kListTensorsPageSizeMax = 10'000;
// Names in one page of ListTensors, in bytes; a page that would have more is shorter. Clients take
// messages of 4 MiB by default.
inline constexpr size_t kListTensorsNameBytesMax = 1024 * 1024;
// A line about refused connections is logged at most once in this time.
inline constexpr absl::Duration kRefusalLogPeriod = absl::Seconds(5);
// How long a drain may take from the first SIGTERM to the end of the process.
inline constexpr absl::Duration kDrainTimeout = absl::Seconds(8);

}  // namespace forestage
