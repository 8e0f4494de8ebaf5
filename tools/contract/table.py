"""The table of clients in docs/clients.md."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent / "clients"))
from support import CELLS

BEGIN, END = "<!-- generated: clients -->\n", "<!-- end: clients -->"


def write_docs(path, titles, rows):
    """`titles` has the name and the packages of each client, `rows` what it printed."""
    before, _, rest = path.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(before + BEGIN + table(titles, rows) + END + after)


def table(titles, rows):
    heads = [cell.replace("_", " ").replace("tools", "tools:") for cell in CELLS]
    lines = [f"| client | packages | {' | '.join(heads)} |", f"|---|---|{'---|' * len(CELLS)}"]
    reasons = {}
    for file, (title, packages) in titles.items():
        versions = ", ".join(f"{name} {version}" for name, version in packages.items())
        cells = [cell_text(title, cell, rows[file], reasons) for cell in CELLS]
        lines.append(f"| {title} | {versions} | {' | '.join(cells)} |")
    lines += ["", "| | why the cell does not apply |", "|---|---|"]
    lines += [f"| {number} | {reason} |" for reason, number in reasons.items()]
    return "\n".join(lines) + "\n"


def cell_text(title, cell, rows, reasons):
    """The number of checks that passed, or that of the reason why there is none."""
    checks = [row for row in rows if row["cell"] == cell]
    if "reason" not in checks[0]:
        return f"✓ {len(checks)}"
    reason = f"{title}: {checks[0]['reason']}"
    return f"– ({reasons.setdefault(reason, len(reasons) + 1)})"
