"""A memory cgroup of its own for a daemon, of whichever version this machine has."""

import pathlib
import tempfile


def _parent():
    """(directory in which a group with a memory limit can be made, version); None: nowhere."""
    memberships = {}
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        memberships[controllers] = path
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, tail = line.partition(" - ")
        root, mount_point = fields.split(" ")[3:5]
        kind, _, options = tail.split(" ")
        if kind == "cgroup" and "memory" in options.split(","):
            own = memberships.get("memory", "/").removeprefix(root.rstrip("/"))
            return pathlib.Path(mount_point) / own.lstrip("/"), 1
        control = pathlib.Path(mount_point) / "cgroup.subtree_control"
        # Only the root may have both processes and groups with controllers.
        if kind == "cgroup2" and "memory" in control.read_text().split():
            return pathlib.Path(mount_point), 2
    return None


class MemoryCgroup:
    """Raises OSError where groups cannot be made. `remove` when its processes have ended."""

    def __init__(self, limit_bytes):
        parent = _parent()
        if parent is None:
            raise OSError("no mounted cgroup hierarchy has the memory controller")
        directory, self.version = parent
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="forestage-test-", dir=directory))
        self._children = []
        limit = "memory.limit_in_bytes" if self.version == 1 else "memory.max"
        (self.path / limit).write_text(str(limit_bytes))

    def make_child(self):
        """A group inside, without a limit of its own; goes with this one."""
        child = object.__new__(MemoryCgroup)
        child.version = self.version
        child.path = self.path / "child"
        child._children = []
        if self.version == 2:
            (self.path / "cgroup.subtree_control").write_text("+memory")
        child.path.mkdir()
        self._children.append(child)
        return child

    @property
    def wrapper(self):
        """Before a command, so that it runs in the group."""
        return ["sh", "-c", f'echo $$ > {self.path}/cgroup.procs && exec "$@"', "sh"]

    def wrapper_in_namespace(self, mount_point=None):
        """The same with the group as the root of a cgroup namespace, as in a container; seen at
        `mount_point`, or nowhere."""
        kind = "cgroup -o memory" if self.version == 1 else "cgroup2"
        mount = f"mount -t {kind} none {mount_point} && " if mount_point else ""
        return [*self.wrapper, "unshare", "-C", "-m", "sh", "-c", f'{mount}exec "$@"', "sh"]

    def _rows(self, name):
        lines = (self.path / name).read_text().splitlines()
        return {key: int(value) for key, value in (line.split(" ") for line in lines)}

    @property
    def anonymous_bytes(self):
        return self._rows("memory.stat")["total_rss" if self.version == 1 else "anon"]

    @property
    def file_bytes(self):
        return self._rows("memory.stat")["total_cache" if self.version == 1 else "file"]

    @property
    def oom_kills(self):
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        return self._rows(name)["oom_kill"]

    def remove(self):
        for child in self._children:
            child.remove()
        self.path.rmdir()
