"""Runs cases in interleaved rounds, so that what drifts on the machine hits all of them alike."""

import subprocess
import time

import free_memory
import page_cache
import programs
import summary

# A reader whose runs take longer is run less often: its figure is not in doubt.
SLOW_RUNS = 3
# After so many rounds a pool has shown which of its cases are its best.
POOL_ROUNDS = 2
POOL_KEPT = 2
# A reader that fails so often is left out of the rounds that follow.
FAILURES_MAX = 2


class Rounds:
    def __init__(self, context, storage, cases):
        self._context = context
        self._storage = storage
        self._cases = cases
        self.records = []

    def run(self, count):
        begun = time.monotonic()
        for number in range(count):
            if number == 1:
                left = (time.monotonic() - begun) * (count - 1)
                self._context.tell(f"about {left / 60:.1f} minutes more for this part")
            if number >= SLOW_RUNS and self._context.is_late():
                self._context.tell(f"time is up: {number} rounds instead of {count}")
                break
            # Nobody is always the one that runs after the slowest, or first.
            shift = number % max(1, len(self._cases))
            for case in self._cases[shift:] + self._cases[:shift]:
                if self._is_left_out(case, number):
                    continue
                self._context.tell(f"round {number + 1} of {count}: {case.part}, {case.storage}, "
                                   f"{case.task}: {case.reader}")
                self.records.append(self._record(case, number))
        return self.records

    def _values(self, case):
        return [record["value"] for record in self.records
                if record["key"] == case.key and record["error"] is None]

    def _is_left_out(self, case, number):
        own = [record for record in self.records if record["key"] == case.key]
        if sum(record["error"] is not None for record in own) >= FAILURES_MAX:
            return True
        seconds = summary.summarise(record["seconds"] for record in own if record["error"] is None)
        if (seconds is not None and seconds.count >= SLOW_RUNS
                and seconds.median > self._context.slow_seconds):
            return True
        if case.pool and number >= POOL_ROUNDS:
            medians = {other.key: summary.summarise(self._values(other)) for other in self._cases
                       if other.pool == case.pool}
            ranked = sorted((key for key, found in medians.items() if found is not None),
                            key=lambda key: -medians[key].median)
            return case.key not in ranked[:POOL_KEPT]
        return False

    def _prepare(self, case):
        if case.state == "cold":
            page_cache.evict(case.paths)
        # Which reader is the first to touch what the host took back shall not matter.
        free_memory.touch(free_memory.OF_CHECKPOINT * page_cache.PAGE_BYTES
                          * page_cache.pages_of(case.paths))
        # Last, since the kernel may page out what is idle while memory is touched.
        if case.state == "warm":
            if page_cache.residency(case.paths) < 1:
                programs.run([self._context.program("test/fill_cache"), "pread", "8", "1024",
                              *case.paths])
            page_cache.prove_warm(case.paths)

    def _record(self, case, number):
        record = {"key": case.key, "part": case.part, "storage": case.storage, "task": case.task,
                  "reader": case.reader, "state": case.state, "unit": case.unit,
                  "note": case.note, "round": number, "value": None, "seconds": None,
                  "device_bytes": None, "extra": {}, "error": None}
        try:
            self._prepare(case)
            before = self._storage.read_bytes()
            begun = time.monotonic()
            measured = case.run()
            record["wall_seconds"] = time.monotonic() - begun
            after = self._storage.read_bytes()
            if case.must_fill:
                page_cache.prove_warm(case.paths, page_cache.FILLED_SHARE_MIN)
            if before is not None and after is not None:
                record["device_bytes"] = after - before
            record.update(value=measured.value, seconds=measured.seconds, extra=measured.extra)
            if case.unit == "x needed":
                record["value"] = record["device_bytes"] / measured.extra["bytes"]
        except (programs.ReaderFailed, page_cache.NotProven, OSError, ValueError, KeyError,
                TypeError, subprocess.SubprocessError) as error:
            record["error"] = f"{type(error).__name__}: {error}"
            self._context.tell(f"  {case.reader}: {record['error']}")
        return record
