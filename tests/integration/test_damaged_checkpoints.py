"""Damaged files are refused as the real reader refuses them, all at once and by name."""

import pathlib

import pytest
import safetensors

from forestage_testing import checkpoints
from forestage_testing.checkpoints import save_header

LFS_POINTER = (
    "version https-git-lfs.spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
    "size 4976698672\n"
)
HTML_PAGE = "<!DOCTYPE html>\n<html><head><title>Access denied</title></head></html>\n"

ENTRY = '{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]}'
GOOD = f'"t":{ENTRY}'
# Header and data bytes; what is right is asked of the real reader.
HEADERS = {
    "ok": ("{%s}" % GOOD, 16),
    "empty_object": ("{}", 0),
    "empty_object_with_data": ("{}", 1),
    "array_root": ("[]", 0),
    "leading_space": (" {%s}" % GOOD, 16),
    "trailing_space": ("{%s} \n\t\r " % GOOD, 16),
    "trailing_nul": ("{%s}\0" % GOOD, 16),
    "trailing_data": ("{%s}" % GOOD, 17),
    "short_data": ("{%s}" % GOOD, 15),
    "byte_order_mark": ("\ufeff{%s}" % GOOD, 16),
    "invalid_utf8": (b'{"\xff":' + ENTRY.encode() + b"}", 16),
    "unknown_dtype": ('{"t":{"dtype":"F8_E3M4","shape":[16],"data_offsets":[0,16]}}', 16),
    "lower_case_dtype": ('{"t":{"dtype":"i32","shape":[2,2],"data_offsets":[0,16]}}', 16),
    "hole_at_start": ('{"t":{"dtype":"I32","shape":[2],"data_offsets":[8,16]}}', 16),
    "wrong_size": ('{"t":{"dtype":"I32","shape":[3],"data_offsets":[0,16]}}', 16),
    "overlap": (
        '{"a":{"dtype":"I32","shape":[4],"data_offsets":[0,16]},'
        '"b":{"dtype":"I32","shape":[2],"data_offsets":[8,16]}}',
        16,
    ),
    "same_name_same_range": (
        '{%s,"t":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}' % GOOD,
        16,
    ),
    "same_name_adjacent": (
        '{"t":{"dtype":"I32","shape":[2],"data_offsets":[0,8]},'
        '"t":{"dtype":"I32","shape":[2],"data_offsets":[8,16]}}',
        16,
    ),
    "metadata_null": ('{"__metadata__":null,%s}' % GOOD, 16),
    "metadata_number": ('{"__metadata__":{"a":1},%s}' % GOOD, 16),
    "info_as_array": ('{"t":["I32",[2,2],[0,16]]}', 16),
    "missing_shape": ('{"t":{"dtype":"I32","data_offsets":[0,16]}}', 16),
    "float_offset": ('{"t":{"dtype":"I32","shape":[2,2],"data_offsets":[0,16.0]}}', 16),
    "odd_f4": ('{"t":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}', 2),
    "even_f4": ('{"t":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}}', 2),
    "overflowing_shape": (
        '{"t":{"dtype":"U8","shape":[18446744073709551615],'
        '"data_offsets":[0,18446744073709551615]}}',
        0,
    ),
    "no_elements_huge_dimension": (
        '{"t":{"dtype":"F16","shape":[0,18446744073709551615],"data_offsets":[0,0]}}',
        0,
    ),
    "trailing_comma": ("{%s,}" % GOOD, 16),
    "comment": ("{%s/*c*/}" % GOOD, 16),
}


def reference_accepts(path):
    try:
        safetensors.deserialize(pathlib.Path(path).read_bytes())
    except safetensors.SafetensorError:
        return False
    return True


@pytest.mark.parametrize("name", HEADERS)
def test_ls_agrees_with_the_reference_reader(name, cli_without_daemon, tmp_path):
    header, data_bytes = HEADERS[name]
    path = tmp_path / "model.safetensors"
    save_header(path, header, data_bytes)
    finished = cli_without_daemon.run("ls", tmp_path, code=None)
    assert finished.code == (0 if reference_accepts(path) else 1), finished
    if finished.code != 0:
        assert "model.safetensors" in finished.stderr


def test_all_damaged_files_are_listed_with_what_they_are(cli_without_daemon, data_dir):
    checkpoints.make_model(data_dir, shards=4, mib=4, index=False)
    paths = checkpoints.shard_paths(data_dir)
    paths[0].write_text(LFS_POINTER)
    paths[1].write_text(HTML_PAGE)
    whole = paths[2].stat().st_size
    with open(paths[2], "r+b") as file:
        file.truncate(whole - 1000)
    finished = cli_without_daemon.run("ls", data_dir, code=1)
    message = finished.stderr
    for path in paths[:3]:
        assert path.name in message
    assert paths[3].name not in message
    assert "lfs" in message.lower()
    assert "html" in message.lower()
    assert str(whole - 1000) in message and str(whole) in message


@pytest.mark.parametrize("use_daemon", [True, False])
def test_a_load_of_a_damaged_checkpoint_fails_for_every_rank_alike(
    use_daemon, daemon, cli, data_dir, digests_path
):
    checkpoints.make_model(data_dir, shards=2, mib=2, index=False)
    path = checkpoints.shard_paths(data_dir)[1]
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size - 1)
    flags = [] if use_daemon else ["--no-daemon"]
    running = cli.start_load(data_dir, ranks=2, digests=digests_path, flags=flags)
    finished = running.finish(code=1)
    assert path.name in finished.stderr + finished.stdout
    assert daemon.health() == "SERVING"
    daemon.wait_for_no_sessions()


def test_an_index_lists_all_that_does_not_fit(cli_without_daemon, data_dir):
    checkpoints.make_model(data_dir, shards=3, mib=3)
    paths = checkpoints.shard_paths(data_dir)
    paths[0].unlink()
    paths[1].unlink()
    finished = cli_without_daemon.run("ls", data_dir, code=1)
    assert paths[0].name in finished.stderr
    assert paths[1].name in finished.stderr


def test_a_gap_in_the_numbers_of_shards_is_an_error(cli_without_daemon, data_dir):
    checkpoints.make_model(data_dir, shards=3, mib=3, index=False)
    path = checkpoints.shard_paths(data_dir)[1]
    path.unlink()
    finished = cli_without_daemon.run("ls", data_dir, code=1)
    assert "00002" in finished.stderr


def test_a_directory_without_weights_is_said_to_be_so(cli_without_daemon, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    finished = cli_without_daemon.run("ls", tmp_path, code=1)
    assert str(tmp_path) in finished.stderr


def test_errors_are_json_when_facts_are(cli_without_daemon, tmp_path):
    document = cli_without_daemon.json("ls", tmp_path / "missing", code=1)
    assert "missing" in document["error"]
