#!/usr/bin/env python3
"""Records tiny checkpoints of every family with their reference's logits and greedy tokens.

    pip install -r requirements.txt
    record.py ../../crates/engine/tests/goldens            all of them
    record.py ../../crates/engine/tests/goldens llama-a    some

Each folder gets config.json as the family's publisher writes it, and golden.json:

    seed, tensors, shards     what the checkpoint holds (tensors.py): weights are not stored
    reference                 who computed what follows
    cases[].prompt_ids        input
    cases[].logit_positions   prompt positions whose logits follow
    cases[].logits            [position][vocab]
    cases[].greedy_ids        48 greedy tokens; no token ends the text
    cases[].greedy_margin     gap between the two likeliest tokens at each
    cases[].decode_logits     {step: [vocab]}, the logits that chose greedy_ids[step]; step 0 is the prompt's last

Checkpoints with a head that looks further ahead also get head.json (heads.py). families.py lists the goldens. The same
script gives the same goldens: everything is seeded.
"""

import json
import shutil
import sys
import tempfile
import time
import warnings
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
import transformers

import families_long  # noqa: F401: adds to GOLDENS
import families_mlx  # noqa: F401: adds to GOLDENS
import heads
import tensors
from families import GOLDENS
from manifest import hub_manifest
from quantized import MlxLm, mlx_golden
from reference import Transformers, rounded

STEPS = 48
KEPT_STEPS = (1, 40)
# Stand for images and the like, or end a text.
SPECIAL_IDS = set(range(250, 256))
PROMPT_IDS = (3, 250)
MAX_JSON, MAX_CHECKPOINT = 60_000, 2_000_000


def main():
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    out, names = Path(sys.argv[1]), sys.argv[2:] or GOLDENS
    for name in names:
        start = time.time()
        print(name, record(GOLDENS[name], out / name), f"{time.time() - start:.0f} s", flush=True)


def record(golden, folder):
    """Writes the folder and prints a summary."""
    golden, manifest, Reference, reference_name = described(golden)
    size = tensors.size(manifest)
    assert size < MAX_CHECKPOINT, f"{size} bytes of weights"
    recorded = {"seed": golden["seed"], "reference": reference_name, "tensors": manifest}
    if golden["shards"] > 1:
        recorded["shards"] = golden["shards"]
    while not (results := run_all(Reference, golden, recorded)):
        recorded["seed"] += 1
        assert recorded["seed"] <= golden["seed"] + 40, "no seed will do"
    recorded["cases"] = [case for _, case in results]
    text = layout(recorded)
    assert len(text) < MAX_JSON, f"{len(text)} bytes of JSON"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_config(golden, folder)
    (folder / "golden.json").write_text(text)
    if golden.get("mtp"):
        heads.record(golden, folder)
    margin = min(min(case["greedy_margin"]) for case in recorded["cases"])
    distinct = [len(set(case["greedy_ids"])) for case in recorded["cases"]]
    return (f"seed {recorded['seed']}, {len(text) // 1000} kB, checkpoint {size // 1000} kB, "
            f"self error {max(error for error, _ in results):.0e}, margin {margin:.0e}, distinct {distinct}")


def described(golden):
    """The golden with its final config, the manifest, and who computes the reference."""
    if "mode" in golden:
        how = f"{golden['mode']}:{golden['bits']}:{golden['group']}"
        return *mlx_golden(golden), MlxLm, f"mlx-lm {version('mlx-lm')} {how}"
    architecture = golden["config"]["architectures"][0]
    return golden, hub_manifest(golden), Transformers, f"transformers {architecture} float32 eager"


def run_all(Reference, golden, recorded):
    """(error, case) of every prompt, or None if this seed is unsuitable."""
    with tempfile.TemporaryDirectory() as checkpoint:
        write_config(golden, Path(checkpoint))
        tensors.write(recorded, checkpoint)
        reference = Reference(checkpoint, golden)
    results = []
    for length in golden["lengths"]:
        ids = prompt(length, recorded["seed"])
        results.append(run(reference, ids, positions(golden, length)))
        if not sound(*results[-1]):
            return None
    return results


def prompt(length, seed):
    return np.random.default_rng([seed, length]).integers(*PROMPT_IDS, length).tolist()


def positions(golden, length):
    """Positions of the prompt whose logits are recorded."""
    chosen = golden.get("positions", (0, length // 2))
    return [position for position in chosen if position < length - 1] + [length - 1]


def run(reference, ids, positions):
    """The case, and by how much the reference's own cached path differs from one pass over the whole text."""
    cache = reference.begin()
    logits = reference.logits(ids, cache)
    case = dict(prompt_ids=ids, logit_positions=positions, logits=[rounded(logits[p]) for p in positions],
                greedy_ids=[], greedy_margin=[], decode_logits={})
    last = [logits[-1]]
    for step in range(STEPS):
        second, first = np.sort(last[-1])[-2:]
        token = int(last[-1].argmax())
        case["greedy_ids"].append(token)
        case["greedy_margin"].append(round(float(first - second), 5))
        if step in KEPT_STEPS:
            case["decode_logits"][str(step)] = rounded(last[-1])
        last.append(reference.logits([token], cache)[-1])
    whole = reference.logits(ids + case["greedy_ids"])
    error = max(np.abs(whole[:len(ids)] - logits).max(), np.abs(whole[len(ids) - 1:] - np.stack(last)).max())
    return float(error), case


def sound(error, case):
    """No rounding changes the tokens, and they are worth comparing."""
    ids = set(case["greedy_ids"])
    decided = min(case["greedy_margin"]) >= max(2e-3, 20 * error)
    return decided and error < 1e-4 and len(ids) >= 3 and not ids & SPECIAL_IDS


def write_config(golden, folder):
    (folder / "config.json").write_text(json.dumps(golden["config"], indent=1) + "\n")


def layout(recorded):
    """JSON with a line for every tensor and every row of logits."""
    def lines(pairs):
        return ",\n".join(pairs)
    short = (key for key in ("seed", "reference", "shards") if key in recorded)
    parts = [f"{json.dumps(key)}: {json.dumps(recorded[key])}" for key in short]
    specs = lines(f"  {json.dumps(name)}: {json.dumps(spec)}" for name, spec in recorded["tensors"].items())
    parts.append(f'"tensors": {{\n{specs}\n }}')
    cases = lines("  {\n" + lines(f"   {json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}"
                                  for key, value in case.items()) + "\n  }" for case in recorded["cases"])
    parts.append(f'"cases": [\n{cases}\n ]')
    return "{\n " + ",\n ".join(parts) + "\n}\n"


if __name__ == "__main__":
    main()
