"""The rules that a reviewer need not look for: layers, style, lists of sources, links.

Reads files as text; needs no build. Run: `.venv/bin/python -m pytest tests/tidy`.
"""

import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRACKED = [ROOT / line for line in subprocess.run(
    ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, text=True,
    stdout=subprocess.PIPE).stdout.splitlines() if (ROOT / line).is_file()]
TEXT_SUFFIXES = {".h", ".cc", ".c", ".py", ".md", ".txt", ".cmake", ".proto", ".json", ".toml",
                 ".yaml", ".supp", ""}
TEXTS = [path for path in TRACKED if path.suffix in TEXT_SUFFIXES and "corpus" not in path.parts]
SOURCES = [path for path in TRACKED if path.suffix in {".h", ".cc", ".c"}]

# What each part may include of ours, by the first folders of the path; longest match wins.
# Tests may also include their subject's neighbours, since they build the world around it.
LAYERS = {
    "common": {"common"},
    "checkpoint": {"checkpoint", "common"},
    "daemon/memory": {"daemon/memory", "common", "daemon/limits.h"},
    "daemon/storage": {"daemon/storage", "checkpoint", "common", "daemon/limits.h",
                       "daemon/config.h"},
    "daemon/staging": {"daemon/staging", "daemon/storage", "checkpoint", "common",
                       "daemon/limits.h", "daemon/config.h"},
    "daemon/telemetry": {"daemon/telemetry", "daemon/staging/staged_checkpoint.h", "checkpoint",
                         "common", "daemon/limits.h"},
    "daemon/session": {"daemon/session", "daemon/memory", "daemon/staging", "daemon/telemetry",
                       "checkpoint", "common", "daemon/limits.h", "daemon/config.h"},
    "daemon/delivery": {"daemon/delivery", "daemon/session", "daemon/staging", "checkpoint",
                        "common", "daemon/limits.h", "daemon/config.h"},
    "daemon/service": {"daemon/service", "daemon/delivery", "daemon/session", "daemon/memory",
                       "daemon/staging", "daemon/telemetry", "checkpoint", "common",
                       "forestage/v1", "daemon/limits.h", "daemon/config.h"},
    "daemon": {"daemon", "checkpoint", "common", "forestage/v1"},
    "client": {"client", "checkpoint", "common", "forestage"},
    "client/include": {"forestage"},
    "tests": {"tests", "common", "checkpoint", "daemon", "client", "forestage"},
}
# The only files that know gRPC or the protocol's generated code.
GRPC_ALLOWED = re.compile(
    r"^(daemon/service/|daemon/server\.cc$|client/src/daemon_connection(_test)?\.(h|cc)$"
    r"|client/cli/daemon_stub\.(h|cc)$)")
OWN_TOP = re.compile(r"^(common|checkpoint|daemon|client|tests|proto|forestage)/")


def name(path):
    return path.relative_to(ROOT).as_posix()


def includes(path):
    return re.findall(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', path.read_text(), re.MULTILINE)


def layer_of(file_name):
    return max((layer for layer in LAYERS if file_name.startswith(layer + "/")), key=len)


def allowed(include, layer):
    return any(include == part or include.startswith(part + "/") for part in LAYERS[layer])


def test_there_is_something_to_check():
    assert len(SOURCES) > 50


def test_layers_include_only_what_is_below_them():
    wrong = []
    for path in SOURCES:
        file_name = name(path)
        if "_test" in path.stem or "_for_test" in path.stem:
            continue
        for include in includes(path):
            if OWN_TOP.match(include) and not allowed(include, layer_of(file_name)):
                wrong.append(f"{file_name} includes {include}")
    assert not wrong


def test_only_the_service_layer_knows_grpc():
    wrong = [f"{name(path)} includes {include}" for path in SOURCES for include in includes(path)
             if (include.startswith(("grpc", "google/protobuf")) or ".pb.h" in include)
             and not GRPC_ALLOWED.match(name(path))]
    assert not wrong


def test_public_client_headers_stand_alone():
    wrong = [f"{name(path)} includes {include}" for path in SOURCES
             if name(path).startswith("client/include/") for include in includes(path)
             if "/" in include and not include.startswith(("absl/", "forestage/"))]
    assert not wrong


@pytest.mark.parametrize("path", [p for p in SOURCES if p.suffix == ".h"], ids=name)
def test_header_has_a_guard_and_a_header_check(path):
    assert "#pragma once" in path.read_text()
    # Headers in a FILE_SET are each compiled alone by all_verify_interface_header_sets.
    lists = [other for other in TRACKED if other.name == "CMakeLists.txt"
             and path.is_relative_to(other.parent)]
    nearest = max(lists, key=lambda other: len(other.parts))
    assert re.search(rf"(?<![\w/]){re.escape(path.relative_to(nearest.parent).as_posix())}(?![\w.])",
                     nearest.read_text()), f"{name(path)} is in no list of {name(nearest)}"


def test_every_source_is_listed():
    missing = []
    for path in (p for p in SOURCES if p.suffix in {".cc", ".c"}):
        lists = [other for other in TRACKED if other.name == "CMakeLists.txt"
                 and path.is_relative_to(other.parent)]
        if not any(re.search(rf"(?<![\w]){re.escape(path.relative_to(other.parent).as_posix())}\b",
                             other.read_text()) for other in lists):
            missing.append(name(path))
    assert not missing


def test_lines_are_at_most_100_columns():
    wrong = [f"{name(path)}:{number}" for path in SOURCES
             for number, line in enumerate(path.read_text().splitlines(), 1) if len(line) > 100]
    assert not wrong


def test_no_addresses_of_the_internet():
    scheme = re.compile("ht" + r"tps?:/" + r"/(?!127\.0\.0\.1|localhost|[A-Z]|\{|%|\[)")
    wrong = [f"{name(path)}:{number}" for path in TEXTS
             for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
             if scheme.search(line)]
    assert not wrong


def test_no_marker_of_unfinished_work():
    marker = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
    wrong = [f"{name(path)}:{number}" for path in TEXTS
             for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
             if marker.search(line)]
    assert not wrong


def test_links_between_pages_resolve():
    broken = []
    for path in (p for p in TRACKED if p.suffix == ".md"):
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text()):
            if ":" not in target and not (path.parent / target).exists():
                broken.append(f"{name(path)} -> {target}")
    assert not broken


def test_names_have_no_empty_suffix():
    bad = re.compile(r"\b(?:class|struct)\s+(\w+(?:Manager|Helper|Util|Utils|Impl))\b")
    wrong = [f"{name(path)}: {found}" for path in SOURCES for found in bad.findall(path.read_text())]
    assert not wrong


def test_rpcs_say_since_when_they_exist():
    for path in (p for p in TRACKED if p.suffix == ".proto"):
        text = path.read_text()
        for match in re.finditer(r"((?:\n  //[^\n]*)+)\n  rpc (\w+)", text):
            assert "Since " in match.group(1), f"{name(path)}: {match.group(2)}"
        assert len(re.findall(r"\n  rpc ", text)) == len(
            re.findall(r"(?:\n  //[^\n]*)+\n  rpc ", text)), f"{name(path)}: an rpc has no comment"


def test_tests_that_pages_name_exist():
    defined = set()
    for path in (p for p in SOURCES if p.stem.endswith("_test")):
        defined |= {".".join(pair) for pair in re.findall(
            r"\bTEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)", path.read_text())}
    missing = [f"{name(path)}: {found}" for path in TRACKED if path.suffix == ".md"
               for found in re.findall(r"`(\w+Test\.\w+)`", path.read_text())
               if found not in defined]
    assert not missing


def test_python_tests_that_pages_name_exist():
    defined = set()
    for path in (p for p in TRACKED if p.suffix == ".py"):
        defined |= set(re.findall(r"^def (test_\w+)\(", path.read_text(), re.MULTILINE))
    missing = [f"{name(path)}: {found}" for path in TRACKED if path.suffix == ".md"
               for found in re.findall(r"`(test_\w+)`", path.read_text())
               if found not in defined]
    assert not missing
