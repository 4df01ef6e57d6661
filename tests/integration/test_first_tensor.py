"""What a rank waits for until it has its first tensor, by what was read and asked until then.

docs/performance.md has the times.
"""

from forestage_testing import checkpoints
from forestage_testing.cli import Cli
from forestage_testing.processes import children_of, wait_until


def environment_of(pid):
    with open(f"/proc/{pid}/environ", "rb") as file:
        return file.read().split(b"\0")


def ranks_of(load, count):
    def ranks():
        return [rank for worker in children_of(load.pid) for rank in children_of(worker)]

    wait_until(lambda: len(ranks()) == count, f"{count} ranks")
    return ranks()


def test_only_ranks_that_begin_together_have_their_libraries_bound_before(
    start_daemon, build_dir, data_dir, digests_path, mount_slowfs
):
    checkpoints.make_model(data_dir, shards=2, mib=6)
    daemon = start_daemon()
    slowfs = mount_slowfs(data_dir)
    for flags, bound in ([], False), (["--together"], True):
        slowfs.hold("*", 2 << 20)
        load = Cli(build_dir, daemon.socket).start_load(
            slowfs.mount, ranks=2, digests=digests_path, flags=flags
        )
        slowfs.wait_until_held()
        for rank in ranks_of(load, 2):
            assert (b"LD_BIND_NOW=1" in environment_of(rank)) == bound
        slowfs.release()
        load.finish()
        checkpoints.make_cold(slowfs.mount)
