"""The real forestaged, on a socket of its own."""

import os
import signal
import subprocess
import urllib.request

import grpc
from google.protobuf import json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from prometheus_client.parser import text_string_to_metric_families

from forestage_testing.processes import GUARD_SECONDS, wait_until


class DaemonSockets:
    """What can be asked of a daemon that somebody else has started in `directory`."""

    def __init__(self, directory):
        self.directory = directory
        self.socket = os.path.join(directory, "d.sock")
        self.admin_socket = self.socket + ".admin"
        self._pool = None
        self._reflection_channel = None

    def channel(self):
        return grpc.insecure_channel(f"unix:{self.socket}")

    def admin_channel(self):
        return grpc.insecure_channel(f"unix:{self.admin_socket}")

    def health(self):
        """'SERVING', 'NOT_SERVING', ... or None when nobody answers."""
        with self.channel() as channel:
            try:
                answer = health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(), timeout=GUARD_SECONDS
                )
            except grpc.RpcError:
                return None
        return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)

    def call(self, method, fields=None):
        """Calls /service/method with JSON-like fields, on the administrators' socket; the answer is
        such a dictionary too.

        Knows the messages by the daemon's own reflection only.
        """
        with self.admin_channel() as channel:
            service_name, method_name = method.split("/")
            service = self._descriptors().FindServiceByName(service_name)
            description = service.FindMethodByName(method_name)
            request = json_format.ParseDict(fields or {}, GetMessageClass(description.input_type)())
            answer = channel.unary_unary(
                f"/{method}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=GetMessageClass(description.output_type).FromString,
            )(request, timeout=GUARD_SECONDS)
        return json_format.MessageToDict(
            answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )

    def _descriptors(self):
        if self._pool is None:
            self._reflection_channel = self.admin_channel()
            self._pool = DescriptorPool(ProtoReflectionDescriptorDatabase(self._reflection_channel))
        return self._pool

    def message_descriptor(self, name):
        return self._descriptors().FindMessageTypeByName(name)

    def status(self):
        return self.call("forestage.v1.StatusService/GetStatus")


class Daemon(DaemonSockets):
    """Starts on construction; `stop` or `kill` ends it.

    `directory` is short (a Unix socket's path has at most 107 bytes) and stands for one daemon.
    """

    def __init__(
        self,
        build_dir,
        directory,
        *,
        flags=(),
        wrapper=(),
        environment=None,
        metrics_address="none",
    ):
        super().__init__(directory)
        self.log_path = os.path.join(directory, "log")
        self.arguments = [
            *map(str, wrapper),
            str(build_dir / "bin" / "forestaged"),
            "--socket",
            self.socket,
            "--metrics-address",
            metrics_address,
            *map(str, flags),
        ]
        self._log = open(self.log_path, "ab")
        self.process = subprocess.Popen(
            self.arguments,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )

    @property
    def pid(self):
        return self.process.pid

    @property
    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def is_running(self):
        return self.process.poll() is None

    def wait_until_ready(self):
        def ready():
            assert self.is_running(), f"the daemon has ended:\n{self.log}"
            return os.path.exists(self.socket) and self.health() == "SERVING"

        wait_until(ready, "the daemon to serve")
        return self

    def sessions(self):
        return [
            session
            for checkpoint in self.status()["checkpoints"]
            for session in checkpoint["sessions"]
        ]

    def wait_for_sessions(self, count):
        """Until that many sessions are open and have their decision."""

        def decided():
            sessions = self.sessions()
            return len(sessions) == count and all("decision" in session for session in sessions)

        wait_until(decided, f"{count} sessions")

    def wait_for_no_sessions(self):
        wait_until(lambda: not self.status()["checkpoints"], "the last session to go")

    def metrics_text(self):
        address = self.status()["metrics_address"]
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=GUARD_SECONDS) as answer:
            return answer.read().decode()

    def metrics(self):
        """{(sample name, ((label, value), ...)): value}."""
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(self.metrics_text())
            for sample in family.samples
        }

    def metric_sum(self, name):
        """Over all labels; 0 when there is no such sample."""
        return sum(value for (sample, _), value in self.metrics().items() if sample == name)

    def signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        """SIGKILL, as the kernel's OOM killer would."""
        self.signal(signal.SIGKILL)
        self.process.wait(GUARD_SECONDS)

    def stop(self):
        """SIGTERM; asserts a clean end and that no socket is left."""
        if self.is_running():
            self.signal(signal.SIGTERM)
        self.wait_for_clean_end()

    def wait_for_clean_end(self):
        try:
            code = self.process.wait(GUARD_SECONDS)
        except subprocess.TimeoutExpired:
            self.abandon()
            raise AssertionError(f"the daemon does not end on SIGTERM:\n{self.log}") from None
        assert code == 0, f"the daemon ended with {code}:\n{self.log}"
        left = [name for name in os.listdir(self.directory) if name.startswith("d.sock")]
        assert not left, f"left after a clean end: {left}"

    def abandon(self):
        """Ends it whatever its state is; for after a failure."""
        if self.is_running():
            os.killpg(self.pid, signal.SIGKILL)
            self.process.wait()
        if self._reflection_channel is not None:
            self._reflection_channel.close()
            self._reflection_channel = None
        self._log.close()
