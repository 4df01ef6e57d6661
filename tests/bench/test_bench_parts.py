"""The parts of ./dev bench that need no build: what it says must follow from what it measured."""

import argparse
import json
import os
import struct
import xml.etree.ElementTree

import pytest

import checkpoint_writer
import document
import figures
import free_memory
import page_cache
import picture
import programs
import rounds
import summary
import table
from measurement import Case, Measurement, rate


@pytest.fixture
def file_on_disk(data_dir):
    path = data_dir / "file"
    path.write_bytes(os.urandom(64 * page_cache.PAGE_BYTES))
    return str(path)


def record(reader, value, *, part="staging", storage="disk", task="fill the page cache",
           unit="GB/s", error=None, note="", round_number=0, device_bytes=None, extra=None):
    return {"key": (part, storage, task, reader), "part": part, "storage": storage, "task": task,
            "reader": reader, "state": "cold", "unit": unit, "note": note, "round": round_number,
            "value": value, "seconds": 1.0, "device_bytes": device_bytes, "extra": extra or {},
            "error": error}


def report(records):
    return {"commands": ["./dev bench --rounds 2"], "left_out": [], "records": records,
            "machine": {"cores": 2, "cpu": "a CPU", "memory_bytes": 1 << 30, "kernel": "6.1",
                        "forestage": "abc", "load_average": 0.5},
            "storages": {"disk": {"device": "sda", "read_ahead_kb": "128",
                                  "max_sectors_kb": "512"}},
            "figures": [vars(figure) for figure in figures.evaluate(records)]}


# Statistics

def test_a_summary_has_median_and_extremes():
    found = summary.summarise([3, 1, 10])
    assert (found.count, found.median, found.least, found.most) == (3, 3, 1, 10)
    assert summary.summarise([1, 2]).median == 1.5
    assert summary.summarise([]) is None


def test_a_ratio_without_a_base_is_none():
    assert summary.ratio(3, 2) == 1.5
    assert summary.ratio(3, 0) is None
    assert summary.ratio(None, 2) is None


def test_the_best_is_the_best_median_and_not_the_best_run():
    found = {"steady": summary.summarise([2, 2, 2]), "lucky": summary.summarise([1, 1, 9]),
             "failed": None}
    assert summary.best(found)[0] == "steady"
    assert summary.best(found, higher_is_better=False)[0] == "lucky"
    assert summary.best({"failed": None}) is None


def test_a_rate_is_in_units_of_ten_to_the_ninth():
    assert rate(3_000_000_000, 1.5).value == 2


# Cold and warm

def test_one_page_in_memory_is_not_cold(file_on_disk):
    page_cache.evict([file_on_disk])
    page_cache.prove_cold([file_on_disk])
    descriptor = os.open(file_on_disk, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    os.pread(descriptor, 1, 5 * page_cache.PAGE_BYTES)
    os.close(descriptor)
    with pytest.raises(page_cache.NotProven, match="not cold"):
        page_cache.prove_cold([file_on_disk])
    with pytest.raises(page_cache.NotProven, match="not warm"):
        page_cache.prove_warm([file_on_disk])


def test_a_file_that_was_read_is_warm(file_on_disk):
    page_cache.evict([file_on_disk])
    with open(file_on_disk, "rb") as file:
        file.read()
    page_cache.prove_warm([file_on_disk])
    assert page_cache.residency([file_on_disk]) == 1


def test_free_memory_is_touched_and_let_go():
    def held_kib():
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmRSS:"))
    before = held_kib()
    assert free_memory.touch(0) == 0
    assert free_memory.touch(9 << 20) == 8 << 20
    assert held_kib() - before < 4 << 10


def test_memory_in_use_is_not_reclaimed_to_be_touched(monkeypatch):
    monkeypatch.setattr(free_memory, "free_bytes", lambda: free_memory.SPARE_BYTES + (5 << 20))
    assert free_memory.touch(64 << 20) == 4 << 20
    monkeypatch.setattr(free_memory, "free_bytes", lambda: 0)
    assert free_memory.touch(64 << 20) == 0


def test_what_somebody_holds_in_memory_cannot_be_evicted(file_on_disk, monkeypatch):
    import mmap
    monkeypatch.setattr(page_cache, "EVICTION_PATIENCE_SECONDS", 0)
    with open(file_on_disk, "rb") as file:
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as held:
            assert sum(held[offset] for offset in range(0, len(held), 4096)) >= 0
            with pytest.raises(page_cache.NotProven):
                page_cache.evict([file_on_disk])


def test_an_empty_file_is_as_cold_as_it_is_warm(data_dir):
    path = data_dir / "empty"
    path.touch()
    assert page_cache.resident_pages(str(path)) == 0
    page_cache.prove_cold([str(path)])


# Rounds

class StorageWithoutCounter:
    def read_bytes(self):
        return None


class ContextForTest:
    slow_seconds = 5

    def is_late(self):
        return False

    def tell(self, text):
        pass


def case(reader, run, **options):
    return Case("staging", "disk", "fill the page cache", reader, [], "any", run, **options)


def run_rounds(cases, count):
    return rounds.Rounds(ContextForTest(), StorageWithoutCounter(), cases).run(count)


def test_every_round_has_every_reader_once_and_another_order():
    order = []
    cases = [case(name, lambda name=name: order.append(name) or Measurement(1, 1))
             for name in "abc"]
    run_rounds(cases, 3)
    assert order == list("abc" "bca" "cab")


def test_a_reader_that_fails_is_told_and_ends_no_other():
    def fail():
        raise programs.ReaderFailed("not installed")

    records = run_rounds([case("bad", fail), case("good", lambda: Measurement(1, 1))], 4)
    assert [found["error"] for found in records if found["reader"] == "good"] == [None] * 4
    bad = [found for found in records if found["reader"] == "bad"]
    assert len(bad) == rounds.FAILURES_MAX
    assert "not installed" in bad[0]["error"] and bad[0]["value"] is None


def test_a_slow_reader_is_run_less_often():
    records = run_rounds([case("slow", lambda: Measurement(1, 60)),
                          case("fast", lambda: Measurement(1, 1))], 7)
    runs = [found["reader"] for found in records]
    assert (runs.count("slow"), runs.count("fast")) == (rounds.SLOW_RUNS, 7)


def test_when_time_is_up_there_are_as_many_rounds_as_a_spread_needs():
    class LateContext(ContextForTest):
        def is_late(self):
            return True

    records = rounds.Rounds(LateContext(), StorageWithoutCounter(), [
        case("reader", lambda: Measurement(1, 1))]).run(7)
    assert len(records) == rounds.SLOW_RUNS


def test_only_the_best_of_a_pool_go_on():
    cases = [case(f"fio {value}", lambda value=value: Measurement(value, 1), pool="fio")
             for value in range(5)]
    records = run_rounds(cases, 4)
    assert {found["reader"] for found in records if found["round"] == 3} == {"fio 3", "fio 4"}


def test_a_run_that_is_not_cold_is_no_number(file_on_disk, monkeypatch):
    import mmap
    monkeypatch.setattr(page_cache, "EVICTION_PATIENCE_SECONDS", 0)
    ran = []
    with open(file_on_disk, "rb") as file, mmap.mmap(
            file.fileno(), 0, prot=mmap.PROT_READ) as held:
        assert held[0] >= 0
        cold = Case("staging", "disk", "task", "reader", [file_on_disk], "cold",
                    lambda: ran.append(1))
        records = run_rounds([cold], 1)
    assert "not cold" in records[0]["error"] and records[0]["value"] is None
    assert not ran


def test_a_filler_that_fills_nothing_is_an_error(file_on_disk):
    lazy = Case("staging", "disk", "task", "reader", [file_on_disk], "cold",
                lambda: Measurement(1, 1), must_fill=True)
    assert "not warm" in run_rounds([lazy], 1)[0]["error"]


# Figures to reach

def test_staging_is_compared_with_the_best_direct_read():
    records = [record("forestage", 1.9), record("fio direct, 1 MiB x 4", 1.5),
               record("fio direct, 4 MiB x 4", 2.0), record("cat", 2.5)]
    found = {figure.what: figure for figure in figures.evaluate(records)}
    limit = found["staging, to the best direct read"]
    assert limit.reached and "0.95 x" in limit.measured and "fio direct, 4 MiB x 4" in limit.measured
    assert not found["staging, to cat"].reached
    assert "staging, to vmtouch -t" not in found


def test_as_fast_is_not_faster():
    found = figures.evaluate([record("forestage", 2.0), record("cat", 2.0)])
    assert [(figure.wanted, figure.reached) for figure in found] == [("more than 1 x", False)]


def test_ranks_are_compared_with_the_best_peer_and_warm_with_safetensors():
    def load(reader, value, task):
        return record(reader, value, part="loading", task=task)

    cold, warm = "N=8, cold, view", "N=8, warm, view"
    records = [load("forestage", 1.3, cold), load("forestage, no daemon", 9, cold),
               load("safetensors", 0.5, cold), load("fastsafetensors", 1.0, cold),
               load("forestage", 1.0, warm), load("safetensors", 1.0, warm),
               load("fastsafetensors", 5.0, warm)]
    found = {figure.what: figure for figure in figures.evaluate(records)}
    assert found[f"loading, {cold}"].reached
    assert "fastsafetensors" in found[f"loading, {cold}"].measured
    assert found[f"loading, {warm}"].reached


def test_what_has_a_limit_is_held_to_it():
    records = [
        record("forestage", 1.02, part="amplification", storage="loop", task="device bytes, N=8",
               unit="x needed"),
        record("forestage", 0.0, part="amplification", storage="loop",
               task="device bytes, N=8, warm restart", unit="x needed"),
        record("forestage", 49.0, part="first", task="first tensor, N=1", unit="ms"),
        record("forestage", 21.0, part="first", storage="slowfs-2ms", task="first tensor, N=1",
               unit="requests")]
    assert [figure.reached for figure in figures.evaluate(records)] == [False, True, True, False]


def test_a_row_of_the_catalog_brings_its_own_limit():
    row = record("forestage", 0.25, part="catalog", task="catalog built", unit="s",
                 extra={"most": 0.3})
    assert [(figure.wanted, figure.reached) for figure in figures.evaluate([row])] == [
        ("at most 0.3 s", True)]
    row["value"] = 0.31
    assert not figures.evaluate([row])[0].reached


def test_runs_that_failed_do_not_count():
    assert figures.evaluate([record("forestage", None, error="broken"), record("cat", 1.0)]) == []


# Tables and picture

def test_the_table_has_best_first_ratio_spread_and_failures():
    records = [record("forestage", 2.0, device_bytes=10, extra={"bytes": 10}),
               record("forestage", 4.0, round_number=1, device_bytes=10, extra={"bytes": 10}),
               record("cat", 1.5, note="first shard only"), record("vmtouch -t", None,
                                                                  error="no vmtouch")]
    unit, rows, notes = table.rows_of_task(table.group_by_task(records)[
        "staging", "disk", "fill the page cache"])
    assert unit == "GB/s"
    assert rows[0] == ("forestage", "3.00", "2.00", "4.00", "2", "2.00 x", "1.00 x")
    assert rows[1] == ("cat", "1.50", "1.50", "1.50", "1", "1.00 x", "-")
    assert rows[2][:2] == ("vmtouch -t", "failed")
    assert notes == ["cat: first shard only", "vmtouch -t failed: no vmtouch"]


def test_both_forms_name_machine_storage_and_figures():
    made = report([record("forestage", 2.0), record("cat", 3.0)])
    text = table.as_text(made)
    assert "read_ahead_kb 128, max_sectors_kb 512" in text and "NOT REACHED" in text
    markdown = table.as_markdown(made)
    assert "./dev bench --rounds 2" in markdown and "**not reached**" in markdown
    assert "| forestage | 2.00 | 2.00 | 2.00 | 1 | 0.67 x | - |" in markdown
    json.dumps(made)


@pytest.mark.parametrize("value, text", [
    (None, "-"), (0.0, "0.00"), (1.234, "1.23"), (20.04, "20.0"), (250.4, "250"),
    (0.0000012, "1.2e-06")])
def test_numbers_have_three_figures_at_most_where_they_are_rates(value, text):
    assert table.number(value) == text


def test_a_report_of_nothing_says_so():
    assert "none of them was measured" in table.as_text(report([]))
    xml.etree.ElementTree.fromstring(picture.draw([]))


def test_the_picture_has_a_bar_for_each_reader_in_proportion():
    drawn = picture.draw([record("forestage", 2.0), record("a <reader> & more", 1.0),
                          record("forestage", 5, part="first", task="t", unit="ms")])
    root = xml.etree.ElementTree.fromstring(drawn)
    bars = [element for element in root.iter() if element.tag.endswith("rect")]
    assert [int(bar.get("width")) for bar in bars] == [picture.BAR_WIDTH, picture.BAR_WIDTH // 2]
    assert [bar.get("class") for bar in bars] == ["ours", "peer"]
    assert "prefers-color-scheme: dark" in drawn
    assert any(element.text == "a <reader> & more" for element in root.iter())


def test_results_go_between_the_markers_only():
    page = f"before\n{document.BEGIN}\nold\n{document.END}\nafter\n"
    new = document.replace_between_markers(page, "new\n")
    assert new == f"before\n{document.BEGIN}\nnew\n{document.END}\nafter\n"
    assert document.replace_between_markers(new, "new\n") == new
    with pytest.raises(ValueError):
        document.replace_between_markers("no markers", "new")


def test_page_and_picture_are_written(tmp_path):
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "performance.md"
    page.write_text(f"before\n{document.BEGIN}\n{document.END}\n")
    document.write(report([record("forestage", 2.0), record("cat", 3.0)]), tmp_path)
    assert "### Staging, disk (sda, read_ahead_kb 128, max_sectors_kb 512)" in page.read_text()
    xml.etree.ElementTree.parse(tmp_path / "docs" / "performance.svg")


# Checkpoints

@pytest.mark.parametrize("mib", [16, 300, 4096])
def test_checkpoints_have_about_the_wanted_size_in_even_shards_that_ranks_can_cut(mib):
    tensors = checkpoint_writer.tensors_for(mib << 20)
    parts = checkpoint_writer.deal(tensors, 4)
    assert [tensor for part in parts for tensor in part] == tensors
    assert all(parts)
    sizes = [sum(checkpoint_writer._bytes_of(shape) for _, shape in part) for part in parts]
    if mib >= 300:
        assert abs(sum(sizes) - (mib << 20)) < 64 << 20
    if mib >= 4096:
        assert len(parts) == 4 and max(sizes) < 1.2 * min(sizes)
    assert all(shape[0] % 8 == 0 for _, shape in tensors)


def test_a_header_says_where_each_tensor_is():
    tensors = [("a", [8, 4]), ("b", [16])]
    header = checkpoint_writer.header_of(tensors)
    (length,) = struct.unpack_from("<Q", header)
    assert len(header) == 8 + length and length % 8 == 0
    entries = json.loads(header[8:])
    assert entries["a"] == {"dtype": "BF16", "shape": [8, 4], "data_offsets": [0, 64]}
    assert entries["b"]["data_offsets"] == [64, 96]


# Arguments

def test_sizes_are_checked():
    import importlib.util
    path = os.path.join(os.path.dirname(page_cache.__file__), "__main__.py")
    specification = importlib.util.spec_from_file_location("bench_main", path)
    main = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(main)
    assert main.parse_size("3GiB") == 3 << 30
    for wrong in ("3", "3GB", "GiB", "-1GiB"):
        with pytest.raises(argparse.ArgumentTypeError):
            main.parse_size(wrong)
