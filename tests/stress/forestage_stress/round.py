"""One round: starts its ranks, lets its events happen, waits for the end, compares every byte."""

import heapq
import itertools
import json
import os
import select
import signal
import time

from forestage_testing.processes import GUARD_SECONDS, process_handle
from forestage_testing.rank import Rank

from forestage_stress.plan import DAEMON_WAIT_SECONDS, OPEN_TIMEOUT_SECONDS

STAGED = "rank_striped_read_ahead"
# A machine that does much else is slower than any document says; only a hang takes so much longer.
HANG_FACTOR = 4
HANG_SECONDS = 20
# Errors of storage that a rank met in its own reads, which it says with file and offset.
STORAGE_ERROR_CODES = {"UNAVAILABLE", "RESOURCE_EXHAUSTED"}


class Load:
    """One rank process from its start to its end."""

    def __init__(self, world, plan, group, name, round_number):
        self.plan = plan
        self.group = group
        self.name = name
        slowfs = world.slowfs[group.checkpoint]
        self.source = slowfs.source
        flags = list(plan.flags)
        for tensor in plan.demand or ():
            flags += ["--demand", tensor]
        if plan.holds_seconds:
            flags.append("--hold")
        if plan.closes_before is not None:
            flags += ["--pause-after", plan.closes_before, "--close"]
        flags.append("--forks")
        self._start(
            Rank(
                world.build_dir,
                slowfs.mount,
                socket=world.daemon.socket,
                rank=plan.number,
                size=len(group.ranks),
                group=f"r{round_number}g{plan.group}",
                flags=flags,
            )
        )

    def _start(self, rank):
        self.rank = rank
        self.handle = process_handle(rank.pid)
        self.begun = time.monotonic()
        self.opened_at = None
        self.stopped_seconds = 0.0
        self.stops = 0
        self.killed = False
        self.ended_at = None
        self.first_decision = None
        self.last_event = {}
        self.events = []
        self._unread = b""
        self.children = []

    @property
    def running(self):
        return self.ended_at is None

    def signal(self, number):
        signal.pidfd_send_signal(self.handle, number)

    def read(self):
        """What has come on its output: new events, and whether it is at its end."""
        data = os.read(self.rank.process.stdout.fileno(), 1 << 16)
        self._unread += data
        *lines, self._unread = self._unread.split(b"\n")
        new = [json.loads(line) for line in lines]
        for event in new:
            kind = event["event"]
            if kind == "opened":
                self.opened_at = time.monotonic()
                self.first_decision = event["decision"]
            elif kind == "forked":
                self.children.append(process_handle(event["child"]))
            if kind != "forked":
                self.last_event = event
            self.events.append({**event, "digests": "..."} if "digests" in event else event)
        return new, not data

    def finish(self):
        self.rank.process.wait(GUARD_SECONDS)
        self.ended_at = time.monotonic()
        os.close(self.handle)

    def end_children(self):
        for child in self.children:
            try:
                signal.pidfd_send_signal(child, signal.SIGKILL)
            except ProcessLookupError:
                pass
            select.select([child], [], [], GUARD_SECONDS)
            os.close(child)
        self.children = []
        self.rank.abandon()


class Probe(Load):
    """The first session of a daemon that was started again."""

    def __init__(self, world, name, since, at_once):
        self.name = name
        self.plan = None
        self.source = world.probe
        # When the old daemon had gone, and whether this one was started at that moment.
        self.since = since
        self.at_once = at_once
        self._start(world.start_probe(name))


class Round:
    def __init__(self, world, plan):
        self.world = world
        self.plan = plan
        self.tally = world.tally
        self.timeline = []
        self.loads = []
        self._agenda = []
        self._order = itertools.count()
        self._begun = time.monotonic()
        self._daemon_handle = None
        # From the signal that ends it until the next one is started; then how, and after how long.
        self._daemon_expected_to_end = False
        self._daemon_code = 0
        self._daemon_restarts_after = 0.0
        self._daemon_has_served = True
        self._probes = 0
        self._storage_failed_for_all = set()

    def run(self):
        """Raises AssertionError for whatever is wrong."""
        self.world.set_storage(self.plan)
        self._begun = time.monotonic()
        self._watch_daemon()
        for group in self.plan.groups:
            for rank in group.ranks:
                self._at(rank.starts_at, lambda rank=rank, group=group: self._start(rank, group))
        for event in self.plan.events:
            self._at(event.at, lambda event=event: self._happen(event))
        try:
            while self._goes_on():
                self._step()
            self.world.calm_storage()
            self.world.measure_baseline()
            # While children of killed ranks live on and hold what they inherited.
            self.world.check_idle()
        finally:
            self._clear()

    def _goes_on(self):
        return (
            self._agenda
            or self._daemon_expected_to_end
            or any(load.running for load in self.loads)
        )

    def describe(self):
        lines = [str(self.plan), "", "what happened:", *self.timeline, "", "what ranks said:"]
        for load in self.loads:
            lines.append(f"{load.name} (pid {load.rank.pid}):")
            lines += [f"  {json.dumps(event)[:600]}" for event in load.events]
        return "\n".join(lines)

    # What happens when.

    def _now(self):
        return time.monotonic() - self._begun

    def _say(self, text):
        self.timeline.append(f"{self._now():8.3f} {text}")

    def _at(self, seconds, action):
        heapq.heappush(self._agenda, (seconds, next(self._order), action))

    def _after(self, seconds, action):
        self._at(self._now() + seconds, action)

    def _step(self):
        outputs = {load.rank.process.stdout.fileno(): load for load in self.loads if load.running}
        watched = list(outputs) + ([self._daemon_handle] if self._daemon_handle else [])
        wait = 0.25 if not self._agenda else min(0.25, max(0, self._agenda[0][0] - self._now()))
        ready, _, _ = select.select(watched, [], [], wait)
        for descriptor in ready:
            if descriptor in outputs:
                self._hear(outputs[descriptor])
            elif descriptor == self._daemon_handle:
                self._daemon_ended()
        while self._agenda and self._agenda[0][0] <= self._now():
            heapq.heappop(self._agenda)[2]()
        for load in self.loads:
            self._check_wait(load)

    def _clear(self):
        if self._daemon_handle is not None:
            os.close(self._daemon_handle)
            self._daemon_handle = None
        self.world.calm_storage()
        for load in self.loads:
            if load.running:
                load.signal(signal.SIGKILL)
                load.finish()
            load.end_children()

    # Ranks.

    def _start(self, rank, group, again=False):
        name = f"rank {rank.number} of group {rank.group}" + (" again" if again else "")
        self._say(f"{name} starts")
        self.loads.append(Load(self.world, rank, group, name, self.plan.number))

    def _hear(self, load):
        events, at_end = load.read()
        for event in events:
            decision = event.get("decision", {}).get("effective", "")
            self._say(f"{load.name}: {event['event']} {decision} {event.get('message', '')}")
            if event["event"] == "paused":
                self._resume(load)
            elif event["event"] == "holding":
                self._after(load.plan.holds_seconds, lambda: self._resume(load))
        if at_end:
            load.finish()
            self._say(f"{load.name}: ended {load.rank.process.returncode}")
            self._judge(load)

    @staticmethod
    def _resume(load):
        try:
            load.rank.resume()
        except BrokenPipeError:
            pass

    def _judge(self, load):
        if load.killed:
            self.tally.outcomes["killed"] += 1
            return
        last = load.last_event
        code = load.rank.process.returncode
        if last.get("event") == "error" and load.plan is not None:
            checkpoint = load.group.checkpoint
            assert (
                checkpoint in self._storage_failed_for_all and last["code"] in STORAGE_ERROR_CODES
            ), f"{load.name} failed: {last}"
            assert ".safetensors" in last["message"], f"{load.name}: no file is named: {last}"
            self.tally.outcomes["told of storage's error"] += 1
            return
        if last.get("event") == "closed" and code == 0:
            self._note_wait(load)
            self.tally.outcomes["closed early"] += 1
            return
        assert last.get("event") == "done" and code == 0, f"{load.name} ended with {code}: {last}"
        self._compare(load, last["digests"])
        before = load.first_decision["effective"]
        after = last["decision"]["effective"]
        assert after == before or after == "native", f"{load.name}: {before}, then {after}"
        assert last["decision"]["reason"] or after == STAGED, f"{load.name}: native, no reason"
        if load.plan is None:
            self._probe_ended(load, before)
            return
        self._note_wait(load)
        if before == after:
            self.tally.outcomes["staged" if after == STAGED else "native"] += 1
        else:
            self.tally.outcomes["staged, then native"] += 1

    def _compare(self, load, got):
        expected = self.world.digests[load.source]
        if load.plan is not None and load.plan.demand is not None:
            expected = {name: expected[name] for name in load.plan.demand}
        assert got.keys() == expected.keys(), f"{load.name}: other tensors than it demanded"
        wrong = [name for name in expected if got[name] != expected[name]]
        assert not wrong, f"{load.name}: WRONG BYTES of {wrong}"
        sizes = self.world.tensor_bytes[load.source]
        self.tally.bytes_compared += sum(sizes[name] for name in expected)

    def _documented(self, load):
        if load.plan is None:
            return DAEMON_WAIT_SECONDS + OPEN_TIMEOUT_SECONDS
        return self.plan.documented_seconds(load.group.strict) + load.plan.holds_seconds

    def _note_wait(self, load):
        what = f"{load.name} in round {self.plan.number}"
        seconds = load.ended_at - load.begun - load.stopped_seconds
        self.tally.note_wait(seconds, self._documented(load), what)
        documented = self.plan.documented_open_seconds(load.group.strict)
        opened = max(0, load.opened_at - load.begun - load.stopped_seconds)
        self.tally.note_open(opened, documented, what)

    def _check_wait(self, load):
        if not load.running:
            return
        most = HANG_FACTOR * self._documented(load) + HANG_SECONDS
        seconds = time.monotonic() - load.begun - load.stopped_seconds
        assert seconds <= most, f"{load.name} hangs: {seconds:.1f} s, and {most:.1f} s are patience"

    # Events.

    def _happen(self, event):
        found = {
            "kill rank": self._kill_ranks,
            "kill group": self._kill_ranks,
            "kill rank that forked": self._kill_rank_that_forked,
            "stop rank": self._stop_ranks,
            "stop group": self._stop_ranks,
            "kill daemon": self._end_daemon,
            "drain daemon": self._end_daemon,
            "stop daemon": self._stop_daemon,
            "storage hangs": self._hang,
            "storage fails": self._fail,
        }[event.kind](event)
        self.tally.events[event.kind] += 1
        self.tally.missed[event.kind] += not found
        self._say(f"--- {event}" + ("" if found else " (too late)"))

    def _targets(self, event):
        return [
            load
            for load in self.loads
            if load.running
            and not load.killed
            and load.plan is not None
            and load.plan.group == event.group
            and ("group" in event.kind or load.plan.number == event.rank)
        ]

    def _kill(self, load, event):
        load.killed = True
        self.tally.processes_killed += 1
        if load.running:
            load.signal(signal.SIGKILL)
        if event.again_after is not None:
            self._after(event.again_after, lambda: self._start(load.plan, load.group, again=True))

    def _kill_ranks(self, event):
        targets = self._targets(event)
        for load in targets:
            self._kill(load, event)
        return bool(targets)

    def _kill_rank_that_forked(self, event):
        """Its child lives on until the round's end, with every descriptor."""
        targets = self._targets(event)
        for load in targets:
            # It ends a rank that is not yet prepared for it.
            load.killed = True
            load.signal(signal.SIGUSR1)
            self._after(0.03, lambda load=load: self._kill(load, event))
        return bool(targets)

    def _stop_ranks(self, event):
        targets = self._targets(event)
        for load in targets:
            load.signal(signal.SIGSTOP)
            load.stopped_seconds += event.seconds
            self._after(event.seconds, lambda load=load: self._continue(load))
        return bool(targets)

    @staticmethod
    def _continue(load):
        if load.running:
            load.signal(signal.SIGCONT)

    def _hang(self, event):
        slowfs = self.world.slowfs[event.checkpoint]
        slowfs.hold("*")
        self._after(event.seconds, slowfs.release)
        return True

    def _fail(self, event):
        slowfs = self.world.slowfs[event.checkpoint]
        options = {"count": event.count}
        if event.daemon_only:
            options["pid"] = self.world.daemon.pid
        else:
            self._storage_failed_for_all.add(event.checkpoint)
        slowfs.fault("*", 0, "end", event.error, **options)
        return True

    # The daemon.

    def _watch_daemon(self):
        self._daemon_handle = process_handle(self.world.daemon.pid)
        self._daemon_expected_to_end = False

    def _end_daemon(self, event):
        if self._daemon_expected_to_end:
            return False
        self._daemon_expected_to_end = True
        self._daemon_restarts_after = event.again_after
        self._daemon_code = 0 if event.kind == "drain daemon" else -signal.SIGKILL
        if event.kind == "kill daemon":
            self.tally.processes_killed += 1
        number = signal.SIGTERM if event.kind == "drain daemon" else signal.SIGKILL
        signal.pidfd_send_signal(self._daemon_handle, number)
        return True

    def _stop_daemon(self, event):
        if self._daemon_expected_to_end:
            return False
        handle = self._daemon_handle
        signal.pidfd_send_signal(handle, signal.SIGSTOP)
        duplicate = os.dup(handle)
        self._after(event.seconds, lambda: self._continue_daemon(duplicate))
        return True

    @staticmethod
    def _continue_daemon(handle):
        try:
            signal.pidfd_send_signal(handle, signal.SIGCONT)
        except ProcessLookupError:
            pass
        os.close(handle)

    def _daemon_ended(self):
        since = time.monotonic()
        code = self.world.daemon.process.wait(GUARD_SECONDS)
        os.close(self._daemon_handle)
        self._daemon_handle = None
        self._say(f"the daemon ended with {code}")
        assert self._daemon_expected_to_end, f"the daemon ended by itself with {code}"
        # Before its main() a signal has the effect that every program knows.
        expected = [self._daemon_code]
        if self._daemon_code == 0 and not self._daemon_has_served:
            expected.append(-signal.SIGTERM)
        assert code in expected, f"the daemon ended with {code}, not {self._daemon_code}"
        delay = self._daemon_restarts_after
        if delay == 0:
            self._restart_daemon(since, at_once=True)
        else:
            self._after(delay, lambda: self._restart_daemon(since, at_once=False))

    def _restart_daemon(self, since, at_once):
        self.world.start_daemon(self.plan.reader)
        self._watch_daemon()
        self._daemon_has_served = False
        self._say(f"a daemon starts again as {self.world.daemon.pid}")
        self._start_probe(since, at_once)

    def _start_probe(self, since, at_once):
        self._probes += 1
        name = f"r{self.plan.number}probe{self._probes}"
        self.loads.append(Probe(self.world, name, since, at_once))

    def _probe_ended(self, probe, decision):
        """The new daemon must have served it, unless it was ended or stopped meanwhile."""
        if decision == STAGED:
            self._daemon_has_served = True
            if probe.at_once and not self._disturbed_between(probe.since, probe.opened_at):
                self.tally.restarts.append(probe.opened_at - probe.since)
            return
        reason = probe.first_decision["reason"]
        assert time.monotonic() - probe.since < GUARD_SECONDS, f"no daemon serves: {reason}"
        # A machine that is busy starts a daemon late.
        self._say(f"{probe.name}: not served: {reason}")
        if not self._daemon_expected_to_end:
            self._start_probe(probe.since, probe.at_once)

    def _disturbed_between(self, begin, end):
        """Something was done to the new daemon before its first session was served."""
        return any(
            "daemon" in event.kind and begin < event.at + self._begun < end
            for event in self.plan.events
        )
