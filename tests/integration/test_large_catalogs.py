"""Checkpoints with very many tensors or shards: what they must not cost, and that they work."""

import re
import resource

import pytest

from forestage_testing.large_catalog import (
    MixtureOfExperts,
    digest_of,
    small_tensors,
    write_sparse,
)
from forestage_testing.processes import wait_until

TENSORS = 150_000
SHARDS = 163
RANKS = 8
MIB = 1024 * 1024
# Names and layers as of a large model, with small matrices, so that all of it fits into memory.
SHAPES = MixtureOfExperts(hidden=64, expert_hidden=64, vocabulary=1000)
MANY_SHARDS = 10_000
# What a service manager mostly gives.
SOFT_LIMIT = 1024


@pytest.fixture(scope="module")
def large(build_dir, tmp_path_factory):
    """(directory, places of its tensors)."""
    directory = tmp_path_factory.mktemp("large")
    places = write_sparse(
        directory, SHAPES.tensors(), shard_count=SHARDS, tensor_count=TENSORS
    )
    return directory, places


@pytest.fixture(scope="module")
def many_shards(tmp_path_factory):
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard_limit > MANY_SHARDS + SOFT_LIMIT, (
        f"these tests open {MANY_SHARDS} files; raise the hard limit (ulimit -Hn) of {hard_limit}"
    )
    directory = tmp_path_factory.mktemp("shards")
    places = write_sparse(
        directory, small_tensors(3 * MANY_SHARDS), shard_count=MANY_SHARDS
    )
    return directory, places


def open_all(start_rank, directory, socket, *, flags=(), wrapper=()):
    """Ranks that have opened, and what each says of it."""
    ranks = [
        start_rank(
            directory,
            socket=socket,
            rank=rank,
            size=RANKS,
            flags=flags,
            wrapper=wrapper,
            program="catalog_rank",
        )
        for rank in range(RANKS)
    ]
    for rank in ranks:
        rank.expect("ready")
    for rank in ranks:
        rank.resume()
    return ranks, [rank.expect("opened") for rank in ranks]


def rss_anon_bytes(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return int(re.search(r"^RssAnon:\s+(\d+) kB$", file.read(), re.M)[1]) * 1024


def test_all_ranks_get_the_same_catalog_of_150000_tensors(start_daemon, start_rank, large):
    directory, places = large
    ranks, opened = open_all(start_rank, directory, start_daemon().socket)
    expected = {
        "tensors": TENSORS,
        "shards": SHARDS,
        "digest": digest_of(places),
        "effective": "rank_striped_read_ahead",
    }
    assert [{key: one[key] for key in expected} for one in opened] == [expected] * RANKS
    for rank in ranks:
        rank.resume()
        rank.finish()


def test_the_daemon_stays_small_while_it_stages_150000_tensors(start_daemon, start_rank, large):
    directory, _ = large
    daemon = start_daemon(flags=["--extent-size", "64KiB"])
    with open(f"/proc/{daemon.pid}/maps", encoding="utf-8") as maps:
        if re.search(r"lib(asan|tsan)", maps.read()):
            pytest.skip("a sanitizer's own memory is anonymous")
    most = 0

    def staged():
        nonlocal most
        most = max(most, rss_anon_bytes(daemon.pid))
        (checkpoint,) = daemon.status()["checkpoints"]
        return checkpoint["progress"]["complete"]

    ranks, _ = open_all(start_rank, directory, daemon.socket, flags=["--everything"])
    wait_until(staged, "all to be staged")
    (checkpoint,) = daemon.status()["checkpoints"]
    # So many that what the daemon keeps for an extent and a session shows.
    assert int(checkpoint["progress"]["wanted_bytes"]) > 1000 * 64 * 1024
    assert len(checkpoint["sessions"]) == len(ranks)
    assert most <= 64 * MIB + 256 * TENSORS, f"{most / MIB:.1f} MiB of anonymous memory"


def test_10000_shards_open_above_the_soft_limit_on_open_files(
    start_daemon, start_rank, many_shards
):
    directory, places = many_shards
    wrapper = ["prlimit", f"--nofile={SOFT_LIMIT}:"]
    daemon = start_daemon(wrapper=wrapper)
    rank = start_rank(
        directory, socket=daemon.socket, wrapper=wrapper, program="catalog_rank"
    )
    rank.expect("ready")
    rank.resume()
    opened = rank.expect("opened")
    assert opened["effective"] == "rank_striped_read_ahead", opened["reason"]
    assert opened["shards"] == MANY_SHARDS
    assert opened["digest"] == digest_of(places)
    rank.resume()
    rank.finish()


def test_a_daemon_that_may_not_open_10000_files_says_so_and_the_rank_loads(
    start_daemon, start_rank, many_shards
):
    directory, places = many_shards
    daemon = start_daemon(wrapper=["prlimit", f"--nofile={SOFT_LIMIT}:{SOFT_LIMIT}"])
    rank = start_rank(
        directory,
        socket=daemon.socket,
        wrapper=["prlimit", f"--nofile={SOFT_LIMIT}:"],
        program="catalog_rank",
    )
    rank.expect("ready")
    rank.resume()
    opened = rank.expect("opened")
    assert opened["effective"] == "native"
    assert "LimitNOFILE" in opened["reason"]
    assert opened["digest"] == digest_of(places)
    rank.resume()
    rank.finish()
    assert daemon.health() == "SERVING"


def test_a_rank_that_may_not_open_10000_files_is_told_what_to_raise(
    start_daemon, start_rank, many_shards
):
    directory, _ = many_shards
    rank = start_rank(
        directory,
        socket=start_daemon().socket,
        wrapper=["prlimit", f"--nofile={SOFT_LIMIT}:{SOFT_LIMIT}"],
        program="catalog_rank",
    )
    rank.expect("ready")
    rank.resume()
    assert "ulimit -Hn" in rank.expect("error")["message"]
