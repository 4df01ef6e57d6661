#!/usr/bin/env python3
"""Compares our header reader with the reference reader over generated files.

Needs the Python package safetensors (the reference reader with bindings) and the program
header_verdict (a target of the build). Every disagreement is printed with the file in hexadecimal;
the exit status is 0 only without one.

    header_differential.py --verdict build/dev/test/header_verdict --count 20000 --seed 1
"""

import argparse
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

import safetensors

BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}

# Texts of the reference's errors, and the names we give them.
RULES = [
    ("header too small", "HeaderTooSmall"),
    ("header too large", "HeaderTooLarge"),
    ("invalid header length", "InvalidHeaderLength"),
    ("invalid UTF-8 in header", "InvalidHeader"),
    ("invalid JSON in header", "InvalidHeaderDeserialization"),
    ("invalid offset for tensor", "InvalidOffset"),
    ("overflow", "ValidationOverflow"),
    ("slice", "MisalignedSlice"),
    ("invalid shape, data type, or offset", "TensorInvalidInfo"),
    ("incomplete metadata", "MetadataIncompleteBuffer"),
]

# Pieces of JSON that readers are known to differ on.
ODD_NUMBERS = [
    "-0",
    "0",
    "1",
    "-1",
    "16.0",
    "1e1",
    "1E+1",
    "0e999",
    "1e999",
    "-1e999",
    "1e-999",
    "1e308",
    "9e307",
    "1.7976931348623157e308",
    "1.7976931348623159e308",
    "17976931348623158e292",
    "18446744073709551615",
    "18446744073709551616",
    "18446744073709551615.5",
    "1844674407370955161.65",
    "123456789012345678901234567890",
    "9" * 308,
    "9" * 310,
    "0." + "0" * 400 + "1e710",
    "0." + "0" * 400 + "1e700",
    "1e2147483647",
    "1e2147483648",
    "0e2147483648",
    "1e-2147483648",
    "00",
    "01",
    "-",
    "-a",
    "1.",
    ".5",
    "1e",
    "1e+",
    "+1",
    "0x1",
    "NaN",
    "Infinity",
    "-Infinity",
    "9223372036854775808",
    "-9223372036854775808",
    "-9223372036854775809",
    "4e0",
    "2.0",
    "0.0",
    "-0.0",
]
ODD_STRINGS = [
    '""',
    '"a"',
    '"\\u0000"',
    '"\\ud83d\\ude00"',
    '"\\ud800"',
    '"\\udc00"',
    '"\\ud800\\u0041"',
    '"\\ud800\\ud800"',
    '"\\udbff\\udfff"',
    '"\\uD83D"',
    '"\\u12"',
    '"\\u00e9"',
    '"\\x41"',
    '"\\/"',
    '"\\b\\f\\n\\r\\t\\"\\\\"',
    '"\x7f"',
    '"\x01"',
    '"\t"',
    '"\u00e9"',
    '"\U0001f600"',
    '"unterminated',
    "'a'",
    '"dtype"',
    '"__metadata__"',
    '"\\u005f_metadata__"',
    '"\\ud800x"',
    '"\\ud800\\n"',
    '"\\',
]
ODD_VALUES = [
    "null",
    "true",
    "false",
    "nul",
    "True",
    "[]",
    "{}",
    "[[]]",
    "[1,]",
    "[,1]",
    "[1 2]",
    '{"a":1}',
    '{"a":1,}',
    '{"a" 1}',
    "{1:2}",
    '{"a":1,"a":2}',
    "",
    "/**/1",
    '[{"a":[1]}]',
    "{",
    "}",
    "[",
    "]",
]
SPACES = [" ", "\n", "\t", "\r", "\x0c", "\x0b", "\x00", "\ufeff", "\u00a0", "//c\n", "/*c*/"]


class Raw(str):
    """JSON text that is written as it stands."""


def dump(value):
    if isinstance(value, Raw):
        return value
    if isinstance(value, list):
        return "[" + ",".join(dump(item) for item in value) + "]"
    if isinstance(value, Pairs):
        return "{" + ",".join(dump(key) + ":" + dump(item) for key, item in value.items) + "}"
    return json.dumps(value, ensure_ascii=False)


class Pairs:
    """An object that may hold a key twice."""

    def __init__(self, items):
        self.items = items


def odd_value(rng):
    kind = rng.random()
    if kind < 0.35:
        return Raw(rng.choice(ODD_NUMBERS))
    if kind < 0.6:
        return Raw(rng.choice(ODD_STRINGS))
    if kind < 0.8:
        return Raw(rng.choice(ODD_VALUES))
    if kind < 0.9:
        depth = rng.choice([1, 3, 123, 124, 125, 126, 127, 128, 129, 200])
        if rng.random() < 0.5:
            return Raw("[" * depth + "]" * depth)
        return Raw('{"a":' * (depth - 1) + "{}" + "}" * (depth - 1))
    digits = "".join(rng.choice("0123456789.eE+-") for _ in range(rng.randint(1, 30)))
    return Raw(digits)


def name(rng):
    return rng.choice(
        [
            "a",
            "b",
            "c",
            "t",
            "w.0",
            "w.1",
            "w.10",
            "",
            "\u6a21\u578b",
            "a\x00b",
            "__metadata__x",
            "dtype",
            "../x",
            "\U0001f600",
            Raw('"\\u0061"'),
            Raw('"\\ud83d\\ude00"'),
        ]
    )


def valid_tensors(rng):
    """Entries that tile the data buffer, and how long it is."""
    entries, offset = [], 0
    for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 5])):
        dtype = rng.choice(list(BITS))
        shape = [
            rng.choice([0, 1, 1, 2, 2, 3, 4, 8]) for _ in range(rng.choice([0, 1, 1, 2, 2, 3]))
        ]
        count = 1
        for dimension in shape:
            count *= dimension
        size = count * BITS[dtype] // 8
        entries.append(
            [
                name(rng),
                [("dtype", dtype), ("shape", shape), ("data_offsets", [offset, offset + size])],
            ]
        )
        offset += size
    return entries, offset


def disturb_entry(rng, entry):
    fields = entry[1]
    choice = rng.randrange(12)
    if choice == 0:
        fields.insert(
            rng.randint(0, len(fields)), (rng.choice(["x", "dtypes", ""]), odd_value(rng))
        )
    elif choice == 1:
        fields.insert(rng.randint(0, len(fields)), rng.choice(fields))
    elif choice == 2:
        fields.pop(rng.randrange(len(fields)))
    elif choice == 3:
        index = rng.randrange(len(fields))
        fields[index] = (fields[index][0], odd_value(rng))
    elif choice == 4:
        offsets = fields[-1][1]
        if isinstance(offsets, list) and offsets:
            index = rng.randrange(len(offsets))
            if isinstance(offsets[index], int):
                offsets[index] = max(
                    0, offsets[index] + rng.choice([-8, -1, 1, 8, 2**63, 2**64 - 1])
                )
    elif choice == 5:
        for index, (key, value) in enumerate(fields):
            if key == "shape" and isinstance(value, list):
                value.insert(
                    rng.randint(0, len(value)),
                    rng.choice(
                        [0, 1, 2**31, 2**32, 2**61, 2**63, 2**64 - 1, 2**64, odd_value(rng)]
                    ),
                )
    elif choice == 6:
        entry[1] = [value for _, value in fields]
        if rng.random() < 0.3:
            entry[1].insert(rng.randint(0, 3), odd_value(rng))
        entry.append("array")
    elif choice == 7:
        fields[0] = (
            fields[0][0],
            Pairs(
                [(fields[0][1], Raw(rng.choice(["null", "null", "{}", "0", "[]"])))]
                * rng.choice([1, 1, 1, 0, 2])
            ),
        )
    elif choice == 8:
        fields[0] = (fields[0][0], rng.choice(["i32", "C128", "F8", "", "F8_E3M4", "BF16 ", "I32"]))
    elif choice == 9:
        rng.shuffle(fields)
    elif choice == 10:
        for index, (key, value) in enumerate(fields):
            if key == "data_offsets" and isinstance(value, list):
                value.insert(rng.randint(0, len(value)), odd_value(rng))
    else:
        index = rng.randrange(len(fields))
        key = fields[index][0]
        if isinstance(key, str) and key:
            fields[index] = (Raw('"\\u%04x%s"' % (ord(key[0]), key[1:])), fields[index][1])


def metadata(rng):
    if rng.random() < 0.2:
        return odd_value(rng)
    pairs = []
    for _ in range(rng.choice([0, 1, 2, 3])):
        key = rng.choice(["format", "a", "b", "", Raw('"\\u0061"')])
        value = odd_value(rng) if rng.random() < 0.1 else rng.choice(["pt", "1", "", "\u00e9"])
        pairs.append((key, value))
    return Pairs(pairs)


def generate(rng):
    """One file."""
    entries, size = valid_tensors(rng)
    if entries and rng.random() < 0.6:
        for _ in range(rng.choice([1, 1, 1, 2])):
            entry = rng.choice(entries)
            if len(entry) == 2 and len(entry[1]) >= 3:
                disturb_entry(rng, entry)
    if entries and rng.random() < 0.15:
        entries.insert(rng.randint(0, len(entries)), list(rng.choice(entries)))
    if entries and rng.random() < 0.1:
        rng.choice(entries)[0] = rng.choice(entries)[0]
    if rng.random() < 0.3:
        rng.shuffle(entries)
    pairs = [(entry[0], entry[1] if len(entry) == 3 else Pairs(entry[1])) for entry in entries]
    for _ in range(rng.choice([0, 0, 0, 1, 1, 2])):
        key = rng.choice(
            ["__metadata__", "__metadata__", "__metadata__", Raw('"\\u005f_metadata__"')]
        )
        pairs.insert(rng.randint(0, len(pairs)), (key, metadata(rng)))
    if rng.random() < 0.03:
        pairs.insert(rng.randint(0, len(pairs)), (name(rng), odd_value(rng)))
    text = dump(Pairs(pairs))
    if rng.random() < 0.02:
        text = dump(odd_value(rng))
    if rng.random() < 0.25:
        text = insert_space(rng, text)
    header = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.25:
        header = disturb_bytes(rng, header)
    if rng.random() < 0.1:
        size = max(0, size + rng.choice([-8, -1, 1, 8]))
    data = bytes(rng.randrange(256) for _ in range(min(size, 4096)))
    length = len(header)
    if rng.random() < 0.03:
        length = rng.choice(
            [
                0,
                1,
                7,
                length + 1,
                length + size,
                length + size + 1,
                max(0, length - 1),
                100_000_000,
                100_000_001,
                2**63,
                2**64 - 1,
                2**64 - 8,
            ]
        )
    file = struct.pack("<Q", length) + header + data
    if rng.random() < 0.02:
        file = file[: rng.randint(0, len(file))]
    return file


def insert_space(rng, text):
    for _ in range(rng.choice([1, 1, 2, 4])):
        place = rng.choice([0, len(text), rng.randint(0, len(text))])
        space = rng.choice(SPACES[:4]) if rng.random() < 0.7 else rng.choice(SPACES)
        text = text[:place] + space + text[place:]
    return text


def disturb_bytes(rng, header):
    header = bytearray(header)
    for _ in range(rng.choice([1, 1, 2, 3])):
        if not header:
            break
        place = rng.randrange(len(header))
        choice = rng.randrange(5)
        if choice == 0:
            header[place] = rng.randrange(256)
        elif choice == 1:
            del header[place]
        elif choice == 2:
            header.insert(
                place, rng.choice(b'{}[]",:\\0123456789.-+eEtfn \n\x00\xff\x80\xc0\xed\xf4')
            )
        elif choice == 3:
            end = min(len(header), place + rng.randint(1, 20))
            header[place:place] = header[place:end]
        else:
            header[place] ^= 1 << rng.randrange(8)
    return bytes(header)


def rule_of(text):
    for fragment, rule in RULES:
        if fragment in text:
            return rule
    raise SystemExit("the reference reader has an error that is not known here: " + text)


def reference_verdict(file, scratch):
    """("refused", rule), or ("ok", metadata, {name: (dtype, shape, bytes)})."""
    try:
        tensors = safetensors.deserialize(file)
    except Exception as error:  # the class has differed between versions
        return ("refused", rule_of(str(error)))
    found = {
        key: (info["dtype"], list(info["shape"]), bytes(info["data"])) for key, info in tensors
    }
    with open(scratch, "wb") as out:
        out.write(file)
    with safetensors.safe_open(scratch, framework="np") as opened:
        return ("ok", opened.metadata(), found)


def our_verdict(line, file):
    words = line.split(" ")
    if words[0] != "ok":
        return (words[0], " ".join(words[1:]))

    def text(hexadecimal):
        return bytes.fromhex(hexadecimal).decode()

    pairs = None
    if words[1] != "-":
        pairs = dict(tuple(map(text, pair.split("="))) for pair in words[1].split(",") if pair)
    tensors = {}
    for word in words[2:]:
        key, dtype, shape, begin, end = word.split(":")
        tensors[text(key)] = (
            dtype,
            [int(n) for n in shape.split("x") if n],
            file[int(begin) : int(end)],
        )
    return ("ok", pairs, tensors)


def agree(file, ours, scratch):
    """Equal ranges are checked by the reference in the order of a hash map, so that of two rules
    that such a file breaks it names either; then it is asked again."""
    theirs = reference_verdict(file, scratch)
    if ours == theirs:
        return True, theirs
    if ours[0] == "refused" and theirs[0] == "refused":
        for _ in range(200):
            if reference_verdict(file, scratch) == ours:
                return True, theirs
    return False, theirs


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--verdict", required=True, help="the program header_verdict")
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=None, help="default: a new one each time")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.randrange(2**32)
    print(
        f"seed {seed}, {arguments.count} files, safetensors {safetensors.__version__}", flush=True
    )
    rng = random.Random(seed)
    files = [generate(rng) for _ in range(arguments.count)]
    blob = b"".join(struct.pack("<I", len(file)) + file for file in files)
    lines = (
        subprocess.run([arguments.verdict], input=blob, stdout=subprocess.PIPE, check=True)
        .stdout.decode()
        .splitlines()
    )
    if len(lines) != len(files):
        raise SystemExit(f"{len(lines)} verdicts for {len(files)} files")
    counts, wrong = {}, 0
    with tempfile.TemporaryDirectory() as directory:
        scratch = os.path.join(directory, "file.safetensors")
        for file, line in zip(files, lines):
            ours = our_verdict(line, file)
            same, theirs = agree(file, ours, scratch)
            kind = theirs[0] if theirs[0] == "ok" else theirs[1]
            counts[kind] = counts.get(kind, 0) + 1
            if not same:
                wrong += 1
                if wrong <= 20:
                    print(f"DISAGREE\n  ours      {ours}\n  reference {theirs}")
                    print(f"  file      {file.hex()}")
    for kind in sorted(counts):
        print(f"  {counts[kind]:7d} {kind}")
    print(f"{wrong} disagreements")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
