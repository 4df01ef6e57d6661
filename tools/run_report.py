#!/usr/bin/env python3
"""What `./dev run` does after the build: stage and load a checkpoint, and report it for people.

Starts a private daemon, loads the checkpoint by several rank processes with page caches cold and
warm, does the same without the daemon for comparison, prints a report, and leaves nothing running.
Uses the standard library only.
"""

import argparse
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time


def human_bytes(count):
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024


def fail(message):
    print(f"run: {message}", file=sys.stderr)
    sys.exit(1)


class DeviceCounter:
    """Bytes read from the block device below a directory, by anybody; None where it has none."""

    def __init__(self, directory):
        device = os.stat(directory).st_dev
        self.path = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat"

    def read_bytes(self):
        try:
            with open(self.path) as stat:
                return int(stat.read().split()[2]) * 512
        except (OSError, IndexError, ValueError):
            return None


def drop_from_page_cache(paths):
    """Asks the kernel to forget these files' pages; pages that somebody maps stay."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


PR_SET_PDEATHSIG = 1


def die_with_parent():
    """In a child before exec: the kernel ends it when this process is gone, however that went."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Daemon:
    def __init__(self, binary_directory, directory):
        self.socket = os.path.join(directory, "forestaged.sock")
        self.log_path = os.path.join(directory, "forestaged.log")
        self.log = open(self.log_path, "w")
        self.process = subprocess.Popen(
            [os.path.join(binary_directory, "forestaged"), "--socket", self.socket,
             "--metrics-address", "none"],
            stdout=self.log, stderr=self.log, preexec_fn=die_with_parent)
        forestage = os.path.join(binary_directory, "forestage")
        for _ in range(200):
            if self.process.poll() is not None:
                break
            if subprocess.run([forestage, "health", "--socket", self.socket],
                              capture_output=True).returncode == 0:
                return
            time.sleep(0.05)
        self.stop()
        with open(self.log_path) as log:
            fail("the daemon did not start:\n" + log.read())

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=12)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.wait_for_the_kernel()
        self.log.close()

    def wait_for_the_kernel(self):
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            print(f"run: forestaged (pid {self.process.pid}) is ended, but a read of storage that "
                  "does not answer holds it; it goes when the read returns", file=sys.stderr)


def load(forestage, directory, ranks, socket, device, extra):
    command = [forestage, "load", directory, "--ranks", str(ranks), "--share", "rows", "--json"]
    command += ["--socket", socket] if socket else ["--no-daemon"]
    before = device.read_bytes()
    result = subprocess.run(command + extra, stdout=subprocess.PIPE, text=True,
                            preexec_fn=die_with_parent)
    after = device.read_bytes()
    if result.returncode != 0:
        fail(f"{' '.join(command)} ended with {result.returncode}; see above")
    report = json.loads(result.stdout)
    report["device_bytes"] = None if before is None else after - before
    return report


def times_read(count, needed):
    return "-" if count is None or not needed else f"{count / needed:.2f} x"


def print_loads(rows):
    header = ("", "wall time", "rate", "first tensor", "slowest rank", "major faults",
              "device read")
    lines = [header]
    for label, report in rows:
        ranks, node = report["ranks"], report["node"]
        needed = node["bytes_needed"]
        lines.append((
            label,
            f"{node['seconds']:.2f} s",
            f"{needed / 1e9 / node['seconds']:.2f} GB/s",
            f"{1000 * max(rank['first_tensor_seconds'] for rank in ranks):.0f} ms",
            f"{max(rank['seconds'] for rank in ranks):.2f} s",
            str(sum(rank["major_faults"] for rank in ranks)),
            times_read(report["device_bytes"], needed)))
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for line in lines:
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:])]
        print("  " + "  ".join(cells))


def print_report(directory, catalog, ranks, cold, warm, native_cold, native_warm, verified):
    needed = cold["node"]["bytes_needed"]
    print(f"\nCheckpoint {directory}: {len(catalog['shards'])} shards, "
          f"{len(catalog['tensors'])} tensors, {human_bytes(catalog['total_bytes'])}.")
    print(f"{ranks} rank processes loaded it, each its rows of every tensor.\n")
    print_loads([
        ("cold, with forestaged", cold), ("cold, each rank by itself", native_cold),
        ("warm, with forestaged", warm), ("warm, each rank by itself", native_warm)])
    print("\nWho read what, cold, with forestaged:")
    print(f"  the daemon read {human_bytes(cold['node']['bytes_read'])} from storage for "
          f"{human_bytes(needed)} needed: {times_read(cold['node']['bytes_read'], needed)}")
    for rank in cold["ranks"]:
        reason = f" ({rank['reason']})" if rank["reason"] else ""
        print(f"  rank {rank['rank']}: {human_bytes(rank['bytes'])}, asked {rank['requested']}, "
              f"got {rank['effective']}{reason}")
    print(f"Warm, the daemon read {human_bytes(warm['node']['bytes_read'])}.")
    print(f"Once more, each rank comparing every byte with its own direct read: "
          f"{sum(rank['verified'] for rank in verified['ranks'])} of {ranks} ranks have every byte "
          f"right, {sum(rank['mismatched'] for rank in verified['ranks'])} slices differ.")
    print("\n'device read' counts the block device below the checkpoint, whoever read from it and "
          "for whatever, in\nmultiples of what is needed; '-' where there is none. 'first tensor' is "
          "the slowest rank's, from its own open to\nits first slice. One run is no benchmark: "
          "figures differ from run to run, and small checkpoints say little.")


def stop_by_signal(number, _frame):
    """Turns a signal into an exception, so that what was started is ended."""
    raise SystemExit(128 + number)


def main():
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, stop_by_signal)
    parser = argparse.ArgumentParser(prog="./dev run", description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint", nargs="?", metavar="DIR",
                        help="checkpoint directory (default: a demo checkpoint is made)")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--size", default="1GiB", help="size of the demo checkpoint")
    parser.add_argument("--bin", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--work", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--from", dest="caller_directory", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ranks < 1:
        parser.error("--ranks must be at least 1")
    if arguments.checkpoint is not None:
        arguments.checkpoint = os.path.join(arguments.caller_directory, arguments.checkpoint)
        if not os.path.isdir(arguments.checkpoint):
            parser.error(f"{arguments.checkpoint} is no directory")
    if arguments.check:
        return

    forestage = os.path.join(arguments.bin, "forestage")
    directory = arguments.checkpoint
    if directory is None:
        directory = os.path.join(arguments.work, f"demo-{arguments.size}")
        if not os.path.exists(os.path.join(directory, "model.safetensors.index.json")):
            shutil.rmtree(directory, ignore_errors=True)
            os.makedirs(arguments.work, exist_ok=True)
            print(f"Making a demo checkpoint of {arguments.size} in {directory}", flush=True)
            if subprocess.run([forestage, "demo", directory, "--size", arguments.size,
                               "--shards", "4"]).returncode != 0:
                fail("the demo checkpoint could not be made; see above")

    listing = subprocess.run([forestage, "ls", directory, "--json"], stdout=subprocess.PIPE,
                             text=True)
    if listing.returncode != 0:
        fail(f"{directory} is not a checkpoint that can be served; see above")
    catalog = json.loads(listing.stdout)
    shards = [os.path.join(directory, shard["name"]) for shard in catalog["shards"]]
    device = DeviceCounter(directory)

    private = tempfile.mkdtemp(prefix="forestage-run.")
    daemon = None
    try:
        daemon = Daemon(arguments.bin, private)
        print(f"Loading by {arguments.ranks} ranks: cold, warm, each with and without the daemon, "
              "then once with every byte compared", flush=True)
        drop_from_page_cache(shards)
        native_cold = load(forestage, directory, arguments.ranks, None, device, [])
        native_warm = load(forestage, directory, arguments.ranks, None, device, [])
        drop_from_page_cache(shards)
        cold = load(forestage, directory, arguments.ranks, daemon.socket, device, [])
        warm = load(forestage, directory, arguments.ranks, daemon.socket, device, [])
        verified = load(forestage, directory, arguments.ranks, daemon.socket, device, ["--verify"])
        print_report(directory, catalog, arguments.ranks, cold, warm, native_cold, native_warm,
                     verified)
    finally:
        if daemon is not None:
            daemon.stop()
        shutil.rmtree(private, ignore_errors=True)


if __name__ == "__main__":
    main()
