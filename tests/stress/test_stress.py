"""The short form of `./dev stress`, and that it finds what it is for."""

import signal

import pytest

from forestage_stress.plan import CHECKPOINTS, KINDS, draw_round
from forestage_stress.run import Failure, run
from forestage_stress.world import World

# Begins no round after this time.
SECONDS = 15
TENSORS = {name: ["a", "b", "c"] for name in CHECKPOINTS}


def test_a_short_run(build_dir, tmp_path):
    # Fixed: a failure of the tests is about the change. `./dev stress` draws a new one each time.
    seed = 5
    try:
        tally = run(build_dir, seed=seed, rounds=range(1, 1000), seconds=SECONDS, keep=tmp_path)
    except Failure as failure:
        logs = "\n".join(path.read_text() for path in sorted(tmp_path.rglob("*.*")))
        pytest.fail(f"{failure}\n{logs}")
    print(tally.table())
    assert tally.rounds > 0
    assert tally.bytes_compared > 0


def test_the_same_seed_plans_the_same_rounds():
    for number in range(1, 50):
        assert draw_round(7, number, TENSORS) == draw_round(7, number, TENSORS)
        assert draw_round(7, number, TENSORS) != draw_round(8, number, TENSORS)


def test_everything_is_drawn_in_a_hundred_rounds():
    plans = [draw_round(1, number, TENSORS) for number in range(1, 101)]
    assert {event.kind for plan in plans for event in plan.events} == set(KINDS)
    ranks = [rank for plan in plans for group in plan.groups for rank in group.ranks]
    assert any(rank.demand is None for rank in ranks)
    assert any(rank.demand is not None for rank in ranks)
    assert any(rank.holds_seconds for rank in ranks)
    assert {group.strict for plan in plans for group in plan.groups} == {False, True}
    for plan in plans:
        assert f"round {plan.number}" in str(plan)


def quiet_round(monkeypatch):
    """A round in which nothing happens to its ranks."""
    monkeypatch.setattr("forestage_stress.plan.KINDS", {"storage hangs": 1})


def failure_of(build_dir, tmp_path):
    with pytest.raises(Failure) as failure:
        run(build_dir, seed=1, rounds=range(3, 4), keep=tmp_path)
    text = str(failure.value)
    assert "./dev stress --seed 1 --round 3" in text
    folder = tmp_path / "seed-1-round-3"
    assert str(folder) in text
    assert "round 3:" in (folder / "round.txt").read_text()
    assert (folder / "daemon.log").exists()
    return text


def test_a_wrong_byte_is_found(build_dir, tmp_path, monkeypatch):
    quiet_round(monkeypatch)
    make = World.start_probe

    def with_other_bytes(self, group):
        for digests in self.digests.values():
            digests["model.scale"] = "0" * 64
        return make(self, group)

    monkeypatch.setattr(World, "start_probe", with_other_bytes)
    assert "WRONG BYTES of ['model.scale']" in failure_of(build_dir, tmp_path)


def test_a_descriptor_that_is_left_is_found(build_dir, tmp_path, monkeypatch):
    quiet_round(monkeypatch)
    monkeypatch.setattr("forestage_stress.world.DESCRIPTORS_MORE", -1000)
    monkeypatch.setattr("forestage_stress.world.SETTLE_SECONDS", 1)
    assert "descriptors of the daemon" in failure_of(build_dir, tmp_path)


def test_a_daemon_that_ends_by_itself_is_found(build_dir, tmp_path, monkeypatch):
    quiet_round(monkeypatch)
    hold = World.set_storage

    def and_kill(self, plan):
        hold(self, plan)
        self.daemon.signal(signal.SIGKILL)

    monkeypatch.setattr(World, "set_storage", and_kill)
    assert "the daemon ended by itself with -9" in failure_of(build_dir, tmp_path)


def test_a_rank_that_waits_for_ever_is_found(build_dir, tmp_path, monkeypatch):
    quiet_round(monkeypatch)
    monkeypatch.setattr("forestage_stress.round.HANG_FACTOR", 0)
    monkeypatch.setattr("forestage_stress.round.HANG_SECONDS", 0)
    assert "hangs" in failure_of(build_dir, tmp_path)
