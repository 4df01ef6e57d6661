"""Weights of formats that are not ours, byte by byte: {file name: (content, what it is called)}."""

import io
import pickle
import zipfile

import numpy


def _torch_zip(archive):
    """As torch.save writes it: the pickle first, uncompressed, below the archive's own name."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as zipped:
        zipped.writestr(f"{archive}/data.pkl", pickle.dumps({"weight": [1.0, 2.0]}, protocol=2))
        zipped.writestr(f"{archive}/byteorder", "little")
        zipped.writestr(f"{archive}/data/0", bytes(64))
    return file.getvalue()


def _torch_pickle():
    """As torch.save wrote it before: a magic number, a version, facts of the system, the object."""
    parts = [0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, {"weight": [1.0]}]
    return b"".join(pickle.dumps(part, protocol=2) for part in parts)


def _numpy_archive():
    file = io.BytesIO()
    numpy.savez(file, weight=numpy.zeros(3))
    return file.getvalue()


def _numpy_array():
    file = io.BytesIO()
    numpy.save(file, numpy.zeros(3))
    return file.getvalue()


FILES = {
    "pytorch_model.bin": (_torch_zip("pytorch_model"), "torch.save writes it"),
    "consolidated.00.pth": (_torch_zip("consolidated"), "torch.save writes it"),
    "weights": (_torch_zip("archive"), "torch.save writes it"),
    "model.pt": (_torch_pickle(), "before its zip archives"),
    "checkpoint.ckpt": (pickle.dumps({"weight": [1.0]}, protocol=4), "Python pickle"),
    "model-q4.gguf": (b"GGUF" + (3).to_bytes(4, "little") + bytes(16), "GGUF"),
    "ggml-model.bin": (b"lmgg" + bytes(20), "GGML"),
    "tf_model.h5": (b"\x89HDF\r\n\x1a\n" + bytes(24), "HDF5"),
    "params.npz": (_numpy_archive(), "NumPy archive"),
    "weight.npy": (_numpy_array(), "NumPy array"),
}
