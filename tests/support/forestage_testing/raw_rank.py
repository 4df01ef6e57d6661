"""A rank's side of the two sockets, bare, in this process: it can break every rule."""

import itertools
import os
import queue
import socket
import struct

import grpc
from google.protobuf.message_factory import GetMessageClass

from forestage_testing.processes import GUARD_SECONDS

METHOD = "/forestage.v1.SessionService/OpenSession"
SHARD_BATCH = 1
DELIVERY = 2
BORROW = 3
# A session that ends may hold its place in its group for a moment.
GROUPS = (f"raw{number}" for number in itertools.count())
# docs/descriptor_protocol.md
REQUEST = struct.Struct("=II16sII")
REPLY = struct.Struct("=III480s")
LENT_BYTES = 32


class DescriptorReply:
    def __init__(self, data, descriptors):
        _, code, self.accepted_count, message = REPLY.unpack(data[: REPLY.size])
        self.code = code
        self.lent = None
        if len(data) == REPLY.size + LENT_BYTES:
            bits = int.from_bytes(data[REPLY.size :], "little")
            self.lent = [i for i in range(8 * LENT_BYTES) if bits >> i & 1]
        self.message = message.split(b"\0")[0].decode()
        self.descriptors = descriptors

    @property
    def ok(self):
        return self.code == 0

    @property
    def name(self):
        """Of the status code."""
        return next(code.name for code in grpc.StatusCode if code.value[0] == self.code)


class DescriptorSocket:
    """A connection to the descriptor socket."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(GUARD_SECONDS)
        self.socket.connect(path + ".descriptors")

    def send(self, token, descriptors=(), *, kind=SHARD_BATCH, first=0, count=None):
        count = len(descriptors) if count is None else count
        request = REQUEST.pack(1, kind, token, first, count)
        self.send_bytes(request, descriptors)

    def send_bytes(self, data, descriptors=()):
        socket.send_fds(self.socket, [data], list(descriptors))

    def receive(self):
        """The reply, or None when the daemon closed the connection."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.socket, 1024, 253)
        except ConnectionResetError:
            return None
        return DescriptorReply(data, descriptors) if data else None

    def exchange(self, token, descriptors=(), **options):
        self.send(token, descriptors, **options)
        return self.receive()

    def close(self):
        self.socket.close()


class RawRank:
    """One session stream on a connection of its own.

    `window_bytes`: how much of what this rank does not read the daemon may send all the same.
    """

    def __init__(
        self,
        daemon,
        *,
        path="/c",
        shards=(),
        group=None,
        rank=0,
        size=1,
        open_now=True,
        window_bytes=None,
    ):
        self._daemon = daemon
        self._request_type = GetMessageClass(
            daemon.message_descriptor("forestage.v1.SessionRequest")
        )
        event_type = GetMessageClass(daemon.message_descriptor("forestage.v1.SessionEvent"))
        # A connection of its own: channels to one address share theirs otherwise.
        options = [("grpc.use_local_subchannel_pool", 1)]
        if window_bytes is not None:
            options.append(("grpc.http2.lookahead_bytes", window_bytes))
            options.append(("grpc.http2.bdp_probe", 0))
        self.channel = grpc.insecure_channel(f"unix:{daemon.socket}", options=options)
        self._requests = queue.Queue()
        self.call = self.channel.stream_stream(
            METHOD,
            request_serializer=lambda data: data,
            response_deserializer=event_type.FromString,
        )(iter(self._requests.get, None), timeout=10 * GUARD_SECONDS)
        self.token = None
        if open_now:
            self.open(path=path, shards=shards, group=group, rank=rank, size=size)

    def open(self, *, path="/c", shards=(), group=None, rank=0, size=1):
        """`shards` are paths of files, or (name, result of stat); the daemon is told their sizes and
        times. Without a group's name the session is in one of its own.
        """
        request = self._request_type()
        request.open.group.name = group or next(GROUPS)
        request.open.group.local_size = size
        request.open.local_rank = rank
        request.open.path = path
        for shard in shards:
            entry = request.open.shards.add()
            if not isinstance(shard, tuple):
                shard = os.path.basename(shard), os.stat(shard)
            name, attributes = shard
            entry.name = name.encode()
            entry.size_bytes = attributes.st_size
            entry.mtime_ns = attributes.st_mtime_ns
        self.send(request)
        event = next(self.call)
        assert event.WhichOneof("event") == "opened", event
        self.token = event.opened.token

    def message(self):
        """An empty SessionRequest."""
        return self._request_type()

    def send(self, request):
        self._requests.put(request.SerializeToString())

    def send_bytes(self, data):
        self._requests.put(data)

    def descriptors(self):
        return DescriptorSocket(self._daemon.socket)

    def wait_for(self, kind):
        for event in self.call:
            if event.WhichOneof("event") == kind:
                return event
        raise AssertionError(f"the stream ended before {kind}")

    def end(self):
        """Reads to the end: (status code, message)."""
        try:
            for _ in self.call:
                pass
        except grpc.RpcError:
            pass
        return self.call.code(), self.call.details()

    def close(self):
        self._requests.put(None)
        self.call.cancel()
        self.channel.close()
