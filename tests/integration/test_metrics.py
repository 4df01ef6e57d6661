"""The Prometheus endpoint, scraped and parsed by the real client's parser."""

import os
import re

from prometheus_client.parser import text_string_to_metric_families

from forestage_testing import checkpoints
from forestage_testing.cli import Cli

NAME = re.compile(r"forestage_[a-z0-9_]+$")


def listening_tcp_ports(pid):
    """Local ports on which a process accepts TCP connections."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[len("socket:[") : -1])
    ports = []
    for table in ["tcp", "tcp6"]:
        with open(f"/proc/{pid}/net/{table}", encoding="ascii") as file:
            for line in file.readlines()[1:]:
                words = line.split()
                if words[3] == "0A" and words[9] in inodes:
                    ports.append(int(words[1].rsplit(":", 1)[1], 16))
    return ports


def test_every_metric_is_ours_and_described(metered_daemon):
    families = list(text_string_to_metric_families(metered_daemon.metrics_text()))
    ours = [family for family in families if family.name.startswith("forestage_")]
    assert ours
    for family in ours:
        assert NAME.match(family.name), family.name
        assert family.documentation, f"{family.name} has no help"
        assert family.type != "unknown", f"{family.name} has no type"


def test_counters_agree_with_what_a_load_says(metered_daemon, build_dir, data_dir, digests_path):
    checkpoints.make_model(data_dir, shards=2, mib=6)
    checkpoints.make_cold(data_dir)
    before = metered_daemon.metrics()
    result = Cli(build_dir, metered_daemon.socket).load(data_dir, ranks=3, digests=digests_path)
    metered_daemon.wait_for_no_sessions()
    after = metered_daemon.metrics()

    def increase(name):
        return sum(value - before.get(key, 0) for key, value in after.items() if key[0] == name)

    assert result["node"]["bytes_read"] > 0
    assert increase("forestage_storage_read_bytes_total") == result["node"]["bytes_read"]
    assert increase("forestage_decisions_total") == 3
    assert increase("forestage_sessions_ended_total") == 3
    assert metered_daemon.metric_sum("forestage_sessions_open") == 0
    assert increase("forestage_read_errors_total") == 0


def test_gauges_show_a_checkpoint_while_it_is_held(metered_daemon, data_dir, start_rank):
    checkpoints.make_model(data_dir, shards=2, mib=3)
    rank = start_rank(data_dir, socket=metered_daemon.socket, flags=["--hold"])
    rank.expect("opened")
    rank.expect("holding")
    assert metered_daemon.metric_sum("forestage_sessions_open") == 1
    progress = metered_daemon.status()["checkpoints"][0]["progress"]
    wanted = metered_daemon.metric_sum("forestage_checkpoint_wanted_bytes")
    assert wanted == int(progress["wanted_bytes"]) > 0
    assert metered_daemon.metric_sum("forestage_checkpoint_resident_bytes") == wanted
    rank.resume()
    rank.finish()
    metered_daemon.wait_for_no_sessions()
    assert metered_daemon.metric_sum("forestage_checkpoint_wanted_bytes") == 0


def test_metrics_are_served_on_loopback_only(metered_daemon):
    address = metered_daemon.status()["metrics_address"]
    assert re.match(r"127\.0\.0\.1:\d+$", address), address
    assert listening_tcp_ports(metered_daemon.pid) == [int(address.rsplit(":", 1)[1])]


def test_none_turns_metrics_off(start_daemon, build_dir):
    daemon = start_daemon(metrics_address="none")
    assert daemon.status()["metrics_address"] == ""
    assert listening_tcp_ports(daemon.pid) == []
    assert Cli(build_dir, daemon.socket).run("health").code == 0


def test_an_address_that_others_can_reach_is_refused(start_daemon):
    daemon = start_daemon(wait=False, metrics_address="0.0.0.0:0")
    assert daemon.process.wait(60) != 0
    assert "metrics-address" in daemon.log
