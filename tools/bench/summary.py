"""Medians, spread and ratios of runs."""

import dataclasses
import statistics


@dataclasses.dataclass(frozen=True)
class Summary:
    """Of the runs of one reader at one task."""

    count: int
    median: float
    least: float
    most: float


def summarise(values):
    """None without a value."""
    values = list(values)
    if not values:
        return None
    return Summary(len(values), statistics.median(values), min(values), max(values))


def ratio(value, other):
    """value / other; None where one is missing or there is nothing to compare with."""
    if value is None or not other:
        return None
    return value / other


def best(summaries, higher_is_better=True):
    """(key, summary) of the best median in {key: summary}; None without any."""
    known = [(key, summary) for key, summary in summaries.items() if summary is not None]
    if not known:
        return None
    pick = max if higher_is_better else min
    return pick(known, key=lambda item: item[1].median)
