#!/usr/bin/env python3
"""Quantises checkpoints with lanner, runs the results with lanner and with mlx-lm, and compares logits.

    pip install 'mlx[cpu]==0.32.4' mlx-lm==0.32.2
    quantized_in_mlx_lm.py LANNER ../../crates/engine/tests/goldens/*-a [--formats affine:4:32 mxfp4 mxfp8 nvfp4]

Each FOLDER holds an unquantised checkpoint, or a golden.json that says what its weights are. Prompts are those of
golden.json, or else made up. mlx-lm computes in float32 on the CPU, and so does lanner unless --precision says otherwise: its
default rounds activations. mlx-lm must load each result strictly: every tensor of the model there, none left over.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

import tensors

BOUND = 3e-4


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lanner")
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--formats", nargs="+", default=["affine:4:32", "mxfp4", "mxfp8", "nvfp4"])
    parser.add_argument("--precision", default="float32", help="of lanner's products")
    args = parser.parse_args()
    mx.set_default_device(mx.cpu)
    embed = nn.QuantizedEmbedding.__call__  # bfloat16 if scales are bytes
    nn.QuantizedEmbedding.__call__ = lambda self, ids: embed(self, ids).astype(mx.float32)
    failed = 0
    for folder in args.folders:
        for spec in args.formats:
            with tempfile.TemporaryDirectory() as tmp:
                try:
                    line, good = check(args.lanner, args.precision, folder, spec, Path(tmp))
                except Exception as error:  # the other folders are worth looking at too
                    line, good = f"{type(error).__name__}: {str(error)[:300]}", False
            failed += not good
            print(f"{folder.name:24} {spec:12} {line}{'' if good else '  FAILED'}", flush=True)
    sys.exit(bool(failed))


def check(lanner, precision, folder, spec, tmp):
    mode, *rest = spec.split(":")
    source, out = written(folder, tmp / "source"), tmp / "quantized"
    flags = [text for pair in zip(("--bits", "--group-size"), rest) for text in pair]
    run(lanner, "quantize", source, "--out", out, "--mode", mode, *flags)
    leave_out_what_mlx_lm_ignores(out / "config.json")
    model, config = load(out)
    pairs = [(logits(model, ids), ours(lanner, precision, out, ids)) for ids in prompts_of(folder, config)]
    worst = max(np.abs(theirs - ours).max() for theirs, ours in pairs)
    return f"largest difference {worst:.1e}", worst <= BOUND


def written(folder, to):
    """The folder, or one with generated weights if it only describes them."""
    if any(folder.glob("*.safetensors")):
        return folder
    to.mkdir()
    tensors.write(json.loads((folder / "golden.json").read_text()), to)
    (to / "config.json").write_text((folder / "config.json").read_text())
    return to


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return done.stdout


def leave_out_what_mlx_lm_ignores(path):
    """Settings under which both compute the same."""
    config = json.loads(path.read_text())
    (config.get("rope_scaling") or {}).pop("truncate", None)
    path.write_text(json.dumps(config))


def load(folder):
    """As mlx-lm reads it, but in float32: what it adds to norms in their own type is rounded."""
    config = json.loads((folder / "config.json").read_text())
    override = {}
    if config["model_type"] in ("gemma3", "gemma4"):  # it takes the published vocabulary for granted
        override["vocab_size"] = config["text_config"]["vocab_size"]
    plain = mx.load

    def widened(*args, **kwargs):
        return {name: value.astype(mx.float32) if value.dtype in (mx.bfloat16, mx.float16) else value
                for name, value in plain(*args, **kwargs).items()}

    mx.load = widened
    try:
        return load_model(folder, model_config=override)
    finally:
        mx.load = plain


def prompts_of(folder, config):
    golden = folder / "golden.json"
    if golden.exists():
        return [case["prompt_ids"] for case in json.loads(golden.read_text())["cases"]]
    vocab = config.get("text_config", config)["vocab_size"]
    return [np.random.default_rng(length).integers(3, vocab, length).tolist() for length in (5, 40)]


def logits(model, ids):
    return np.array(model(mx.array([ids]), cache=make_prompt_cache(model))[0].astype(mx.float32))


def ours(lanner, precision, folder, ids):
    dump = folder.parent / "logits.safetensors"
    run(lanner, "run", "--model", folder, "--ids", " ".join(map(str, ids)), "--max-tokens", 1, "--temperature", 0,
        "--ignore-eos", "--device", "cpu", "--dtype", "float32", "--precision", precision, "--dump-logits", dump)
    return np.array(mx.load(str(dump))["logits"])[:len(ids)]


if __name__ == "__main__":
    main()
