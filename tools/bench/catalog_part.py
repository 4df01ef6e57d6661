"""Part "catalog": puts the rows of catalog.py into the common report."""

import pathlib

import catalog

# Enough for medians of figures that spread little.
ROUNDS_QUICK = 3
# Nothing but headers is read, and they are in memory.
STORAGE = "warm headers"


def records(context, is_quick):
    """One record a row; the row is itself a median of rounds. `extra` has the row whole."""
    options = catalog.Options(build_dir=pathlib.Path(context.program("")))
    if is_quick:
        options.rounds = ROUNDS_QUICK
    context.tell(f"catalog of {options.tensors} tensors")
    return [{"key": ("catalog", STORAGE, row.figure, "forestage"), "part": "catalog",
             "storage": STORAGE, "task": row.figure, "reader": "forestage", "state": "warm",
             "unit": row.unit, "note": row.note, "round": 0, "value": row.value, "seconds": None,
             "device_bytes": None, "extra": row.as_dict(), "error": None}
            for row in catalog.run(options)]
