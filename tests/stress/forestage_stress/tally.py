"""Counts of a run, and the table that a person reads at its end."""

import collections
import dataclasses
import statistics


@dataclasses.dataclass
class Tally:
    rounds: int = 0
    seconds: float = 0.0
    events: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    # Of events that found nothing to act on: a rank that had ended, a daemon that was down.
    missed: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    # "staged", "native", "staged, then native", "killed", "told of the error".
    outcomes: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    processes_killed: int = 0
    bytes_compared: int = 0
    # (seconds, part of what is documented, what it was).
    longest_wait: tuple = (0.0, 0.0, "")
    # The same of opens alone.
    longest_open: tuple = (0.0, 0.0, "")
    # From the old daemon's exit to the decision of the next session, where it is restarted at once.
    restarts: list = dataclasses.field(default_factory=list)
    peaks: dict = dataclasses.field(default_factory=dict)

    def note_wait(self, seconds, documented, what):
        self.longest_wait = max(self.longest_wait, (seconds, seconds / documented, what))

    def note_open(self, seconds, documented, what):
        self.longest_open = max(self.longest_open, (seconds, seconds / documented, what))

    def note_peak(self, name, value):
        self.peaks[name] = max(self.peaks.get(name, 0), value)

    def progress(self, rounds_wanted):
        loads = self.outcomes
        of = f"/{rounds_wanted}" if rounds_wanted else ""
        return (
            f"round {self.rounds}{of}, {self.seconds:.0f} s: {self.processes_killed} kills, loads: "
            + ", ".join(f"{loads[name]} {name}" for name in sorted(loads))
        )

    def table(self):
        rows = [("rounds", str(self.rounds)), ("time", f"{self.seconds:.0f} s"), ("", "")]
        rows += [
            (kind, f"{count} ({self.missed[kind]} too late)" if self.missed[kind] else str(count))
            for kind, count in sorted(self.events.items())
        ]
        rows += [("processes killed", str(self.processes_killed)), ("", "")]
        rows += [(f"loads {name}", str(count)) for name, count in sorted(self.outcomes.items())]
        rows.append(("bytes compared", f"{self.bytes_compared / (1 << 30):.2f} GiB, all right"))
        for name, (seconds, part, what) in (
            ("longest open", self.longest_open),
            ("longest load", self.longest_wait),
        ):
            rows.append((name, f"{seconds:.2f} s, {part:.0%} of what is documented ({what})"))
        if self.restarts:
            rows.append(
                (
                    "restarted daemon serves after",
                    f"median {statistics.median(self.restarts):.2f} s, "
                    f"most {max(self.restarts):.2f} s, {len(self.restarts)} times",
                )
            )
        rows.append(("", ""))
        # More than after the daemon's first session, at most.
        left = {name: str(value) for name, value in self.peaks.items()}
        if "anonymous" in left:
            left["anonymous"] = f"{self.peaks['anonymous'] / (1 << 20):.1f} MiB"
        rows += [(f"idle daemon, more {name}", value) for name, value in sorted(left.items())]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}".rstrip() for name, value in rows)
