"""`forestage doctor` on storage of every kind, and what the daemon found of the same mounts."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from forestage_testing import checkpoints
from forestage_testing.cli import Cli
from forestage_testing.daemon import Daemon
from forestage_testing.loop_device import loop_device
from forestage_testing.processes import GUARD_SECONDS, read_line

STRANGER = 65533
# Each shard must be large enough for an advice of 8 MiB to be measured with it.
MODEL = {"shards": 2, "mib": 36}
ADVICE_BYTES_CAP = 8 << 20


def fast_way(mount):
    return "faults" if answers(mount)["faults"] == "yes" else "advice+mincore"


def only_mount(document):
    (mount,) = document["mounts"]
    return mount


def answers(mount):
    return {name: verdict["answer"] for name, verdict in mount["verdicts"].items()}


def weakness_ids(of):
    return [weakness["id"] for weakness in of["weaknesses"]]


def weakness(of, name):
    (found,) = [weakness for weakness in of["weaknesses"] if weakness["id"] == name]
    return found


@contextlib.contextmanager
def overlay(directory, lower):
    """`lower` seen through an overlay, as a layer of a container's image."""
    upper, work, merged = (directory / name for name in ("upper", "work", "merged"))
    for path in (upper, work, merged):
        path.mkdir()
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, merged], check=True)
    try:
        yield merged
    finally:
        subprocess.run(["umount", merged], check=True)


@pytest.fixture
def checkpoint(data_dir):
    return checkpoints.make_model(data_dir / "checkpoint", **MODEL)


def test_a_disk_is_measured_and_its_files_stay_as_they_were(checkpoint, cli_without_daemon):
    checkpoints.make_cold(checkpoint)
    before = checkpoints.snapshot(checkpoint)
    document = cli_without_daemon.json("doctor", checkpoint)
    mount = only_mount(document)
    assert mount["device"] == checkpoints.device_text(checkpoint)
    assert mount["files"] == 2
    assert mount["bytes"] == document["bytes"] == checkpoints.total_bytes(checkpoint)
    found = answers(mount)
    assert mount["way"] == fast_way(mount)
    # Not of every kernel, but what it says of the fault it also says of the way.
    assert "a fault brought in" in mount["verdicts"]["faults"]["reason"]
    assert found["mapping"] == found["mincore"] == found["second_open"] == "yes"
    assert found["advice"] == "yes", mount
    assert 0 < mount["advice_bytes_measured"] <= ADVICE_BYTES_CAP
    assert document["daemon"]["running"] is False
    assert checkpoints.snapshot(checkpoint) == before


def test_people_are_told_the_same_and_weaknesses_are_no_failure(checkpoint, cli_without_daemon):
    text = cli_without_daemon.run("doctor", checkpoint).stdout
    assert "way of reading: faults" in text or "way of reading: advice+mincore" in text
    assert "mincore tells the truth" in text
    assert "no daemon answers" in text


@pytest.mark.parametrize(
    "file_system, read_ahead_kb", [("ext4", 128), ("ext4", 8192), ("xfs", 128)]
)
def test_one_advice_takes_what_the_device_says(
    file_system, read_ahead_kb, data_dir, cli_without_daemon, need_root
):
    def fill(path):
        checkpoints.make_model(path, **MODEL)

    with loop_device(
        data_dir, fill, mib=48, read_ahead_kb=read_ahead_kb, file_system=file_system
    ) as loop:
        mount = only_mount(cli_without_daemon.json("doctor", loop.mount))
        taken = max(read_ahead_kb, loop.max_sectors_kb) << 10
        assert mount["advice_bytes"] == min(taken, ADVICE_BYTES_CAP)
        assert mount["advice_bytes_measured"] == min(taken, ADVICE_BYTES_CAP)
        assert mount["read_ahead_bytes"] == read_ahead_kb << 10
        assert ("small_read_ahead" in weakness_ids(mount)) == (taken < 1 << 20)


@pytest.mark.parametrize("keep_cache", ["on", "off"])
def test_fuse_that_drops_the_cache_at_a_second_open_is_found(
    keep_cache, checkpoint, cli_without_daemon, mount_slowfs
):
    slowfs = mount_slowfs(checkpoint, flags=["--keep-cache", keep_cache, "--read-ahead-kb", "128"])
    mount = only_mount(cli_without_daemon.json("doctor", slowfs.mount))
    assert mount["type"].startswith("fuse")
    assert mount["mount_point"] == str(slowfs.mount)
    assert mount["advice_bytes"] == mount["advice_bytes_measured"] == 128 << 10
    assert answers(mount)["second_open"] == ("yes" if keep_cache == "on" else "no"), mount
    assert ("second_open_drops_cache" in weakness_ids(mount)) == (keep_cache == "off")
    change = weakness(mount, "small_read_ahead")["change"]
    (path,) = re.findall(r"/sys/class/bdi/\S+/read_ahead_kb", change)
    assert path == f"/sys/class/bdi/{checkpoints.device_text(slowfs.mount)}/read_ahead_kb"
    # The change that it names is the one that helps.
    subprocess.run(["sh", "-c", change], check=True)
    mount = only_mount(cli_without_daemon.json("doctor", slowfs.mount))
    assert mount["advice_bytes"] == ADVICE_BYTES_CAP
    assert mount["advice_bytes_measured"] > 128 << 10
    assert "small_read_ahead" not in weakness_ids(mount)


def test_only_one_file_of_a_mount_is_opened(checkpoint, cli_without_daemon, mount_slowfs):
    """Where an open drops a file from memory, the others stay."""
    slowfs = mount_slowfs(checkpoint, flags=["--keep-cache", "off"])
    mount = only_mount(cli_without_daemon.json("doctor", slowfs.mount))
    read = [name for name in slowfs.stats()["files"] if name.endswith(".safetensors")]
    assert read == [mount["tested_file"]]


def test_fuse_without_mappings_is_read_through_a_buffer(
    checkpoint, cli_without_daemon, mount_slowfs
):
    slowfs = mount_slowfs(checkpoint)
    slowfs.set("direct_io", "on")
    mount = only_mount(cli_without_daemon.json("doctor", slowfs.mount))
    if answers(mount)["mapping"] == "yes":
        pytest.fail(f"this kernel maps files of FUSE that are open with direct_io: {mount}")
    assert mount["way"] == "reads"
    assert "ENODEV" in mount["verdicts"]["mapping"]["reason"]
    assert "no_mappings" in weakness_ids(mount)


def test_an_overlay_is_named_and_cachestat_is_not_believed_there(
    checkpoint, data_dir, cli_without_daemon, need_root
):
    os.sync()
    with overlay(data_dir, checkpoint) as merged:
        mount = only_mount(cli_without_daemon.json("doctor", merged))
    assert mount["overlay"] is True
    assert mount["type"] == "overlay"
    assert answers(mount)["mincore"] == "yes"
    assert answers(mount)["cachestat"] == "no"
    assert "no_cachestat" in weakness_ids(mount)
    assert mount["way"] == fast_way(mount)


def test_files_in_memory_have_no_weakness(cli_without_daemon):
    directory = f"/dev/shm/forestage-doctor-{os.getpid()}"
    try:
        checkpoints.make_model(directory, shards=2, mib=4)
        mount = only_mount(cli_without_daemon.json("doctor", directory))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    assert mount["type"] == "tmpfs"
    assert weakness_ids(mount) == []


def test_a_checkpoint_on_two_mounts_is_probed_on_both(
    checkpoint, data_dir, cli_without_daemon, need_root
):
    """A directory of links, as in a cache whose files were moved to two disks."""
    memory = f"/dev/shm/forestage-doctor-{os.getpid()}"
    links = data_dir / "links"
    links.mkdir()
    first, second = checkpoints.shard_paths(checkpoint)
    try:
        os.mkdir(memory)
        shutil.copy(second, memory)
        (links / first.name).symlink_to(first)
        (links / second.name).symlink_to(os.path.join(memory, second.name))
        document = cli_without_daemon.json("doctor", links)
    finally:
        shutil.rmtree(memory, ignore_errors=True)
    assert [mount["files"] for mount in document["mounts"]] == [1, 1]
    assert [mount["type"] == "tmpfs" for mount in document["mounts"]] == [False, True]


@pytest.fixture
def strangers_checkpoint(short_dir):
    """A checkpoint of root's that everybody may read, whatever lies above the build."""
    os.chmod(short_dir, 0o755)
    directory = os.path.join(short_dir, "checkpoint")
    checkpoints.make_model(directory, **MODEL)
    os.chmod(directory, 0o755)
    for name in os.listdir(directory):
        os.chmod(os.path.join(directory, name), 0o644)
    return directory


def test_a_stranger_is_told_that_residency_is_unknown_and_which_capability_helps(
    strangers_checkpoint, short_dir, cli_without_daemon, need_root
):
    cli_without_daemon.program = shutil.copy(cli_without_daemon.program, short_dir)
    document = cli_without_daemon.json(
        "doctor",
        strangers_checkpoint,
        user=STRANGER,
        group=STRANGER,
        extra_groups=[],
        cwd=short_dir,
    )
    assert document["process"]["uid"] == STRANGER
    assert document["process"]["cap_fowner"] is False
    mount = only_mount(document)
    assert answers(mount)["mincore"] == "no"
    assert mount["files_residency_unknown"] == 2
    assert mount["advice_bytes_measured"] is None
    assert mount["way"] == "advice+populate"
    found = weakness(mount, "residency_unknown")
    assert "of 2 files" in found["what"]
    assert "CAP_FOWNER" in found["change"]


def test_a_forbidden_file_hides_no_damaged_one(
    strangers_checkpoint, short_dir, cli_without_daemon, need_root
):
    cli_without_daemon.program = shutil.copy(cli_without_daemon.program, short_dir)
    first, second = checkpoints.shard_paths(strangers_checkpoint)
    first.chmod(0)
    second.write_bytes(second.read_bytes()[:-1])
    document = cli_without_daemon.json(
        "doctor",
        strangers_checkpoint,
        user=STRANGER,
        group=STRANGER,
        extra_groups=[],
        cwd=short_dir,
        code=1,
    )
    assert document["sound"] is False
    assert first.name in document["error"] and second.name in document["error"]
    assert only_mount(document)["tested_file"] == second.name


def test_a_stranger_with_the_capability_is_told(
    strangers_checkpoint, short_dir, cli_without_daemon, need_root
):
    """What the weakness above says to change is what helps."""
    program = shutil.copy(cli_without_daemon.program, short_dir)
    capability = "+fowner"
    cli_without_daemon.program = "setpriv"
    document = cli_without_daemon.json(
        f"--reuid={STRANGER}",
        "--clear-groups",
        f"--inh-caps={capability}",
        f"--ambient-caps={capability}",
        program,
        "doctor",
        strangers_checkpoint,
        cwd=short_dir,
    )
    assert document["process"]["uid"] == STRANGER
    assert document["process"]["cap_fowner"] is True
    mount = only_mount(document)
    assert answers(mount)["mincore"] == "yes"
    assert weakness_ids(mount) == []


@pytest.mark.parametrize("error", ["EPERM", "ENOSYS"])
def test_io_uring_refused_here_is_named_with_what_to_allow(
    error, checkpoint, build_dir, cli_without_daemon
):
    program = cli_without_daemon.program
    cli_without_daemon.program = build_dir / "test" / "deny_io_uring"
    document = cli_without_daemon.json(error, program, "doctor", checkpoint)
    assert document["process"]["io_uring"] is False
    assert error in document["process"]["io_uring_reason"]
    found = weakness(document, "io_uring_refused")
    assert "io_uring_setup" in found["change"]
    assert "seccomp" in found["change"]


def test_io_uring_refused_to_the_daemon_counts_and_not_what_is_allowed_here(
    checkpoint, build_dir, start_daemon
):
    daemon = start_daemon(wrapper=[build_dir / "test" / "deny_io_uring", "EPERM"])
    cli = Cli(build_dir, daemon.socket)
    document = cli.json("doctor", checkpoint)
    assert document["process"]["io_uring"] is True
    assert document["daemon"]["running"] is True
    assert document["daemon"]["reader"] == "threads"
    assert "EPERM" in weakness(document, "io_uring_refused")["what"]
    assert "reads with threads" in cli.run("doctor", checkpoint).stdout
    document = cli.json("doctor", checkpoint, "--no-daemon")
    assert document["daemon"]["running"] is None
    assert document["weaknesses"] == []


def test_what_is_no_checkpoint_is_an_error(data_dir, cli_without_daemon):
    error = cli_without_daemon.json("doctor", data_dir, code=1)["error"]
    assert str(data_dir) in error
    cli_without_daemon.run("doctor", code=2)


def test_every_broken_file_is_named_and_fails(checkpoint, cli_without_daemon):
    assert cli_without_daemon.json("doctor", checkpoint)["sound"] is True
    first, second = checkpoints.shard_paths(checkpoint)
    first.write_bytes(first.read_bytes()[:-1])
    second.write_bytes(b"version https" + second.read_bytes()[13:])
    document = cli_without_daemon.json("doctor", checkpoint, code=1)
    assert document["sound"] is False and document["headers_checked"] is True
    assert first.name in document["error"] and second.name in document["error"]
    # The mount is shown all the same.
    assert only_mount(document)["files"] == 2
    text = cli_without_daemon.run("doctor", checkpoint, code=1).stdout
    assert "files: BROKEN" in text and first.name in text and second.name in text


def test_headers_are_not_looked_at_where_opening_drops_files_from_memory(
    checkpoint, cli_without_daemon, mount_slowfs
):
    slowfs = mount_slowfs(checkpoint, flags=["--keep-cache", "off"])
    document = cli_without_daemon.json("doctor", slowfs.mount)
    assert answers(only_mount(document))["second_open"] == "no"
    assert document["sound"] is True and document["headers_checked"] is False


def test_storage_that_does_not_answer_is_said(checkpoint, cli_without_daemon, mount_slowfs):
    slowfs = mount_slowfs(checkpoint)
    for path in checkpoints.shard_paths(checkpoint):
        slowfs.hold(path.name)
    arguments = [cli_without_daemon.program, "doctor", slowfs.mount, "--json", "--no-daemon"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, bufsize=0) as doctor:
        mount = only_mount(json.loads(read_line(doctor.stdout)))
        assert "has not answered" in mount["error"]
        # A process that hangs in FUSE ends when it is answered.
        slowfs.release()
        assert doctor.wait(GUARD_SECONDS) == 1


def mount_lines(daemon):
    return [line for line in daemon.log.splitlines() if " mount device=" in line]


def load_and_check(daemon, build_dir, directory, digests_path, check_digests, flags=()):
    cli = Cli(build_dir, daemon.socket)
    result = cli.load(directory, ranks=2, digests=digests_path, flags=flags)
    assert {rank["effective"] for rank in result["ranks"]} == {"rank_striped_read_ahead"}
    check_digests(directory, 2)


def test_the_daemon_says_once_how_it_reads_a_mount(
    daemon, build_dir, data_dir, digests_path, check_digests
):
    for name in ("one", "two"):
        directory = checkpoints.make_model(data_dir / name, shards=2, mib=4)
        load_and_check(daemon, build_dir, directory, digests_path, check_digests)
    (line,) = mount_lines(daemon)
    assert f"device={checkpoints.device_text(data_dir)} " in line
    assert "way=advice+mincore" in line
    (mount,) = daemon.status()["mounts"]
    assert mount["device"] == checkpoints.device_text(data_dir)
    # More where one rank had ended before the other came.
    assert int(mount["files_opened"]) >= 4
    assert mount["way"] == "advice+mincore"
    text = Cli(build_dir, daemon.socket).run("status").stdout
    assert "advice+mincore" in text


def test_the_daemon_stages_right_through_an_overlay(
    daemon, build_dir, data_dir, digests_path, check_digests, need_root
):
    lower = checkpoints.make_model(data_dir / "lower", shards=2, mib=4)
    os.sync()
    with overlay(data_dir, lower) as merged:
        load_and_check(daemon, build_dir, merged, digests_path, check_digests)
        (line,) = mount_lines(daemon)
        assert "type=overlay" in line
        assert "overlay=yes" in line
        daemon.stop()


def test_the_daemon_stages_right_from_memory(daemon, build_dir, digests_path, check_digests):
    directory = f"/dev/shm/forestage-doctor-{os.getpid()}"
    try:
        checkpoints.make_model(directory, shards=2, mib=4)
        load_and_check(daemon, build_dir, directory, digests_path, check_digests)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    (line,) = mount_lines(daemon)
    assert "type=tmpfs" in line
    assert "weaknesses=none" in line


def test_the_daemon_takes_fuse_for_what_drops_the_cache_and_does_not_test_it(
    daemon, build_dir, data_dir, digests_path, check_digests, mount_slowfs
):
    checkpoints.make_model(data_dir, shards=2, mib=4)
    slowfs = mount_slowfs(data_dir, flags=["--read-ahead-kb", "128"])
    load_and_check(daemon, build_dir, slowfs.mount, digests_path, check_digests)
    (line,) = mount_lines(daemon)
    assert "second_open=no" in line
    assert "advice_bytes_max=131072 " in line
    assert "weaknesses=second_open_drops_cache,small_read_ahead" in line


def test_a_daemon_without_rights_to_the_files_stages_right_and_says_so(
    strangers_checkpoint, short_dir, build_dir, digests_path, check_digests, need_root
):
    """It runs as somebody else, and ranks of root send it files of root's."""
    own = pathlib.Path(short_dir) / "daemon"
    (own / "bin").mkdir(parents=True)
    shutil.copy(build_dir / "bin" / "forestaged", own / "bin")
    os.chown(own, STRANGER, STRANGER)
    user = ["setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups"]
    daemon = Daemon(own, str(own), wrapper=user)
    try:
        daemon.wait_until_ready()
        known = ["--daemon-user", STRANGER]
        load_and_check(
            daemon, build_dir, strangers_checkpoint, digests_path, check_digests, flags=known
        )
        (line,) = mount_lines(daemon)
        assert "way=advice+populate" in line
        assert "residency_unknown" in line
        (mount,) = daemon.status()["mounts"]
        assert mount["files_residency_unknown"] == mount["files_opened"]
        daemon.stop()
    finally:
        daemon.abandon()
