"""The real forestage."""

import os
import urllib.parse

from forestage_testing.processes import Running


def clean_environment():
    """Without what would choose another daemon or group."""
    names = [
        *("FORESTAGE_SOCKET", "FORESTAGE_ADMIN_SOCKET", "FORESTAGE_DAEMON_USER"),
        *("FORESTAGE_LAUNCH_NONCE", "TORCHELASTIC_RUN_ID"),
    ]
    return {key: value for key, value in os.environ.items() if key not in names}


class Cli:
    """Runs `forestage` on one daemon's socket (which need not be there)."""

    def __init__(self, build_dir, socket):
        self.program = build_dir / "bin" / "forestage"
        self.socket = socket
        # Before the command; see MemoryCgroup.
        self.wrapper = []

    def start(self, *arguments, **options):
        options.setdefault("env", clean_environment())
        return Running([*self.wrapper, self.program, *arguments, "--socket", self.socket], **options)

    def run(self, *arguments, code=0, **options):
        return self.start(*arguments, **options).finish(code=code)

    def json(self, *arguments, code=0, **options):
        return self.run(*arguments, "--json", code=code, **options).json

    def start_load(self, directory, *, ranks, digests, share="all", flags=(), **options):
        arguments = ["load", directory, "--ranks", ranks, "--share", share, "--json"]
        return self.start(*arguments, "--digests", digests, *flags, **options)

    def load(self, directory, *, ranks, digests, share="all", flags=(), code=0, **options):
        """Loads to the end; the result's JSON."""
        running = self.start_load(
            directory, ranks=ranks, digests=digests, share=share, flags=flags, **options
        )
        return running.finish(code=code).json


def read_digests(path):
    """{(rank, name): SHA-256} of a --digests file; every line occurs once."""
    digests = {}
    with open(path, encoding="utf-8", newline="\n") as file:
        for line in file:
            rank, name, digest = line.rstrip("\n").split(" ")
            key = int(rank), urllib.parse.unquote(name)
            assert key not in digests, f"{path}: twice: {line}"
            digests[key] = digest
    return digests
