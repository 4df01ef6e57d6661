"""A program: a stranger who has put sockets of his own in the place of a daemon's.

false_daemon.py UID DIRECTORY NAME... is started as root and becomes that user. Has DIRECTORY a
daemon's sockets, he moves it away and makes another one of its name, which takes no more than the
right to write to the directory above; else he takes names in it that are free. Each socket NAME
(d.sock, d.sock.admin, d.sock.descriptors) is his, all others lead to the daemon's. He speaks as a
daemon does. A line "ready" says that he listens; when his standard input ends, all is as it was
before, and one JSON document has what he got: {"calls": [method], "opens": [bytes of each open],
"descriptors": [path of each], "read": [the first bytes of each]}.
"""

import concurrent.futures
import contextlib
import json
import os
import socket
import sys
import threading

import grpc

from forestage_testing.raw_rank import METHOD, REPLY, REQUEST

TOKEN = b"T" * 16
# SessionEvent{opened{token, generation}}
OPENED = bytes([0x0A, 27, 0x0A, 16, *TOKEN, 0x11, 5, 0, 0, 0, 0, 0, 0, 0])
PATIENCE_SECONDS = 10


class FalseDaemon(grpc.GenericRpcHandler):
    def __init__(self):
        self.got = {"calls": [], "opens": [], "descriptors": [], "read": []}
        self._descriptors_came = threading.Event()
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(8), [self])

    def listen(self, path):
        if path.endswith(".descriptors"):
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            listener.bind(path)
            listener.listen()
            threading.Thread(target=self._take_descriptors, args=[listener], daemon=True).start()
        else:
            self._server.add_insecure_port(f"unix:{path}")
        os.chmod(path, 0o777)

    def start(self):
        self._server.start()

    def service(self, handler_call_details):
        self.got["calls"].append(handler_call_details.method)
        if handler_call_details.method != METHOD:
            return None
        return grpc.stream_stream_rpc_method_handler(self._open_session)

    def _open_session(self, requests, _):
        self.got["opens"].append(len(next(requests)))
        yield OPENED
        self._descriptors_came.wait(PATIENCE_SECONDS)

    def _take_descriptors(self, listener):
        while True:
            connection, _ = listener.accept()
            with connection:
                while self._answer(connection):
                    pass

    def _answer(self, connection):
        with contextlib.suppress(ConnectionError):
            data, descriptors, _, _ = socket.recv_fds(connection, 1024, 253)
            for descriptor in descriptors:
                self.got["descriptors"].append(os.readlink(f"/proc/self/fd/{descriptor}"))
                self.got["read"].append(len(os.pread(descriptor, 64, 0)))
                os.close(descriptor)
            if len(data) == REQUEST.size:
                _, _, _, first, count = REQUEST.unpack(data)
                connection.send(REPLY.pack(1, 0, first + count, b""))
                self._descriptors_came.set()
                return True
        return False


@contextlib.contextmanager
def place_of(directory, names):
    """The directory as the stranger makes it."""
    moved = directory + ".moved"
    present = os.listdir(directory)
    takes_place = "d.sock" in present
    if takes_place:
        os.rename(directory, moved)
        os.mkdir(directory)
        for name in set(present) - set(names):
            os.symlink(os.path.join(moved, name), os.path.join(directory, name))
    yield
    for name in names:
        os.unlink(os.path.join(directory, name))
    if takes_place:
        for name in set(present) - set(names):
            os.unlink(os.path.join(directory, name))
        os.rmdir(directory)
        os.rename(moved, directory)


def main():
    uid, directory, *names = sys.argv[1:]
    os.setgroups([])
    os.setresgid(int(uid), int(uid), int(uid))
    os.setresuid(int(uid), int(uid), int(uid))
    daemon = FalseDaemon()
    with place_of(directory, names):
        for name in names:
            daemon.listen(os.path.join(directory, name))
        daemon.start()
        print("ready", flush=True)
        sys.stdin.read()
    print(json.dumps(daemon.got), flush=True)
    # Not by way of threads that wait in accept or in a call.
    os._exit(0)


if __name__ == "__main__":
    main()
