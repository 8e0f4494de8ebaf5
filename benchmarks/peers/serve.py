#!/usr/bin/env python3
"""Measures Lanner's and mlx-lm's servers on one checkpoint, interleaved, with the same HTTP requests; prints a table.

    cargo build --release
    python3 benchmarks/peers/run.py prepare --engines mlx-lm
    python3 benchmarks/peers/serve.py --model models/merlin --out docs/benchmarks

Each round starts one server, waits until it answers, sends one warm-up and then the measured requests, and stops it;
rounds alternate between the two. Needs nothing but Python's standard library.

    time to ready   from starting the process to the first answer of its HTTP port (s)
    TTFT            from sending a request to its first streamed token (s)
    decode          tokens after the first, per second
    peak memory     VmHWM of the server process (MiB; Linux only)
"""

import argparse
import http.client
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import machine
import shapes

METRICS = [("ready", "time to ready (s)", False), ("ttft", "TTFT (s)", False), ("decode", "decode (tok/s)", True),
           ("memory", "peak memory (MiB)", False)]


def main():
    args = arguments()
    servers = {
        "Lanner": lambda port: [args.lanner, "serve", "--model", args.model, "--port", str(port)],
        "mlx-lm": lambda port: [args.peer_python, "-m", "mlx_lm", "server", "--model", args.model, "--port", str(port)],
    }
    results = {name: [] for name in servers}
    for round in range(args.rounds):
        for name, command in servers.items():
            result = measure(name, command, args)
            results[name].append(result)
            print(f"round {round + 1}, {name}: {show(result)}", file=sys.stderr)
    report = table(results, args)
    print(report)
    if args.out:
        Path(args.out).mkdir(parents=True, exist_ok=True)
        name = f"{Path(args.model).resolve().name}-serve"
        (Path(args.out) / f"{name}.md").write_text(report + "\n")
        (Path(args.out) / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a checkpoint folder both can load")
    parser.add_argument("--peer-python", default=shapes.ROOT / "target/peers/mlx-lm/bin/python",
                        help="a Python that has mlx-lm")
    parser.add_argument("--lanner", default=shapes.ROOT / "target/release/lanner")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=2, help="measured requests per round")
    parser.add_argument("--prompt", type=int, default=64, help="prompt length in words")
    parser.add_argument("--tokens", type=int, default=32, help="tokens generated per request")
    parser.add_argument("--out", help="folder for the table and the raw figures")
    return parser.parse_args()


def measure(name, command, args):
    port = free_port()
    with tempfile.TemporaryFile() as log:
        start = time.monotonic()
        process = subprocess.Popen(command(port), stdout=log, stderr=log)
        try:
            ready = wait_ready(process, port, start, log)
            request(port, args, seed=0)
            runs = [request(port, args, seed=1 + i) for i in range(args.requests)]
            return dict(ready=ready, ttft=statistics.median(r["ttft"] for r in runs),
                        decode=statistics.median(r["decode"] for r in runs), memory=peak_memory(process.pid),
                        prompt_tokens=runs[0]["prompt_tokens"])
        finally:
            process.terminate()
            process.wait(30)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_ready(process, port, start, log):
    while True:
        if process.poll() is not None:
            log.seek(0)
            sys.exit(f"the server ended:\n{log.read().decode(errors='replace')}")
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            connection.getresponse().read()
            return time.monotonic() - start
        except OSError:
            time.sleep(0.005)


def request(port, args, seed):
    """One streamed completion; prompts differ, so that no cache applies."""
    words = ["river", "stone", "lamp", "green", "seven", "walks", "under", "cloud", "paper", "quiet", "north", "bread"]
    prompt = f"Story {seed}. " + " ".join(words[(i * (seed + 5) + i // 7) % len(words)] for i in range(args.prompt))
    body = dict(prompt=prompt, max_tokens=args.tokens, temperature=0, stream=True, ignore_eos=True,
                logit_bias={}, stream_options={"include_usage": True})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    start = time.monotonic()
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        sys.exit(f"{response.status}: {response.read().decode()}")
    first, last, usage = None, None, {}
    for line in response:
        if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
            continue
        event = json.loads(line[6:])
        usage = event.get("usage") or usage
        if event.get("choices") and event["choices"][0].get("text"):
            last = time.monotonic()
            first = first or last
    tokens = usage.get("completion_tokens", 0)
    if not first or tokens < 2:
        sys.exit(f"too few tokens to measure: {usage}")
    return dict(ttft=first - start, decode=(tokens - 1) / (last - first), prompt_tokens=usage["prompt_tokens"])


def peak_memory(pid):
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return float("nan")


def show(result):
    return ", ".join(f"{title} {result[key]:.3g}" for key, title, _ in METRICS)


def table(results, args):
    names = list(results)
    lines = [
        f"# {Path(args.model).resolve().name}: Lanner's server beside mlx-lm's",
        "",
        f"Median of {args.rounds} interleaved rounds of {args.requests} requests each; prompts of "
        f"{results[names[0]][0]['prompt_tokens']} tokens, {args.tokens} tokens generated, greedy, one request at a time. "
        f"{machine.cpu()}, {os.cpu_count()} cores, {platform.system()}; CPU backend. Made by `benchmarks/peers/serve.py`.",
        "",
        f"| | {' | '.join(names)} | better by |",
        "|---|---|---|---|",
    ]
    for key, title, more_is_better in METRICS:
        ours, peer = (statistics.median(r[key] for r in results[name]) for name in names)
        ratio = ours / peer if more_is_better else peer / ours
        lines.append(f"| {title} | {ours:.3g} | {peer:.3g} | {ratio:.1f}x |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
