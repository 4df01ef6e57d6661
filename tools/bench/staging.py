"""Part "staging": filling the page cache with a checkpoint once."""

import functools
import json
import os
import time

import checkpoint_writer
import programs
from measurement import Case, rate

FIO_BLOCKS_MIB = (1, 4)
FIO_DEPTHS = (4, 16, 32)
ADVICE_KIB = 128
POPULATE_KIB = 8192
PREAD_KIB = 1024


def _total(paths):
    return sum(os.stat(path).st_size for path in paths)


def _forestage(context, daemon, directory, paths):
    told = programs.forestage_json(context, "stage", "--once", "--socket", daemon.socket, directory)
    # Both clocks: what stage does before the daemon has its demand, and the daemon's until the last
    # extent is verified. The command's own wait for the news, up to a quarter second, is left out.
    seconds = told["open_seconds"] + told["staging_seconds"]
    return rate(_total(paths), seconds, stage=told)


def _fio(paths, block_mib, depth):
    text = programs.run([
        "fio", "--name=read", "--readonly", "--rw=read", "--direct=1", "--ioengine=io_uring",
        f"--bs={block_mib}M", f"--iodepth={depth}", "--file_service_type=sequential",
        "--filename=" + ":".join(path.replace(":", r"\:") for path in paths),
        "--output-format=json"])
    read = json.loads(text[text.index("{"):])["jobs"][0]["read"]
    return rate(read["io_bytes"], read["runtime"] / 1000)


def _command(paths, command, **options):
    """The clock of a program that does nothing but this: from its start to its end."""
    begun = time.monotonic()
    programs.run(command, **options)
    return rate(_total(paths), time.monotonic() - begun)


def _dd(paths):
    return _command(paths, ["sh", "-c", 'for f in "$@"; do dd if="$f" of=/dev/null bs=1M '
                            'status=none || exit 1; done', "sh", *paths])


def _cat(paths):
    # Not a pipe, through which it would have to write.
    with open(os.devnull, "wb") as nowhere:
        return _command(paths, ["cat", *paths], stdout=nowhere)


def _fill(context, paths, way, threads, piece_kib):
    text = programs.run([context.program("test/fill_cache"), way, threads, piece_kib, *paths])
    return rate(_total(paths), float(text))


def _piece(kib):
    return f"{kib // 1024} MiB" if kib >= 1024 else f"{kib} KiB"


def _fillers(storage):
    """(way, threads, piece in KiB) that fill_cache shall try."""
    if storage.is_slow:
        return [("advice", 16, ADVICE_KIB), ("advice", 64, ADVICE_KIB),
                ("advice", 128, ADVICE_KIB), ("populate", 16, POPULATE_KIB),
                ("populate", 64, POPULATE_KIB), ("pread", 64, PREAD_KIB)]
    return [("populate", 16, POPULATE_KIB), ("advice", 64, ADVICE_KIB)]


FILLER_NAMES = {"advice": "WILLNEED", "populate": "MADV_POPULATE_READ", "pread": "pread"}


def cases(context, storage, daemon, peers):
    size = context.staging_size(storage.name)
    directory = storage.checkpoint(size)
    paths = checkpoint_writer.shard_paths(directory)
    task = "fill the page cache"
    make = functools.partial(Case, "staging", storage.name, task, paths=paths, state="cold")
    found = [make("forestage", kind="ours", must_fill=True,
                  run=functools.partial(_forestage, context, daemon, directory, paths))]
    if not storage.is_slow:
        for block in FIO_BLOCKS_MIB:
            for depth in FIO_DEPTHS:
                found.append(make(f"fio direct, {block} MiB x {depth}", kind="limit", pool="fio",
                                  run=functools.partial(_fio, paths, block, depth)))
    for way, threads, piece_kib in _fillers(storage):
        found.append(make(f"{FILLER_NAMES[way]} {_piece(piece_kib)} x {threads}", must_fill=True,
                          run=functools.partial(_fill, context, paths, way, threads, piece_kib)))
    # A single reader of slow storage takes long and its rate does not depend on how much it reads.
    part = paths[:1] if storage.is_slow else paths
    note = "first shard only" if storage.is_slow else ""
    found += [
        make("cat", run=functools.partial(_cat, part), must_fill=True, note=note),
        make("dd bs=1M", run=functools.partial(_dd, part), must_fill=True, note=note),
        make("vmtouch -t", must_fill=True, note=note,
             run=functools.partial(_command, part, ["vmtouch", "-q", "-t", "-m", "4096G", *part])),
    ]
    if storage.is_slow and peers is not None and peers.knows("safetensors"):
        found.append(make("safetensors, one reader", note=note, run=functools.partial(
            peers.load, "safetensors", part, 1, "view")))
    for case in found:
        if case.note:
            case.paths = part
    return found
