"""Fixtures of tests/integration and tests/crash; tests/README.md says what is where."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest
from _pytest.runner import runtestprotocol

from forestage_testing.checkpoints import expected_digests
from forestage_testing.cli import Cli, read_digests
from forestage_testing.daemon import Daemon
from forestage_testing.loop_device import loop_device
from forestage_testing.memory_cgroup import MemoryCgroup
from forestage_testing.rank import Rank
from forestage_testing.slowfs import Slowfs

# gRPC's fork handlers warn about every subprocess, and none of ours uses gRPC after a fork.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

WITHOUT_FUSE = "FORESTAGE_TEST_WITHOUT_FUSE"
WITHOUT_CGROUPS = "FORESTAGE_TEST_WITHOUT_CGROUPS"
WITHOUT_LOOP = "FORESTAGE_TEST_WITHOUT_LOOP"
WITHOUT_USER_NAMESPACES = "FORESTAGE_TEST_WITHOUT_USER_NAMESPACES"


# Of a test that counts reads.
COUNTING_RUNS_MAX = 3


def _pages_read_back():
    """Pages of files, of the whole machine, that were read again soon after the kernel dropped them."""
    with open("/proc/vmstat", encoding="utf-8") as file:
        rows = dict(line.split() for line in file)
    return int(rows.get("workingset_refault_file", 0))


def pytest_runtest_protocol(item, nextitem):
    """Whoever is short of memory, or pages out what is idle, takes pages away that a test has just
    read, and then storage is read once more than the test allows. That is no fault of ours, and is
    told apart by the kernel's own count."""
    if item.get_closest_marker("counts_reads") is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for run in range(COUNTING_RUNS_MAX):
        before = _pages_read_back()
        item._initrequest()
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        if not any(report.failed for report in reports) or _pages_read_back() == before:
            break
        if run + 1 < COUNTING_RUNS_MAX:
            item.warn(pytest.PytestWarning("failed while pages were dropped; run again"))
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_addoption(parser):
    parser.addoption("--build-dir", default="build/dev", help="of the CMake preset to test")


@pytest.fixture(scope="session")
def build_dir(request):
    path = pathlib.Path(request.config.getoption("--build-dir")).absolute()
    ranks = ["test/load_rank", "test/catalog_rank"]
    for program in ["bin/forestaged", "bin/forestage", "test/slowfs", *ranks]:
        if not (path / program).exists():
            pytest.exit(f"{path / program} is not built; build first, or give --build-dir", 2)
    return path


@pytest.fixture
def short_dir():
    """A private directory with a path short enough for Unix sockets."""
    path = tempfile.mkdtemp(prefix="fs", dir="/tmp")
    yield path
    shutil.rmtree(path)


@pytest.fixture
def data_dir(build_dir):
    """A private directory on the build's disk, where the page cache can be dropped (not tmpfs)."""
    parent = build_dir / "test-data"
    parent.mkdir(exist_ok=True)
    path = pathlib.Path(tempfile.mkdtemp(dir=parent))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def start_daemon(build_dir, request):
    """Starts further daemons: start_daemon(flags=[...]). Those that still run must end cleanly."""
    started = []
    directories = []

    def start(*, wait=True, directory=None, **options):
        if directory is None:
            directory = tempfile.mkdtemp(prefix="fs", dir="/tmp")
            directories.append(directory)
        daemon = Daemon(build_dir, directory, **options)
        started.append(daemon)
        return daemon.wait_until_ready() if wait else daemon

    yield start
    errors = []
    for daemon in started:
        try:
            # What a test has ended, it has looked at itself.
            if daemon.is_running():
                daemon.stop()
        except AssertionError as error:
            errors.append(str(error))
        daemon.abandon()
        request.node.add_report_section("teardown", "forestaged", daemon.log)
    for directory in directories:
        shutil.rmtree(directory)
    assert not errors, "\n".join(errors)


@pytest.fixture
def daemon(start_daemon):
    """A daemon with small extents, so that small checkpoints have many."""
    return start_daemon(flags=["--extent-size", "256KiB"])


@pytest.fixture
def metered_daemon(start_daemon):
    """The same with metrics on a free port, whose server takes its time to stop."""
    return start_daemon(flags=["--extent-size", "256KiB"], metrics_address="127.0.0.1:0")


@pytest.fixture
def cli(build_dir, daemon):
    return Cli(build_dir, daemon.socket)


@pytest.fixture
def cli_without_daemon(build_dir, short_dir):
    return Cli(build_dir, os.path.join(short_dir, "none.sock"))


@pytest.fixture
def start_rank(build_dir):
    """Starts one rank: start_rank(directory, socket=..., rank=0, size=2, flags=[...])."""
    started = []

    def start(directory, **options):
        rank = Rank(build_dir, directory, **options)
        started.append(rank)
        return rank

    yield start
    for rank in started:
        rank.abandon()


@pytest.fixture
def mount_slowfs(build_dir):
    """Mounts a directory through slowfs: mount_slowfs(source, flags=[...])."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        if WITHOUT_FUSE in os.environ:
            pytest.skip(f"no usable /dev/fuse, and {WITHOUT_FUSE} is set")
        pytest.fail(f"/dev/fuse cannot be used; set {WITHOUT_FUSE}=1 to go without these tests")
    mounted = []
    directories = []

    def mount(source, **options):
        directory = tempfile.mkdtemp(prefix="fs", dir="/tmp")
        directories.append(directory)
        slowfs = Slowfs(build_dir, source, directory, **options)
        mounted.append(slowfs)
        return slowfs

    yield mount
    for slowfs in mounted:
        slowfs.stop()
    for directory in directories:
        os.rmdir(os.path.join(directory, "mount"))
        shutil.rmtree(directory)


@pytest.fixture
def memory_cgroup():
    """Makes groups: memory_cgroup(limit_bytes). Name it before start_daemon: it ends after that."""
    made = []

    def make(limit_bytes):
        try:
            group = MemoryCgroup(limit_bytes)
        except OSError as error:
            if WITHOUT_CGROUPS in os.environ:
                pytest.skip(f"no memory cgroup ({error}), and {WITHOUT_CGROUPS} is set")
            pytest.fail(
                f"no memory cgroup can be made ({error}); "
                f"set {WITHOUT_CGROUPS}=1 to go without these tests"
            )
        made.append(group)
        return group

    yield make
    for group in made:
        group.remove()


@pytest.fixture
def mount_loop(data_dir):
    """Makes a loop device: mount_loop(fill, mib=32), where fill(path) writes its files.

    A test names it before its daemon: so the daemon, which may keep files open, goes first.
    """
    if not os.access("/dev/loop-control", os.R_OK | os.W_OK):
        if WITHOUT_LOOP in os.environ:
            pytest.skip(f"no usable /dev/loop-control, and {WITHOUT_LOOP} is set")
        pytest.fail(f"no loop devices here; set {WITHOUT_LOOP}=1 to go without these tests")
    with contextlib.ExitStack() as stack:

        def mount(fill, **options):
            directory = data_dir / f"loop{len(os.listdir(data_dir))}"
            directory.mkdir()
            return stack.enter_context(loop_device(directory, fill, **options))

        yield mount


@pytest.fixture
def need_root():
    if os.geteuid() != 0:
        pytest.fail("this test needs root: it changes its user or mounts")


@pytest.fixture
def in_user_namespace(need_root):
    """Before a program: runs it as root in a user namespace where no user has a number, nor root."""
    wrapper = ["unshare", "--user"]
    tried = subprocess.run([*wrapper, "true"], stderr=subprocess.PIPE, text=True, check=False)
    if tried.returncode != 0:
        if WITHOUT_USER_NAMESPACES in os.environ:
            pytest.skip(f"no user namespaces, and {WITHOUT_USER_NAMESPACES} is set")
        pytest.fail(
            f"no user namespace can be made ({tried.stderr}); "
            f"set {WITHOUT_USER_NAMESPACES}=1 to go without these tests"
        )
    return wrapper


@pytest.fixture
def digests_path(tmp_path):
    return tmp_path / "digests"


@pytest.fixture
def check_digests(digests_path):
    """check_digests(directory, ranks, share): each byte delivered is what the real reader gives."""

    def check(directory, ranks, share="all"):
        got = read_digests(digests_path)
        expected = expected_digests(directory, ranks, share)
        assert got.keys() == expected.keys()
        wrong = [key for key in expected if got[key] != expected[key]]
        assert not wrong, f"wrong bytes (rank, tensor): {wrong[:10]}"

    return check
