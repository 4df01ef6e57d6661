"""A program: another user's process that sends descriptors of every bad kind, and then a good one.

bad_peer.py DAEMON_DIRECTORY UID GROUP SHARD DIRECTORY writes one JSON document: {kind: [status code,
message, what the message must say]} and {"good": [own uid, event]}. It is started as root, learns
the messages as administrators may, opens what it is to send, and only then becomes that user; so
its interpreter and files may lie where that user cannot go.
"""

import contextlib
import json
import os
import pathlib
import sys

from forestage_testing.bad_descriptors import BAD_KINDS, descriptor_of
from forestage_testing.daemon import DaemonSockets
from forestage_testing.raw_rank import RawRank


def become(uid, group):
    os.setgroups([group])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def main():
    directory, uid, group, shard, scratch = sys.argv[1:]
    daemon = DaemonSockets(directory)
    for kind in ("SessionRequest", "SessionEvent"):
        daemon.message_descriptor(f"forestage.v1.{kind}")
    answers = {}
    with contextlib.ExitStack() as stack:
        bad = {
            kind: stack.enter_context(descriptor_of(kind, shard, pathlib.Path(scratch)))
            for kind in BAD_KINDS
        }
        good = stack.enter_context(open(shard, "rb"))
        attributes = os.fstat(good.fileno())
        become(int(uid), int(group))
        for kind, (descriptor, why) in bad.items():
            rank = RawRank(daemon, shards=[(os.path.basename(shard), attributes)])
            rank.descriptors().exchange(rank.token, [descriptor])
            code, message = rank.end()
            answers[kind] = [code.name, message, why]
            rank.close()
        rank = RawRank(daemon, shards=[(os.path.basename(shard), attributes)])
        rank.descriptors().exchange(rank.token, [good.fileno()])
        answers["good"] = [os.getuid(), rank.wait_for("decision").WhichOneof("event")]
        rank.close()
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
