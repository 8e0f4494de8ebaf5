#!/usr/bin/env python3
"""Records the log-probabilities of a text's tokens by transformers, in float32, with merlin's weights in bfloat16.

    merlin.py TEXT ../../crates/engine/tests/merlin/bf16.json

The shipped 4-bit weights are unpacked to bfloat16. Each chunk of 512 tokens is predicted from nothing before it, as
`lanner bench --perplexity` does:

    reference            who computed what follows
    chunks[].ids         the tokens
    chunks[].logprobs    of all but the first
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "merlin"))
import export  # noqa: E402: lies there

MERLIN = HERE.parent.parent / "models/merlin"
CHUNK, CHUNKS = 512, 2


@torch.no_grad()
def main():
    text, out = Path(sys.argv[1]).read_text(), Path(sys.argv[2])
    ids = Tokenizer.from_file(str(MERLIN / "tokenizer.json")).encode(text).ids[:CHUNK * CHUNKS]
    assert len(ids) == CHUNK * CHUNKS, f"{len(ids)} tokens"
    with tempfile.TemporaryDirectory() as folder:
        export.save_hub(*export.load(MERLIN), folder)
        model = transformers.Qwen3_5ForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model.eval()
    chunks = [chunk(model, ids[i:i + CHUNK]) for i in range(0, len(ids), CHUNK)]
    recorded = {"reference": "transformers Qwen3_5ForCausalLM float32 eager", "chunks": chunks}
    out.write_text(json.dumps(recorded, separators=(",", ":")).replace('{"ids"', '\n{"ids"') + "\n")
    logprobs = [value for part in chunks for value in part["logprobs"]]
    print(f"perplexity {torch.tensor(logprobs).double().mean().neg().exp():.4f} over {len(logprobs)} tokens")


def chunk(model, ids):
    logits = model(input_ids=torch.tensor([ids])).logits[0, :-1].double()
    logprobs = logits.log_softmax(-1).gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
    return {"ids": ids, "logprobs": [round(float(value), 5) for value in logprobs]}


if __name__ == "__main__":
    main()
