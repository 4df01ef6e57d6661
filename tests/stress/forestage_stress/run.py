"""Round after round in one world."""

import contextlib
import pathlib
import shutil
import sys
import tempfile
import time
import traceback


from forestage_stress.plan import draw_round
from forestage_stress.round import Round
from forestage_stress.tally import Tally
from forestage_stress.world import World

PROGRESS_SECONDS = 5


class Failure(Exception):
    """What went wrong, how to repeat it, and where the logs are."""


class Progress:
    """One line that is written over on a terminal, a line now and then elsewhere."""

    def __init__(self, stream=sys.stderr):
        self._stream = stream
        self._last = time.monotonic()

    def show(self, text, last=False):
        now = time.monotonic()
        if self._stream.isatty():
            self._stream.write(f"\r\033[K{text}" + ("\n" if last else ""))
        elif last or now - self._last >= PROGRESS_SECONDS:
            self._stream.write(text + "\n")
            self._last = now
        self._stream.flush()


@contextlib.contextmanager
def failures(keep, name, world, how_to_repeat, describe):
    """Makes a Failure of what is wrong inside, and keeps what tells about it."""
    try:
        yield
    except Exception as error:
        folder = pathlib.Path(keep) / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        trace = "".join(traceback.format_exception(error))
        (folder / "round.txt").write_text(f"{describe()}\n\n{trace}\n")
        shutil.copy(world.daemon_log_path, folder / "daemon.log")
        raise Failure(f"{name}: {error}\nagain: {how_to_repeat}\nlogs: {folder}") from error


def run_round(world, seed, number, keep):
    plan = draw_round(
        seed, number, {name: sorted(world.digests[path]) for name, path in world.sources.items()}
    )
    round_of_plan = Round(world, plan)
    again = f"./dev stress --seed {seed} --round {number}"
    name = f"seed-{seed}-round-{number}"
    with failures(keep, name, world, again, round_of_plan.describe):
        round_of_plan.run()


def warm_up(world):
    """The first daemon, and its first session."""
    world.start_daemon().wait_until_ready()
    probe = world.start_probe("first")
    assert probe.outcome()["event"] == "done"
    probe.abandon()
    world.measure_baseline()


def run(build_dir, *, seed, rounds, seconds=None, keep, progress=None):
    """Runs the numbers in `rounds`, as many as begin within `seconds`; the Tally, or Failure."""
    progress = progress or Progress()
    tally = Tally()
    parent = pathlib.Path(build_dir) / "test-data"
    parent.mkdir(exist_ok=True)
    data_dir = pathlib.Path(tempfile.mkdtemp(prefix="stress", dir=parent))
    begun = time.monotonic()
    again = f"./dev stress --seed {seed}"
    rounds_wanted = len(rounds) if seconds is None else 0
    try:
        world = World(build_dir, data_dir, tally)
        try:
            with failures(keep, f"seed-{seed}-start", world, again, lambda: "the start"):
                warm_up(world)
            for number in rounds:
                if seconds is not None and time.monotonic() - begun > seconds:
                    break
                run_round(world, seed, number, keep)
                tally.rounds += 1
                tally.seconds = time.monotonic() - begun
                progress.show(tally.progress(rounds_wanted))
            with failures(keep, f"seed-{seed}-end", world, again, lambda: "the end"):
                world.close()
        finally:
            world.abandon()
    finally:
        shutil.rmtree(data_dir)
    progress.show(tally.progress(rounds_wanted), last=True)
    return tally
