"""What others' loaders do to a node's memory, and Forestage does not: docs/memory.md has the list.

Real control groups, real processes; what is asserted is what /proc and the groups say.
"""

import struct
import threading

import pytest

from forestage_testing import checkpoints
from forestage_testing.cli import Cli, read_digests
from forestage_testing.processes import anonymous_bytes

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
STAGED = "rank_striped_read_ahead"


class Peak:
    """The most of anonymous memory that a process has had while the block ran: `with Peak(pid)`."""

    def __init__(self, pid):
        self._pid = pid
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.bytes = 0
        self.looks = 0

    def _look(self):
        while not self._done.wait(0.002):
            self.bytes = max(self.bytes, anonymous_bytes(self._pid))
            self.looks += 1

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()


def pss_of(pid, directory):
    """(proportional bytes, anonymous bytes) of a process's mappings of files in the directory."""
    proportional = anonymous = 0
    inside = False
    with open(f"/proc/{pid}/smaps", encoding="utf-8") as file:
        for line in file:
            words = line.split()
            if not words[0].endswith(":"):
                inside = len(words) > 5 and words[5].startswith(str(directory))
            elif inside and words[0] == "Pss:":
                proportional += int(words[1]) * KIB
            elif inside and words[0] == "Anonymous:":
                anonymous += int(words[1]) * KIB
    return proportional, anonymous


def make_cold_model(data_dir, name, mib, **options):
    directory = checkpoints.make_model(data_dir / name, mib=mib, **options)
    checkpoints.make_cold(directory)
    return directory


@pytest.mark.parametrize("reader", ["io_uring", "threads"])
def test_staging_a_shard_of_more_than_four_gib_takes_next_to_no_memory_of_the_process(
    start_daemon, build_dir, data_dir, reader
):
    directory = checkpoints.make_sparse(data_dir / "sparse", 4 * GIB + 64 * MIB)
    daemon = start_daemon(flags=["--reader", reader])
    with Peak(daemon.pid) as peak:
        report = Cli(build_dir, daemon.socket).json("stage", directory, "--once")
    assert report["resident_bytes"] == report["bytes"] > 4 * GIB
    assert peak.looks > 5
    assert peak.bytes < 64 * MIB, "whatever the size of shards, ranks and reads in flight"


def test_ranks_that_hold_every_tensor_have_one_copy_together(start_daemon, start_rank, data_dir):
    directory = make_cold_model(data_dir, "checkpoint", 48)
    daemon = start_daemon(flags=["--extent-size", "1MiB"])
    ranks = [
        start_rank(directory, socket=daemon.socket, rank=rank, size=8, flags=["--hold"])
        for rank in range(8)
    ]
    for rank in ranks:
        assert rank.expect("opened")["decision"]["effective"] == STAGED
    for rank in ranks:
        rank.expect("holding")
    figures = [pss_of(rank.pid, directory) for rank in ranks]
    total = checkpoints.total_page_bytes(directory)
    together = sum(proportional for proportional, _ in figures)
    assert 0.9 * total < together <= total
    assert sum(anonymous for _, anonymous in figures) == 0, "no page was copied"
    # Nor elsewhere in these processes, each of which could hold the whole checkpoint.
    for rank in ranks:
        assert anonymous_bytes(rank.pid) < total / 2
    for rank in ranks:
        rank.resume()
    for rank in ranks:
        rank.finish()


def test_a_checkpoint_of_sixteen_times_the_daemons_group_does_it_no_harm(
    memory_cgroup, start_daemon, build_dir, data_dir, tmp_path
):
    group = memory_cgroup(128 * MIB)
    directory = checkpoints.make_sparse(data_dir / "sparse", 256 * MIB, shards=8)
    daemon = start_daemon(flags=["--extent-size", "1MiB"], wrapper=group.wrapper)
    cli = Cli(build_dir, daemon.socket)
    with Peak(daemon.pid) as peak:
        loaded = cli.load(directory, ranks=2, share="rows", digests=tmp_path / "digests")
    for rank in loaded["ranks"]:
        assert rank["effective"] == "native" and "checkpoint needs 2.00 GiB" in rank["reason"]
    assert group.oom_kills == 0
    # It did not read for anybody, so it never met its limit either.
    assert group.file_bytes < 64 * MIB and peak.bytes < 32 * MIB
    assert daemon.is_running() and daemon.health() == "SERVING"


def test_a_group_that_is_filled_to_its_limit_kills_nobody(
    memory_cgroup, start_daemon, build_dir, data_dir
):
    """Without headroom what is staged fills the group; the daemon still allocates and serves."""
    group = memory_cgroup(128 * MIB)
    daemon = start_daemon(
        flags=["--extent-size", "1MiB", "--memory-headroom", "0"], wrapper=group.wrapper
    )
    cli = Cli(build_dir, daemon.socket)
    for number in range(4):
        available = int(daemon.status()["memory"]["available_bytes"])
        directory = checkpoints.make_sparse(data_dir / f"sparse{number}", available - 2 * MIB)
        report = cli.json("stage", directory, "--once")
        assert report["bytes"] > 64 * MIB
    assert group.oom_kills == 0
    assert daemon.is_running() and daemon.health() == "SERVING"


def test_limits_of_groups_above_the_daemons_own_count(
    memory_cgroup, start_daemon, build_dir, data_dir, tmp_path
):
    group = memory_cgroup(96 * MIB)
    inner = group.make_child()
    daemon = start_daemon(flags=["--extent-size", "1MiB"], wrapper=inner.wrapper)
    directory = checkpoints.make_sparse(data_dir / "sparse", 256 * MIB)
    loaded = Cli(build_dir, daemon.socket).load(directory, ranks=1, digests=tmp_path / "digests")
    assert loaded["ranks"][0]["effective"] == "native"
    assert f"of cgroup {group.path} 96.00 MiB" in loaded["ranks"][0]["reason"]
    assert group.oom_kills == 0


@pytest.mark.parametrize("flags", [["--copy"], []], ids=["copies", "views"])
def test_a_load_with_a_quarter_of_the_memory_ends_and_reads_nothing_twice(
    memory_cgroup, start_daemon, start_rank, mount_loop, flags
):
    """Daemon and rank in one group, as in one container."""
    loop = mount_loop(lambda path: checkpoints.make_model(path / "checkpoint", mib=320), mib=360)
    directory = loop.mount / "checkpoint"
    total = checkpoints.total_bytes(directory)
    group = memory_cgroup(total // 4)
    daemon = start_daemon(flags=["--extent-size", "1MiB"], wrapper=group.wrapper)
    before = loop.bytes_read()
    rank = start_rank(directory, socket=daemon.socket, flags=flags, wrapper=group.wrapper)
    done = rank.outcome()
    read = loop.bytes_read() - before
    print("device bytes over checkpoint", read / total)
    assert done["decision"]["effective"] == "native" and done["decision"]["activated"] is False
    assert read < 1.1 * total
    assert rank.digests(done) == checkpoints.expected_digests(directory, 1, "all")
    assert group.oom_kills == 0
    assert daemon.is_running() and daemon.health() == "SERVING"


@pytest.mark.parametrize("headroom", ["auto", "5%"])
def test_a_rank_that_copies_all_with_room_for_less_than_twice_ends(
    memory_cgroup, start_daemon, build_dir, mount_loop, tmp_path, headroom
):
    """1.3 times the checkpoint for its pages and its copy, as where device and host share memory."""
    loop = mount_loop(lambda path: checkpoints.make_model(path / "checkpoint", mib=192), mib=230)
    directory = loop.mount / "checkpoint"
    total = checkpoints.total_bytes(directory)
    group = memory_cgroup(int(1.3 * total) // 4096 * 4096)
    flags = ["--extent-size", "1MiB", "--memory-headroom", headroom]
    daemon = start_daemon(flags=flags, wrapper=group.wrapper)
    cli = Cli(build_dir, daemon.socket)
    cli.wrapper = group.wrapper
    before = loop.bytes_read()
    loaded = cli.load(directory, ranks=1, digests=tmp_path / "digests", flags=["--own"])
    read = loop.bytes_read() - before
    print("device bytes over checkpoint", read / total, loaded["ranks"][0]["effective"])
    assert loaded["ranks"][0]["effective"] == ("native" if headroom == "auto" else STAGED)
    assert read < 2.1 * total
    assert read_digests(tmp_path / "digests") == checkpoints.expected_digests(directory, 1, "all")
    assert group.oom_kills == 0
    assert daemon.is_running() and daemon.health() == "SERVING"


def make_header_bomb(directory, *, shards, header_mib):
    """Sparse shards whose headers are blanks, all but a few bytes."""
    directory.mkdir()
    text = b'{"t%d":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    for shard in range(shards):
        size = header_mib * MIB
        with open(directory / f"s{shard:03}.safetensors", "wb") as file:
            head = text % shard
            file.write(struct.pack("<Q", size) + head)
            for _ in range(header_mib):
                file.write(b" " * MIB)
            file.truncate(8 + size)
            file.seek(8 + size)
            file.write(b"x")
    return directory


def test_large_headers_are_refused_before_they_take_the_daemons_memory(
    memory_cgroup, start_daemon, build_dir, data_dir, tmp_path
):
    """Up to 100 MB of each header would be memory that nobody can take back."""
    group = memory_cgroup(128 * MIB)
    daemon = start_daemon(flags=["--extent-size", "1MiB"], wrapper=group.wrapper)
    directory = make_header_bomb(data_dir / "bomb", shards=8, header_mib=32)
    with Peak(daemon.pid) as peak:
        loaded = Cli(build_dir, daemon.socket).load(
            directory, ranks=2, digests=tmp_path / "digests"
        )
    for rank in loaded["ranks"]:
        assert rank["effective"] == "native" and "bytes of headers" in rank["reason"]
    assert group.oom_kills == 0
    assert peak.bytes < 32 * MIB
    assert daemon.is_running() and daemon.health() == "SERVING"
    # What fits is served as ever.
    small = make_cold_model(data_dir, "small", 2)
    report = Cli(build_dir, daemon.socket).json("stage", small, "--once")
    assert report["resident_bytes"] == report["bytes"]
