"""One rank of the readers that we compare with; runs in their virtual environment.

Imports everything once, then does one load for each command that comes as a line of JSON on
standard input, and answers with lines of JSON:

  {"peers": {NAME: null or why it cannot be used}}          at the start
  {"ready": true}                                           to {"load": NAME, ...}
  {"ended_at": monotonic seconds, "bytes": N, "error": E}   to "go": the load
  {"clean": true}                                           to "clean": all of it is let go

The clock of a load runs from the driver's "go" to the last rank's `ended_at`.
"""

import ctypes
import gc
import json
import os
import sys
import time

# Libraries may print; only answers go to the real standard output.
_answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def answer(**fields):
    _answers.write(json.dumps(fields) + "\n")
    _answers.flush()


def part_of_rows(shape, rank, ranks):
    """Rows [first, last) of dimension 0; None for a tensor that every rank takes whole."""
    if len(shape) < 2 or ranks == 1:
        return None
    share = -(-shape[0] // ranks)
    return min(shape[0], rank * share), min(shape[0], (rank + 1) * share)


def sum_of_words(address, size):
    """Reads every byte (but up to 7 at each end) at the speed of memory, as our own ranks do."""
    import numpy
    head = -address % 8
    words = (ctypes.c_uint64 * (max(0, size - head) // 8)).from_address(address + head)
    return int(numpy.ctypeslib.as_array(words).sum())


class Taker:
    """What a rank does with a tensor: looks at every byte, or keeps a copy of its own."""

    def __init__(self, measure, rank, ranks):
        self.measure = measure
        self.rank = rank
        self.ranks = ranks
        self.bytes = 0
        self.kept = []
        self.sum = 0

    def cut(self, tensor):
        rows = part_of_rows(tensor.shape, self.rank, self.ranks)
        return tensor if rows is None else tensor[rows[0]:rows[1]]

    def take(self, tensor, is_own=False):
        """`is_own`: the tensor lies in memory of this process that stays, so it needs no copy."""
        self.bytes += tensor.nbytes
        if self.measure == "view":
            self.sum += sum_of_words(tensor.data_ptr(), tensor.nbytes)
        else:
            self.kept.append(tensor if is_own else tensor.clone())


class Safetensors:
    """Its tensors are views of a private mapping, so owning one is a copy."""

    def __init__(self):
        import safetensors
        self._open = safetensors.safe_open

    def prepare(self, command):
        pass

    def load(self, paths, taker):
        for path in paths:
            with self._open(path, framework="pt", device="cpu") as file:
                for name in file.keys():
                    part = file.get_slice(name)
                    rows = part_of_rows(part.get_shape(), taker.rank, taker.ranks)
                    taker.take(part[:] if rows is None else part[rows[0]:rows[1]])

    def clean(self):
        pass


class RunaiModelStreamer:
    """Hands out whole tensors: its own when asked, else views of buffers that it uses again."""

    def __init__(self):
        import runai_model_streamer
        self._streamer = runai_model_streamer.SafetensorsStreamer

    def prepare(self, command):
        pass

    def load(self, paths, taker):
        whole_and_own = taker.ranks == 1 and taker.measure == "own"
        with self._streamer() as streamer:
            streamer.stream_files(list(paths), owned=whole_and_own)
            for _, tensor in streamer.get_tensors():
                taker.take(taker.cut(tensor), is_own=whole_and_own)

    def clean(self):
        pass


class Fastsafetensors:
    """Reads whole files into buffers of the process, of which its tensors are views.

    Several ranks share the reading: each file is read by one of them, which gives the others their
    rows through gloo.
    """

    def __init__(self):
        import fastsafetensors
        import torch.distributed
        self._library = fastsafetensors
        self._distributed = torch.distributed
        self._open = []

    def prepare(self, command):
        if command["ranks"] > 1 and not self._distributed.is_initialized():
            self._distributed.init_process_group(
                "gloo", init_method="file://" + command["meeting_file"], rank=command["rank"],
                world_size=command["ranks"])

    def _read(self, group, files_of_rank):
        loader = self._library.SafeTensorsFileLoader(group, "cpu", nogds=True)
        loader.add_filenames({rank: paths for rank, paths in files_of_rank.items() if paths})
        buffer = loader.copy_files_to_device()
        self._open.append((buffer, loader))
        return buffer, loader

    def load(self, paths, taker):
        if taker.ranks > 1:
            return self._load_as_group(paths, taker)
        # What the rank owns in the end is the buffer.
        buffer, loader = self._read(self._library.SingleGroup(), {0: paths})
        for name in loader.get_keys():
            taker.take(buffer.get_tensor(name), is_own=True)

    def _load_as_group(self, paths, taker):
        buffer, loader = self._read(self._distributed.group.WORLD, {
            rank: paths[rank::taker.ranks] for rank in range(taker.ranks)})
        # Collective calls: in the same order on every rank.
        for name in loader.get_keys():
            is_whole = len(loader.get_shape(name)) < 2
            tensor = buffer.get_tensor(name) if is_whole else buffer.get_sharded(name, 0)
            taker.take(tensor, is_own=True)

    def clean(self):
        for buffer, loader in self._open:
            buffer.close()
            loader.close()
        self._open = []


PEERS = {"safetensors": Safetensors, "runai-model-streamer": RunaiModelStreamer,
         "fastsafetensors": Fastsafetensors}


def start_peers():
    """({name: peer}, {name: why not or None})."""
    peers, states = {}, {}
    for name, make in PEERS.items():
        try:
            peers[name] = make()
            states[name] = None
        except Exception as error:
            states[name] = f"{type(error).__name__}: {error}"
    return peers, states


def commands():
    for line in sys.stdin:
        yield json.loads(line)


def serve(peers):
    asked = commands()
    for command in asked:
        peer = peers[command["load"]]
        taker = Taker(command["measure"], command["rank"], command["ranks"])
        peer.prepare(command)
        answer(ready=True)
        assert next(asked) == "go"
        error = None
        try:
            peer.load(command["paths"], taker)
        except Exception as caught:
            error = f"{type(caught).__name__}: {caught}"
        answer(ended_at=time.monotonic(), bytes=taker.bytes, error=error)
        assert next(asked) == "clean"
        taker.kept.clear()
        del taker
        peer.clean()
        gc.collect()
        # The next load shall find no memory that this one has already had from the kernel: a rank
        # that starts has none.
        ctypes.CDLL(None).malloc_trim(0)
        answer(clean=True)


def main():
    try:
        import torch
    except ImportError as error:
        answer(peers={name: f"torch: {error}" for name in PEERS})
        return
    # One thread of a rank looks at bytes, as in ours. What a library starts by itself, it may.
    torch.set_num_threads(1)
    peers, states = start_peers()
    answer(peers=states)
    serve(peers)


if __name__ == "__main__":
    main()
