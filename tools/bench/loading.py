"""Part "loading": N ranks get their slices of a checkpoint."""

import functools
import os

import checkpoint_writer
import peers as peer_readers
import programs
from measurement import Case, rate

RANKS = (1, 8)
MEASURES = ("view", "own")


def forestage_load(context, daemon, directory, ranks, measure, share=None):
    """The document of `forestage load`. `daemon` is None for ranks that read by themselves."""
    # One rank's rows are the whole tensor, and asking for the whole needs no look at the shapes.
    share = share or ("all" if ranks == 1 else "rows")
    return programs.forestage_json(
        context, "load", directory, "--ranks", str(ranks), "--share", share,
        "--together",
        *(["--own"] if measure == "own" else []),
        *(["--no-daemon"] if daemon is None else ["--socket", daemon.socket]))


def _load(context, daemon, directory, total, ranks, measure):
    told = forestage_load(context, daemon, directory, ranks, measure)
    wanted = "native" if daemon is None else "rank_striped_read_ahead"
    if any(rank["effective"] != wanted for rank in told["ranks"]):
        raise programs.ReaderFailed(f"a rank did not load by {wanted}: {told['ranks']}")
    return rate(total, told["node"]["load_seconds"], load=told)


def task_name(ranks, state, measure):
    return f"N={ranks}, {state}, {measure}"


def _total(paths):
    return sum(os.stat(path).st_size for path in paths)


def cases(context, storage, daemon, peers):
    directory = storage.checkpoint(context.loading_size(storage.name))
    paths = checkpoint_writer.shard_paths(directory)
    total = _total(paths)
    found = []
    # Warm, the storage plays no part; the disk shows it.
    states = ("cold",) if storage.is_slow else ("cold", "warm")
    for measure in MEASURES:
        for ranks in RANKS:
            for state in states:
                make = functools.partial(Case, "loading", storage.name,
                                         task_name(ranks, state, measure), paths=paths, state=state)
                found.append(make("forestage", kind="ours", run=functools.partial(
                    _load, context, daemon, directory, total, ranks, measure)))
                found.append(make("forestage, no daemon", kind="ours", run=functools.partial(
                    _load, context, None, directory, total, ranks, measure)))
                for name in peers.names() if peers is not None else ():
                    found.append(make(name, note=peer_readers.NOTES.get(name, ""),
                                      run=functools.partial(peers.load, name, paths, ranks,
                                                            measure)))
    return found
