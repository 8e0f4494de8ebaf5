#!/usr/bin/env python3
"""Measures Lanner, llama.cpp and mlx-lm on the same shapes and cores, interleaved, and prints a table.

    cargo build --release
    nice -n 19 python3 benchmarks/peers/run.py prepare       # the only part that needs a network
    python3 benchmarks/peers/run.py run --shapes qwen3.5-0.8b --threads 2
    python3 benchmarks/peers/run.py --check docs/benchmarks/qwen3.5-0.8b.json

Without `prepare` or `run` it does both. README.md says how to carry the work folder to a machine without a network.
Linux only; needs nothing but Python's standard library.
"""

import argparse
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import engines
import install
import machine
import report
import shapes

# Prompt sizes of a shape, and the numbers of prompt and generated tokens of mlx-lm.
DEFAULTS = {
    "qwen3.5-0.8b": ([256, 512, 1024, 2048], [8, 4]),
    "qwen3.5-4b": ([256, 512], [4, 3]),
    "qwen3.5-9b": ([256, 512], [2, 2]),
    "llama-8b": ([256, 512], [2, 2]),
    "merlin": ([256, 512, 1024, 2048], [32, 16]),
}


@dataclass
class Settings:
    lanner: Path
    mlx_python: Path              # None for the work folder's own
    work: Path
    prompts: list
    mlx_tokens: list
    generate: int
    repeats: int
    threads: int
    cpus: list
    rounds: int
    engines: list


def main():
    args = arguments()
    if args.action != "run" and not args.check:
        args.work.mkdir(parents=True, exist_ok=True)
        if "llama.cpp" in args.engines:
            install.llama(args.work, args.jobs, not args.avx2)
        if "mlx-lm" in args.engines and not args.mlx_python:
            install.mlx_lm(args.work)
    if args.check:
        sys.exit(check(args))
    if args.action != "prepare":
        for name in args.shapes:
            write(measure(name, settings(name, args)), args.out)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", nargs="?", choices=["prepare", "run"])
    parser.add_argument("--shapes", type=words, default=["qwen3.5-0.8b"], help=f"of {', '.join(DEFAULTS)}")
    parser.add_argument("--engines", type=words, default=["lanner", "llama.cpp", "mlx-lm"],
                        help="of these and lanner-int8, which rounds activations to 8 bits")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=1, help="measurements of Lanner and llama.cpp per round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpus", type=numbers, help="the processors to pin to; else one of each of the first cores")
    parser.add_argument("--prompts", type=numbers, help="prompt sizes in tokens; else what suits the shape")
    parser.add_argument("--generate", type=int, default=64, help="tokens generated")
    parser.add_argument("--mlx-tokens", type=numbers, help="prompt and generated tokens of mlx-lm; else what suits the shape")
    parser.add_argument("--mlx-python", type=absolute, help="a Python that has mlx-lm, instead of the work folder's")
    parser.add_argument("--lanner", type=absolute, default=shapes.ROOT / "target/release/lanner")
    parser.add_argument("--work", type=absolute, default=shapes.ROOT / "target/peers", help="what is installed and made")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="of the compiler")
    parser.add_argument("--avx2", action="store_true", help="build llama.cpp without AVX-512")
    parser.add_argument("--out", type=absolute, default=shapes.ROOT / "docs/benchmarks", help="folder for table and figures")
    parser.add_argument("--check", type=absolute, metavar="JSON", help="measure again as stored there; fail if a ratio differs")
    parser.add_argument("--tolerance", type=float, default=0.15, help="how much a checked ratio may differ")
    args = parser.parse_args()
    unknown = set(args.shapes) - set(DEFAULTS) | set(args.engines) - {"lanner", "lanner-int8", "llama.cpp", "mlx-lm"}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    return args


def words(text):
    return text.split(",")


def numbers(text):
    return [int(word) for word in words(text)]


def absolute(text):
    return Path(text).resolve()


def settings(name, args):
    prompts, mlx_tokens = DEFAULTS[name]
    return Settings(lanner=args.lanner, mlx_python=args.mlx_python, work=args.work, prompts=args.prompts or prompts,
                    mlx_tokens=args.mlx_tokens or mlx_tokens, generate=args.generate, repeats=args.repeats,
                    threads=args.threads, cpus=args.cpus or machine.choose_cpus(args.threads), rounds=args.rounds,
                    engines=args.engines)


def measure(name, settings):
    """Runs every engine once a round, so that other load affects all alike."""
    shape = None if name == "merlin" else shapes.load(name)
    contestants = engines.create(settings.engines, shape, settings)
    rounds, read, others = [], [], []
    for number in range(settings.rounds):
        read.append(machine.read_bandwidth(settings.cpus))
        figures = {}
        for engine in contestants:
            watch = machine.Watch(settings.cpus)
            figures[engine.name] = engine.measure()
            others.append(watch.others())
            shown = ", ".join(f"{row} {report.digits(value)}" for row, value in figures[engine.name].items())
            install.say(f"{name}, round {number + 1}, {engine.name}: {shown}; others took {others[-1]:.0%} of the cores")
        rounds.append(figures)
    summary = report.summarise(rounds, settings.prompts)
    kept = ("prompts", "mlx_tokens", "generate", "repeats", "threads", "rounds", "engines")
    return {
        "shape": name,
        "machine": {"cpu": machine.cpu(), "cores": os.cpu_count()},
        "settings": {key: getattr(settings, key) for key in kept},
        "versions": {engine.name.split()[0]: engine.version for engine in contestants},
        "weights": {engine.name: engine.weights for engine in contestants},
        "read_gb_s": report.spread(read),
        "others": max(others),
        "summary": summary,
        "ratios": report.ratios(summary),
        "rounds": rounds,
    }


def write(result, folder):
    text = report.table(result)
    print(text)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{result['shape']}.md").write_text(text + "\n")
    (folder / f"{result['shape']}.json").write_text(json.dumps(result, indent=1) + "\n")


def check(args):
    """0 if the file's settings reproduce every stored ratio within the tolerance; else 1."""
    stored = json.loads(args.check.read_text())
    if not stored["ratios"]:
        sys.exit(f"{args.check} holds no ratios")
    for key, value in stored["settings"].items():
        setattr(args, key, value)
    result = measure(stored["shape"], settings(stored["shape"], args))
    if result["machine"] != stored["machine"]:
        print(f"the stored figures are from another machine: {stored['machine']}", file=sys.stderr)
    failed = 0
    for peer, row, before, now in report.differences(stored["ratios"], result["ratios"]):
        within = abs(now / before - 1) <= args.tolerance
        failed |= not within
        print(f"{report.over(peer)}, {row}: {report.digits(before)}x stored, {report.digits(now)}x now{'' if within else ': DIFFERS'}")
    return failed


if __name__ == "__main__":
    main()
