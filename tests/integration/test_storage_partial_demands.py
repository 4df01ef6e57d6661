"""Of a checkpoint that ranks want in part a device gives the pages they want, and no others."""

import hashlib
import re

import numpy
import pytest

from forestage_testing import checkpoints

pytestmark = pytest.mark.counts_reads

# Bytes read over those that are needed: whole pages, and the header.
READ_RATIO_MAX = 1.01
STAGED = "rank_striped_read_ahead"
KIB = 1 << 10
MIB = 1 << 20


class PartialModel:
    """One shard of bytes on a device of its own, of which ranks want parts."""

    def __init__(self, mount_loop, tensor_bytes, tensors, **device):
        random = numpy.random.default_rng(11)
        self.content = {
            f"t{i:03}": checkpoints.random_array(random, "uint8", (tensor_bytes // KIB, KIB))
            for i in range(tensors)
        }
        mib = tensor_bytes * tensors // MIB + 8
        self.device = mount_loop(self._fill, mib=mib, **device)
        self.directory = self.device.mount
        self._before = self.device.bytes_read()

    def _fill(self, path):
        shard = path / "model.safetensors"
        checkpoints.save(shard, self.content)
        self._ranges = checkpoints.data_ranges(shard)
        self._header_end = min(begin for begin, _ in self._ranges.values())

    def names(self, step, first=0):
        return list(self.content)[first::step]

    def _range(self, part):
        """Bytes in the file of "NAME" or "NAME[FIRST:LAST]", and the digest of these."""
        name, first, last = re.fullmatch(r"(\w+)(?:\[(\d+):(\d+)\])?", part).groups()
        rows = slice(int(first or 0), int(last) if last else len(self.content[name]))
        begin = self._ranges[name][0]
        digest = hashlib.sha256(self.content[name][rows].tobytes()).hexdigest()
        return (begin + rows.start * KIB, begin + rows.stop * KIB), digest

    def assert_read(self, *demands):
        """What was read since the beginning is what these demands need, each page once."""
        ranges = [self._range(part)[0] for demand in demands for part in demand]
        pages = checkpoints.pages_of([(0, self._header_end), *ranges])
        needed = len(pages) * checkpoints.PAGE_BYTES
        read = self.device.bytes_read() - self._before
        # Of the header's last page the first tensor may be part.
        assert needed - checkpoints.PAGE_BYTES <= read <= needed * READ_RATIO_MAX, (
            f"{read / needed:.4f} x {needed}"
        )

    def assert_right_bytes(self, rank, demand):
        got = rank.finish()["digests"]
        expected = {}
        for part in demand:
            expected[part.partition("[")[0]] = self._range(part)[1]
        assert got == expected


def start(start_rank, model, daemon, demand, *, flags=(), **options):
    demand_flags = [word for part in demand for word in ["--demand", part]]
    rank = start_rank(
        model.directory, socket=daemon.socket, flags=[*demand_flags, *flags], **options
    )
    assert rank.expect("opened")["decision"]["effective"] == STAGED
    return rank


@pytest.mark.parametrize("read_ahead_kb", [128, 4096])
@pytest.mark.parametrize("way", ["view", "copy"])
@pytest.mark.parametrize(
    "tensor_mib, tensors, step", [(1, 48, 3), (14, 16, 8)], ids=["small", "experts"]
)
def test_a_device_gives_the_tensors_that_a_rank_wants_and_not_what_lies_between(
    tensor_mib, tensors, step, way, read_ahead_kb, mount_loop, start_daemon, start_rank
):
    model = PartialModel(mount_loop, tensor_mib * MIB, tensors, read_ahead_kb=read_ahead_kb)
    daemon = start_daemon()
    demand = model.names(step, first=1)
    rank = start(start_rank, model, daemon, demand, flags=["--copy"] if way == "copy" else [])
    model.assert_right_bytes(rank, demand)
    model.assert_read(demand)


@pytest.mark.parametrize("file_system, reader", [("ext4", "io_uring"), ("xfs", "threads")])
def test_a_device_gives_the_rows_that_a_rank_wants(
    file_system, reader, mount_loop, start_daemon, start_rank
):
    model = PartialModel(mount_loop, 6 * MIB, 6, file_system=file_system)
    daemon = start_daemon(flags=["--reader", reader])
    demand = [f"{name}[1500:3037]" for name in model.content]
    rank = start(start_rank, model, daemon, demand)
    model.assert_right_bytes(rank, demand)
    model.assert_read(demand)


@pytest.mark.parametrize("extent_size", ["256KiB", "8MiB"])
def test_a_device_gives_what_two_ranks_want_once(
    extent_size, mount_loop, start_daemon, start_rank
):
    model = PartialModel(mount_loop, MIB, 40)
    daemon = start_daemon(flags=["--extent-size", extent_size])
    demands = [model.names(4), model.names(6, first=1) + model.names(8)]
    ranks = [
        start(start_rank, model, daemon, demand, rank=i, size=2, flags=["--copy"])
        for i, demand in enumerate(demands)
    ]
    for rank, demand in zip(ranks, demands):
        model.assert_right_bytes(rank, demand)
    model.assert_read(*demands)


@pytest.mark.parametrize("way", ["view", "copy"])
def test_a_demand_that_comes_when_its_extents_are_staged_for_another_costs_what_it_adds(
    way, mount_loop, start_daemon, start_rank
):
    model = PartialModel(mount_loop, MIB, 40)
    daemon = start_daemon()
    flags = ["--copy"] if way == "copy" else []
    first = model.names(4)
    holder = start(start_rank, model, daemon, first, size=2, flags=["--hold"])
    holder.expect("holding")
    model.assert_read(first)
    later = model.names(4, first=2) + model.names(8)
    rank = start(start_rank, model, daemon, later, rank=1, size=2, flags=flags)
    model.assert_right_bytes(rank, later)
    model.assert_read(first, later)
    holder.resume()
    model.assert_right_bytes(holder, first)


def test_who_wants_everything_gets_what_was_left_out_for_another(
    mount_loop, start_daemon, start_rank
):
    model = PartialModel(mount_loop, MIB, 24)
    daemon = start_daemon()
    first = model.names(3)
    holder = start(start_rank, model, daemon, first, size=2, flags=["--hold"])
    holder.expect("holding")
    everything = start(start_rank, model, daemon, [], rank=1, size=2)
    model.assert_right_bytes(everything, model.names(1))
    model.assert_read(model.names(1))
    holder.resume()
    model.assert_right_bytes(holder, first)


def test_a_fuse_server_is_asked_for_what_a_rank_wants(
    data_dir, mount_slowfs, start_daemon, start_rank
):
    random = numpy.random.default_rng(13)
    tensors = {
        f"t{i:02}": checkpoints.random_array(random, "uint8", (MIB,)) for i in range(48)
    }
    shard = data_dir / "model.safetensors"
    checkpoints.save(shard, tensors)
    ranges = checkpoints.data_ranges(shard)
    demand = list(tensors)[1::3]
    needed = len(checkpoints.pages_of([ranges[name] for name in demand])) * checkpoints.PAGE_BYTES
    slowfs = mount_slowfs(data_dir)
    daemon = start_daemon()
    flags = [word for name in demand for word in ["--demand", name]]
    rank = start_rank(slowfs.mount, socket=daemon.socket, flags=flags)
    assert rank.expect("opened")["decision"]["effective"] == STAGED
    assert rank.finish()["digests"] == {
        name: hashlib.sha256(tensors[name].tobytes()).hexdigest() for name in demand
    }
    # The header is read through the rank's own descriptor, with what the kernel guesses to come.
    header_bytes = 256 * KIB
    assert needed <= slowfs.weight_bytes() <= needed * READ_RATIO_MAX + header_bytes
