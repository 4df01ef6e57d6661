"""What is measured: cases, each run once in every round."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What one run of one reader gave."""

    value: float
    seconds: float
    # Whatever else is worth keeping in the JSON file.
    extra: dict = dataclasses.field(default_factory=dict)


def rate(byte_count, seconds, **extra):
    """In GB/s, which is 10^9 bytes."""
    return Measurement(byte_count / 1e9 / seconds, seconds, {"bytes": byte_count, **extra})


@dataclasses.dataclass
class Case:
    """One reader at one task. `run` is called between preparation and proof."""

    part: str
    storage: str
    # What the reader does; readers with the same task are compared.
    task: str
    reader: str
    # The files whose pages are evicted or filled before the run.
    paths: list
    # "cold", "warm", or "any"
    state: str
    run: callable
    unit: str = "GB/s"
    # It must have left all of `paths` in the page cache.
    must_fill: bool = False
    # Ours or a peer's or a limit that no program that fills a cache can be expected to pass.
    kind: str = "peer"
    # Cases of one pool: after a few rounds only its best go on.
    pool: str = ""
    note: str = ""

    @property
    def key(self):
        return (self.part, self.storage, self.task, self.reader)
