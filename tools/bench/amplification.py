"""Part "amplification": bytes that the device gave over bytes that the ranks need."""

import functools
import json
import struct
import subprocess
import time

import checkpoint_writer
import page_cache
import programs
from loading import forestage_load
from measurement import Case, Measurement

RANKS = (1, 4, 8)
JOINS_AT_PERCENT = (0, 40, 90, 100)
# A rank of so many that share out the tensors; the others do not come.
PART_OF = 3


def _staged_percent(context, daemon):
    checkpoints = programs.forestage_json(context, "status", "--socket",
                                          daemon.socket)["checkpoints"]
    if not checkpoints:
        return -1
    # By protobuf's mapping to JSON, large numbers are text.
    progress = checkpoints[0]["progress"]
    wanted = int(progress["wanted_bytes"])
    return 100 * int(progress["resident_bytes"]) / wanted if wanted else -1


def _load_while_staging(context, daemon, directory, percent):
    """8 ranks come when another session has brought so much into memory."""
    holder = subprocess.Popen(
        [context.program("bin/forestage"), "--json", "stage", "--socket", daemon.socket, directory],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        preexec_fn=programs.die_with_parent)
    try:
        deadline = time.monotonic() + programs.RUN_PATIENCE_SECONDS
        joined_at = 0
        while percent > 0 and (joined_at := _staged_percent(context, daemon)) < percent:
            if time.monotonic() > deadline or holder.poll() is not None:
                raise programs.ReaderFailed(f"staging did not come to {percent} %")
        told = forestage_load(context, daemon, directory, 8, "view")
    finally:
        holder.terminate()
        holder.wait()
    return {"joined_at_percent": joined_at, "load": told}


def _every_nth_tensor(paths):
    """Names, and the bytes of the pages on which they and the headers lie."""
    names, page_count = [], 0
    for path in paths:
        with open(path, "rb") as file:
            (header_bytes,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(header_bytes))
        data = 8 + header_bytes
        ranges = [(0, data)]
        tensors = sorted((entry["data_offsets"], name) for name, entry in header.items()
                         if name != "__metadata__")
        for (begin, end), name in tensors[1::PART_OF]:
            names.append(name)
            ranges.append((data + begin, data + end))
        page_count += len({page for begin, end in ranges
                           for page in range(begin // page_cache.PAGE_BYTES,
                                             -(-end // page_cache.PAGE_BYTES))})
    return names, page_count * page_cache.PAGE_BYTES


def _load_part(context, daemon, directory, names):
    demand = [word for name in names for word in ("--demand", name)]
    begun = time.monotonic()
    last = programs.run([context.program("test/load_rank"), "--socket", daemon.socket, "--group",
                         f"part{begun}", *demand, directory]).splitlines()[-1]
    if json.loads(last)["decision"]["effective"] == "native":
        raise programs.ReaderFailed(json.loads(last)["decision"]["reason"])
    return time.monotonic() - begun


def cases(context, storage, daemon, peers):
    del peers
    directory = storage.checkpoint(context.staging_size(storage.name))
    paths = checkpoint_writer.shard_paths(directory)
    needed = page_cache.pages_of(paths) * page_cache.PAGE_BYTES
    part_names, part_needed = _every_nth_tensor(paths)

    def load(ranks):
        told = forestage_load(context, daemon, directory, ranks, "view")
        return Measurement(0, told["node"]["load_seconds"], {"bytes": needed, "load": told})

    def part():
        return Measurement(0, _load_part(context, daemon, directory, part_names),
                           {"bytes": part_needed})

    def join(percent):
        extra = _load_while_staging(context, daemon, directory, percent)
        return Measurement(0, extra["load"]["node"]["load_seconds"], {"bytes": needed, **extra})

    # The value is what the storage's counter says: Rounds puts it in.
    make = functools.partial(Case, "amplification", storage.name, reader="forestage", paths=paths,
                             unit="x needed", kind="ours")
    return [
        *(make(f"device bytes, N={ranks}", state="cold", run=functools.partial(load, ranks))
          for ranks in RANKS),
        make(f"device bytes, N=1, every {PART_OF}rd tensor", state="cold", run=part),
        *(make(f"device bytes, N=8 joins at {percent} %", state="cold",
               run=functools.partial(join, percent)) for percent in JOINS_AT_PERCENT),
        make("device bytes, N=8, warm restart", state="warm", run=functools.partial(load, 8)),
    ]
