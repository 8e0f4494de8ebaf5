#!/usr/bin/env python3
"""Measures a picture's way to the first token in Lanner's server and in llama.cpp's, interleaved; prints a table.

    cargo build --release
    python3 -m venv VENV && VENV/bin/pip install xllamacpp
    python3 benchmarks/peers/vision.py --peer-python VENV/bin/python --out docs/benchmarks

The model is a shape with random weights and the built-in model's tokenizer: 4-bit matrices, a tower in bfloat16 (Lanner)
and in half precision (llama.cpp). Each round starts one server, sends one warm-up and then the measured requests, and
stops it; rounds alternate. Every picture and every text is new, so that no cache applies. One token is generated.

    picture   a PNG of `--pixels` squared, as a data URI: decoding, preprocessing, tower, prefill (s)
    text      a prompt of as many tokens as the picture's, digits: prefill (s)
    tower     the difference: decoding, preprocessing and tower (s)
"""

import argparse
import base64
import http.client
import json
import os
import platform
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import textwrap
import time
import zlib
from pathlib import Path

import machine
import serve
import shapes
import write_gguf
import write_mlx
import write_mmproj

HERE = Path(__file__).resolve().parent
MERLIN = shapes.ROOT / "models/merlin"
PREPROCESSOR = {"image_processor_type": "Qwen2VLImageProcessorFast", "merge_size": 2, "patch_size": 16, "temporal_patch_size": 2,
                "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": {"shortest_edge": 65536, "longest_edge": 16777216}}
FIGURES = {"picture": "picture to first token", "text": "text of as many tokens", "tower": "tower (the difference)"}


def main():
    args = arguments()
    cpus = args.cpus or machine.choose_cpus(args.threads)
    shape = shapes.load(args.shape)
    folder = made(shape, args.work)
    servers = {
        "Lanner": lambda port: [args.lanner, "serve", "--model", folder / "mlx", "--port", port, "--threads", args.threads,
                                "--device", "cpu", "--disk-cache", "off"],
        "llama.cpp": lambda port: [args.peer_python, HERE / "llama_server.py", folder / "text.gguf", port, args.threads,
                                   folder / "mmproj.gguf"],
    }
    results = {name: [] for name in servers}
    for round in range(args.rounds):
        for name, command in servers.items():
            results[name] += measure(command, args, cpus, seed=1 + 100 * round)
            print(f"round {round + 1}, {name}: {results[name][-1]}", file=sys.stderr, flush=True)
    report = table(results, args)
    print(report)
    if args.out:
        path = Path(args.out) / f"vision-{args.shape}"
        path.with_suffix(path.suffix + ".md").write_text(report + "\n")
        path.with_suffix(path.suffix + ".json").write_text(json.dumps(results, indent=1) + "\n")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen3.5-0.8b", choices=shapes.NAMES)
    parser.add_argument("--pixels", type=int, default=1024, help="side of the pictures")
    parser.add_argument("--peer-python", default=sys.executable, help="a Python that has xllamacpp")
    parser.add_argument("--lanner", default=shapes.ROOT / "target/release/lanner")
    parser.add_argument("--work", type=Path, default=shapes.ROOT / "target/peers/vision", help="folder for the models")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpus", type=lambda text: [int(cpu) for cpu in text.split(",")], help="the processors to pin to")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=2, help="measured requests of each kind and round")
    parser.add_argument("--out", help="folder for the table and the raw figures")
    return parser.parse_args()


def made(shape, work):
    """The folder with both models."""
    folder = work / shape.name
    if (folder / "done").exists():
        return folder
    print(f"writing {folder}", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_gguf.write(shape, folder / "text.gguf", tokenizer=MERLIN)
    write_mmproj.write(shape, folder / "mmproj.gguf")
    added = {token["content"]: token["id"] for token in json.loads((MERLIN / "tokenizer.json").read_text())["added_tokens"]}
    shape.config |= {"image_token_id": added["<|image_pad|>"], "vision_start_token_id": added["<|vision_start|>"],
                     "vision_end_token_id": added["<|vision_end|>"]}
    write_mlx.write(shape, folder / "mlx", tower=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(MERLIN / name, folder / "mlx")
    (folder / "mlx/preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    (folder / "done").touch()
    return folder


def measure(command, args, cpus, seed):
    port = serve.free_port()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([str(part) for part in command(port)], stdout=log, stderr=log,
                                   preexec_fn=lambda: os.sched_setaffinity(0, cpus))
        try:
            wait_loaded(process, port, log)
            tokens, _ = picture(port, args.pixels, 0)
            text(port, tokens, 0)
            runs = []
            for request in range(seed, seed + args.requests):
                tokens, seconds = picture(port, args.pixels, request)
                of_text = text(port, tokens, request)
                runs.append({"tokens": tokens, "picture": seconds, "text": of_text, "tower": seconds - of_text})
            return runs
        finally:
            process.terminate()
            process.wait(30)


def wait_loaded(process, port, log):
    """llama.cpp's server answers before its model is loaded."""
    while True:
        serve.wait_ready(process, port, 0, log)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/health")
        if connection.getresponse().status == 200:
            return
        time.sleep(0.1)


def picture(port, side, seed):
    """Tokens of a prompt that is little more than a picture, and the seconds until its answer of one token."""
    uri = "data:image/png;base64," + base64.b64encode(png(side, seed)).decode()
    content = [{"type": "image_url", "image_url": {"url": uri}}, {"type": "text", "text": "Hi"}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1, "temperature": 0}
    usage, seconds = post(port, "/v1/chat/completions", body)
    return usage["prompt_tokens"], seconds


def text(port, tokens, seed):
    digits = random.Random(seed)
    # The tokenizer has a token for each.
    prompt = "".join(digits.choice("0123456789") for _ in range(tokens))
    usage, seconds = post(port, "/v1/completions", {"prompt": prompt, "max_tokens": 1, "temperature": 0})
    assert usage["prompt_tokens"] == tokens, usage
    return seconds


def post(port, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=900)
    body = json.dumps(body)
    start = time.monotonic()
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    seconds = time.monotonic() - start
    if response.status != 200:
        sys.exit(f"{path}: {response.status}: {answer.decode()}")
    return json.loads(answer)["usage"], seconds


def png(side, seed):
    """Squares of random colours."""
    rng, square = random.Random(seed), 32
    rows = []
    for _ in range(0, side, square):
        row = b"".join(rng.randbytes(3) * square for _ in range(0, side, square))[: 3 * side]
        rows += [b"\0" + row] * square
    data = zlib.compress(b"".join(rows[:side]), 1)
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", data), (b"IEND", b"")]
    parts = [struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def peer_version(args):
    """The package that has llama.cpp, and the instruction sets that it uses."""
    code = "import xllamacpp as x; print(x.__version__, *x.get_system_info().split('|'), sep='|')"
    version, *features = subprocess.run([args.peer_python, "-c", code], capture_output=True, text=True, check=True).stdout.split("|")
    used = [feature.split(":")[-1].split("=")[0].strip() for feature in features if feature.strip().endswith("= 1")]
    return f"xllamacpp {version} with {', '.join(used)}"


def table(results, args):
    names = list(results)
    tokens = " and ".join(f"{results[name][0]['tokens']} tokens ({name})" for name in names)
    rounds = f"{args.rounds} interleaved rounds" + (f" of {args.requests} requests" if args.requests > 1 else "")
    caption = (f"Median of {rounds}; a PNG of {args.pixels} x {args.pixels} pixels, {tokens}, one token generated, seconds. "
               f"{args.threads} threads, {machine.cpu()}, {platform.system()}. llama.cpp: {peer_version(args)}. Made by "
               "`benchmarks/peers/vision.py`.")
    lines = [
        f"# A picture in {args.shape}: Lanner's server beside llama.cpp's",
        "",
        textwrap.fill(caption, 100),
        "",
        f"| | {' | '.join(names)} | better by |",
        "|---|---|---|---|",
    ]
    for key, title in FIGURES.items():
        ours, peer = (statistics.median(run[key] for run in results[name]) for name in names)
        lines.append(f"| {title} | {ours:.3g} | {peer:.3g} | {peer / ours:.2f}x |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
