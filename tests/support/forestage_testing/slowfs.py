"""A mounted slowfs; tests/support/slowfs/README.md describes its commands."""

import json
import os
import pathlib
import socket
import subprocess

from forestage_testing.processes import GUARD_SECONDS, read_line, wait_until


class Slowfs:
    def __init__(self, build_dir, source, directory, *, flags=()):
        self.source = pathlib.Path(source)
        self.mount = pathlib.Path(directory) / "mount"
        self.mount.mkdir()
        self._killed = False
        self._control = os.path.join(directory, "control")
        self.process = subprocess.Popen(
            [
                str(build_dir / "test" / "slowfs"),
                "--source",
                str(self.source),
                "--mount",
                str(self.mount),
                "--control",
                self._control,
                *map(str, flags),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert read_line(self.process.stdout) == "ready\n", "slowfs did not start"

    def command(self, line):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(GUARD_SECONDS)
            connection.connect(self._control)
            connection.sendall(line.encode() + b"\n")
            answer = b""
            while part := connection.recv(65536):
                answer += part
        text = answer.decode().strip()
        assert not text.startswith("error"), f"slowfs: {line}: {text}"
        return text

    def set(self, name, value):
        self.command(f"set {name} {value}")

    def hold(self, name, begin=0, end="end", pid=0):
        self.command(f"hold {name} {begin} {end} pid={pid}")

    def release(self, name=""):
        self.command(f"release {name}")

    def fault(self, name, begin, end, kind, **options):
        words = [f"{key}={value}" for key, value in options.items()]
        self.command(" ".join(["fault", str(name), str(begin), str(end), kind, *words]))

    def clear_faults(self):
        self.command("clear_faults")

    def stats(self):
        return json.loads(self.command("stats"))

    def weight_bytes(self):
        """Read from the *.safetensors files so far (and not from an index, say)."""
        files = self.stats()["files"].items()
        return sum(file["bytes"] for path, file in files if path.endswith(".safetensors"))

    def reset_stats(self):
        self.command("reset_stats")

    def wait_until_held(self, count=1):
        wait_until(lambda: self.stats()["held"] >= count, f"{count} held reads")

    def kill(self):
        """The server dies, and with it every request that it has not answered."""
        self._killed = True
        self.process.kill()
        self.process.wait(GUARD_SECONDS)

    def stop(self):
        self.process.terminate()
        try:
            code = self.process.wait(GUARD_SECONDS)
            assert code == 0 or self._killed
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            subprocess.run(
                ["umount", "-l", str(self.mount)], stderr=subprocess.DEVNULL, check=False
            )
            self.process.stdout.close()
