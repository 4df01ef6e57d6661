"""Checkpoints made by the real safetensors writer or byte by byte, and the real reader's view."""

import contextlib
import ctypes
import hashlib
import json
import mmap
import os
import pathlib
import struct

import numpy
import safetensors
import safetensors.numpy

from forestage_testing.processes import wait_until

INDEX_NAME = "model.safetensors.index.json"
# Every dtype that numpy and safetensors share.
NUMPY_DTYPES = [
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "float16",
    "uint32",
    "int32",
    "float32",
    "uint64",
    "int64",
    "float64",
    "complex64",
]
PAGE_BYTES = mmap.PAGESIZE
NOBODY = 65534


def device_text(path):
    """The mount of a path as the kernel and Forestage write it: "8:1"."""
    device = os.stat(path).st_dev
    return f"{os.major(device)}:{os.minor(device)}"


def random_array(random, dtype, shape):
    """Any bit pattern, NaNs included; what is compared is bytes."""
    dtype = numpy.dtype(dtype)
    if dtype.kind == "b":
        return random.integers(0, 2, size=shape, dtype=numpy.uint8).astype(bool)
    count = int(numpy.prod(shape, dtype=numpy.int64)) * dtype.itemsize
    return numpy.frombuffer(random.bytes(count), dtype=dtype).reshape(shape)


def save(path, tensors, metadata=None):
    """One file by the real writer: {name: array}."""
    safetensors.numpy.save_file(tensors, path, metadata=metadata)


def save_raw(path, tensors, header_padding=0, metadata=None):
    """One file byte by byte: (name, dtype of the header, shape, bytes) in file order.

    `header_padding` spaces stand behind the header, which is not aligned otherwise.
    """
    header = {} if metadata is None else {"__metadata__": metadata}
    offset = 0
    for name, dtype, shape, content in tensors:
        header[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [offset, offset + len(content)],
        }
        offset += len(content)
    text = json.dumps(header, separators=(",", ":")).encode() + b" " * header_padding
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, _, content in tensors:
            file.write(content)


def save_header(path, header, data_bytes=0):
    """A file of any header text and zeros."""
    text = header if isinstance(header, bytes) else header.encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + bytes(data_bytes))


def save_sharded(directory, tensors, shard_count, index=True):
    """{name: array} over shards by the real writer, with Hugging Face's index file."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    names = list(tensors)
    weight_map = {}
    for shard in range(shard_count):
        file_name = f"model-{shard + 1:05}-of-{shard_count:05}.safetensors"
        part = {name: tensors[name] for name in names[shard::shard_count]}
        save(directory / file_name, part, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(part, file_name))
    if index:
        total = sum(array.nbytes for array in tensors.values())
        document = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (directory / INDEX_NAME).write_text(json.dumps(document))
    return directory


def make_model(directory, *, seed=0, shards=2, mib=8, index=True):
    """A sharded checkpoint of about `mib` MiB with tensors of several sizes."""
    random = numpy.random.default_rng(seed)
    tensors = {}
    # 64 rows of 2^12 float32 are 1 MiB.
    for layer in range(mib):
        tensors[f"model.layers.{layer}.mlp.weight"] = random_array(random, "float32", (63, 4096))
        tensors[f"model.layers.{layer}.attn.bias"] = random_array(random, "float16", (37,))
        tensors[f"model.layers.{layer}.norm.weight"] = random_array(random, "float32", (4093,))
    tensors["model.scale"] = random_array(random, "float32", ())
    return save_sharded(directory, tensors, shards, index)


def make_sparse(directory, size, *, shards=1):
    """Shards of one tensor of zeros each, which take no place on the disk."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True)
    for shard in range(shards):
        text = json.dumps(
            {f"t{shard}": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
        ).encode()
        suffix = f"-{shard + 1:05}-of-{shards:05}" if shards > 1 else ""
        with open(directory / f"model{suffix}.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + size)
    return directory


def make_hugging_face_cache(directory, plain):
    """The layout of a Hugging Face cache around the files of `plain`; returns the snapshot."""
    directory = pathlib.Path(directory)
    blobs = directory / "models--some--model" / "blobs"
    snapshot = directory / "models--some--model" / "snapshots" / ("0123456789abcdef" * 2)
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for path in sorted(pathlib.Path(plain).iterdir()):
        content = path.read_bytes()
        blob = blobs / hashlib.sha256(content).hexdigest()
        blob.write_bytes(content)
        (snapshot / path.name).symlink_to(pathlib.Path("../../blobs") / blob.name)
    return snapshot


def give_to_nobody(directory):
    """A tree that everybody may read and only its owner, who is not us, may write."""
    for path in [pathlib.Path(directory), *pathlib.Path(directory).rglob("*")]:
        os.chown(path, NOBODY, NOBODY)
        path.chmod(0o755 if path.is_dir() else 0o644)


def shard_paths(directory):
    return sorted(pathlib.Path(directory).glob("*.safetensors"))


def total_bytes(directory):
    return sum(path.stat().st_size for path in shard_paths(directory))


def total_page_bytes(directory):
    """What a page cache that holds all of it holds."""
    sizes = [path.stat().st_size for path in shard_paths(directory)]
    return sum(-(-size // PAGE_BYTES) * PAGE_BYTES for size in sizes)


def read_reference(directory):
    """{name: (shape, bytes)} by the real reader (its Rust core, which knows every dtype)."""
    tensors = {}
    for path in shard_paths(directory):
        for name, view in safetensors.deserialize(path.read_bytes()):
            assert name not in tensors
            tensors[name] = (tuple(view["shape"]), bytes(view["data"]))
    return tensors


def rows_of(shape, content, rank, ranks):
    """Rows [rank * ceil(n / ranks), (rank + 1) * ceil(n / ranks)) of dimension 0."""
    if not shape:
        return content
    per_rank = -(-shape[0] // ranks)
    begin = min(rank * per_rank, shape[0])
    end = min(begin + per_rank, shape[0])
    row_bytes = len(content) // shape[0] if shape[0] else 0
    return content[begin * row_bytes : end * row_bytes]


def expected_digests(directory, ranks, share):
    """{(rank, name): SHA-256} of what the real reader gives."""
    digests = {}
    for name, (shape, content) in read_reference(directory).items():
        for rank in range(ranks):
            part = rows_of(shape, content, rank, ranks) if share == "rows" else content
            digests[rank, name] = hashlib.sha256(part).hexdigest()
    return digests


_libc = ctypes.CDLL(None, use_errno=True)


def resident_bytes(path):
    """Of a file that we own, in the page cache now."""
    with open(path, "rb") as file:
        return resident_bytes_of(file)


def resident_bytes_of(file):
    """The same of one that is open already."""
    size = os.fstat(file.fileno()).st_size
    if size == 0:
        return 0
    _libc.mmap.restype = ctypes.c_void_p
    _libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    assert address != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
    pages = (ctypes.c_ubyte * -(-size // PAGE_BYTES))()
    result = _libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), pages)
    assert result == 0, os.strerror(ctypes.get_errno())
    _libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))
    return sum(page & 1 for page in pages) * PAGE_BYTES


@contextlib.contextmanager
def locked_in_memory(directory, parts=None):
    """The checkpoint's files, which are in memory, stay there: nobody reclaims a page meanwhile.

    `parts`: only these, {path: [(begin, end), ...]}, with whole pages before each."""
    with contextlib.ExitStack() as stack:
        for path in shard_paths(directory):
            size = path.stat().st_size
            with open(path, "rb") as file:
                pages = mmap.mmap(file.fileno(), size, mmap.MAP_SHARED, mmap.PROT_READ)
            stack.callback(pages.close)
            array = numpy.frombuffer(pages, numpy.uint8)
            address = array.ctypes.data
            # The array would keep the mapping from being closed.
            del array
            for begin, end in [(0, size)] if parts is None else parts[path]:
                place = ctypes.c_void_p(address + begin)
                if _libc.mlock(place, ctypes.c_size_t(min(end, size) - begin)) != 0:
                    raise OSError(ctypes.get_errno(), f"mlock of {path}")
        yield


def data_ranges(path):
    """{tensor: (begin, end)} in bytes of one file."""
    with open(path, "rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(header_bytes))
    data = 8 + header_bytes
    return {
        name: tuple(data + offset for offset in entry["data_offsets"])
        for name, entry in header.items()
        if name != "__metadata__"
    }


def pages_of(ranges):
    """Numbers of the pages that these byte ranges of one file lie on."""
    return {
        page
        for begin, end in ranges
        for page in range(begin // PAGE_BYTES, -(-end // PAGE_BYTES))
    }


def drop_pages(path):
    """Drops what the page cache has of a file; the bytes that are left."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    return resident_bytes(path)


def make_cold(directory):
    """Drops the page cache of a checkpoint's files, once nobody maps them any more."""
    for path in shard_paths(directory):
        wait_until(lambda path=path: drop_pages(path) == 0, f"{path} to leave the page cache")


def snapshot(directory):
    """Everything stat can tell about a tree but access times: equal if nothing was written."""
    entries = {}
    directory = pathlib.Path(directory)
    for path in [directory, *sorted(directory.rglob("*"))]:
        stat = path.lstat()
        entries[str(path.relative_to(directory))] = (
            stat.st_ino,
            stat.st_mode,
            stat.st_nlink,
            stat.st_uid,
            stat.st_gid,
            stat.st_size,
            stat.st_mtime_ns,
            stat.st_ctime_ns,
        )
    return entries
