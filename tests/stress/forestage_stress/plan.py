"""What happens in one round: drawn from a seed, before anything is started."""

import dataclasses
import random

# How long a rank may wait for others, and for a daemon's answer: short, so that rounds are.
OPEN_TIMEOUT_SECONDS = 6.0
AGREEMENT_TIMEOUT_SECONDS = 1.5
# What a client documents beside these: daemon_wait, its grace for a strict group, the heartbeat.
DAEMON_WAIT_SECONDS = 1.0
AGREEMENT_GRACE_SECONDS = 2.0
HEARTBEAT_SECONDS = 5.0

# About how long ranks take to start and to open.
OPENING_SECONDS = 0.15

CHECKPOINTS = ("large", "small")

# Kinds of events and how often one is drawn.
KINDS = {
    "kill rank": 6,
    "stop rank": 4,
    "kill rank that forked": 3,
    "kill group": 3,
    "stop group": 2,
    "kill daemon": 5,
    "stop daemon": 3,
    "drain daemon": 2,
    "storage hangs": 2,
    "storage fails": 3,
}
# Of daemons that are stopped, how many stand still for longer than clients wait for a heartbeat,
# and of storage that hangs, how much for longer than an open may take.
LONG = 0.1


@dataclasses.dataclass(frozen=True)
class RankPlan:
    group: int
    number: int
    starts_at: float
    flags: tuple
    # None: all of its checkpoint.
    demand: tuple = None
    # Stays in its group for so long after it has loaded everything.
    holds_seconds: float = 0.0
    # Closes its session before it takes this tensor. None: it takes all.
    closes_before: int = None


@dataclasses.dataclass(frozen=True)
class GroupPlan:
    checkpoint: str
    strict: bool
    ranks: tuple


@dataclasses.dataclass(frozen=True)
class Event:
    at: float
    kind: str
    group: int = 0
    rank: int = 0
    # For how long something is stopped or hangs.
    seconds: float = 0.0
    # A killed rank, or daemon, comes again after so long; None: it does not.
    again_after: float = None
    checkpoint: str = ""
    # Of storage that fails.
    error: str = ""
    count: int = 0
    daemon_only: bool = True

    def __str__(self):
        words = [f"{self.at:6.3f} {self.kind}"]
        if "rank" in self.kind:
            words.append(f"{self.rank} of group {self.group}")
        if "group" in self.kind:
            words.append(str(self.group))
        if self.checkpoint:
            words.append(f"of {self.checkpoint}")
        if self.seconds:
            words.append(f"for {self.seconds:.3f} s")
        if self.error:
            who = "the daemon" if self.daemon_only else "everybody"
            words.append(f"with {self.error}, {self.count} reads of {who}")
        if self.again_after is not None:
            words.append(f"again after {self.again_after:.3f} s")
        return " ".join(words)


@dataclasses.dataclass(frozen=True)
class RoundPlan:
    number: int
    # About how long an undisturbed load takes.
    load_seconds: float
    latency_ms: float
    keep_cache: bool
    # How daemons read that are started in this round.
    reader: str
    groups: tuple
    events: tuple

    def injected_seconds(self):
        """For how long things are held up on purpose, at most."""
        return sum(event.seconds for event in self.events)

    def documented_open_seconds(self, strict):
        """The most that an open of a rank may take by what the client's headers say."""
        agreement = AGREEMENT_TIMEOUT_SECONDS + AGREEMENT_GRACE_SECONDS if strict else 0.0
        return DAEMON_WAIT_SECONDS + OPEN_TIMEOUT_SECONDS + agreement + self.injected_seconds()

    def documented_seconds(self, strict):
        """The same of a whole load."""
        return self.documented_open_seconds(strict) + HEARTBEAT_SECONDS + self.load_seconds

    def __str__(self):
        lines = [
            f"round {self.number}: a load takes about {self.load_seconds:.2f} s; "
            f"latency {self.latency_ms:g} ms, "
            f"keep_cache {'on' if self.keep_cache else 'off'}, reader {self.reader}"
        ]
        for number, group in enumerate(self.groups):
            agreement = "strict" if group.strict else "eager"
            lines.append(f"group {number}: {group.checkpoint}, {agreement}")
            for rank in group.ranks:
                demand = "" if rank.demand is None else f", {len(rank.demand)} tensors"
                lines.append(
                    f"  rank {rank.number} from {rank.starts_at:.3f} s{demand}, "
                    f"holds {rank.holds_seconds:.2f} s, "
                    + ("" if rank.closes_before is None else f"closes at {rank.closes_before}, ")
                    + " ".join(rank.flags)
                )
        lines += [f"  {event}" for event in self.events]
        return "\n".join(lines)


def draw_rank(rng, group, number, strict, tensors, load_seconds):
    flags = ["--open-timeout", f"{OPEN_TIMEOUT_SECONDS:g}"]
    if strict:
        flags += ["--strict", "--agreement-timeout", f"{AGREEMENT_TIMEOUT_SECONDS:g}"]
    if rng.random() < 0.3:
        flags.append("--copy")
    if rng.random() < 0.07:
        flags += ["--policy", "native"]
    demand = None
    if rng.random() < 0.4:
        count = rng.randint(1, len(tensors))
        demand = tuple(rng.sample(tensors, count))
    late = rng.random() < 0.3
    taken = len(tensors if demand is None else demand)
    return RankPlan(
        group=group,
        number=number,
        starts_at=rng.uniform(0, load_seconds) if late else rng.uniform(0, 0.02),
        flags=tuple(flags),
        demand=demand,
        holds_seconds=rng.uniform(0, 0.4) if rng.random() < 0.3 else 0.0,
        closes_before=rng.randrange(taken) if rng.random() < 0.1 else None,
    )


def draw_event(rng, groups, load_seconds):
    kind = rng.choices(list(KINDS), weights=list(KINDS.values()))[0]
    group = rng.randrange(len(groups))
    # Many while ranks start and open, a few when all is loaded.
    until = OPENING_SECONDS if rng.random() < 0.35 else 1.1 * load_seconds
    event = {"at": rng.uniform(0, until), "kind": kind, "group": group}
    event["rank"] = rng.randrange(len(groups[group].ranks))
    comes_again = rng.uniform(0, 0.3) if rng.random() < 0.6 else None
    if kind in ("kill rank", "kill group", "kill rank that forked"):
        event["again_after"] = comes_again
    elif kind in ("stop rank", "stop group"):
        event["seconds"] = rng.uniform(0.05, 1.0)
    elif kind in ("kill daemon", "drain daemon"):
        event["again_after"] = 0.0 if rng.random() < 0.7 else rng.uniform(0, 0.8)
    elif kind == "stop daemon":
        longer = rng.random() < LONG
        event["seconds"] = HEARTBEAT_SECONDS + 1.5 if longer else rng.uniform(0.05, 1.2)
    else:
        event["checkpoint"] = rng.choice(CHECKPOINTS)
        if kind == "storage hangs":
            longer = rng.random() < LONG
            event["seconds"] = OPEN_TIMEOUT_SECONDS + 1 if longer else rng.uniform(0.05, 1.0)
        else:
            event["error"] = rng.choice(["eio", "estale", "enomem", "eagain", "eintr"])
            event["count"] = rng.randint(1, 30)
            event["daemon_only"] = rng.random() < 0.7
    return Event(**event)


def draw_round(seed, number, tensors):
    """`tensors`: the names in each checkpoint. The same arguments always give the same round."""
    rng = random.Random(f"{seed}/{number}")
    load_seconds = rng.uniform(0.3, 1.0)
    groups = []
    for group in range(rng.choices([1, 2, 3], weights=[5, 4, 1])[0]):
        checkpoint = rng.choice(CHECKPOINTS)
        strict = rng.random() < 0.35
        ranks = tuple(
            draw_rank(rng, group, rank, strict, tensors[checkpoint], load_seconds)
            for rank in range(rng.randint(1, 4))
        )
        groups.append(GroupPlan(checkpoint=checkpoint, strict=strict, ranks=ranks))
    events = [draw_event(rng, groups, load_seconds) for _ in range(rng.randint(1, 4))]
    return RoundPlan(
        number=number,
        load_seconds=load_seconds,
        latency_ms=round(rng.uniform(0.5, 8), 1),
        keep_cache=rng.random() < 0.7,
        reader="threads" if rng.random() < 0.3 else "auto",
        groups=tuple(groups),
        events=tuple(sorted(events, key=lambda event: event.at)),
    )
