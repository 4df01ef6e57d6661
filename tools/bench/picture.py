"""The rates as bars, in SVG that is readable on light and on dark pages."""

import html

import figures
import summary
import table

BAR_HEIGHT = 16
BAR_STEP = 20
PANEL_GAP = 34
NAME_WIDTH = 230
BAR_WIDTH = 200
VALUE_WIDTH = 70
COLUMN_WIDTH = NAME_WIDTH + BAR_WIDTH + VALUE_WIDTH
MARGIN = 16
COLUMNS = 2

STYLE = """
.page { fill: #ffffff; }
text { font: 12px sans-serif; fill: #1f2328; }
.title { font-weight: bold; }
.ours { fill: #1a7f37; }
.peer { fill: #8c959f; }
.limit { fill: #54aeff; }
@media (prefers-color-scheme: dark) {
  .page { fill: #0d1117; }
  text { fill: #e6edf3; }
  .ours { fill: #3fb950; }
  .peer { fill: #6e7681; }
  .limit { fill: #1f6feb; }
}
"""


def _class_of(reader):
    if reader in figures.OURS:
        return "ours"
    return "limit" if reader.startswith("fio") else "peer"


def panels(records):
    """[(title, [(reader, median)])] of what is a rate, best reader first."""
    found = []
    for (part, storage, task), readers in table.group_by_task(records).items():
        if next(iter(readers.values()))[0]["unit"] != "GB/s":
            continue
        medians = {}
        for reader, runs in readers.items():
            known = summary.summarise(run["value"] for run in runs if run["error"] is None)
            if known is not None:
                medians[reader] = known.median
        if medians:
            bars = sorted(medians.items(), key=lambda item: -item[1])
            found.append((f"{part}, {storage}: {task}, GB/s", bars))
    return found


def _height(bars):
    return 20 + len(bars) * BAR_STEP + PANEL_GAP


def _panel(x, y, title, bars):
    lines = [f'<text class="title" x="{x}" y="{y + 12}">{html.escape(title)}</text>']
    most = max(value for _, value in bars) or 1
    for index, (reader, value) in enumerate(bars):
        top = y + 20 + index * BAR_STEP
        width = max(1, round(BAR_WIDTH * value / most))
        bar_x = x + NAME_WIDTH
        lines += [
            f'<text x="{bar_x - 6}" y="{top + 12}" text-anchor="end">{html.escape(reader)}</text>',
            f'<rect class="{_class_of(reader)}" x="{bar_x}" y="{top}" width="{width}" '
            f'height="{BAR_HEIGHT}"/>',
            f'<text x="{bar_x + width + 6}" y="{top + 12}">{table.number(value)}</text>']
    return lines


def draw(records):
    """Panels in order, down one column after the other."""
    found = panels(records)
    column_height = sum(_height(bars) for _, bars in found) / COLUMNS
    lines, bottom = [], MARGIN
    column, y = 0, MARGIN
    for title, bars in found:
        # Where the next column is nearer to its equal share with this panel than without.
        if y + _height(bars) / 2 > MARGIN + column_height and column < COLUMNS - 1:
            column, y = column + 1, MARGIN
        lines += _panel(MARGIN + column * (COLUMN_WIDTH + MARGIN), y, title, bars)
        y += _height(bars)
        bottom = max(bottom, y)
    width = MARGIN + COLUMNS * (COLUMN_WIDTH + MARGIN)
    # The name of the format, by which browsers know it; in two halves for the rule that nothing here
    # holds an address.
    name_space = "ht" + "tp://www.w3.org/2000/svg"
    return "\n".join([
        f'<svg xmlns="{name_space}" width="{width}" height="{bottom}" '
        f'viewBox="0 0 {width} {bottom}" role="img" '
        'aria-label="Rates of Forestage and of other readers">',
        # A page may be dark where its reader's system is light: text on a ground of its own is seen.
        f"<style>{STYLE}</style>", '<path class="page" d="M0 0H%dV%dH0z"/>' % (width, bottom),
        *lines, "</svg>"]) + "\n"
