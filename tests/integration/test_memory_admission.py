"""Checkpoints that fit into memory and those that do not: who reads, what is told, who lives."""

import re
import tempfile

import pytest

from forestage_testing import checkpoints
from forestage_testing.cli import Cli

MIB = 1024 * 1024
STAGED = "rank_striped_read_ahead"
SMALL_EXTENTS = ["--extent-size", "256KiB"]


@pytest.fixture
def make_cold_model(data_dir):
    def make(name, mib, seed=0):
        directory = checkpoints.make_model(data_dir / name, seed=seed, shards=2, mib=mib)
        checkpoints.make_cold(directory)
        return directory

    return make


def resident_bytes(directory):
    return sum(checkpoints.resident_bytes(path) for path in checkpoints.shard_paths(directory))


def test_what_does_not_fit_is_loaded_natively_with_the_numbers(
    start_daemon, build_dir, make_cold_model, digests_path, check_digests
):
    directory = make_cold_model("checkpoint", 8)
    daemon = start_daemon(
        flags=[*SMALL_EXTENTS, "--memory-limit", "4MiB"], metrics_address="127.0.0.1:0"
    )
    cli = Cli(build_dir, daemon.socket)
    # Strict, so that both are in the group when it asks.
    strict = ["--agreement", "strict"]
    result = cli.load(directory, ranks=2, digests=digests_path, flags=strict)
    reasons = {rank["reason"] for rank in result["ranks"]}
    assert {rank["effective"] for rank in result["ranks"]} == {"native"}
    assert {rank["activated"] for rank in result["ranks"]} == {False}
    assert len(reasons) == 1
    assert re.fullmatch(
        r"checkpoint needs 8\.00 MiB of memory, 4\.00 MiB available: memory-limit 4\.00 MiB",
        reasons.pop(),
    )
    assert result["node"]["bytes_read"] == 0
    check_digests(directory, 2)
    assert daemon.metrics()["forestage_admissions_refused_total", (("bound", "setting"),)] == 1
    assert (
        daemon.metrics()[
            "forestage_decisions_total", (("effective", "native"), ("reason", "not_enough_memory"))
        ]
        == 2
    )


def test_a_policy_asked_by_name_is_refused_too_and_said(start_daemon, build_dir, make_cold_model):
    directory = make_cold_model("checkpoint", 8)
    daemon = start_daemon(flags=[*SMALL_EXTENTS, "--memory-limit", "4MiB"])
    done = Cli(build_dir, daemon.socket).run("stage", directory, "--once", code=1)
    assert "nothing is staged: checkpoint needs" in done.stderr
    assert "memory-limit" in done.stderr


def test_b_is_refused_while_a_is_leased_and_admitted_after_a_has_closed(
    start_daemon, build_dir, make_cold_model, start_rank, tmp_path
):
    a, b = make_cold_model("a", 8, seed=1), make_cold_model("b", 8, seed=2)
    limit = checkpoints.total_bytes(a) + checkpoints.total_bytes(b) - 1
    daemon = start_daemon(
        flags=[*SMALL_EXTENTS, "--memory-limit", limit], metrics_address="127.0.0.1:0"
    )
    cli = Cli(build_dir, daemon.socket)
    holder = start_rank(a, socket=daemon.socket, flags=["--hold"])
    assert holder.expect("opened")["decision"]["effective"] == STAGED
    holder.expect("holding")
    assert daemon.metric_sum("forestage_memory_leased_bytes") == checkpoints.total_bytes(a)
    memory = daemon.status()["memory"]
    assert int(memory["leased_bytes"]) == checkpoints.total_bytes(a)
    assert int(memory["available_bytes"]) == checkpoints.total_bytes(b) - 1

    refused = cli.load(b, ranks=2, digests=tmp_path / "refused")
    for rank in refused["ranks"]:
        assert rank["effective"] == "native"
        assert "leased to other checkpoints" in rank["reason"]

    # A second group on A needs nothing more.
    shared = cli.load(a, ranks=2, digests=tmp_path / "shared")
    assert {rank["effective"] for rank in shared["ranks"]} == {STAGED}

    holder.resume()
    holder.finish()
    daemon.wait_for_no_sessions()
    assert daemon.metric_sum("forestage_memory_leased_bytes") == 0
    admitted = cli.load(b, ranks=2, digests=tmp_path / "admitted")
    assert {rank["effective"] for rank in admitted["ranks"]} == {STAGED}


def test_a_killed_rank_gives_its_memory_back(
    start_daemon, build_dir, make_cold_model, start_rank, tmp_path
):
    a, b = make_cold_model("a", 6, seed=1), make_cold_model("b", 6, seed=2)
    daemon = start_daemon(flags=[*SMALL_EXTENTS, "--memory-limit", "8MiB"])
    holder = start_rank(a, socket=daemon.socket, flags=["--hold"])
    holder.expect("opened")
    holder.expect("holding")
    holder.kill()
    daemon.wait_for_no_sessions()
    loaded = Cli(build_dir, daemon.socket).load(b, ranks=1, digests=tmp_path / "digests")
    assert loaded["ranks"][0]["effective"] == STAGED


def test_a_checkpoint_that_lives_in_memory_needs_no_more_of_it(
    start_daemon, build_dir, digests_path, check_digests
):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        checkpoints.make_model(directory, shards=2, mib=6)
        daemon = start_daemon(flags=[*SMALL_EXTENTS, "--memory-limit", "1MiB"])
        loaded = Cli(build_dir, daemon.socket).load(directory, ranks=2, digests=digests_path)
        assert {rank["effective"] for rank in loaded["ranks"]} == {STAGED}
        check_digests(directory, 2)


def test_a_daemon_in_a_small_cgroup_refuses_with_numbers_stages_what_fits_and_lives(
    memory_cgroup, start_daemon, build_dir, make_cold_model, digests_path, check_digests
):
    group = memory_cgroup(128 * MIB)
    large = make_cold_model("large", 160)
    daemon = start_daemon(flags=SMALL_EXTENTS, wrapper=group.wrapper)
    cli = Cli(build_dir, daemon.socket)
    # Said at the start, in one line.
    lines = [line for line in daemon.log.splitlines() if " memory available=" in line]
    assert len(lines) == 1
    assert f"of cgroup {group.path} 128.00 MiB" in lines[0]
    assert "64.00 MiB headroom" in lines[0]

    refused = cli.load(large, ranks=2, digests=digests_path)
    for rank in refused["ranks"]:
        assert rank["effective"] == "native"
        assert f"of cgroup {group.path} 128.00 MiB - " in rank["reason"]
    check_digests(large, 2)

    # One after the other they are more than the limit; the cache of the earlier ones is no reason
    # to refuse the later.
    staged = 0
    for seed in range(4):
        small = make_cold_model(f"small{seed}", 40, seed=seed)
        report = cli.json("stage", small, "--once")
        assert report["resident_bytes"] == report["bytes"]
        staged += report["bytes"]
    assert staged > 128 * MIB
    assert group.oom_kills == 0
    assert daemon.is_running() and daemon.health() == "SERVING"


def test_a_leased_checkpoint_stays_whole_in_a_cgroup_that_cannot_hold_another(
    memory_cgroup, start_daemon, build_dir, make_cold_model, start_rank, tmp_path
):
    group = memory_cgroup(128 * MIB)
    a, b = make_cold_model("a", 72, seed=1), make_cold_model("b", 72, seed=2)
    daemon = start_daemon(flags=[*SMALL_EXTENTS, "--memory-headroom", "0"], wrapper=group.wrapper)
    cli = Cli(build_dir, daemon.socket)
    holder = start_rank(a, socket=daemon.socket, flags=["--hold"])
    assert holder.expect("opened")["decision"]["effective"] == STAGED
    holder.expect("holding")
    assert group.file_bytes >= checkpoints.total_bytes(a), "staged pages are the daemon's"

    refused = cli.load(b, ranks=2, digests=tmp_path / "refused")
    assert {rank["effective"] for rank in refused["ranks"]} == {"native"}
    assert resident_bytes(a) >= checkpoints.total_bytes(a)

    holder.resume()
    holder.finish()
    daemon.wait_for_no_sessions()
    checkpoints.make_cold(b)
    admitted = cli.load(b, ranks=2, digests=tmp_path / "admitted")
    assert {rank["effective"] for rank in admitted["ranks"]} == {STAGED}
    assert group.oom_kills == 0


def test_a_limit_is_found_in_a_cgroup_namespace_of_its_own(
    memory_cgroup, start_daemon, build_dir, make_cold_model, digests_path, tmp_path
):
    group = memory_cgroup(96 * MIB)
    mount_point = tmp_path / "a b"
    mount_point.mkdir()
    wrapper = group.wrapper_in_namespace(f"'{mount_point}'")
    daemon = start_daemon(flags=SMALL_EXTENTS, wrapper=wrapper)
    cli = Cli(build_dir, daemon.socket)
    refused = cli.load(make_cold_model("large", 100), ranks=1, digests=digests_path)
    assert refused["ranks"][0]["effective"] == "native"
    assert f"of cgroup {mount_point} 96.00 MiB - " in refused["ranks"][0]["reason"]
    assert f"of cgroup {mount_point} 96.00 MiB - " in daemon.status()["memory"]["bound"]


def test_a_limit_that_cannot_be_seen_is_said_and_stops_nothing(
    memory_cgroup, start_daemon, build_dir, make_cold_model
):
    group = memory_cgroup(256 * MIB)
    daemon = start_daemon(flags=SMALL_EXTENTS, wrapper=group.wrapper_in_namespace())
    assert any("no mount shows it" in text for text in daemon.status()["memory"]["unknown"])
    cli = Cli(build_dir, daemon.socket)
    staged = cli.json("stage", make_cold_model("checkpoint", 8), "--once")
    assert staged["resident_bytes"] == staged["bytes"]


def test_staging_takes_no_memory_of_the_daemon_that_grows_with_the_checkpoint(
    memory_cgroup, start_daemon, build_dir, make_cold_model
):
    group = memory_cgroup(256 * MIB)
    daemon = start_daemon(flags=SMALL_EXTENTS, wrapper=group.wrapper)
    cli = Cli(build_dir, daemon.socket)
    cli.json("stage", make_cold_model("small", 2), "--once")
    before = group.anonymous_bytes
    cli.json("stage", make_cold_model("large", 96), "--once")
    assert group.anonymous_bytes - before < 16 * MIB
