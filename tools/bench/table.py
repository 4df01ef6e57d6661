"""Results as text: for a terminal and as Markdown."""

import figures
import summary

HEADINGS = ("reader", "median", "min", "max", "runs", "to the best other", "device bytes")


def number(value):
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:.0f}"
    if value >= 20:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.1 or value == 0 else f"{value:.2g}"


def times(value):
    return "-" if value is None else f"{number(value)} x"


def _device_share(records):
    """Median of what the device gave over what was read, per run."""
    found = summary.summarise(record["device_bytes"] / record["extra"]["bytes"]
                              for record in records if record["device_bytes"] is not None
                              and record["extra"].get("bytes"))
    return None if found is None else found.median


def group_by_task(records):
    """{(part, storage, task): {reader: [record]}}, in order of first appearance."""
    tasks = {}
    for record in records:
        task = (record["part"], record["storage"], record["task"])
        tasks.setdefault(task, {}).setdefault(record["reader"], []).append(record)
    return tasks


def rows_of_task(readers):
    """Rows of text under HEADINGS, best first, then those that only failed; and notes."""
    done = {reader: [record for record in found if record["error"] is None]
            for reader, found in readers.items()}
    summaries = {reader: summary.summarise(record["value"] for record in found)
                 for reader, found in done.items()}
    unit = next(iter(readers.values()))[0]["unit"]
    higher = unit == "GB/s"
    best = summary.best(figures.others(summaries), higher)
    order = sorted((reader for reader, found in summaries.items() if found is not None),
                   key=lambda reader: summaries[reader].median, reverse=higher)
    rows = []
    for reader in order:
        found = summaries[reader]
        to_best = summary.ratio(found.median, best[1].median) if best is not None else None
        rows.append((reader, number(found.median), number(found.least), number(found.most),
                     str(found.count), times(to_best), times(_device_share(done[reader]))))
    for reader, found in summaries.items():
        if found is None:
            rows.append((reader, "failed", "-", "-", "0", "-", "-"))
    notes = [f"{reader}: {found[0]['note']}" for reader, found in readers.items()
             if found[0]["note"]]
    notes += [f"{reader} failed: {record['error']}" for reader, found in readers.items()
              for record in found if record["error"] is not None]
    return unit, rows, list(dict.fromkeys(notes))


def _aligned(rows):
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join([row[0].ljust(widths[0])]
                      + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])])
            for row in rows]


def storage_line(name, facts):
    if not facts:
        return name
    return (f"{name} ({facts['device']}, read_ahead_kb {facts['read_ahead_kb']}, "
            f"max_sectors_kb {facts['max_sectors_kb']})")


def machine_line(machine):
    return (f"{machine['cores']} cores of {machine['cpu']}, "
            f"{machine['memory_bytes'] / (1 << 30):.0f} GiB memory, Linux {machine['kernel']}, "
            f"Forestage {machine['forestage']}, load average {machine['load_average']:.1f} at the "
            "start")


def as_text(report):
    lines = [machine_line(report["machine"])]
    for (part, storage, task), readers in group_by_task(report["records"]).items():
        unit, rows, notes = rows_of_task(readers)
        lines += ["", f"{part}: {task} [{unit}], "
                  f"{storage_line(storage, report['storages'].get(storage, {}))}"]
        lines += ["  " + line for line in _aligned([HEADINGS, *rows])]
        lines += ["  * " + note for note in notes]
    lines += ["", "Figures to reach"]
    found = [(figure["storage"], figure["what"], figure["wanted"], figure["measured"],
              "reached" if figure["reached"] else "NOT REACHED") for figure in report["figures"]]
    if found:
        lines += ["  " + "  ".join(cell.ljust(width) for cell, width in zip(
            row, [max(len(row[column]) for row in found) for column in range(5)])).rstrip()
            for row in found]
    else:
        lines.append("  none of them was measured")
    return "\n".join(lines) + "\n"


def _markdown_row(cells):
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _markdown_table(headings, rows):
    return [_markdown_row(headings), "|" + "---|" * len(headings), *map(_markdown_row, rows)]


def as_markdown(report):
    lines = ["Made by", "", *(f"    {command}" for command in report["commands"]), "",
             f"on {machine_line(report['machine'])}.", "", "### Figures to reach", ""]
    lines += _markdown_table(
        ("storage", "what", "wanted", "measured", ""),
        [(figure["storage"], figure["what"], figure["wanted"], figure["measured"],
          "reached" if figure["reached"] else "**not reached**") for figure in report["figures"]])
    heading = None
    for (part, storage, task), readers in group_by_task(report["records"]).items():
        unit, rows, notes = rows_of_task(readers)
        if heading != (part, storage):
            heading = (part, storage)
            facts = report["storages"].get(storage, {})
            lines += ["", f"### {part.capitalize()}, {storage_line(storage, facts)}"]
        lines += ["", f"{task}, {unit}:", ""]
        lines += _markdown_table(HEADINGS, rows)
        lines += [f"\n{note}." for note in notes]
    return "\n".join(lines) + "\n"
