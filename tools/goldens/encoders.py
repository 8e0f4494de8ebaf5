#!/usr/bin/env python3
"""Records tiny text encoders with the mean of their hidden states, by transformers in float32.

    encoders.py ../../crates/engine/tests/encoders

Each folder gets config.json and golden.json: `seed`, `tensors` and `reference` as in record.py, and cases of
`prompt_ids` and `mean`, the mean over all tokens of the states after the final norm, as sentence-transformers pools
them.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

import tensors
from families import GOLDENS, merged
from manifest import hub_manifest
from reference import rounded

# As EmbeddingGemma: a window of 16 is 8 tokens before and 8 after.
ENCODERS = {
    "gemma3_text": dict(
        config=merged(GOLDENS["gemma3_text-b"]["config"], dict(
            architectures=["Gemma3TextModel"], use_bidirectional_attention=True, sliding_window=16,
            max_position_embeddings=512, torch_dtype="bfloat16")),
        seed=1, dtype="BF16", lengths=(1, 9, 40, 150)),
}


def main():
    transformers.logging.set_verbosity_error()
    for name, golden in ENCODERS.items():
        record(golden, Path(sys.argv[1]) / name)


@torch.no_grad()
def record(golden, folder):
    architecture = golden["config"]["architectures"][0]
    recorded = {"seed": golden["seed"], "reference": f"transformers {architecture} float32 eager",
                "tensors": hub_manifest(golden)}
    config = json.dumps(golden["config"], indent=1) + "\n"
    with tempfile.TemporaryDirectory() as checkpoint:
        (Path(checkpoint) / "config.json").write_text(config)
        tensors.write(recorded, checkpoint)
        model = getattr(transformers, architecture).from_pretrained(
            checkpoint, dtype=torch.float32, attn_implementation="eager").eval()
    recorded["cases"] = []
    for length in golden["lengths"]:
        ids = np.random.default_rng([golden["seed"], length]).integers(3, 250, length).tolist()
        states = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
        recorded["cases"].append(dict(prompt_ids=ids, mean=rounded(states.mean(0))))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config)
    (folder / "golden.json").write_text(json.dumps(recorded, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
