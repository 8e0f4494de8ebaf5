#!/usr/bin/env python3
"""Records tiny checkpoints with vision towers: features, positions, logits and greedy tokens, by transformers in float32.

    towers.py ../../crates/engine/tests/towers            all
    towers.py ../../crates/engine/tests/towers qwen3_5    some

Each folder gets config.json and golden.json: `seed`, `tensors` and `reference` as in record.py, and

    images[]     patches: rows and columns; tokens; features: [token][hidden]. Values of the tensor of image i are those
                 of the tensor `pixels.i` in tensors.py, uniform in [-1, 1)
    cases[]      as in record.py, and images: the index of each image and its first position in the prompt; positions:
                 [axis][token], and delta, where the model has them
"""

import json
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
import transformers

import tensors
from families import GOLDENS, TORCH_NAMES, merged, with_dtype
from manifest import hub_manifest
from reference import Transformers, rounded

STEPS = 24
KEPT_STEPS = (1, 20)
MAX_JSON = 150_000

TOWERS = {}


def tower(name, base, grids, dtype="BF16", seed=1, **changes):
    """A golden of the text model `base` with another tower; `grids` are the images' rows and columns of patches."""
    config = with_dtype(merged(GOLDENS[base]["config"], changes), TORCH_NAMES[dtype])
    TOWERS[name] = dict(config=config, seed=seed, dtype=dtype, shards=1, grids=grids)


QWEN = dict(GOLDENS["qwen3_5-a"]["config"]["vision_config"], depth=3)
GRIDS = [(4, 6), (6, 4), (2, 2), (10, 8)]

tower("qwen3_5", "qwen3_5-a", GRIDS, vision_config=QWEN)
tower("qwen3_5-odd", "qwen3_5-odd", GRIDS, dtype="F32", seed=41, vision_config=dict(
    QWEN, hidden_size=48, num_heads=3, intermediate_size=40, num_position_embeddings=25, out_hidden_size=72,
    patch_size=6))
tower("qwen3_5_moe", "qwen3_5_moe-a", GRIDS, seed=81, vision_config=dict(QWEN, model_type="qwen3_5_moe"))

# Images of each prompt, by index, with text of this many tokens before each and after the last.
PROMPTS = [([0], [3, 5]), ([3, 2, 1], [4, 7, 1, 9]), ([2, 2], [2, 30, 40])]


def main():
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    for name in sys.argv[2:] or TOWERS:
        print(name, record(TOWERS[name], Path(sys.argv[1]) / name), flush=True)


@torch.no_grad()
def record(golden, folder):
    recorded = {"seed": golden["seed"], "reference": "", "tensors": hub_manifest(golden)}
    architecture = golden["config"]["architectures"][0]
    recorded["reference"] = f"transformers {architecture} float32 eager"
    config = json.dumps(golden["config"], indent=1) + "\n"
    while not (results := run_all(golden, recorded, config)):
        recorded["seed"] += 1
        assert recorded["seed"] <= golden["seed"] + 39, "no seed will do"
    recorded["images"], recorded["cases"] = results
    text = json.dumps(recorded, separators=(",", ":")).replace('},"', '},\n"').replace('],"', '],\n"') + "\n"
    assert len(text) < MAX_JSON, len(text)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config)
    (folder / "golden.json").write_text(text)
    margins = [min(case["greedy_margin"]) for case in recorded["cases"]]
    return f"seed {recorded['seed']}, {len(text) // 1000} kB, margin {min(margins)}"


def run_all(golden, recorded, config):
    """The images and the cases, or None if this seed is unsuitable."""
    with tempfile.TemporaryDirectory() as checkpoint:
        (Path(checkpoint) / "config.json").write_text(config)
        tensors.write(recorded, checkpoint)
        model = Transformers(checkpoint, golden).model
    pictures = [Picture(model, golden, recorded["seed"], index) for index in range(len(golden["grids"]))]
    cases = []
    for prompt in PROMPTS:
        cases.append(run(model, golden["config"], pictures, prompt, recorded["seed"]))
        if not sound(cases[-1]):
            return None
    return [picture.described() for picture in pictures], cases


class Picture:
    """Random patches in place of an image."""

    def __init__(self, model, golden, seed, index):
        vision = golden["config"]["vision_config"]
        self.rows, self.columns = golden["grids"][index]
        width = vision["in_channels"] * vision["temporal_patch_size"] * vision["patch_size"] ** 2
        spec = dict(dtype="F32", shape=[self.rows * self.columns, width], mean=0.0, spread=1.0)
        self.pixels = tensors.values(f"pixels.{index}", seed, spec)
        self.grid = torch.tensor([[1, self.rows, self.columns]])
        features = model.model.get_image_features(self.pixels, self.grid).pooler_output
        self.features = torch.cat(list(features))
        self.tokens = self.features.shape[0]

    def described(self):
        return dict(rows=self.rows, columns=self.columns, tokens=self.tokens,
                    features=[rounded(row) for row in self.features])


def run(model, config, pictures, prompt, seed):
    indices, lengths = prompt
    random = np.random.default_rng([seed, *lengths])
    ids, kinds, placed = [], [], []
    for at, length in enumerate(lengths):
        text = random.integers(3, 250, length).tolist()
        ids, kinds = ids + text, kinds + [0] * length
        if at < len(indices):
            picture = pictures[indices[at]]
            before, after = config["vision_start_token_id"], config["vision_end_token_id"]
            placed.append([indices[at], len(ids) + 1])
            ids += [before] + [config["image_token_id"]] * picture.tokens + [after]
            kinds += [0] + [1] * picture.tokens + [0]
    images = dict(pixel_values=torch.cat([pictures[i].pixels for i in indices]),
                  image_grid_thw=torch.cat([pictures[i].grid for i in indices]))
    positions, delta = model.model.get_rope_index(
        torch.tensor([ids]), image_grid_thw=images["image_grid_thw"], mm_token_type_ids=torch.tensor([kinds]))
    first = placed[0][1]
    chosen = sorted({0, first + 1, first + pictures[indices[0]].tokens, len(ids) - 1})
    case = dict(prompt_ids=ids, images=placed, positions=positions[:, 0].tolist(), delta=int(delta.reshape(-1)[0]),
                logit_positions=chosen, logits=[], greedy_ids=[], greedy_margin=[], decode_logits={})
    for step in range(STEPS + 1):
        whole = ids + case["greedy_ids"]
        model.model.rope_deltas = None
        out = model(input_ids=torch.tensor([whole]), mm_token_type_ids=torch.tensor([kinds + [0] * step]),
                    use_cache=False, **images).logits[0].float().numpy()
        if step == 0:
            case["logits"] = [rounded(out[p]) for p in chosen]
        if step in KEPT_STEPS:
            case["decode_logits"][str(step)] = rounded(out[-1])
        if step < STEPS:
            second, best = np.sort(out[-1])[-2:]
            case["greedy_ids"].append(int(out[-1].argmax()))
            case["greedy_margin"].append(round(float(best - second), 5))
    return case


def sound(case):
    """No rounding changes the tokens, and they are worth comparing."""
    ids = set(case["greedy_ids"])
    return min(case["greedy_margin"]) >= 2e-3 and len(ids) >= 3 and not ids & set(range(250, 256))


if __name__ == "__main__":
    main()
