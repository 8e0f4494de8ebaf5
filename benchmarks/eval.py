#!/usr/bin/env python3
"""`lanner eval` against Lanner's server, mlx-lm's and llama.cpp's, each with the built-in model's weights; prints a table.

    cargo build --release
    python3 benchmarks/eval.py prepare
    python3 benchmarks/eval.py run --out docs/benchmarks/eval

`prepare` installs mlx-lm, and llama.cpp's server as the package xllamacpp, into target/peers/eval, and converts the model
for llama.cpp (peers/merlin_gguf.py). `run` starts one server after the other in every round, with the same number of
threads, evaluates each once, and stops it; the reports of all rounds are merged for each server. Linux, CPU only.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
import install
import machine
import serve
import shapes

PACKAGES = ["mlx[cpu]==0.32.4", "mlx-lm==0.32.2", "xllamacpp==2026.10.11549", "gguf==0.19.0"]
PEERS = Path(__file__).resolve().parent / "peers"
MERLIN = shapes.ROOT / "models/merlin"


def main():
    args = arguments()
    if args.action == "prepare":
        prepare(args)
    else:
        run(args)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["prepare", "run"])
    parser.add_argument("--work", type=Path, default=shapes.ROOT / "target/peers/eval")
    parser.add_argument("--client", default=shapes.ROOT / "target/release/lanner", help="the program that evaluates")
    parser.add_argument("--lanner", default=shapes.ROOT / "target/release/lanner", help="the program that serves")
    parser.add_argument("--engines", default="lanner,mlx-lm,llama.cpp")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--long", type=int, default=6000, help="the model's context is 8,192 tokens")
    parser.add_argument("--tests", default="generation,tools,session,needle,qa,quality")
    parser.add_argument("--tests-of", type=lambda text: text.split("=", 1), action="append", metavar="ENGINE=TESTS",
                        default=[], help="fewer tests for an engine: mlx-lm reads long prompts slowly on a CPU")
    parser.add_argument("--timeout", type=int, default=600, help="seconds for one request")
    parser.add_argument("--out", type=Path, help="folder for the table and the reports")
    return parser.parse_args()


def prepare(args):
    if not (args.work / "venv/installed").exists():
        install.say(f"installing {' '.join(PACKAGES)}")
        args.work.mkdir(parents=True, exist_ok=True)
        install.make_venv(args.work / "venv", PACKAGES)
        (args.work / "venv/installed").write_text("\n".join(PACKAGES) + "\n")
    install.check([python(args), PEERS / "merlin_gguf.py", MERLIN, args.work / "merlin.gguf"])


def python(args):
    return args.work / "venv/bin/python"


def commands(args):
    """The engines' commands for a port; each gets the same number of threads as well as it lets us choose."""
    every = {
        "lanner": lambda port: [args.lanner, "serve", "--port", port, "--threads", args.threads, "--disk-cache", "off"],
        "mlx-lm": lambda port: [python(args), "-m", "mlx_lm", "server", "--model", MERLIN, "--port", port],
        "llama.cpp": lambda port: [python(args), PEERS / "llama_server.py", args.work / "merlin.gguf", port, args.threads],
    }
    return {name: every[name] for name in args.engines.split(",")}


def run(args):
    reports = {name: [] for name in commands(args)}
    for number in range(args.rounds):
        for name, command in commands(args).items():
            install.say(f"round {number + 1} of {args.rounds}: {name}")
            reports[name].append(evaluate(name, command, args))
    merged = {name: merge(of_rounds) for name, of_rounds in reports.items()}
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        for name, report in merged.items():
            (args.out / f"{name}.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    text = table(merged, args)
    print(text)
    if args.out:
        (args.out / "README.md").write_text(text + "\n")


def evaluate(name, command, args):
    port = serve.free_port()
    with tempfile.TemporaryDirectory() as folder, open(Path(folder) / "log", "w+") as log:
        # mlx-lm lists the models of this cache, and fails if there is none.
        cache = Path(folder) / "hub"
        cache.mkdir()
        process = subprocess.Popen([str(part) for part in command(port)], stdout=log, stderr=log,
                                   env=os.environ | {"HF_HUB_CACHE": str(cache)})
        try:
            wait_ready(process, port, log)
            out = Path(folder) / "report.json"
            tests = dict(args.tests_of).get(name, args.tests)
            command = [args.client, "eval", f"http://127.0.0.1:{port}/v1", "--tests", tests, "--repeats", 1,
                       "--long", args.long, "--timeout", args.timeout, "--run-code", "--json", out]
            done = subprocess.run([str(part) for part in command], stdout=subprocess.DEVNULL)
            if done.returncode:
                sys.exit(f"lanner eval of {name} ended with {done.returncode}")
            return json.loads(out.read_text())
        finally:
            process.terminate()
            process.wait(60)


def wait_ready(process, port, log):
    while True:
        if process.poll() is not None:
            log.seek(0)
            sys.exit(f"the server ended:\n{log.read()}")
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=60).read()
            return
        except OSError:
            time.sleep(0.1)


def merge(reports):
    """One report with the runs of all rounds."""
    merged = reports[0]
    for report in reports[1:]:
        for ours, theirs in zip(merged["cases"], report["cases"]):
            assert (ours["test"], ours["name"]) == (theirs["test"], theirs["name"])
            ours["runs"] += theirs["runs"]
        merged["origin"]["machine"]["load_after"] = report["origin"]["machine"]["load_after"]
    merged["settings"]["repeats"] = len(reports)
    # Where a model's files lie on this machine is of no use to others.
    merged["server"]["model"] = Path(merged["server"]["model"]).name
    return merged


def table(merged, args):
    first = next(iter(merged.values()))
    facts = first["origin"]["machine"]
    loads = [report["origin"]["machine"][key] for report in merged.values() for key in ("load_before", "load_after")]
    lines = [
        "# merlin by `lanner eval`: Lanner's server, mlx-lm's and llama.cpp's",
        "",
        *wrapped(f"Made by `benchmarks/eval.py`, {first['origin']['date'][:10]}: {args.rounds} interleaved "
                 f"{'round' if args.rounds == 1 else 'rounds'}, one request at a time, greedy, on {args.threads} of "
                 f"{facts['cores']} cores of {machine.cpu()}, CPU only. The load average of the machine was "
                 f"{min(loads):.1f} to {max(loads):.1f} in the minute before and after the reports. Medians; prompts, "
                 "definitions and rubrics are those of [docs/eval.md](../../eval.md)."),
        "",
        *(line for name, tests in args.tests_of for line in [*wrapped(f"{name} ran these tests only: {tests}."), ""]),
        "| | " + " | ".join(merged) + " |",
        "|---|" + "---|" * len(merged),
    ]
    for case in first["cases"]:
        found = [next((c for c in report["cases"] if same(c, case)), None) for report in merged.values()]
        title = f"{case['test']}: {case['name']}"
        for figure, key in (("TTFT (s)", "ttft_s"), ("decode (tok/s)", "decode_tok_s")):
            if case["test"] != "quality":
                lines.append(f"| {title}, {figure} | " + " | ".join(median(c, key) for c in found) + " |")
        if any(run["verdict"] for c in found if c for run in c["runs"]):
            lines.append(f"| {title}, passed | " + " | ".join(passed(c) for c in found) + " |")
    return "\n".join([*lines, "", *errors(merged)]).rstrip()


def same(a, b):
    return (a["test"], a["name"]) == (b["test"], b["name"])


def median(case, key):
    if not case:
        return "-"
    values = [run["timing"][key] for run in case["runs"] if run["timing"] and run["timing"][key] is not None]
    return f"{statistics.median(values):.3g}" if values else "-"


def passed(case):
    """Runs that passed, and the median share of the rubric."""
    if not case:
        return "-"
    verdicts = [run["verdict"] for run in case["runs"] if run["verdict"]]
    if not verdicts:
        return "-"
    count = sum(verdict["status"] == "passed" for verdict in verdicts)
    share = statistics.median(verdict["met"] / verdict["checked"] for verdict in verdicts if verdict["checked"])
    return f"{count} of {len(case['runs'])}, {share:.0%}"


def errors(merged):
    found = {}
    for name, report in merged.items():
        for case in report["cases"]:
            for error in {run["error"] for run in case["runs"] if run["error"]}:
                found.setdefault(f"{name}: {error}", []).append(f"{case['test']}: {case['name']}")
    return [line for error, cases in found.items() for line in wrapped(f"- {error} ({'; '.join(cases)})", "  ")]


def wrapped(text, indent=""):
    return textwrap.wrap(text, 98, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    main()
