"""Writes the figures of the model card from the files eval.py wrote: `card.py --bf16 A.json --four B.json`."""

import argparse
import json
from pathlib import Path

ROWS = [
    ("needle_at_10%", "needle in 4k tokens, at 10 % depth", "80", "95"), ("needle_at_50%", "needle in 4k tokens, at 50 % depth", "80", "95"), ("needle_at_90%", "needle in 4k tokens, at 90 % depth", "80", "95"),
    ("json", "JSON extraction, exact match", "60", "85"), ("json_known_schema", "... schemas seen in training, new words and prompts", "", ""), ("json_new_schema", "... schemas never seen", "", ""),
    ("tool_call", "tool call, right name and arguments", "60", "85"), ("arithmetic", "arithmetic with thinking", "80", "95"),
    ("copying", "copying, exact match", "", ""), ("editing", "copying with one edit, exact match", "", ""), ("mtp_acceptance", "MTP depth-1 acceptance, greedy", "55", "70"), ("mtp_second_acceptance", "... of the next draft, after a right one", "", ""),
    ("bits_per_byte", "bits per byte, validation file", "", ""), ("bits_per_byte_text", "... plain text", "", ""), ("bits_per_byte_chat", "... assistant turns", "", ""),
]


def table(bf16, four):
    lines = ["| figure | floor | aim | bf16 | 4-bit |", "|---|---|---|---|---|"]
    for key, name, floor, aim in ROWS:
        if key in four:
            lines.append(f"| {name} | {floor} | {aim} | {bf16.get(key, 'not measured')} | {four[key]} |")
    return "\n".join(lines)


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--bf16", type=Path)
    p.add_argument("--four", type=Path, required=True)
    p.add_argument("--out", type=Path, default=Path("../../models/merlin"))
    args = p.parse_args()
    bf16, four = (json.loads(f.read_text()) if f else {} for f in (args.bf16, args.four))
    (args.out / "eval.json").write_text(json.dumps({"bf16": bf16, "4-bit": four}, indent=1) + "\n")
    card = args.out / "README.md"
    head, rest = card.read_text().split("<!-- figures -->")[0::2]
    note = f"\n{table(bf16, four)}\n\nn = {four['n']} for each task and {four['n'] // 2} for each needle depth; {four['mtp_drafts']} MTP drafts (4-bit); bits per byte over {four.get('validation_records', 'all')} records drawn from the validation file.\n"
    card.write_text(f"{head}<!-- figures -->{note}<!-- figures -->{rest}")
