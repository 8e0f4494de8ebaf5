"""Measures the memory modes of `lanner serve`: peak memory, speed, and time to first token, cold and warm.

    python3 benchmarks/memory_modes.py LANNER [--model FOLDER] [--rounds 3] [--prompt 1500] [--json OUT]
    python3 benchmarks/memory_modes.py --make RECORD OUT

Modes take turns, so that other load on the machine affects all alike; figures are medians over rounds,
memory is the most of all. --make writes random weights in bfloat16 for a record of
crates/engine/tests/configs, with merlin's tokenizer; `lanner quantize` then makes a copy of 4 bits.
Needs nothing but Python.
"""

import argparse
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import threading
import time
import urllib.request

import random_model

MODES = ["full", "balanced", "eco"]
MERLIN = pathlib.Path(__file__).parent.parent / "models/merlin"
GENERATE = 48
CLIENTS = 8


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("lanner", nargs="?", type=pathlib.Path)
    parser.add_argument("--model", default="merlin")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=1500, help="tokens, about")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--make", nargs=2, type=pathlib.Path, metavar=("RECORD", "OUT"))
    options = parser.parse_args()
    if options.make:
        return make(*options.make)
    rounds = {mode: [] for mode in MODES}
    for number in range(options.rounds):
        for mode in MODES if number % 2 == 0 else MODES[::-1]:
            rounds[mode].append(measure(options, mode, number))
            print(mode, rounds[mode][-1], flush=True)
    report = {mode: summary(found) for mode, found in rounds.items()}
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    print("| mode | loaded MB | peak MB | cold TTFT ms | warm TTFT ms | decode tok/s | 8 clients tok/s |")
    print("|---|---|---|---|---|---|---|")
    for mode, found in report.items():
        numbers = [f"{found[key]:.4g}" for key in found]
        print(f"| `{mode}` | {' | '.join(numbers)} |")


def summary(rounds):
    peaks = ["loaded_mb", "peak_mb"]
    return {key: (max if key in peaks else statistics.median)([found[key] for found in rounds]) for key in rounds[0]}


def measure(options, mode, number):
    line = [options.lanner, "serve", "--port", "0", "--device", "cpu", "--no-store", "--disk-cache", "off"]
    server = subprocess.Popen(
        [*line, "--memory", mode, "--model", options.model, "--speculate", "off"], stderr=subprocess.PIPE, text=True
    )
    try:
        for message in server.stderr:
            if found := re.search(r"(http://[\d.:]+)/v1", message):
                url = found[1]
                break
        threading.Thread(target=server.stderr.read, daemon=True).start()
        status = lambda: pathlib.Path(f"/proc/{server.pid}/status").read_text()
        ask(url, "warm up", 4)
        loaded = megabytes(status(), "VmRSS")
        text = " ".join(f"owl {number} {index * 7919 % 1000}" for index in range(options.prompt // 6))
        cold, decode = ask(url, text, GENERATE)
        warm, _ = ask(url, text + " and one more", GENERATE)
        together = clients(url, number)
        return {
            "loaded_mb": loaded,
            "peak_mb": megabytes(status(), "VmHWM"),
            "cold_ms": cold,
            "warm_ms": warm,
            "decode": decode,
            "clients": together,
        }
    finally:
        server.terminate()
        server.wait(60)


def megabytes(status, name):
    return int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) * 1024 / 1e6


def ask(url, text, generate):
    """Milliseconds to the first token, and tokens per second after it."""
    body = {"prompt": text, "max_tokens": generate, "temperature": 0, "ignore_eos": True, "stream": True}
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"{url}/v1/completions", data, {"Content-Type": "application/json"})
    started, times = time.monotonic(), []
    with urllib.request.urlopen(request, timeout=600) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                times.append(time.monotonic())
    first, last = times[0], times[-1]
    return (first - started) * 1e3, (generate - 1) / max(last - first, 1e-9)


def clients(url, number):
    """Tokens per second of several clients with prompts of their own, prompts included in the time."""
    started = time.monotonic()
    texts = [f"{number} {client} " + f"tell of an owl {client} " * 40 for client in range(CLIENTS)]
    threads = [threading.Thread(target=ask, args=(url, text, GENERATE)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return CLIENTS * GENERATE / (time.monotonic() - started)


def make(record, out):
    record = json.loads(record.read_text())
    out.mkdir(parents=True)
    for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]:
        shutil.copy(MERLIN / name, out)
    (out / "config.json").write_text(json.dumps(record["config"], indent=1))
    shapes = [(name, spec[1]) for pattern, spec in record["tensors"].items() for name in expand(pattern)]
    random_model.write_weights(out / "model.safetensors", shapes)


def expand(pattern):
    """`{0-3}` is an inclusive range, `{q,k,5}` a list."""
    if not (found := re.match(r"([^{]*)\{([^}]*)\}(.*)", pattern)):
        return [pattern]
    before, items, after = found.groups()
    choices = []
    for item in items.split(","):
        ends = re.fullmatch(r"(\d+)-(\d+)", item)
        choices += [str(n) for n in range(int(ends[1]), int(ends[2]) + 1)] if ends else [item]
    return [f"{before}{choice}{tail}" for choice in choices for tail in expand(after)]


if __name__ == "__main__":
    main()
