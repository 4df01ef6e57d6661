#!/usr/bin/env python3
"""Measures the catalog of a checkpoint of very many tensors, and the daemon's cost of holding it.

Makes a sparse checkpoint (150,000 tensors in 163 shards unless said otherwise), starts a forestaged
of its own and real ranks, and prints one row a figure. See docs/performance.md.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from forestage_testing.large_catalog import (  # noqa: E402
    MixtureOfExperts,
    write_sparse,
)

START_SECONDS_MAX = 30
ANSWER_SECONDS_MAX = 120
RSS_SAMPLE_SECONDS = 0.05
MIB = 1024 * 1024

# Matrices of 32 KiB: names, shards and shapes of a large model, but so few bytes that any machine's
# memory admits the checkpoint.
MODEL = MixtureOfExperts(hidden=256, expert_hidden=128)

# What each figure may be at most.
BUILD_SECONDS_MAX = 0.300
DELIVERY_SECONDS_MAX = 0.100
PREFIX_QUERY_SECONDS_MAX = 2e-6
RSS_ANON_BYTES_MAX = 64 * MIB
RSS_ANON_BYTES_A_TENSOR_MAX = 256
IDLE_CPU_MAX = 0.002


@dataclasses.dataclass
class Options:
    build_dir: pathlib.Path = ROOT / "build" / "dev"
    # Where the checkpoint is made, and left if it was there before.
    directory: pathlib.Path | None = None
    tensors: int = 150_000
    shards: int = 163
    ranks: int = 8
    rounds: int = 7
    queries: int = 1_000_000
    # Everything is demanded for so long, to see the daemon's memory while it stages.
    staging_seconds: float = 2.0
    idle_seconds: float = 10.0


@dataclasses.dataclass
class Row:
    figure: str
    value: float
    unit: str
    most: float
    note: str

    @property
    def reached(self):
        return self.value <= self.most

    def as_dict(self):
        return {**dataclasses.asdict(self), "reached": self.reached}


class Forestaged:
    """A daemon of this run's own, and what the kernel says of it."""

    def __init__(self, build_dir, directory, flags=()):
        self.socket = directory / "d.sock"
        self.log_path = directory / "log"
        self._log = open(self.log_path, "wb")
        self.process = subprocess.Popen(
            [
                str(build_dir / "bin" / "forestaged"),
                "--socket",
                str(self.socket),
                "--metrics-address",
                "none",
                *flags,
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        begun = time.monotonic()
        while not self.socket.exists():
            if self.process.poll() is not None or time.monotonic() > begun + START_SECONDS_MAX:
                raise RuntimeError(f"forestaged does not start:\n{self.log}")
            time.sleep(0.01)

    @property
    def log(self):
        return self.log_path.read_text(errors="replace")

    def build_seconds(self):
        """Of the last catalog that was built."""
        return float(re.findall(r"catalog built .*seconds=([0-9.e+-]+)", self.log)[-1])

    def rss_anon_bytes(self):
        with open(f"/proc/{self.process.pid}/status") as file:
            return int(re.search(r"^RssAnon:\s+(\d+) kB$", file.read(), re.M)[1]) * 1024

    def cpu_seconds(self):
        """Of all threads, those included that have ended."""
        # The clock that clock_getcpuclockid(3) gives: the process' number, inverted, and its kind.
        return time.clock_gettime(~self.process.pid << 3 | 2)

    def end(self):
        self.process.terminate()
        try:
            self.process.wait(START_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()


class Rank:
    """One catalog_rank; opens when told to."""

    def __init__(self, options, socket, group, rank, size, flags=()):
        self.process = subprocess.Popen(
            [
                str(options.build_dir / "test" / "catalog_rank"),
                "--socket",
                str(socket),
                "--group",
                group,
                "--rank",
                str(rank),
                "--size",
                str(size),
                *flags,
                str(options.directory),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._expect("ready")

    def _expect(self, event):
        line = self.process.stdout.readline()
        got = json.loads(line) if line else {"event": "end"}
        if got["event"] != event:
            raise RuntimeError(f"a rank said {got} where {event} was expected")
        return got

    def go(self):
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def opened(self):
        opened = self._expect("opened")
        if opened["effective"] != "rank_striped_read_ahead":
            raise RuntimeError(f"a rank was not served: {opened['reason']}")
        return opened

    def end(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait(ANSWER_SECONDS_MAX)
        self.process.stdout.close()


class Ranks:
    """Ranks that open at once; all of them leave at the end of a `with`."""

    def __init__(self, options, socket, group, size, flags=()):
        self.ranks = []
        for rank in range(size):
            self.ranks.append(Rank(options, socket, group, rank, size, flags))

    def open(self):
        for rank in self.ranks:
            rank.go()
        return [rank.opened() for rank in self.ranks]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for rank in self.ranks:
            rank.end()


def make_checkpoint(options):
    """Whether it was there already."""
    if list(options.directory.glob("*.safetensors")):
        return True
    write_sparse(
        options.directory,
        MODEL.tensors(),
        shard_count=options.shards,
        tensor_count=options.tensors,
    )
    return False


def measure_opens(options, daemon):
    """Medians over the rounds: build, and the slowest rank of each round, together and alone."""
    builds, together, alone, cpu, queries = [], [], [], [], []
    for index in range(options.rounds):
        with Ranks(options, daemon.socket, f"holder-{index}", 1) as holder:
            holder.open()
            builds.append(daemon.build_seconds())
            with Ranks(options, daemon.socket, f"all-{index}", options.ranks) as ranks:
                opened = ranks.open()
                together.append(max(one["open_seconds"] for one in opened))
                cpu.append(max(one["open_cpu_seconds"] for one in opened))
                if len({one["digest"] for one in opened}) != 1:
                    raise RuntimeError("the ranks have different catalogs")
            with Ranks(
                options, daemon.socket, f"one-{index}", 1, ["--queries", str(options.queries)]
            ) as ranks:
                (opened,) = ranks.open()
                alone.append(opened["open_seconds"])
                queries.append(opened["prefix_query_seconds"])
    return builds, together, alone, cpu, queries


def measure_rss_while_staging(options, daemon):
    """The most anonymous memory seen while all ranks demand everything."""
    with Ranks(options, daemon.socket, "staging", options.ranks, ["--everything"]) as ranks:
        most = daemon.rss_anon_bytes()
        for rank in ranks.ranks:
            rank.go()
        end = time.monotonic() + options.staging_seconds
        while time.monotonic() < end:
            most = max(most, daemon.rss_anon_bytes())
            time.sleep(RSS_SAMPLE_SECONDS)
        for rank in ranks.ranks:
            rank.opened()
        return max(most, daemon.rss_anon_bytes())


def measure_idle_cpu(options, daemon):
    """Share of one CPU while ranks hold sessions and nothing is read."""
    with Ranks(options, daemon.socket, "idle", options.ranks) as ranks:
        ranks.open()
        time.sleep(0.5)
        before, begun = daemon.cpu_seconds(), time.monotonic()
        time.sleep(options.idle_seconds)
        return (daemon.cpu_seconds() - before) / (time.monotonic() - begun)


def spread(values):
    return f"median of {len(values)}, {min(values) * 1e3:.3g} to {max(values) * 1e3:.3g} ms"


def run(options):
    """The rows of this part of the benchmark. Makes the checkpoint and removes it again unless
    options.directory holds one already."""
    with contextlib.ExitStack() as stack:
        scratch = pathlib.Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="fs", dir="/tmp"))
        )
        if options.directory is None:
            parent = options.build_dir / "bench"
            parent.mkdir(exist_ok=True)
            made = stack.enter_context(tempfile.TemporaryDirectory(dir=parent))
            options = dataclasses.replace(options, directory=pathlib.Path(made))
        make_checkpoint(options)
        daemon = Forestaged(options.build_dir, scratch)
        stack.callback(daemon.end)
        builds, together, alone, cpu, queries = measure_opens(options, daemon)
        idle = measure_idle_cpu(options, daemon)
        held = daemon.rss_anon_bytes()
        staging = measure_rss_while_staging(options, daemon)
        rss_max = RSS_ANON_BYTES_MAX + RSS_ANON_BYTES_A_TENSOR_MAX * options.tensors
        cores = os.cpu_count()
        at_once = f"{options.ranks} ranks at once on {cores} cores"
        return [
            Row(
                "catalog built in the daemon, headers warm",
                statistics.median(builds),
                "s",
                BUILD_SECONDS_MAX,
                spread(builds),
            ),
            Row(
                f"from open to a usable catalog, slowest of {at_once}",
                statistics.median(together),
                "s",
                DELIVERY_SECONDS_MAX,
                f"{spread(together)}; CPU of a rank {statistics.median(cpu) * 1e3:.3g} ms",
            ),
            Row(
                "from open to a usable catalog, one rank",
                statistics.median(alone),
                "s",
                DELIVERY_SECONDS_MAX,
                spread(alone),
            ),
            Row(
                "prefix query",
                statistics.median(queries),
                "s",
                PREFIX_QUERY_SECONDS_MAX,
                f"mean of {options.queries} queries, median of {len(queries)}",
            ),
            Row(
                "RssAnon of the daemon while staging",
                staging,
                "bytes",
                rss_max,
                f"{staging / MIB:.3g} MiB of {rss_max / MIB:.3g}; {held / MIB:.3g} before",
            ),
            Row(
                "CPU of the daemon when idle",
                idle,
                "of one CPU",
                IDLE_CPU_MAX,
                f"{options.ranks} sessions open, {options.idle_seconds:g} s",
            ),
        ]


def print_rows(rows):
    for row in rows:
        print(
            f"{'reached' if row.reached else 'MISSED ':8} {row.figure}: {row.value:.4g} {row.unit}"
            f" (at most {row.most:.4g}; {row.note})"
        )


def main():
    defaults = Options()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build-dir", type=pathlib.Path, default=defaults.build_dir)
    parser.add_argument("--directory", type=pathlib.Path, help="made unless it is there")
    for name in ["tensors", "shards", "ranks", "rounds", "queries"]:
        parser.add_argument(f"--{name}", type=int, default=getattr(defaults, name))
    for name in ["staging_seconds", "idle_seconds"]:
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=float, default=getattr(defaults, name)
        )
    parser.add_argument("--json", type=pathlib.Path, help="write the rows to this file too")
    arguments = vars(parser.parse_args())
    json_path = arguments.pop("json")
    rows = run(Options(**arguments))
    print_rows(rows)
    if json_path is not None:
        json_path.write_text(json.dumps([row.as_dict() for row in rows], indent=2) + "\n")
    return 0 if all(row.reached for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
