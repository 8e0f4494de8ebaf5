#!/usr/bin/env python3
"""Records the drafts of tiny block drafters for recorded checkpoints.

    blocks.py ../../crates/engine/tests/blocks ../../crates/engine/tests/goldens

Their target's hidden states are transformers' (reference.py); the drafter is written down here in plain PyTorch from the
paper (DFlash, https://arxiv.org/abs/2602.06036), one block at a time and without a cache. Each folder gets config.json in
the publisher's layout, and golden.json:

    seed, tensors    what the checkpoint holds (tensors.py): weights are not stored
    target           the recorded checkpoint that it guesses for
    prompt_ids       the prompt of the second case of the target's golden.json
    starts           first tokens of blocks; each sees the hidden states of all tokens before its first
    logits           [block][place][vocab], of all but the first token
"""

import json
import math
import sys
import tempfile
from pathlib import Path

import torch
from torch.nn import functional as F

import families_mlx  # noqa: F401: adds to GOLDENS
import tensors
from families import GOLDENS
from reference import Transformers, rounded

COMMON = dict(
    architectures=["DFlashDraftModel"], model_type="qwen3", dtype="bfloat16", hidden_act="silu", attention_bias=False,
    attention_dropout=0.0, vocab_size=256, hidden_size=64, intermediate_size=96, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-6, max_position_embeddings=4096, tie_word_embeddings=False)

# Both layouts of config.json that are published: all in dflash_config, or some beside it.
BLOCKS = {
    "qwen3-a": dict(
        COMMON, num_hidden_layers=2, layer_types=["full_attention"] * 2, num_target_layers=3, block_size=6,
        rope_theta=1000000, rope_scaling=None, sliding_window=None, use_sliding_window=False,
        dflash_config=dict(mask_token_id=251, target_layer_ids=[0, 1])),
    "qwen3_5-text-sharded": dict(
        COMMON, vocab_size=320, hidden_size=128, num_hidden_layers=3, sliding_window=24, use_sliding_window=True,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        rope_parameters=dict(rope_type="default", rope_theta=10000000),
        dflash_config=dict(block_size=4, mask_token_id=255, target_layer_ids=[3, 0, 2])),
}
STARTS = (1, 17, 60)


def main():
    torch.set_num_threads(1)
    out, goldens = Path(sys.argv[1]), Path(sys.argv[2])
    for target, config in BLOCKS.items():
        folder = out / target
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        (folder / "golden.json").write_text(layout(record(target, config, goldens / target)))
        print(target, flush=True)


@torch.no_grad()
def record(target, config, folder):
    recorded = json.loads((folder / "golden.json").read_text())
    with tempfile.TemporaryDirectory() as checkpoint:
        (Path(checkpoint) / "config.json").write_text((folder / "config.json").read_text())
        tensors.write(recorded, checkpoint)
        model = Transformers(checkpoint, GOLDENS[target]).model
    ids, seed, specs = recorded["cases"][1]["prompt_ids"], 31, manifest(config)
    # The embedding's output is the first of them.
    states = model.model(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states
    hidden = torch.cat([states[1 + i][0] for i in config["dflash_config"]["target_layer_ids"]], -1)
    w = {name: tensors.values(name, seed, spec).float() for name, spec in specs.items()}
    guess = lambda start: model.lm_head(block(config, w, hidden[:start], model.get_input_embeddings().weight, ids[start]))
    logits = [[rounded(row) for row in guess(start)[1:]] for start in STARTS]
    return dict(seed=seed, tensors=specs, target=target, prompt_ids=ids, starts=STARTS, logits=logits)


def manifest(c):
    """Names, shapes and ranges of the checkpoint's tensors."""
    d, q, kv = c["hidden_size"], c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
    shapes = {"fc": [d, len(c["dflash_config"]["target_layer_ids"]) * d], "hidden_norm": [d], "norm": [d]}
    for i in range(c["num_hidden_layers"]):
        own = {"input_layernorm": [d], "post_attention_layernorm": [d], "self_attn.q_norm": [c["head_dim"]],
               "self_attn.k_norm": [c["head_dim"]], "self_attn.q_proj": [q, d], "self_attn.k_proj": [kv, d],
               "self_attn.v_proj": [kv, d], "self_attn.o_proj": [d, q], "mlp.gate_proj": [c["intermediate_size"], d],
               "mlp.up_proj": [c["intermediate_size"], d], "mlp.down_proj": [d, c["intermediate_size"]]}
        shapes.update({f"layers.{i}.{name}": shape for name, shape in own.items()})
    mean = lambda shape: float(len(shape) == 1)
    spread = lambda shape: 0.3464 if len(shape) == 1 else round(math.sqrt(3 * 1.5 / shape[1]), 4)
    return {f"{name}.weight": dict(dtype="BF16", shape=shape, mean=mean(shape), spread=spread(shape))
            for name, shape in sorted(shapes.items())}


def block(c, w, hidden, embedding, token):
    """Hidden states of a block after the tokens of `hidden` [n, layers * hidden_size]."""
    eps = c["rms_norm_eps"]
    norm = lambda x, name: F.rms_norm(x, x.shape[-1:], w[f"{name}.weight"], eps)
    linear = lambda x, name: x @ w[f"{name}.weight"].T
    size = c.get("block_size") or c["dflash_config"]["block_size"]
    context = norm(linear(hidden, "fc"), "hidden_norm")
    x = embedding[[token] + [c["dflash_config"]["mask_token_id"]] * (size - 1)]
    positions = torch.arange(len(context) + size)
    for i, kind in enumerate(c["layer_types"]):
        a, y = f"layers.{i}.self_attn", norm(x, f"layers.{i}.input_layernorm")
        # Keys and values are of the context, which has no other norm, and of the block.
        both = torch.cat([context, y])
        heads = lambda x, name: linear(x, f"{a}.{name}").unflatten(-1, (-1, c["head_dim"])).transpose(0, 1)
        q = rotate(c, norm(heads(y, "q_proj"), f"{a}.q_norm"), positions[-size:])
        k = rotate(c, norm(heads(both, "k_proj"), f"{a}.k_norm"), positions)
        k, v = (t.repeat_interleave(len(q) // len(k), 0) for t in (k, heads(both, "v_proj")))
        scores = q @ k.mT * c["head_dim"] ** -0.5
        if kind == "sliding_attention":
            distance = positions[-size:, None] - positions
            scores = scores.masked_fill((distance < 0) | (distance >= c["sliding_window"]), -math.inf)
        x = x + linear((scores.softmax(-1) @ v).transpose(0, 1).flatten(1), f"{a}.o_proj")
        m, y = f"layers.{i}.mlp", norm(x, f"layers.{i}.post_attention_layernorm")
        x = x + linear(F.silu(linear(y, f"{m}.gate_proj")) * linear(y, f"{m}.up_proj"), f"{m}.down_proj")
    return norm(x, "norm")


def rotate(c, x, positions):
    theta = c.get("rope_theta") or c["rope_parameters"]["rope_theta"]
    angles = positions[:, None] * theta ** (-torch.arange(0, c["head_dim"], 2) / c["head_dim"])
    first, second = x.chunk(2, -1)
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1)


def layout(result):
    compact = lambda value: json.dumps(value, separators=(",", ":"))
    specs = ",\n".join(f"  {json.dumps(name)}: {json.dumps(spec)}" for name, spec in result.pop("tensors").items())
    rest = ",\n".join(f" {json.dumps(key)}: {compact(value)}" for key, value in result.items())
    return '{\n "tensors": {\n' + specs + "\n },\n" + rest + "\n}\n"


if __name__ == "__main__":
    main()
