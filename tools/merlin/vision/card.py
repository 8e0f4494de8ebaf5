"""Writes the figures of results.json (train.py) into the model card: `card.py --results results.json`."""

import argparse
import json
from pathlib import Path

MERLIN = Path(__file__).resolve().parents[3] / "models" / "merlin"
MARK = "<!-- picture figures -->"
AIMS = {"colours": 95, "colours, several shapes": 95, "shapes": 95, "shapes, several shapes": 95, "counts": 95, "digits": 85, "words": 85}


def table(results):
    lines = ["| held-out questions | aim | bf16 | 4-bit |", "|---|---|---|---|"]
    for name, four in results["4-bit"].items():
        lines.append(f"| {name} | {AIMS.get(name, '')} | {results['bf16'][name]} | {four} |")
    return "\n".join(lines)


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--results", type=Path, required=True)
    p.add_argument("--out", type=Path, default=MERLIN)
    args = p.parse_args()
    results = json.loads(args.results.read_text())
    card = args.out / "README.md"
    head, _, tail = card.read_text().split(MARK)
    note = f"Exact match of the whole greedy answer, in percent, on {results['each']} new pictures each, 4-bit\nfrom the exported file."
    card.write_text(f"{head}{MARK}\n{table(results)}\n\n{note}\n{MARK}{tail}")
    (args.out / "eval_pictures.json").write_text(json.dumps(results, indent=1) + "\n")
