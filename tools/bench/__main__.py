"""What `./dev bench` does after the build; docs/performance.md explains what it measures."""

import argparse
import contextlib
import dataclasses
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import amplification
import catalog_part
import document
import figures
import first_tensor
import loading
import machine
import peers as peer_readers
import programs
import rounds
import staging
import storages
import table

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MIB = 1 << 20
GIB = 1 << 30
STORAGES = ("disk", "loop", "slowfs-2ms", "slowfs-10ms")
# How a part's cases are made, the storage it is measured on (--storage picks from that), and how
# many rounds it needs at most: counted bytes do not spread as times do.
PARTS = {
    "staging": (staging.cases, STORAGES, 1000),
    "loading": (loading.cases, ("disk", "slowfs-2ms", "slowfs-10ms"), 1000),
    "first": (first_tensor.cases, ("disk", "slowfs-2ms", "slowfs-10ms"), 1000),
    "amplification": (amplification.cases, ("loop",), 3),
}
# Not a matter of storage, nor of rounds that it shares with others.
CATALOG = "catalog"
EXAMPLES = """
examples:
  ./dev bench --quick                            everything, smaller and with less certainty
  ./dev bench --part staging --storage disk      one part of it
  ./dev bench --part loading --only forestage safetensors
  ./dev bench --json all.json --write-docs       what docs/performance.md shows
  ./dev bench --report a.json b.json             the table of earlier runs, measuring nothing

It takes about 25 minutes (--quick: 6) and 11 GiB of disk (--quick: 4), after the first time, when
it also installs 6 GB of other readers from PyPI into build/bench/venv. Run it on a quiet machine.
Loop device and slowfs need root; without it they are left out and said to be.
"""


@dataclasses.dataclass(frozen=True)
class Sizes:
    whole: int
    loading: int
    slow: int
    slow_loading: int


FULL = Sizes(4 * GIB, GIB, GIB, 256 * MIB)
QUICK = Sizes(GIB, 512 * MIB, 256 * MIB, 128 * MIB)


class Context:
    """What every part needs to know."""

    def __init__(self, arguments, sizes):
        self.directory = os.path.abspath(arguments.directory)
        self.slow_seconds = arguments.slow_seconds
        self._build = os.path.abspath(arguments.build)
        self._sizes = sizes
        self._seconds_max = (arguments.minutes or 24 * 60) * 60
        self._begun = time.monotonic()

    def program(self, name):
        return os.path.join(self._build, name)

    def staging_size(self, storage):
        return self._sizes.slow if storage.startswith("slowfs") else self._sizes.whole

    def loading_size(self, storage):
        return self._sizes.slow_loading if storage.startswith("slowfs") else self._sizes.loading

    def checkpoint_sizes(self, storage):
        return {self.staging_size(storage), self.loading_size(storage)}

    def is_late(self):
        return time.monotonic() > self._begun + self._seconds_max

    def tell(self, text):
        minutes, seconds = divmod(int(time.monotonic() - self._begun), 60)
        print(f"[{minutes:2}:{seconds:02}] {text}", file=sys.stderr, flush=True)


def parse_size(text):
    for suffix, unit in (("GiB", GIB), ("MiB", MIB)):
        if text.endswith(suffix) and text[: -len(suffix)].isdigit():
            return int(text[: -len(suffix)]) * unit
    raise argparse.ArgumentTypeError(f"'{text}' is no size such as 512MiB or 4GiB")


def positive(text):
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no number from 1")
    return int(text)


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        prog="./dev bench", formatter_class=argparse.RawDescriptionHelpFormatter, epilog=EXAMPLES,
        description="Measures Forestage and other readers side by side, in interleaved rounds.")
    parser.add_argument("--quick", action="store_true", help="smaller checkpoints, 3 rounds")
    parser.add_argument("--part", nargs="+", choices=[*PARTS, CATALOG],
                        default=[*PARTS, CATALOG], metavar="PART",
                        help=f"only these: {', '.join([*PARTS, CATALOG])}")
    parser.add_argument("--storage", nargs="+", choices=STORAGES, default=list(STORAGES),
                        metavar="STORAGE", help=f"only these: {', '.join(STORAGES)}")
    parser.add_argument("--only", nargs="+", metavar="ROW",
                        help="only readers whose name contains one of these")
    parser.add_argument("--rounds", type=positive, help="default 7; --quick 3")
    parser.add_argument("--size", type=parse_size, help="checkpoint on disk and loop device")
    parser.add_argument("--load-size", type=parse_size, help="checkpoint of part loading there")
    parser.add_argument("--slow-size", type=parse_size, help="checkpoint on slowfs")
    parser.add_argument("--slow-seconds", type=float, default=5,
                        help="a reader that takes longer is run 3 times only (default 5)")
    parser.add_argument("--minutes", type=positive,
                        help="afterwards no part gets more than 3 rounds")
    parser.add_argument("--directory", default=os.path.join(ROOT, "build", "bench"),
                        help="where checkpoints and the loop device's image are made and kept "
                        "(default build/bench)")
    parser.add_argument("--json", metavar="FILE", help="every single run (also in DIRECTORY/last.json)")
    parser.add_argument("--report", nargs="+", metavar="FILE",
                        help="measure nothing; report what --json wrote")
    parser.add_argument("--write-docs", action="store_true",
                        help="put the results into docs/performance.md and .svg")
    parser.add_argument("--no-peers", action="store_true", help="without the readers from PyPI")
    parser.add_argument("--remove", action="store_true",
                        help="remove checkpoints and image at the end")
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "dev"),
                        help=argparse.SUPPRESS)
    parser.add_argument("--peers-python", help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true", help=argparse.SUPPRESS)
    return parser, parser.parse_args(arguments)


def sizes_of(arguments):
    base = QUICK if arguments.quick else FULL
    whole = arguments.size or base.whole
    return Sizes(whole, arguments.load_size or min(base.loading, whole),
                 arguments.slow_size or min(base.slow, whole),
                 arguments.slow_size or min(base.slow_loading, whole))


def check_space(context, sizes, chosen):
    needed = sum({sizes.whole, sizes.loading, sizes.slow, sizes.slow_loading})
    if "loop" in chosen:
        needed += int(sizes.whole * 1.1) + 256 * MIB
    have = sum(os.path.getsize(path) for path in made_files(context.directory))
    free = shutil.disk_usage(context.directory).free
    if needed - have > free:
        raise SystemExit(f"bench: needs {(needed - have) / GIB:.1f} GiB in {context.directory}, "
                         f"which has {free / GIB:.1f}; see --directory and --size")


def made_files(directory):
    """Files of checkpoints and images that earlier runs left."""
    for pattern in ("checkpoint-*/*", "loop-*.img"):
        yield from glob.glob(os.path.join(directory, pattern))


def measure_storage(context, arguments, storage_name, daemon, peers, report):
    count = arguments.rounds or (3 if arguments.quick else 7)
    with storages.storage_named(storage_name, context) as storage:
        report["storages"][storage_name] = storage.facts()
        for part, (make_cases, on, rounds_max) in PARTS.items():
            if part not in arguments.part or storage_name not in on:
                continue
            cases = [case for case in make_cases(context, storage, daemon, peers)
                     if not arguments.only or any(word in case.reader for word in arguments.only)]
            running = rounds.Rounds(context, storage, cases)
            try:
                running.run(min(count, rounds_max))
            finally:
                # Kept also when it is interrupted in the middle.
                report["records"] += running.records


def measure(context, arguments, report):
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(programs.Daemon(context))
        peers = None
        if arguments.peers_python and not arguments.no_peers:
            try:
                peers = stack.enter_context(
                    peer_readers.Peers(context, arguments.peers_python))
                report["left_out"] += [f"{name}: {error}"
                                       for name, error in peers.errors().items()]
            except (programs.ReaderFailed, OSError) as error:
                report["left_out"].append(f"readers from PyPI: {error}")
        else:
            report["left_out"].append("readers from PyPI: not asked for, or not installed")
        for name in arguments.storage:
            try:
                measure_storage(context, arguments, name, daemon, peers, report)
            except (storages.StorageUnavailable, OSError) as error:
                report["left_out"].append(f"storage {name}: {error}")
                context.tell(report["left_out"][-1])


def measure_catalog(context, arguments, report):
    try:
        report["records"] += catalog_part.records(context, arguments.quick)
    except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
        report["left_out"].append(f"catalog: {error}")
        context.tell(report["left_out"][-1])


def merged(paths):
    """One report of several; the machine is that of the first."""
    report = None
    for path in paths:
        with open(path) as file:
            found = json.load(file)
        if report is None:
            report = found
            continue
        report["records"] += found["records"]
        report["commands"] += found["commands"]
        report["left_out"] += found["left_out"]
        report["storages"].update(found["storages"])
    return report


def stop_by_signal(number, _frame):
    """Turns a signal into an exception, so that what was started, attached or mounted goes."""
    raise SystemExit(128 + number)


def remove_checkpoints(directory):
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        if name.startswith("checkpoint-"):
            shutil.rmtree(path)
        elif name.startswith("loop-"):
            os.unlink(path)


def finish(report, arguments):
    report["figures"] = [dataclasses.asdict(figure)
                         for figure in figures.evaluate(report["records"])]
    kept = [] if arguments.report else [os.path.join(arguments.directory, "last.json")]
    for path in kept + ([arguments.json] if arguments.json else []):
        with open(path, "w") as file:
            json.dump(report, file, indent=1)
    sys.stdout.write(table.as_text(report))
    for text in report["left_out"]:
        print(f"left out: {text}")
    if arguments.write_docs:
        document.write(report, ROOT)


def main():
    parser, arguments = parse_arguments(sys.argv[1:])
    if arguments.quick and arguments.write_docs:
        parser.error("--write-docs is for a full run")
    if not arguments.report and CATALOG not in arguments.part and not any(
            set(PARTS[part][1]) & set(arguments.storage) for part in arguments.part):
        parser.error(f"{', '.join(arguments.part)} is not measured on "
                     f"{', '.join(arguments.storage)}")
    if arguments.check:
        return 0
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, stop_by_signal)
    if arguments.report:
        finish(merged(arguments.report), arguments)
        return 0
    sizes = sizes_of(arguments)
    os.makedirs(arguments.directory, exist_ok=True)
    context = Context(arguments, sizes)
    check_space(context, sizes, arguments.storage)
    shown = [argument for argument in sys.argv[1:]]
    for hidden in ("--peers-python", "--build"):
        if hidden in shown:
            index = shown.index(hidden)
            del shown[index:index + 2]
    report = {"commands": [" ".join(["./dev bench", *shown])], "machine": machine.facts(ROOT),
              "storages": {}, "left_out": [], "records": []}
    try:
        if set(arguments.part) & set(PARTS):
            measure(context, arguments, report)
        if CATALOG in arguments.part:
            measure_catalog(context, arguments, report)
    except programs.ReaderFailed as error:
        report["left_out"].append(str(error))
        return 1
    finally:
        finish(report, arguments)
        if arguments.remove:
            remove_checkpoints(context.directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
