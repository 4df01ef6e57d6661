"""What general gRPC tools find on the daemon's sockets: reflection, health, status."""

import base64

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from forestage_testing import checkpoints


def test_reflection_lists_the_services(daemon):
    with daemon.channel() as channel:
        services = set(ProtoReflectionDescriptorDatabase(channel).get_services())
    assert {
        "forestage.v1.SessionService",
        "forestage.v1.StatusService",
        "grpc.health.v1.Health",
    } <= services
    with daemon.admin_channel() as channel:
        services = set(ProtoReflectionDescriptorDatabase(channel).get_services())
    assert {"forestage.v1.StatusService", "grpc.health.v1.Health"} <= services
    assert "forestage.v1.SessionService" not in services


def test_health_is_served_for_the_whole_and_unknown_services_are_not_found(daemon, cli):
    assert daemon.health() == "SERVING"
    with daemon.channel() as channel:
        try:
            health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service="no.such.Service"), timeout=60
            )
            raise AssertionError("an unknown service has a health")
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.NOT_FOUND
    assert cli.run("health").code == 0


def test_status_shows_sessions_and_progress(daemon, cli, data_dir, start_rank):
    checkpoints.make_model(data_dir, shards=2, mib=3)
    rank = start_rank(data_dir, socket=daemon.socket, rank=1, size=2, flags=["--hold"])
    rank.expect("opened")
    rank.expect("holding")
    status = daemon.status()
    assert status["pid"] == daemon.pid
    assert status["reader"] in ("io_uring", "threads")
    (checkpoint,) = status["checkpoints"]
    assert checkpoint["path"] == str(data_dir)
    assert checkpoint["shard_count"] == 2
    assert int(checkpoint["total_bytes"]) == checkpoints.total_bytes(data_dir)
    assert checkpoint["progress"]["complete"] is True
    (session,) = checkpoint["sessions"]
    assert session["local_rank"] == 1
    assert session["pid"] == rank.pid
    assert session["group"]["local_size"] == 2
    text = cli.run("status").stdout
    assert str(data_dir) in text
    assert str(rank.pid) in cli.run("status", "--json").stdout
    rank.resume()
    rank.finish()
    daemon.wait_for_no_sessions()


def test_the_catalog_is_paged_in_alphabetical_order(daemon, data_dir, start_rank):
    checkpoints.make_model(data_dir, shards=2, mib=5)
    rank = start_rank(data_dir, socket=daemon.socket, flags=["--hold"])
    rank.expect("opened")
    rank.expect("holding")
    (checkpoint,) = daemon.status()["checkpoints"]
    names = []
    token = ""
    while True:
        page = daemon.call(
            "forestage.v1.StatusService/ListTensors",
            {"signature": checkpoint["signature"], "page_size": 4, "page_token": token},
        )
        assert len(page["tensors"]) <= 4
        names += [tensor["name"] for tensor in page["tensors"]]
        token = page["next_page_token"]
        if not token:
            break
    names = [base64.b64decode(name).decode() for name in names]
    assert names == sorted(checkpoints.read_reference(data_dir))
    rank.resume()
    rank.finish()


def test_calls_with_nonsense_are_refused_and_harmless(daemon):
    method = "forestage.v1.StatusService/ListTensors"
    for fields in [{}, {"signature": "AAAA"}, {"page_token": "nonsense"}]:
        try:
            daemon.call(method, fields)
            raise AssertionError(f"accepted {fields}")
        except grpc.RpcError as error:
            assert error.code() in (
                grpc.StatusCode.NOT_FOUND,
                grpc.StatusCode.INVALID_ARGUMENT,
            )
    with daemon.channel() as channel:
        stream = channel.stream_stream("/forestage.v1.SessionService/OpenSession")
        for message in [b"", b"\xff\xff\xff", b"\x12\x00", b"\x0a\x00"]:
            try:
                for _ in stream(iter([message]), timeout=60):
                    raise AssertionError(f"a session was opened by {message!r}")
                raise AssertionError(f"no error for {message!r}")
            except grpc.RpcError as error:
                assert error.code() in (
                    grpc.StatusCode.INVALID_ARGUMENT,
                    grpc.StatusCode.FAILED_PRECONDITION,
                    grpc.StatusCode.INTERNAL,
                    grpc.StatusCode.UNKNOWN,
                )
    assert daemon.health() == "SERVING"
    assert daemon.sessions() == []
