"""Peers that are strangers, broken or hostile: each is refused by name, and nobody else notices.

docs/security.md says what is promised.
"""

import contextlib
import os
import random
import shutil
import socket
import sys
import threading

import grpc
import pytest

from forestage_testing import bad_peer, checkpoints, token_thief
from forestage_testing.bad_descriptors import BAD_KINDS, descriptor_of
from forestage_testing.cli import Cli, read_digests
from forestage_testing.processes import anonymous_bytes, descriptor_count, run, wait_until
from forestage_testing.raw_rank import DELIVERY, RawRank

NOBODY = 65534
STAGED = "rank_striped_read_ahead"
GROUP = 4242
# daemon/limits.h
CLOSING_THREADS_PER_STORAGE = 2


@pytest.fixture
def open_dir(short_dir):
    """A directory that every user may use, whatever lies above the build."""
    os.chmod(short_dir, 0o777)
    return short_dir


@pytest.fixture
def daemon_with_group(start_daemon, need_root):
    daemon = start_daemon(flags=["--extent-size", "256KiB", "--socket-group", GROUP])
    os.chmod(daemon.directory, 0o755)
    return daemon


@pytest.fixture
def raw_rank():
    """Opens sessions that break rules: raw_rank(daemon, shards=[...])."""
    opened = []

    def open_one(daemon, **options):
        rank = RawRank(daemon, **options)
        opened.append(rank)
        return rank

    yield open_one
    for rank in opened:
        rank.close()


@pytest.fixture
def victim(start_rank, data_dir):
    """A load that is in the middle while others do harm: `with victim(daemon): ...`."""

    @contextlib.contextmanager
    def load(daemon):
        directory = data_dir / "victim"
        checkpoints.make_model(directory, shards=2, mib=4)
        rank = start_rank(
            directory, socket=daemon.socket, group="victim", flags=["--pause-after", "2"]
        )
        assert rank.expect("opened")["decision"]["effective"] == STAGED
        rank.expect("paused")
        yield
        rank.resume()
        done = rank.finish()
        assert done["decision"]["effective"] == STAGED
        assert rank.digests(done) == checkpoints.expected_digests(directory, 1, "all")

    return load


def descriptors_at_rest(daemon):
    """How many the daemon has, the connection included by which a test learns the messages."""
    daemon.message_descriptor("forestage.v1.SessionRequest")
    return descriptor_count(daemon.pid)


def first_shard(data_dir):
    directory = data_dir / "bait"
    checkpoints.make_model(directory, shards=1, mib=1)
    return str(next(directory.glob("*.safetensors")))


def as_nobody(program, open_dir, *, groups):
    """A program that runs this one as another user. Not by Popen(user=...), which forks this
    process with all that gRPC has in it.
    """
    copy = program
    if os.path.dirname(program) != open_dir:
        copy = shutil.copy(program, open_dir)
    wrapper = os.path.join(open_dir, f"as-nobody-{os.path.basename(program)}")
    of_groups = f"--groups {','.join(map(str, groups))}" if groups else "--clear-groups"
    with open(wrapper, "w", encoding="utf-8") as file:
        file.write(
            f"#!/bin/sh\nexec setpriv --reuid {NOBODY} --regid {NOBODY} {of_groups} "
            f'{copy} "$@"\n'
        )
    os.chmod(wrapper, 0o755)
    return wrapper


def load_as(build_dir, socket, open_dir, *, groups):
    """Loads as a user who is not the daemon's, with right bytes in any case; the ranks' JSON."""
    checkpoint = os.path.join(open_dir, "checkpoint")
    checkpoints.make_model(checkpoint, shards=2, mib=2)
    for path, _, names in os.walk(checkpoint):
        os.chmod(path, 0o755)
        for name in names:
            os.chmod(os.path.join(path, name), 0o644)
    cli = Cli(build_dir, socket)
    cli.program = as_nobody(cli.program, open_dir, groups=groups)
    digests = os.path.join(open_dir, "digests")
    result = cli.load(checkpoint, ranks=2, digests=digests, cwd=open_dir)
    assert read_digests(digests) == checkpoints.expected_digests(checkpoint, 2, "all")
    return result["ranks"]


def test_a_member_of_the_sockets_group_loads_through_the_daemon(
    build_dir, daemon_with_group, open_dir
):
    ranks = load_as(build_dir, daemon_with_group.socket, open_dir, groups=[GROUP])
    assert [rank["effective"] for rank in ranks] == ["rank_striped_read_ahead"] * 2


def test_without_the_group_there_is_no_connection(build_dir, daemon_with_group, open_dir):
    ranks = load_as(build_dir, daemon_with_group.socket, open_dir, groups=[])
    for rank in ranks:
        assert rank["effective"] == "native"
        assert "EACCES" in rank["reason"] and "socket-group" in rank["reason"]
    assert "connection refused" not in daemon_with_group.log, "the kernel refuses, not the daemon"


def test_a_member_of_the_group_is_no_administrator(build_dir, daemon_with_group, open_dir):
    cli = Cli(build_dir, daemon_with_group.socket)
    cli.program = as_nobody(cli.program, open_dir, groups=[GROUP])
    cli.run("health", cwd=open_dir)
    finished = cli.run("status", code=1, cwd=open_dir)
    assert "administrators" in finished.stderr
    # Nor by the socket that lets it in.
    finished = cli.run("status", "--admin-socket", daemon_with_group.socket, code=1, cwd=open_dir)
    assert daemon_with_group.admin_socket in finished.stderr


def test_a_socket_group_that_does_not_exist_is_named_at_the_start(build_dir, short_dir):
    finished = run(
        [
            build_dir / "bin" / "forestaged",
            *("--socket", os.path.join(short_dir, "d.sock")),
            *("--metrics-address", "none", "--socket-group", "no-such-group"),
        ],
        code=None,
    )
    assert finished.code not in (0, None)
    assert "socket-group" in finished.stderr and "no-such-group" in finished.stderr
    assert not [name for name in os.listdir(short_dir) if name.endswith((".sock", ".admin"))]


def test_a_directory_that_everybody_may_write_is_refused_at_the_start(build_dir, open_dir):
    finished = run(
        [
            build_dir / "bin" / "forestaged",
            *("--socket", os.path.join(open_dir, "d.sock"), "--metrics-address", "none"),
        ],
        code=None,
    )
    assert finished.code not in (0, None)
    assert "everybody may write" in finished.stderr and open_dir in finished.stderr


def steal(daemon, token, shard, open_dir, *, as_other_user):
    """What another process gets that presents the token: the answers to a batch and a delivery."""
    shard = shutil.copy(shard, open_dir)
    os.chmod(shard, 0o644)
    program = os.path.join(open_dir, "token_thief.py")
    with open(token_thief.__file__, encoding="utf-8") as source:
        text = source.read()
    with open(program, "w", encoding="utf-8") as file:
        file.write(f"#!{os.path.realpath(sys.executable)} -I\n{text}")
    os.chmod(program, 0o755)
    if as_other_user:
        program = as_nobody(program, open_dir, groups=[GROUP])
    return run([program, daemon.socket, token.hex(), shard], cwd=open_dir).json


def test_a_token_serves_the_process_that_it_was_given_to_only(
    daemon_with_group, raw_rank, data_dir, open_dir
):
    daemon = daemon_with_group
    shard = first_shard(data_dir)
    owner = raw_rank(daemon, shards=[shard])
    for as_other_user in (False, True):
        for answer in steal(daemon, owner.token, shard, open_dir, as_other_user=as_other_user):
            assert answer["code"] == "PERMISSION_DENIED"
            assert "another process's" in answer["message"]
            assert answer["received"] == 0
    # The owner is none the worse.
    connection = owner.descriptors()
    with open(shard, "rb") as file:
        assert connection.exchange(owner.token, [file.fileno()]).accepted_count == 1
    delivered = connection.exchange(owner.token, kind=DELIVERY)
    assert delivered.ok and len(delivered.descriptors) == 2
    for descriptor in delivered.descriptors:
        os.close(descriptor)
    assert owner.wait_for("decision").decision.activated


def test_wrong_and_stale_tokens_are_refused(daemon, raw_rank, data_dir):
    shard = first_shard(data_dir)
    rank = raw_rank(daemon, shards=[shard])
    with open(shard, "rb") as file:
        for kind, descriptors in ((1, [file.fileno()]), (DELIVERY, [])):
            answer = rank.descriptors().exchange(bytes(16), descriptors, kind=kind)
            assert answer.name == "PERMISSION_DENIED"
        # The session is as it was.
        assert rank.descriptors().exchange(rank.token, [file.fileno()]).accepted_count == 1
        rank.wait_for("decision")
        rank.close()
        daemon.wait_for_no_sessions()
        for kind, descriptors in ((1, [file.fileno()]), (DELIVERY, [])):
            answer = rank.descriptors().exchange(rank.token, descriptors, kind=kind)
            assert answer.name == "PERMISSION_DENIED"
            assert "its session is over" in answer.message


@pytest.mark.parametrize("kind", BAD_KINDS)
def test_descriptors_that_are_no_weights_are_refused_by_name(
    daemon, raw_rank, data_dir, victim, kind
):
    shard = first_shard(data_dir)
    with victim(daemon), descriptor_of(kind, shard, data_dir) as (descriptor, why):
        before = descriptors_at_rest(daemon)
        rank = raw_rank(daemon, shards=[shard])
        connection = rank.descriptors()
        assert connection.exchange(rank.token, [descriptor]).accepted_count == 1
        code, message = rank.end()
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert why in message and os.path.basename(shard) in message
        connection.close()
        rank.close()
        wait_until(lambda: descriptor_count(daemon.pid) <= before, "its descriptors to go")


def test_what_another_user_sends_is_refused_by_name_too(
    daemon_with_group, data_dir, victim, need_root
):
    """The same as a user who is in the group of the sockets and nothing else."""
    daemon = daemon_with_group
    shard = first_shard(data_dir)
    with victim(daemon):
        before = descriptors_at_rest(daemon)
        answers = run(
            [sys.executable, bad_peer.__file__, daemon.directory, NOBODY, GROUP, shard, data_dir],
            env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(bad_peer.__file__))},
        ).json
        assert answers.keys() == {*BAD_KINDS, "good"}
        for kind in BAD_KINDS:
            code, message, why = answers[kind]
            assert code == "INVALID_ARGUMENT", kind
            assert why in message and os.path.basename(shard) in message
        assert answers["good"] == [NOBODY, "decision"], "and it is served when it sends a shard"
        wait_until(lambda: descriptor_count(daemon.pid) <= before, "its descriptors to go")


@contextlib.contextmanager
def hung_sessions(daemon, raw_rank, slowfs, hung_path, count):
    """Sessions on a file that never answers, each ended by the daemon's own limit."""
    descriptor = os.open(hung_path, os.O_RDONLY)
    ranks = []
    for number in range(count):
        rank = raw_rank(daemon, shards=[hung_path], group=f"hung{number}")
        assert rank.descriptors().exchange(rank.token, [descriptor]).accepted_count == 1
        ranks.append(rank)
    slowfs.wait_until_held()
    yield ranks
    # A file system that has died answers this with an error.
    with contextlib.suppress(OSError):
        os.close(descriptor)
    for rank in ranks:
        rank.close()


def test_a_file_system_that_dies_while_the_daemon_waits_for_it_leaves_nothing_behind(
    start_daemon, raw_rank, data_dir, mount_slowfs, victim
):
    """A peer's own FUSE server, which never answers and then goes."""
    daemon = start_daemon(flags=["--extent-size", "256KiB", "--descriptor-timeout", "2s"])
    shard = first_shard(data_dir)
    slowfs = mount_slowfs(os.path.dirname(shard))
    hung_path = str(slowfs.mount / os.path.basename(shard))
    with victim(daemon):
        # What its first sessions leave with the daemon for ever (threads' stacks, gRPC's pollers).
        raw_rank(daemon, shards=[shard]).close()
        before = descriptors_at_rest(daemon)
        memory = anonymous_bytes(daemon.pid)
        slowfs.hold("*")
        with hung_sessions(daemon, raw_rank, slowfs, hung_path, 12) as ranks:
            for rank in ranks:
                code, message = rank.end()
                assert code == grpc.StatusCode.DEADLINE_EXCEEDED
                assert "descriptor-timeout" in message
            assert descriptor_count(daemon.pid) > before, "storage holds what it does not answer"
            slowfs.kill()
        wait_until(lambda: descriptor_count(daemon.pid) <= before + 8, "descriptors to go")
        wait_until(
            lambda: anonymous_bytes(daemon.pid) - memory < 16 << 20, "the daemon's memory to go"
        )


def test_storage_that_never_answers_holds_up_its_own_user_only(
    build_dir, start_daemon, raw_rank, data_dir, mount_slowfs, open_dir, need_root
):
    """More sessions hang than the daemon may have threads for one user."""
    daemon = start_daemon(
        flags=[
            *("--extent-size", "256KiB", "--socket-group", GROUP),
            *("--descriptor-timeout", "2s", "--sessions-per-uid-max", "48"),
        ]
    )
    os.chmod(daemon.directory, 0o755)
    before = descriptors_at_rest(daemon)
    shard = first_shard(data_dir)
    slowfs = mount_slowfs(os.path.dirname(shard))
    slowfs.hold("*")
    hung_path = str(slowfs.mount / os.path.basename(shard))
    with hung_sessions(daemon, raw_rank, slowfs, hung_path, 48) as ranks:
        # Another user is served as ever.
        others = load_as(build_dir, daemon.socket, open_dir, groups=[GROUP])
        assert [rank["effective"] for rank in others] == [STAGED] * 2
        for rank in ranks:
            code, message = rank.end()
            assert code == grpc.StatusCode.DEADLINE_EXCEEDED
            assert "descriptor-timeout" in message
        # What hangs counts for this user until storage lets go of it.
        with pytest.raises(grpc.RpcError) as refused:
            raw_rank(daemon, shards=[hung_path], group="one more")
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "sessions-per-uid-max" in refused.value.details()
        slowfs.release()

    def served_again():
        try:
            raw_rank(daemon, shards=[shard], group="served again").close()
        except grpc.RpcError:
            return False
        return True

    wait_until(served_again, "the user to be served again")
    # gRPC's own (a poller's) stay; those of 48 sessions do not.
    wait_until(lambda: descriptor_count(daemon.pid) <= before + 8, "descriptors to go")


def test_headers_that_hang_hold_up_no_other_storage_of_their_user(
    daemon, build_dir, raw_rank, data_dir, mount_slowfs, digests_path, check_digests
):
    """As many sessions hang as the daemon has threads for one user, and more."""
    shard = first_shard(data_dir)
    slowfs = mount_slowfs(os.path.dirname(shard))
    slowfs.hold("*")
    hung_path = str(slowfs.mount / os.path.basename(shard))
    checkpoints.make_model(data_dir / "other", seed=5, shards=2, mib=2)
    with hung_sessions(daemon, raw_rank, slowfs, hung_path, 48):
        told = Cli(build_dir, daemon.socket).load(data_dir / "other", ranks=2, digests=digests_path)
        assert [rank["effective"] for rank in told["ranks"]] == [STAGED] * 2
        check_digests(data_dir / "other", 2)
        wait_until(lambda: "open stuck" in daemon.log, "the hang to be reported")
        slowfs.release()
    reports = [line for line in daemon.log.splitlines() if "open stuck" in line]
    assert len(reports) == 1, reports
    assert f"uid={os.geteuid()}" in reports[0]


def test_garbage_and_half_messages_end_their_own_connections_only(
    daemon, raw_rank, data_dir, victim
):
    shard = first_shard(data_dir)
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    with victim(daemon):
        before = descriptors_at_rest(daemon)
        connections = []
        for _ in range(50):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.connect(daemon.socket)
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[: rng.randrange(25)])
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(rng.randbytes(rng.randrange(2000)))
            connections.append(connection)
        for _ in range(50):
            rank = raw_rank(daemon, shards=[shard])
            exchange = rank.descriptors()
            exchange.send_bytes(rng.randbytes(rng.randrange(1, 1500)), [0] * rng.randrange(4))
            answer = exchange.receive()
            assert answer.name == "INVALID_ARGUMENT"
            assert exchange.receive() is None
            exchange.close()
            rank.close()
        for _ in range(10):
            rank = raw_rank(daemon, shards=[shard], open_now=False)
            rank.send_bytes(b"\xff" + rng.randbytes(rng.randrange(100)))
            code, _ = rank.end()
            assert code not in (grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE)
            rank.close()
        for connection in connections:
            connection.close()
        wait_until(lambda: descriptor_count(daemon.pid) <= before, "descriptors to go")


def test_messages_beyond_the_limit_end_their_own_stream_only(daemon, raw_rank, data_dir, victim):
    shard = first_shard(data_dir)
    with victim(daemon):
        before = descriptors_at_rest(daemon)
        memory = anonymous_bytes(daemon.pid)
        for open_now in (True, False):
            rank = raw_rank(daemon, shards=[shard], open_now=open_now)
            rank.send_bytes(bytes(7 << 20))
            code, message = rank.end()
            assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "larger than max" in message
            rank.close()
        wait_until(lambda: descriptor_count(daemon.pid) <= before, "descriptors to go")
        wait_until(
            lambda: anonymous_bytes(daemon.pid) - memory < 16 << 20, "the daemon's memory to go"
        )


def test_sparse_files_of_terabytes_take_no_memory_of_the_daemon(
    memory_cgroup, start_daemon, raw_rank, data_dir
):
    """Each extent has a place on the board and in the queue, though no byte of it is on the disk."""
    group = memory_cgroup(128 << 20)
    daemon = start_daemon(wrapper=group.wrapper)
    directory = checkpoints.make_sparse(data_dir / "sparse", 4 << 40, shards=3)
    shards = checkpoints.shard_paths(directory)
    memory = anonymous_bytes(daemon.pid)
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(shard, "rb")) for shard in shards]
        for _ in range(4):
            rank = raw_rank(daemon, shards=shards)
            descriptors = [file.fileno() for file in files]
            assert rank.descriptors().exchange(rank.token, descriptors).accepted_count == 3
            code, message = rank.end()
            assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "bytes of headers and extents" in message
            rank.close()
    assert anonymous_bytes(daemon.pid) - memory < 16 << 20
    assert group.oom_kills == 0 and daemon.health() == "SERVING"


def test_batches_that_are_not_as_announced_end_the_session(daemon, raw_rank, data_dir, victim):
    shard = first_shard(data_dir)
    with victim(daemon), open(shard, "rb") as file:
        before = descriptors_at_rest(daemon)
        for sent in (0, 2, 200):
            rank = raw_rank(daemon, shards=[shard])
            exchange = rank.descriptors()
            answer = exchange.exchange(rank.token, [file.fileno()] * sent, count=1)
            assert answer.name == "INVALID_ARGUMENT" and "batch of 1" in answer.message
            code, message = rank.end()
            assert code == grpc.StatusCode.INVALID_ARGUMENT and "batch of 1" in message
            exchange.close()
            rank.close()
        # A gap, and more than the open request named: the session may go on.
        rank = raw_rank(daemon, shards=[shard])
        for options in ({"first": 1, "count": 1}, {"first": 0, "count": 2}):
            answer = rank.descriptors().exchange(rank.token, [file.fileno()] * 2, **options)
            assert answer.name == "INVALID_ARGUMENT" and "0 of 1 have come" in answer.message
        assert rank.descriptors().exchange(rank.token, [file.fileno()]).accepted_count == 1
        rank.wait_for("decision")
        rank.close()
        wait_until(lambda: descriptor_count(daemon.pid) <= before, "descriptors to go")


def test_ten_thousand_opens_of_one_user_leave_the_others_their_place(
    build_dir, start_daemon, raw_rank, data_dir, open_dir, need_root
):
    daemon = start_daemon(
        flags=[
            *("--extent-size", "256KiB", "--socket-group", GROUP),
            *("--sessions-max", "40", "--sessions-per-uid-max", "32"),
            # Held while all the others come.
            *("--descriptor-timeout", "1h"),
        ]
    )
    os.chmod(daemon.directory, 0o755)
    shard = first_shard(data_dir)
    held = [raw_rank(daemon, shards=[shard], group=f"g{number}") for number in range(32)]
    template = held[0].message()
    template.open.group.name = "flood"
    template.open.group.local_size = 1
    template.open.path = "/c"
    template.open.shards.add(name=b"x.safetensors", size_bytes=1, mtime_ns=1)
    data = template.SerializeToString()
    before = descriptors_at_rest(daemon)
    memory = anonymous_bytes(daemon.pid)

    def open_and_be_refused(stub):
        call = stub(iter([data]), timeout=60)
        with pytest.raises(grpc.RpcError) as refused:
            next(call)
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED

    with daemon.channel() as channel:
        stub = channel.stream_stream("/forestage.v1.SessionService/OpenSession")
        for number in range(10_000 - 32):
            open_and_be_refused(stub)
            if number == 5_000:
                others = load_as(build_dir, daemon.socket, open_dir, groups=[GROUP])
                assert [rank["effective"] for rank in others] == [STAGED] * 2
    wait_until(lambda: descriptor_count(daemon.pid) <= before, "descriptors to go")
    assert anonymous_bytes(daemon.pid) - memory < 32 << 20
    for rank in held:
        rank.close()


def test_silent_connections_of_one_user_leave_the_others_theirs(
    build_dir, daemon_with_group, open_dir
):
    daemon = daemon_with_group
    before = descriptors_at_rest(daemon)
    connections = []
    for kind, path in (
        (socket.SOCK_STREAM, daemon.socket),
        (socket.SOCK_SEQPACKET, daemon.socket + ".descriptors"),
    ):
        for _ in range(900):
            connection = socket.socket(socket.AF_UNIX, kind)
            connection.connect(path)
            connections.append(connection)
    others = load_as(build_dir, daemon.socket, open_dir, groups=[GROUP])
    assert [rank["effective"] for rank in others] == [STAGED] * 2
    for connection in connections:
        connection.close()
    # Their pidfds too, though no other connection comes.
    wait_until(lambda: descriptor_count(daemon.pid) <= before, "descriptors to go")


def test_sessions_of_clients_that_do_not_read_end_by_their_own_limits(
    start_daemon, raw_rank, data_dir, victim
):
    daemon = start_daemon(flags=["--extent-size", "256KiB", "--descriptor-timeout", "3s"])
    shard = first_shard(data_dir)
    with victim(daemon):
        memory = anonymous_bytes(daemon.pid)
        ranks = [raw_rank(daemon, shards=[shard], group=f"g{number}") for number in range(8)]
        request = ranks[0].message()
        request.progress.major_faults = 1
        data = request.SerializeToString()
        for rank in ranks:
            # Answers to these fill what gRPC and the socket hold for a client that does not read.
            for _ in range(20_000):
                rank.send_bytes(data)
        # A session ends by its own limit, though nobody reads that it does.
        for number in range(8):
            wait_until(
                lambda number=number: f'session ended group="g{number}"' in daemon.log,
                "the session to end",
            )
        assert "DEADLINE_EXCEEDED" in daemon.log
        assert anonymous_bytes(daemon.pid) - memory < 64 << 20


def test_a_client_that_does_not_read_how_its_stream_ended_is_cut_off(
    start_daemon, raw_rank, data_dir, victim
):
    """It would keep its stream with the daemon for ever: its end waits behind what it leaves
    unread."""
    daemon = start_daemon(flags=["--extent-size", "256KiB", "--descriptor-timeout", "3s"])
    shard = first_shard(data_dir)
    with victim(daemon):
        before = descriptors_at_rest(daemon)
        memory = anonymous_bytes(daemon.pid)
        deaf = [
            raw_rank(daemon, shards=[shard], group=f"deaf{number}", window_bytes=64)
            for number in range(4)
        ]
        request = deaf[0].message()
        request.progress.major_faults = 1
        data = request.SerializeToString()
        for rank in deaf:
            # Answered one by one, or the newest for all that wait: more than the window in any case.
            for _ in range(200):
                rank.send_bytes(data)
        for number, rank in enumerate(deaf):
            wait_until(
                lambda number=number: f'session ended group="deaf{number}"' in daemon.log,
                "the session to end",
            )
        wait_until(lambda: daemon.log.count("stream cut off") == len(deaf), "the streams to be cut off")
        for rank in deaf:
            code, message = rank.end()
            assert code == grpc.StatusCode.CANCELLED, message
        for rank in deaf:
            rank.close()
        wait_until(lambda: descriptor_count(daemon.pid) <= before + 8, "descriptors to go")
        wait_until(
            lambda: anonymous_bytes(daemon.pid) - memory < 16 << 20, "the daemon's memory to go"
        )


def test_one_user_has_no_more_staged_than_his_share_and_others_have_theirs(
    build_dir, start_daemon, start_rank, data_dir, open_dir, tmp_path, need_root
):
    a = checkpoints.make_model(data_dir / "a", seed=1, mib=4)
    b = checkpoints.make_model(data_dir / "b", seed=2, mib=4)
    share = checkpoints.total_bytes(a) + checkpoints.total_bytes(b) - 1
    daemon = start_daemon(
        flags=[
            *("--extent-size", "256KiB", "--socket-group", GROUP),
            *("--staged-bytes-per-uid-max", share),
        ],
        metrics_address="127.0.0.1:0",
    )
    os.chmod(daemon.directory, 0o755)
    cli = Cli(build_dir, daemon.socket)
    # Two groups of one user on one checkpoint: it counts once.
    holders = [start_rank(a, socket=daemon.socket, group=group, flags=["--hold"]) for group in "xy"]
    for holder in holders:
        assert holder.expect("opened")["decision"]["effective"] == STAGED
        holder.expect("holding")
    memory = daemon.status()["memory"]
    assert memory["users"] == [{"uid": 0, "staged_bytes": str(checkpoints.total_bytes(a))}]
    assert int(memory["user_bytes_max"]) == share
    assert "uid 0 has" in cli.run("status").stdout
    gauge = "forestage_memory_largest_user_bytes"
    assert daemon.metric_sum(gauge) == checkpoints.total_bytes(a)

    # Strict, so that both are in the group when it asks.
    strict = ["--agreement", "strict"]
    refused = cli.load(b, ranks=2, digests=tmp_path / "refused", flags=strict)
    assert read_digests(tmp_path / "refused") == checkpoints.expected_digests(b, 2, "all")
    for rank in refused["ranks"]:
        assert rank["effective"] == "native"
        assert "staged-bytes-per-uid-max" in rank["reason"] and "of uid 0" in rank["reason"]
    assert daemon.metrics()["forestage_admissions_refused_total", (("bound", "user"),)] == 1
    others = load_as(build_dir, daemon.socket, open_dir, groups=[GROUP])
    assert [rank["effective"] for rank in others] == [STAGED] * 2

    # One is killed and one ends: then the share is whole again.
    holders[0].kill()
    holders[1].resume()
    holders[1].finish()
    daemon.wait_for_no_sessions()
    assert daemon.metric_sum(gauge) == 0
    admitted = cli.load(b, ranks=2, digests=tmp_path / "admitted")
    assert {rank["effective"] for rank in admitted["ranks"]} == {STAGED}


def is_closed(connection):
    """The other side has closed it, now; what it has sent before is thrown away."""
    with contextlib.suppress(BlockingIOError):
        while data := connection.recv(65536, socket.MSG_DONTWAIT):
            assert data
        return True
    return False


def test_connections_to_the_administrators_socket_are_limited_and_ranks_have_theirs(
    cli, daemon, data_dir, digests_path, check_digests
):
    checkpoints.make_model(data_dir, mib=2)
    connections = []
    for _ in range(80):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(daemon.admin_socket)
        connections.append(connection)
    # All that were taken have got the server's first words; the others are closed.
    wait_until(lambda: sum(map(is_closed, connections)) == 80 - 64, "all beyond 64 to be closed")
    # Told, but not each: a flood of connections shall be no flood of lines.
    assert 1 <= daemon.log.count("connection refused") <= 3
    finished = cli.run("status", code=1)
    assert daemon.admin_socket in finished.stderr
    # Ranks have sockets of their own.
    result = cli.load(data_dir, ranks=2, digests=digests_path)
    assert {rank["effective"] for rank in result["ranks"]} == {STAGED}
    check_digests(data_dir, 2)
    assert sum(map(is_closed, connections)) == 80 - 64
    for connection in connections:
        connection.close()
    wait_until(lambda: cli.run("status", code=None).code == 0, "the socket to serve again")


def test_streams_beyond_those_of_one_connection_wait_in_their_own_client(daemon, raw_rank, data_dir):
    shard = first_shard(data_dir)
    with daemon.channel() as channel:
        stub = channel.stream_stream("/forestage.v1.SessionService/OpenSession")
        held = threading.Event()

        def silence():
            held.wait()
            yield from ()

        def code_of_empty_stream():
            with pytest.raises(grpc.RpcError) as ended:
                next(stub(iter([]), timeout=3))
            return ended.value.code()

        calls = [stub(silence(), timeout=60) for _ in range(63)]
        assert code_of_empty_stream() == grpc.StatusCode.INVALID_ARGUMENT, "it is served"
        calls.append(stub(silence(), timeout=60))
        assert code_of_empty_stream() == grpc.StatusCode.DEADLINE_EXCEEDED, "it waits"
        # Another connection of the same user is served.
        rank = raw_rank(daemon, shards=[shard])
        rank.close()
        held.set()
        for call in calls:
            call.cancel()


def test_a_checkpoint_beyond_the_daemons_descriptors_is_native_with_the_numbers(
    build_dir, start_daemon, data_dir, tmp_path
):
    """The share of one user is three quarters of RLIMIT_NOFILE."""
    daemon = start_daemon(wrapper=["prlimit", "--nofile=256:256"])
    cli = Cli(build_dir, daemon.socket)
    for name, shards, policy in [("many", 200, "native"), ("few", 8, STAGED)]:
        checkpoints.make_model(data_dir / name, shards=shards, mib=70)
        result = cli.load(data_dir / name, ranks=1, digests=tmp_path / name)
        assert read_digests(tmp_path / name) == checkpoints.expected_digests(
            data_dir / name, 1, "all"
        )
        [rank] = result["ranks"]
        assert rank["effective"] == policy, rank
        if policy == "native":
            assert "wants 200 more descriptors, has 0" in rank["reason"]
            assert "may have 192" in rank["reason"] and "LimitNOFILE" in rank["reason"]


def test_closing_that_storage_never_answers_holds_up_its_own_user_only(
    build_dir, start_daemon, raw_rank, data_dir, mount_slowfs, open_dir, need_root
):
    """More sessions hang in close() than the daemon has threads for one user."""
    daemon = start_daemon(flags=["--extent-size", "256KiB", "--socket-group", GROUP])
    os.chmod(daemon.directory, 0o755)
    directory = data_dir / "hung"
    shard = first_shard(data_dir)
    directory.mkdir()
    names = [f"model{number}.safetensors" for number in range(12)]
    for name in names:
        shutil.copy(shard, directory / name)
    slowfs = mount_slowfs(directory, flags=["--flushes"])
    before = descriptors_at_rest(daemon)
    ranks = []
    for name in names:
        path = str(slowfs.mount / name)
        rank = raw_rank(daemon, shards=[path])
        with open(path, "rb") as file:
            assert rank.descriptors().exchange(rank.token, [file.fileno()]).accepted_count == 1
        rank.wait_for("decision")
        ranks.append(rank)
    slowfs.set("hold_closes", "on")
    for rank in ranks:
        rank.close()
    slowfs.wait_until_held(CLOSING_THREADS_PER_STORAGE)
    # Another user's descriptors are closed meanwhile, by the threads that are left.
    hung = descriptor_count(daemon.pid)
    for _ in range(3):
        others = load_as(build_dir, daemon.socket, open_dir, groups=[GROUP])
        assert [rank["effective"] for rank in others] == [STAGED] * 2
        shutil.rmtree(os.path.join(open_dir, "checkpoint"))
        wait_until(lambda: descriptor_count(daemon.pid) <= hung, "the others' descriptors to go")
    assert slowfs.stats()["held"] == CLOSING_THREADS_PER_STORAGE
    assert descriptor_count(daemon.pid) > before, "storage holds what it does not let go"
    slowfs.set("hold_closes", "off")
    wait_until(lambda: descriptor_count(daemon.pid) <= before + 8, "descriptors to go")
