#!/usr/bin/env python3
"""Compares `--speculate auto` with plain decoding and with the best fixed drafter, interleaved.

    cargo build --release
    python3 benchmarks/speculation/auto.py --name zen4
    python3 benchmarks/speculation/auto.py --lanner ./lanner --out . --name elsewhere -- --threads 2

It measures the texts of `lanner bench --speculate`, one request at a time, in two parts:

- first: a new process for each kind of text and each round, so `auto` knows only what it measured
  at load. It alternates with plain decoding prompt by prompt, including the first answer.
- later: one process for chats and one for all other kinds, after a warm-up of more than 500 tokens
  of every kind. `auto` alternates with plain decoding and with every choice of --fixed.

Answers in chats are short, so they get 30 times the rounds in the first part, 10 times in the
other.

Writes NAME.json and NAME.md to --out (docs/benchmarks/speculation). --check FILE tests recorded
figures: `auto` must reach 0.97 of plain decoding from the first answer, and 0.95 of the best fixed
choice later. Needs a release build of lanner, no sources, and only Python's standard library.
Arguments after `--` go to `lanner bench`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

CLASSES = ["prose", "copying", "json", "arithmetic", "chat"]
# Chats' answers have eight tokens, so one round says little: they get that many times the rounds.
# The ratio of one new process varies by 5 %, so 90 of them tell the median to about 0.7 %.
MORE = {"chat": 10}
MORE_FIRST = {"chat": 30}
FIXED = ["ngram:7", "ngram:15", "mtp:1", "mtp:2", "mtp:3"]
FIRST, LATER = 0.97, 0.95
ROOT = Path(__file__).resolve().parents[2]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanner", type=Path, default=ROOT / "target/release/lanner",
                        help="a release build")
    parser.add_argument("--name", default="auto", help="of the files that are written")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/benchmarks/speculation",
                        help="where they are written")
    parser.add_argument("--rounds", type=int, default=5,
                        help="processes for each kind of text; repeats of the later part")
    parser.add_argument("--warmup", type=int, default=3,
                        help="warm-up rounds of the later part")
    parser.add_argument("--texts", default=",".join(CLASSES), help="kinds of texts [default: all]")
    parser.add_argument("--fixed", default=",".join(FIXED), help="fixed choices to compare with")
    parser.add_argument("--part", choices=["first", "later", "both"], default="both",
                        help="what to measure: the other part is kept as the file has it")
    parser.add_argument("--check", type=Path, metavar="FILE", help="only judge recorded figures")
    parser.add_argument("rest", nargs="*", metavar="-- ARGUMENT",
                        help="for `lanner bench`, such as --threads 2 or --model")
    return parser.parse_args()


def busy():
    """Busy seconds of all processors since boot; None if unknown."""
    try:
        line = Path("/proc/stat").read_text().splitlines()[0]
        fields = [int(field) for field in line.split()[1:]]
    except (OSError, ValueError):
        return None
    return (sum(fields[:8]) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def own():
    times = os.times()
    return times.children_user + times.children_system


def bench(args, ways, texts, repeats, warmup):
    """Lines of one process, by kind of text, sampling and drafter."""
    command = [args.lanner, "bench", "--json", "--batch", "1", "--speculate", ",".join(ways),
               "--texts", ",".join(texts), "--repeats", str(repeats), "--warmup", str(warmup),
               *args.rest]
    command = [str(part) for part in command]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-4000:]}")
    report = json.loads(done.stdout)
    lines = {(line["prompts"], line["sampling"], line["speculation"]): line
             for line in report["speculation"]}
    if not all(line["identical"] for line in lines.values()):
        sys.exit("answers differ from those of plain decoding")
    return report, lines


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def measure_first(args, texts):
    """Speed of `auto` by that of plain decoding in a new process."""
    ratios, drafted, report = {}, {}, None
    for number in range(args.rounds * max(MORE_FIRST.get(text, 1) for text in texts)):
        own = [text for text in texts if number < args.rounds * MORE_FIRST.get(text, 1)]
        for text in own if number % 2 == 0 else own[::-1]:
            report, lines = bench(args, ["auto"], [text], 1, 0)
            for (kind, sampling, way), line in lines.items():
                if way == "auto":
                    ratios.setdefault((kind, sampling), []).append(line["ratio"]["median"])
                    drafted.setdefault((kind, sampling), []).append(line["drafted"])
        print(f"first: round {number + 1} of {', '.join(own)}", file=sys.stderr)
    rows = [{"prompts": kind, "sampling": sampling, "ratio": spread(of), "rounds": of,
             "drafted": statistics.median(drafted[kind, sampling])}
            for (kind, sampling), of in ratios.items()]
    return report, rows


def measure_later(args, texts):
    """Speeds of `auto` and of fixed drafters, after a while."""
    report, lines, rows = None, {}, []
    for more in sorted({MORE.get(text, 1) for text in texts}):
        own = [text for text in texts if MORE.get(text, 1) == more]
        report, measured = bench(args, [*args.fixed.split(","), "auto"], own, args.rounds * more,
                                 args.warmup * more)
        lines |= measured
    for kind, sampling in dict.fromkeys((kind, sampling) for kind, sampling, _ in lines):
        speeds = {way: line["ratio"]["median"] for (k, s, way), line in lines.items()
                  if (k, s) == (kind, sampling)}
        auto = speeds.pop("auto")
        best = max(speeds, key=speeds.get)
        rows.append({"prompts": kind, "sampling": sampling, "auto": auto, "best": best,
                     "best_ratio": speeds[best], "of_best": auto / speeds[best], "fixed": speeds})
    return report, rows


def failures(found):
    for row in found.get("first", []):
        if row["ratio"]["median"] < FIRST:
            yield (f"{row['prompts']}, {row['sampling']}, first: {row['ratio']['median']:.3f} of "
                   f"plain decoding, less than {FIRST}")
    for row in found.get("later", []):
        if row["of_best"] < LATER:
            yield (f"{row['prompts']}, {row['sampling']}, later: {row['of_best']:.3f} of "
                   f"{row['best']}, less than {LATER}")


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def markdown(found):
    machine = found["machine"]
    hardware = f"{machine['cpu']}, {machine['threads']} threads, {machine['vectors']}"
    if machine.get("gpu"):
        hardware = f"{machine['gpu']['name']} ({machine['threads']} threads of {machine['cpu']})"
    text = [f"# `auto` beside plain decoding and the best fixed choice: {found['name']}", "",
            f"{found['model']['name']} on {hardware},",
            "one request at a time, "
            + ", ".join(f"{rounds} rounds of the {part} part" for part, rounds
                        in found["rounds"].items()) + ".",
            f"Chats get {MORE_FIRST['chat']} and {MORE['chat']} times as many rounds.",
            "Made by `benchmarks/speculation/auto.py`."]
    if found["others"] is not None:
        text += ["", f"Other programs took {found['others']:.0%} of the processors' time."]
    if "first" in found:
        head = ["prompts", "sampling", "auto by plain", "least", "most", "tokens drafted"]
        rows = [[row["prompts"], row["sampling"],
                 *(f"{row['ratio'][key]:.2f}" for key in ("median", "min", "max")),
                 f"{row['drafted']:.0f}"] for row in found["first"]]
        text += ["", "From the first answer of a new process on:", "", table(head, rows)]
    if "later" in found:
        head = ["prompts", "sampling", "auto by plain", "best fixed choice", "by plain",
                "auto by best"]
        rows = [[row["prompts"], row["sampling"], f"{row['auto']:.2f}", row["best"],
                 f"{row['best_ratio']:.2f}", f"{row['of_best']:.2f}"] for row in found["later"]]
        text += ["", "After more than 500 tokens of every kind:", "", table(head, rows)]
    short = list(failures(found))
    text += ["", "Below the aims:" if short else "All of it meets the aims.",
             *([""] if short else []), *(f"- {line}" for line in short)]
    return "\n".join(text) + "\n"


def main():
    args = arguments()
    if args.check:
        short = list(failures(json.loads(args.check.read_text())))
        sys.exit("\n".join(short) or 0)
    texts = args.texts.split(",")
    file = args.out / f"{args.name}.json"
    kept = args.part != "both" and file.exists()
    found = json.loads(file.read_text()) if kept else {}
    before, started, mine, report = busy(), time.monotonic(), own(), None
    if args.part != "later":
        report, found["first"] = measure_first(args, texts)
    if args.part != "first":
        report, found["later"] = measure_later(args, texts)
    others = None
    if before is not None:
        seconds = (time.monotonic() - started) * os.cpu_count()
        others = max(busy() - before - (own() - mine), 0.0) / seconds
    parts = {key: found[key] for key in ("first", "later") if key in found}
    rounds = {part: args.rounds if args.part in (part, "both") else found["rounds"][part]
              for part in parts}
    found = {"name": args.name, "lanner": report["lanner"], "machine": report["machine"],
             "model": report["model"], "rounds": rounds, "others": others, **parts}
    args.out.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(found, indent=1) + "\n")
    (args.out / f"{args.name}.md").write_text(markdown(found))
    print(markdown(found))
    short = list(failures(found))
    sys.exit(1 if short else 0)


if __name__ == "__main__":
    main()
