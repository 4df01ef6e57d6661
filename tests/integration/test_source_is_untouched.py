"""Nothing is written beside or into a checkpoint."""

import subprocess

import pytest

from forestage_testing import checkpoints


@pytest.fixture
def checkpoint(data_dir):
    directory = data_dir / "checkpoint"
    checkpoints.make_model(directory, shards=3, mib=4)
    (directory / "config.json").write_text("{}")
    return directory


def use(cli, directory, digests_path):
    cli.run("ls", directory)
    cli.run("stage", directory, "--once")
    cli.load(directory, ranks=2, digests=digests_path, flags=["--verify"])


def test_loads_leave_the_directory_as_it_was(cli, checkpoint, digests_path):
    before = checkpoints.snapshot(checkpoint)
    use(cli, checkpoint, digests_path)
    assert checkpoints.snapshot(checkpoint) == before


def test_a_read_only_mount_is_enough(
    cli, checkpoint, data_dir, digests_path, check_digests, need_root
):
    mount = data_dir / "mount"
    mount.mkdir()
    subprocess.run(["mount", "--bind", checkpoint, mount], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", mount], check=True)
        use(cli, mount, digests_path)
        check_digests(checkpoint, 2)
    finally:
        subprocess.run(["umount", "-l", mount], check=True)


def test_digests_are_not_written_over_the_checkpoint(cli, checkpoint, data_dir):
    (shard, *_) = checkpoints.shard_paths(checkpoint)
    link = data_dir / "link"
    link.symlink_to(shard)
    dangling = data_dir / "dangling"
    dangling.symlink_to(checkpoint / "not there")
    second_name = data_dir / "second"
    second_name.hardlink_to(shard)
    before = checkpoints.snapshot(checkpoint)
    index = checkpoint / checkpoints.INDEX_NAME
    for path in [shard, index, checkpoint / "new", link, dangling, second_name]:
        arguments = ["load", checkpoint, "--ranks", "1", "--digests", path]
        assert "nothing is written" in cli.json(*arguments, code=2)["error"], path
    assert checkpoints.snapshot(checkpoint) == before
