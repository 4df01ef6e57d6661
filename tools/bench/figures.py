"""The figures that Forestage wants to reach, and whether these measurements reach them."""

import dataclasses

import loading
import summary

STAGING_OF_LIMIT_MIN = 0.95
SLOW_OF_FILLERS_MIN = 0.9
SLOW_OF_ONE_SAFETENSORS_MIN = 10
COLD_RANKS_MIN = {"disk": 1.3, "slowfs": 3}
AMPLIFICATION_MAX = 1.01
FIRST_TENSOR_MS_MAX = 50
FIRST_TENSOR_REQUESTS_MAX = 20
DISK_FILLERS = ("cat", "dd bs=1M", "vmtouch -t", "MADV_POPULATE_READ 8 MiB x 16")
ONE_SAFETENSORS = "safetensors, one reader"
OURS = ("forestage", "forestage, no daemon")


@dataclasses.dataclass(frozen=True)
class Figure:
    storage: str
    what: str
    wanted: str
    measured: str
    reached: bool


class Results:
    """Summaries of the successful runs, by task and reader."""

    def __init__(self, records):
        values = {}
        for record in records:
            if record["error"] is None:
                task = (record["part"], record["storage"], record["task"])
                values.setdefault(task, {}).setdefault(record["reader"], []).append(
                    record["value"])
        self.tasks = {task: {reader: summary.summarise(found) for reader, found in readers.items()}
                      for task, readers in values.items()}

    def of(self, part, storage, task):
        return self.tasks.get((part, storage, task), {})

    def storages(self, part):
        return list(dict.fromkeys(storage for found, storage, _ in self.tasks if found == part))


def others(readers, pick=lambda name: True):
    return {name: found for name, found in readers.items() if name not in OURS and pick(name)}


def _compared(storage, what, readers, against, least, more_than=False):
    """Ours over the best of `against`; nothing where either is missing."""
    ours = readers.get("forestage")
    best = summary.best(against)
    if ours is None or best is None:
        return []
    name, found = best
    reached = summary.ratio(ours.median, found.median)
    good = reached > least if more_than else reached >= least
    return [Figure(storage, what, f"{'more than' if more_than else 'at least'} {least:g} x",
                   f"{reached:.2f} x: {ours.median:.2f} to {found.median:.2f} GB/s ({name})", good)]


def _staging(results):
    found = []
    for storage in results.storages("staging"):
        readers = results.of("staging", storage, "fill the page cache")
        if storage.startswith("slowfs"):
            found += _compared(storage, "staging, to the best filler", readers,
                               others(readers, lambda name: name != ONE_SAFETENSORS),
                               SLOW_OF_FILLERS_MIN)
            found += _compared(storage, "staging, to one safetensors reader", readers,
                               others(readers, lambda name: name == ONE_SAFETENSORS),
                               SLOW_OF_ONE_SAFETENSORS_MIN)
            continue
        found += _compared(storage, "staging, to the best direct read", readers,
                           others(readers, lambda name: name.startswith("fio")),
                           STAGING_OF_LIMIT_MIN)
        for filler in DISK_FILLERS:
            found += _compared(storage, f"staging, to {filler}", readers,
                               others(readers, lambda name, wanted=filler: name == wanted), 1,
                               more_than=True)
    return found


def _loading(results):
    found = []
    for storage in results.storages("loading"):
        for measure in loading.MEASURES:
            for ranks, state in ((8, "cold"), (1, "cold"), (1, "warm"), (8, "warm")):
                task = loading.task_name(ranks, state, measure)
                readers = results.of("loading", storage, task)
                against = others(readers)
                least = 1
                if state == "warm":
                    against = {name: value for name, value in against.items()
                               if name == "safetensors"}
                elif ranks == 8:
                    least = COLD_RANKS_MIN["slowfs" if storage.startswith("slowfs") else "disk"]
                found += _compared(storage, f"loading, {task}", readers, against, least)
    return found


def _catalog_row(storage, task, records):
    (record,) = [record for record in records
                 if record["part"] == "catalog" and record["task"] == task][-1:]
    most, unit, value = record["extra"]["most"], record["unit"], record["value"]
    return [Figure(storage, task, f"at most {most:.4g} {unit}", f"{value:.4g} {unit}",
                   value <= most)]


def _limits(results, records):
    """What has a highest value rather than somebody to beat."""
    found = []
    for (part, storage, task), readers in results.tasks.items():
        ours = readers.get("forestage")
        if ours is None:
            continue
        if part == "catalog":
            found += _catalog_row(storage, task, records)
        elif part == "amplification":
            most = 0 if task.endswith("warm restart") else AMPLIFICATION_MAX
            found.append(Figure(storage, task, f"at most {most:g} x", f"{ours.median:.4f} x",
                                ours.median <= most))
        elif part == "first":
            slow = storage.startswith("slowfs")
            most = FIRST_TENSOR_REQUESTS_MAX if slow else FIRST_TENSOR_MS_MAX
            unit = "requests" if slow else "ms"
            found.append(Figure(storage, task, f"at most {most} {unit}",
                                f"{ours.median:.1f} {unit} ({ours.least:.1f} to {ours.most:.1f})",
                                ours.median <= most))
    return found


def evaluate(records):
    results = Results(records)
    return _staging(results) + _loading(results) + _limits(results, records)
