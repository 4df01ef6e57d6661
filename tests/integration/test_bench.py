"""./dev bench after its build, small: it runs, compares, and leaves nothing behind."""

import json
import os
import pathlib
import subprocess
import sys

from forestage_testing.processes import GUARD_SECONDS

BENCH = pathlib.Path(__file__).resolve().parents[2] / "tools" / "bench"


def test_measures_compares_and_cleans_up(build_dir, data_dir, short_dir):
    results = data_dir / "results.json"
    finished = subprocess.run(
        [sys.executable, BENCH, "--build", build_dir, "--directory", data_dir / "bench",
         "--part", "staging", "loading", "first", "--storage", "disk", "--only", "forestage",
         "cat", "--size", "16MiB", "--rounds", "2", "--no-peers", "--json", results, "--remove"],
        capture_output=True, text=True, timeout=GUARD_SECONDS, check=False,
        env={**os.environ, "TMPDIR": short_dir})
    assert finished.returncode == 0, finished.stderr
    report = json.loads(results.read_text())
    assert [record["error"] for record in report["records"]] == [None] * len(report["records"])
    # Staging by two readers, eight tasks of loading by two, three of the first tensor.
    assert len(report["records"]) == 2 * (2 + 8 * 2 + 3)
    assert all(record["value"] > 0 for record in report["records"])
    assert [figure["what"] for figure in report["figures"]] == [
        "staging, to cat", "first tensor, N=1", "first tensor, N=8",
        "first tensor, only 1 of N=8 has come"]
    assert "fill the page cache" in finished.stdout and "readers from PyPI" in finished.stdout
    assert os.listdir(short_dir) == []
    assert sorted(os.listdir(data_dir / "bench")) == ["last.json"]

    again = subprocess.run([sys.executable, BENCH, "--report", results], capture_output=True,
                           text=True, timeout=GUARD_SECONDS, check=False)
    assert again.returncode == 0, again.stderr
    assert again.stdout == finished.stdout


def test_wrong_arguments_are_said_at_once():
    for arguments in (["--rounds", "0"], ["--size", "4"], ["--storage", "tape"],
                      ["--part", "amplification", "--storage", "disk"],
                      ["--quick", "--write-docs"]):
        finished = subprocess.run([sys.executable, BENCH, "--check", *arguments],
                                  capture_output=True, text=True, timeout=GUARD_SECONDS,
                                  check=False)
        assert finished.returncode == 2, arguments
        assert "error" in finished.stderr
