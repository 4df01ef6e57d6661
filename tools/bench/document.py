"""Puts the results into docs/performance.md and draws docs/performance.svg."""

import os

import picture
import table

BEGIN = "<!-- measured: begin -->"
END = "<!-- measured: end -->"


def replace_between_markers(text, content):
    """ValueError when the page has not both markers, in order."""
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    if end < begin:
        raise ValueError("markers of docs/performance.md are out of order")
    return text[:begin] + "\n" + content.rstrip("\n") + "\n" + text[end:]


def write(report, root):
    page = os.path.join(root, "docs", "performance.md")
    with open(page) as file:
        text = replace_between_markers(file.read(), table.as_markdown(report))
    with open(page, "w") as file:
        file.write(text)
    with open(os.path.join(root, "docs", "performance.svg"), "w") as file:
        file.write(picture.draw(report["records"]))
