"""Presents a session's token from a process (and user) of its own: socket, token in hex, file.

Prints the code's name and the message of the daemon's answer, as JSON. Needs no module but Python's.
"""

import json
import os
import socket
import struct
import sys

CODES = {0: "OK", 3: "INVALID_ARGUMENT", 5: "NOT_FOUND", 7: "PERMISSION_DENIED"}


def main(path, token, file):
    descriptor = os.open(file, os.O_RDONLY)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(60)
    connection.connect(path + ".descriptors")
    answers = []
    for kind, descriptors in ((1, [descriptor]), (2, [])):
        request = struct.pack("=II16sII", 1, kind, bytes.fromhex(token), 0, len(descriptors))
        socket.send_fds(connection, [request], descriptors)
        data, received, _, _ = socket.recv_fds(connection, 1024, 2)
        _, code, _, message = struct.unpack("=III480s", data)
        text = message.split(b"\0")[0].decode()
        answers.append({"code": CODES.get(code, code), "message": text, "received": len(received)})
        connection.close()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(60)
        connection.connect(path + ".descriptors")
    print(json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
