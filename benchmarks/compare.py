"""Compares plain prefill and decode speed of two builds of Lanner, interleaved on the same cores.

    python3 benchmarks/compare.py OLD/lanner NEW/lanner --json compare.json

Each round runs `lanner bench` once with each program, in alternating order. A ratio divides the two
medians of one round, so that slow phases of the machine cancel. The table shows the median, lowest and
highest ratio over all rounds. The exit status is 1 if a median ratio is below 1 - tolerance. Needs
Linux and nothing outside Python's standard library.
"""

import argparse
import hashlib
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "peers"))
import machine  # noqa: E402

# The model that `lanner bench` runs without --shape.
BUILTIN = "merlin"
MEASURES = {"prefill": "prefill_tok_s", "decode": "decode_tok_s"}
RUN = ("prompt", "generate", "batch")


def main():
    options = arguments()
    cpus = options.cpus or machine.choose_cpus(options.threads)
    watch, models, programs, rows = machine.Watch(cpus), {}, [None, None], []
    for number in range(options.rounds):
        for model in options.models:
            order = [0, 1] if number % 2 == 0 else [1, 0]
            reports = {which: bench(options, cpus, model, options.programs[which]) for which in order}
            models[model] = reports[0]["model"]
            programs = [describe(options.programs[which], reports[which]) for which in (0, 1)]
            rows += compared(number, model, reports)
            print(f"round {number + 1} of {options.rounds}: {model}", file=sys.stderr, flush=True)
    summary = summarized(rows)
    host = {"cpu": machine.cpu(), "cpus": cpus, "others": watch.others(), "date": time.strftime("%Y-%m-%d")}
    settings = {key: getattr(options, key) for key in ("rounds", "repeats", "prompt", "generate", "batch", "tolerance")}
    result = {"machine": host, "programs": programs, "models": models, "settings": {**settings, "threads": len(cpus)},
              "summary": summary, "rounds": rows}
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(table(summary, host, len(cpus)), end="")
    slower = [row for row in summary if row["ratio"]["median"] < 1 - options.tolerance]
    for row in slower:
        print(f"slower: {name(row)}, {row['ratio']['median']:.3f} of before", file=sys.stderr)
    sys.exit(1 if slower else 0)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs=2, type=Path, metavar="PROGRAM", help="the lanner before, and the one after")
    parser.add_argument("--models", type=words, default=[BUILTIN, "qwen3.5-0.8b"], metavar="LIST",
                        help="merlin, and shapes of `lanner bench --shape` (default: merlin,qwen3.5-0.8b)")
    parser.add_argument("--rounds", type=count, default=5, help="turns of each program (default: 5)")
    parser.add_argument("--repeats", type=count, default=5, help="of each run in a turn (default: 5)")
    parser.add_argument("--prompt", type=count, default=512, help="prompt tokens (default: 512)")
    parser.add_argument("--generate", type=count, default=64, help="generated tokens (default: 64)")
    parser.add_argument("--batch", type=counts, default=[1, 4], metavar="LIST", help="requests at once (default: 1,4)")
    parser.add_argument("--threads", type=count, default=2, help="physical cores to run on (default: 2)")
    parser.add_argument("--cpus", type=lambda text: [int(word) for word in words(text)], metavar="LIST",
                        help="these processors instead, as in 0,2")
    parser.add_argument("--tolerance", type=float, default=0.02, help="what a median may lack of 1 (default: 0.02)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    options = parser.parse_args()
    options.programs = [program.resolve() for program in options.programs]
    for program in options.programs:
        if not program.is_file():
            parser.error(f"there is no program {program}")
    return options


def words(text):
    return [word for word in text.split(",") if word]


def count(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not 1 or more")
    return number


def counts(text):
    return [count(word) for word in words(text)]


def bench(options, cpus, model, program):
    command = [program, "bench", "--json", "--threads", len(cpus), "--repeats", options.repeats,
               "--prompt", options.prompt, "--generate", options.generate, "--batch", ",".join(map(str, options.batch))]
    shape = [] if model == BUILTIN else ["--shape", model]
    return json.loads(machine.run(command + shape, cpus))


def describe(program, report):
    return {"sha256": hashlib.sha256(program.read_bytes()).hexdigest(), "version": report["lanner"],
            "vectors": report["machine"]["vectors"], "threads": report["machine"]["threads"]}


def compared(number, model, reports):
    """One row per run and measure of a round."""
    rows = []
    for old, new in zip(reports[0]["runs"], reports[1]["runs"], strict=True):
        run = {key: old[key] for key in RUN}
        if run != {key: new[key] for key in RUN}:
            sys.exit(f"the programs measured different runs of {model}: {old}\n{new}")
        for measure, key in MEASURES.items():
            before, after = old[key]["median"], new[key]["median"]
            rows.append({"round": number, "model": model, **run, "measure": measure,
                         "before": before, "after": after, "ratio": after / before})
    return rows


def summarized(rows):
    groups = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in ("model", *RUN, "measure")), []).append(row)
    return [{**dict(zip(("model", *RUN, "measure"), key)),
             **{figure: spread([row[figure] for row in group]) for figure in ("before", "after", "ratio")}}
            for key, group in groups.items()]


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def name(row):
    return f"{row['model']}, {row['measure']}, prompt {row['prompt']}, batch {row['batch']}"


def table(summary, host, threads):
    lines = [f"{host['cpu']}, {threads} threads, other processes {host['others']:.1%}; tokens per second, medians", "",
             "| model | measure | prompt | batch | before | after | after / before | lowest, highest |",
             "|---|---|---|---|---|---|---|---|"]
    for row in summary:
        ratio = row["ratio"]
        lines.append(f"| {row['model']} | {row['measure']} | {row['prompt']} | {row['batch']} "
                     f"| {row['before']['median']:.1f} | {row['after']['median']:.1f} "
                     f"| {ratio['median']:.3f} | {ratio['min']:.3f}, {ratio['max']:.3f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
