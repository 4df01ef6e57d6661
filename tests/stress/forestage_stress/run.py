"""Round after round in one world."""

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


def keep_logs(keep, seed, number, world, what_happened, error):
    """Copies what tells about a failed round; returns the folder."""
    folder = pathlib.Path(keep) / f"seed-{seed}-round-{number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "round.txt").write_text(f"{what_happened}\n\n{error}\n")
    shutil.copy(world.daemon_log_path, folder / "daemon.log")
    return folder


def run_round(world, seed, number, keep):
    plan = draw_round(
        seed, number, {name: sorted(world.digests[path]) for name, path in world.sources.items()}
    )
    round_of_plan = Round(world, plan)
    try:
        round_of_plan.run()
    except Exception as error:
        what_failed = "".join(traceback.format_exception(error))
        folder = keep_logs(keep, seed, number, world, round_of_plan.describe(), what_failed)
        raise Failure(
            f"round {number} failed: {error}\n"
            f"again: ./dev stress --seed {seed} --round {number}\n"
            f"logs: {folder}"
        ) from error


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
    rounds_wanted = len(rounds) if seconds is None else 0
    try:
        world = World(build_dir, data_dir, tally)
        try:
            warm_up(world)
            for number in rounds:
                if seconds is not None and time.monotonic() - begun > seconds:
                    break
                run_round(world, seed, number, keep)
                tally.rounds += 1
                tally.seconds = time.monotonic() - begun
                progress.show(tally.progress(rounds_wanted))
            world.close()
        finally:
            world.abandon()
    finally:
        shutil.rmtree(data_dir)
    progress.show(tally.progress(rounds_wanted), last=True)
    return tally
