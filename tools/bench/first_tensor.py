"""Part "first": from a rank's own open to its first usable tensor; headers are cold, too."""

import functools
import json
import os

import checkpoint_writer
import programs
from loading import RANKS, forestage_load
from measurement import Case, Measurement


def _all_ranks(context, daemon, directory, ranks):
    """The slowest rank's. All ranks take all tensors, so that no plan needs a look at the headers."""
    told = forestage_load(context, daemon, directory, ranks, "view", share="all")
    return max(rank["first_tensor_seconds"] for rank in told["ranks"])


def _one_of(context, daemon, directory, ranks):
    """Of a group whose other ranks do not come; started like those of a load with --together."""
    # A rank tells its result through its descriptor 3.
    lines = programs.run([
        "env", "LD_BIND_NOW=1", "sh", "-c", 'exec "$@" 3>&1 >/dev/null', "sh", context.program("bin/forestage"), "rank",
        f"--directory={directory}", "--rank=0", f"--ranks={ranks}", "--share=all", "--policy=auto",
        "--agreement=eager", f"--group=alone-{os.urandom(8).hex()}", "--nonce=bench",
        f"--socket={daemon.socket}"])
    told = [json.loads(line) for line in lines.splitlines()]
    result = next(message for message in told if message["kind"] == "result")
    if result["effective"] != "rank_striped_read_ahead":
        raise programs.ReaderFailed(f"the rank loaded natively: {result['reason']}")
    return result["first_tensor_seconds"]


def cases(context, storage, daemon, peers):
    del peers
    directory = storage.checkpoint(context.staging_size(storage.name))
    paths = checkpoint_writer.shard_paths(directory)
    latency = storage.request_latency_seconds

    def run(way, ranks):
        seconds = way(context, daemon, directory, ranks)
        return Measurement(seconds * 1000 if latency is None else seconds / latency, seconds)

    ways = [(f"first tensor, N={ranks}", _all_ranks, ranks) for ranks in RANKS]
    ways.append(("first tensor, only 1 of N=8 has come", _one_of, 8))
    return [Case("first", storage.name, task, "forestage", paths, "cold",
                 functools.partial(run, way, ranks), kind="ours",
                 unit="ms" if latency is None else "requests") for task, way, ranks in ways]
