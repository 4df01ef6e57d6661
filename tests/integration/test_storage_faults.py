"""Every read of a load, failed in every way: a walk over all points at which storage is read.

A point is a header or an extent; each has a checkpoint of its own, on one mount, beside a sound
one. All are loaded at once from one daemon, so that what fails must leave the others alone.
"""

import re
import subprocess

import numpy
import pytest

from forestage_testing import checkpoints
from forestage_testing.processes import AS_STRANGER, GUARD_SECONDS, wait_until

EXTENT_BYTES = 256 << 10
TENSOR_BYTES = 100 << 10
TENSORS = 10
PAGE_BYTES = checkpoints.PAGE_BYTES
# A header and four extents.
POINT_COUNT = 5
ERRORS = ["eio", "estale", "enomem", "eintr", "eagain"]
ENDS = ["short", "eof"]
HANG = "hang"
KINDS = [*ERRORS, *ENDS, HANG]
# How the daemon brings pages into memory and verifies them: as a stranger it cannot ask whether a
# page is there, and populates a mapping instead.
WAYS = {
    "io_uring": {"flags": ["--reader", "io_uring"]},
    "threads": {"flags": ["--reader", "threads"]},
    "io_uring-populate": {"flags": ["--reader", "io_uring"], "wrapper": AS_STRANGER},
    "threads-populate": {"flags": ["--reader", "threads"], "wrapper": AS_STRANGER},
}


class Point:
    """One place of storage, in a checkpoint of its own."""

    def __init__(self, source, name, begin, end):
        self.directory = name
        self.path = source / name / "model.safetensors"
        self.name = f"{name}/model.safetensors"
        self.begin = begin
        self.end = end
        self.digests = checkpoints.expected_digests(source / name, 1, "all")

    def tensors_outside(self, unit_bytes):
        """Those that touch none of the file's units (pages, extents) on which the point lies."""
        first = self.begin // unit_bytes * unit_bytes
        last = -(-self.end // unit_bytes) * unit_bytes
        ranges = checkpoints.data_ranges(self.path).items()
        return [name for name, (begin, end) in ranges if end <= first or begin >= last]


@pytest.fixture
def points(data_dir):
    """One for each header and extent; `sound` is a checkpoint without any."""
    random = numpy.random.default_rng(7)
    tensors = {
        f"t{i}": checkpoints.random_array(random, "uint8", (TENSOR_BYTES + i,))
        for i in range(TENSORS)
    }

    def make(name):
        (data_dir / name).mkdir()
        checkpoints.save(data_dir / name / "model.safetensors", tensors)
        return data_dir / name / "model.safetensors"

    size = make("sound").stat().st_size
    make("header")
    walk = [Point(data_dir, "header", 0, PAGE_BYTES)]
    for begin in range(0, size, EXTENT_BYTES):
        name = f"extent{begin // EXTENT_BYTES}"
        make(name)
        # The last whole page of the extent, or of the file.
        last = (min(begin + EXTENT_BYTES, size) - 1) // PAGE_BYTES * PAGE_BYTES
        walk.append(Point(data_dir, name, last, min(last + PAGE_BYTES, size)))
    assert len(walk) == POINT_COUNT
    checkpoints.give_to_nobody(data_dir)
    return walk


@pytest.fixture(params=WAYS)
def walking_daemon(request, start_daemon, need_root):
    way = WAYS[request.param]
    flags = [*way["flags"], "--extent-size", EXTENT_BYTES]
    return start_daemon(flags=flags, wrapper=way.get("wrapper", ()))


class Walk:
    """Loads all checkpoints at once, with a fault or hold at each point."""

    def __init__(self, points, slowfs, daemon, start_rank):
        self.points = points
        self.slowfs = slowfs
        self.daemon = daemon
        self.start_rank = start_rank
        self.walked = 0

    def start(self, name, group, demand=(), flags=()):
        flags = [*flags, *(word for tensor in demand for word in ["--demand", tensor])]
        directory = self.slowfs.mount / name
        return self.start_rank(directory, socket=self.daemon.socket, group=group, flags=flags)

    def begin(self):
        """Nothing is in memory, and the counters are at 0."""
        for point in self.points:
            checkpoints.make_cold(self.slowfs.mount / point.directory)
        checkpoints.make_cold(self.slowfs.mount / "sound")
        self.slowfs.reset_stats()

    def end(self, sound):
        """What has no fault was delivered; each point was met; the daemon is as it was."""
        assert_right(sound, self.points[0])
        for point in self.points:
            assert self.slowfs.stats()["files"][point.name]["faults"] > 0, point.name
            self.walked += 1
        self.slowfs.clear_faults()
        assert self.daemon.health() == "SERVING"
        self.daemon.wait_for_no_sessions()

    def all_hang(self):
        files = self.slowfs.stats()["files"]
        return all(files.get(point.name, {}).get("in_flight") for point in self.points)


@pytest.fixture
def walk(points, data_dir, mount_slowfs, walking_daemon, start_rank):
    slowfs = mount_slowfs(data_dir)
    return Walk(points, slowfs, walking_daemon, start_rank)


def assert_typed_error(event, point):
    assert event["event"] == "error", event
    assert point.path.name in event["message"], event
    if point.directory != "header":
        assert offsets_in(event["message"]) == {point.begin}, event


def offsets_in(text):
    return {int(number) for number in re.findall(r"offset (\d+)", text)}


def assert_daemon_named_each_place(walk):
    """Where the first page begins that it could not have, or the file ended, and nothing else."""
    for point in walk.points[1:]:
        lines = [
            line
            for line in walk.daemon.log.splitlines()
            if "read failed" in line and f"/{point.directory}\"" in line
        ]
        assert lines, point.name
        assert offsets_in("\n".join(lines)) == {point.begin}, lines


def assert_right(rank, point, tensors=None):
    event = rank.outcome()
    assert event["event"] == "done", event
    expected = point.digests
    if tensors is not None:
        expected = {key: digest for key, digest in expected.items() if key[1] in tensors}
    assert rank.digests(event) == expected


def test_an_error_that_passes_is_not_noticed(walk):
    """Read-ahead meets it and says nothing; the read that finds the hole gets the bytes."""
    for kind in ERRORS:
        walk.begin()
        for point in walk.points:
            walk.slowfs.fault(point.name, point.begin, point.end, kind, count=1)
        ranks = [walk.start(point.directory, point.directory) for point in walk.points]
        sound = walk.start("sound", "sound")
        for rank, point in zip(ranks, walk.points):
            assert_right(rank, point)
        walk.end(sound)
    assert walk.walked == POINT_COUNT * len(ERRORS)
    failed = [line for line in walk.daemon.log.splitlines() if "read failed" in line]
    assert not [line for line in failed if "/header" not in line], failed


def test_what_only_the_daemon_cannot_read_ranks_read_themselves(walk):
    for kind in ERRORS:
        walk.begin()
        for point in walk.points:
            walk.slowfs.fault(point.name, point.begin, point.end, kind, pid=walk.daemon.pid)
        ranks = [walk.start(point.directory, point.directory) for point in walk.points]
        sound = walk.start("sound", "sound")
        for rank, point in zip(ranks, walk.points):
            assert_right(rank, point)
        walk.end(sound)
    assert walk.walked == POINT_COUNT * len(ERRORS)


def test_what_nobody_can_read_is_an_error_with_file_and_offset_for_who_wants_it(walk):
    for kind in ERRORS:
        walk.begin()
        for point in walk.points:
            walk.slowfs.fault(point.name, point.begin, point.end, kind)
        ranks = [walk.start(point.directory, point.directory) for point in walk.points]
        # Tensors in a failed extent that lie on other pages of it can be had too.
        rests = {point: point.tensors_outside(PAGE_BYTES) for point in walk.points[1:]}
        others = [walk.start(point.directory, "rest", rest) for point, rest in rests.items()]
        sound = walk.start("sound", "sound")
        for rank, point in zip(ranks, walk.points):
            assert_typed_error(rank.outcome(), point)
        for rank, (point, rest) in zip(others, rests.items()):
            assert len(rest) >= TENSORS - 2
            assert_right(rank, point, rest)
        walk.end(sound)
    assert walk.walked == POINT_COUNT * len(ERRORS)
    assert_daemon_named_each_place(walk)


def test_short_answers_are_read_on_and_early_ends_are_errors(walk):
    """Without the page cache in between, which would fill up a short answer with zeros."""
    walk.begin()
    walk.slowfs.set("direct_io", "on")
    for kind in ENDS:
        walk.slowfs.reset_stats()
        for point in walk.points:
            walk.slowfs.fault(point.name, point.begin, point.end, kind)
        ranks = [walk.start(point.directory, point.directory) for point in walk.points]
        sound = walk.start("sound", "sound")
        for rank, point in zip(ranks, walk.points):
            if kind == "short":
                assert_right(rank, point)
            else:
                assert_typed_error(rank.outcome(), point)
        walk.end(sound)
    assert walk.walked == POINT_COUNT * len(ENDS)
    assert_daemon_named_each_place(walk)


def test_a_read_that_hangs_holds_up_only_who_waits_for_it(walk):
    walk.begin()
    for point in walk.points:
        walk.slowfs.hold(point.name, point.begin, point.end)
    ranks = [walk.start(point.directory, point.directory) for point in walk.points]
    wait_until(walk.all_hang, "a read to hang at each point")
    rests = {point: point.tensors_outside(EXTENT_BYTES) for point in walk.points[1:]}
    others = [walk.start(point.directory, "rest", rest) for point, rest in rests.items()]
    sound = walk.start("sound", "sound")
    assert_right(sound, walk.points[0])
    for rank, (point, rest) in zip(others, rests.items()):
        assert len(rest) >= TENSORS // 2
        assert_right(rank, point, rest)
    assert walk.all_hang()
    walk.slowfs.release()
    for rank, point in zip(ranks, walk.points):
        assert_right(rank, point)
    assert walk.daemon.health() == "SERVING"


@pytest.mark.parametrize("kind", ERRORS)
def test_an_index_that_cannot_be_read_is_an_error_that_names_it(
    kind, daemon, data_dir, mount_slowfs, start_rank
):
    checkpoints.make_model(data_dir, shards=2, mib=1)
    slowfs = mount_slowfs(data_dir)
    slowfs.fault(checkpoints.INDEX_NAME, 0, "end", kind)
    event = start_rank(slowfs.mount, socket=daemon.socket).outcome()
    assert event["event"] == "error"
    assert checkpoints.INDEX_NAME in event["message"]
    assert kind.upper() in event["message"]
    assert slowfs.stats()["files"][checkpoints.INDEX_NAME]["faults"] > 0


# How a rank reads by itself: through a mapping, or by reads into memory of its own.
NATIVE_WAYS = {"view": [], "copy": ["--copy"]}


@pytest.fixture
def native_walk(points, data_dir, mount_slowfs, daemon, start_rank):
    return Walk(points, mount_slowfs(data_dir), daemon, start_rank)


@pytest.mark.parametrize("way", NATIVE_WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_read_of_a_rank_by_itself_fails_in_its_own_way_only(kind, way, native_walk):
    """At each header and extent: an error by name, file and place, or the right bytes in the end."""
    walk = native_walk
    native = ["--policy", "native", *NATIVE_WAYS[way]]
    walk.begin()
    if kind in ENDS:
        walk.slowfs.set("direct_io", "on")
    for point in walk.points:
        if kind == HANG:
            walk.slowfs.hold(point.name, point.begin, point.end)
        else:
            walk.slowfs.fault(point.name, point.begin, point.end, kind)
    ranks = [walk.start(point.directory, point.directory, flags=native) for point in walk.points]
    sound = walk.start("sound", "sound", flags=native)
    if kind == HANG:
        wait_until(walk.all_hang, "a read to hang at each point")
        assert_right(sound, walk.points[0])
        assert walk.all_hang()
        walk.slowfs.release()
    for rank, point in zip(ranks, walk.points):
        if kind in ("short", HANG):
            assert_right(rank, point)
            continue
        event = rank.outcome()
        assert_typed_error(event, point)
        if kind in ERRORS:
            assert kind.upper() in event["message"]
    if kind != HANG:
        walk.end(sound)
        assert walk.walked == POINT_COUNT
    print(f"{POINT_COUNT} points of {len(KINDS)} kinds, by {way}")


@pytest.mark.parametrize("way", NATIVE_WAYS)
@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_that_passes_is_not_noticed_by_a_rank_that_reads_through_pages(
    kind, way, native_walk
):
    """Behind headers: read-ahead meets it, or a page fault, and the read that follows is good."""
    walk = native_walk
    walk.points = walk.points[1:]
    walk.begin()
    for point in walk.points:
        walk.slowfs.fault(point.name, point.begin, point.end, kind, count=1)
    flags = ["--policy", "native", *NATIVE_WAYS[way]]
    ranks = [walk.start(point.directory, point.directory, flags=flags) for point in walk.points]
    sound = walk.start("sound", "sound", flags=flags)
    for rank, point in zip(ranks, walk.points):
        assert_right(rank, point)
    walk.end(sound)
    assert walk.walked == POINT_COUNT - 1


PROBE_BYTES = 24 << 20


PROBE_PARTS = ["first_page", "rest"]
# To hang takes the doctor's patience.
PROBE_POINTS = [(kind, part) for kind in [*ERRORS, *ENDS] for part in PROBE_PARTS]
PROBE_POINTS += [(HANG, "first_page"), (HANG, "rest")]


@pytest.mark.parametrize("kind, part", PROBE_POINTS)
def test_every_read_of_the_probe_may_fail_and_the_doctor_says_something_and_ends(
    kind, part, cli_without_daemon, data_dir, mount_slowfs
):
    """The probe reads a page, advises, and faults a block in; what fails is no verdict of the mount."""
    checkpoints.save(
        data_dir / "model.safetensors", {"t": numpy.zeros((PROBE_BYTES,), "uint8")}
    )
    slowfs = mount_slowfs(data_dir)
    begin, end = (0, PAGE_BYTES) if part == "first_page" else (PAGE_BYTES, "end")
    if kind in ENDS:
        slowfs.set("direct_io", "on")
    if kind == HANG:
        slowfs.hold("model.safetensors", begin, end)
    else:
        slowfs.fault("model.safetensors", begin, end, kind)
    arguments = [cli_without_daemon.program, "doctor", slowfs.mount, "--no-daemon", "--json"]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as doctor:
        if kind == HANG:
            # It has said what there is to say before; the process ends when it is answered.
            said = doctor.stdout.readline()
            assert said
            slowfs.release()
        out, err = doctor.communicate(timeout=GUARD_SECONDS)
        assert doctor.returncode in (0, 1), err
        assert (out + err).strip() or kind == HANG
    if kind in ERRORS:
        assert doctor.returncode == (0 if part == "rest" else 1)
        assert kind.upper() in out + err
        # An error of storage is no fault of the kernel or of a setting.
        assert "no_populate" not in out and "advice_ignored" not in out
    print(f"{len(PROBE_POINTS)} points and kinds of the probe")
