#!/usr/bin/env python3
"""Records tiny random checkpoints with the logits and greedy tokens transformers gives for them in float32.

    pip install -r requirements.txt
    record.py ../../crates/engine/tests/goldens

Each folder holds what a checkpoint of its kind holds, and golden.json:

    cases[].prompt_ids        input
    cases[].logit_positions   prompt positions whose logits follow
    cases[].logits            [position][vocab]
    cases[].greedy_ids        64 greedy tokens
    cases[].greedy_margin     gap between the two likeliest tokens at each
    cases[].decode_logits     {step: [vocab]}, the logits that chose greedy_ids[step]

The same script gives the same checkpoints: everything is seeded.
"""

import json
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import torch
from safetensors.torch import save_file
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

STEPS = 64
KEPT_STEPS = (0, 1, 2, 31, 63)
PROMPTS = (3, 37, 130)

BASE = dict(
    vocab_size=320, hidden_size=128, intermediate_size=192, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=32,
    linear_value_head_dim=32, linear_conv_kernel_dim=4, max_position_embeddings=2048, rms_norm_eps=1e-6,
    tie_word_embeddings=True, eos_token_id=1, bos_token_id=None, pad_token_id=None,
    rope_parameters=dict(rope_type="default", rope_theta=1e6, partial_rotary_factor=0.25,
                         mrope_section=[2, 1, 1], mrope_interleaved=True),
)

# name: (config changes, how it is stored)
GOLDENS = {
    "qwen3_5-hub": (dict(), dict(layout="hub", dtype=torch.bfloat16)),
    "qwen3_5-text-sharded": (
        dict(tie_word_embeddings=False, num_hidden_layers=5, linear_num_value_heads=6, linear_key_head_dim=16),
        dict(layout="text", dtype=torch.float16, shards=2)),
    "qwen3_5-mlx-4bit": (dict(), dict(layout="mlx", dtype=torch.bfloat16, default=(4, 64), overrides={
        "language_model.model.embed_tokens": (8, 32),
        "language_model.model.layers.1.mlp.gate_proj": False})),
    "qwen3_5-mlx-mixed": (
        dict(hidden_size=256, intermediate_size=256, tie_word_embeddings=False),
        dict(layout="mlx", dtype=torch.float32, default=(5, 64), overrides={
            "language_model.model.embed_tokens": (3, 128),
            "language_model.model.layers.0.linear_attn.in_proj_qkv": (2, 32),
            "language_model.model.layers.1.mlp.up_proj": (3, 64),
            "language_model.model.layers.2.mlp.down_proj": (6, 128),
            "language_model.model.layers.3.self_attn.q_proj": (8, 128),
            "language_model.lm_head": (6, 32)})),
}


def main():
    out = Path(sys.argv[1])
    for seed, (name, (changes, storage)) in enumerate(GOLDENS.items()):
        config = Qwen3_5TextConfig(**{**BASE, **changes})
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            model = random_model(config, seed)
            tensors, quantization = store(model, storage)
            cases = [run(model, length, seed) for length in PROMPTS]
            # A checkpoint whose greedy path hangs on rounding tests nothing; take another.
            if min(min(case["greedy_margin"]) for case in cases) > 2e-3:
                break
            seed += 100
        write(folder, config, storage, tensors, quantization)
        (folder / "golden.json").write_text(json.dumps({"seed": seed, "cases": cases}))
        print(name, "seed", seed, "distinct", [len(set(c["greedy_ids"])) for c in cases])


def random_model(config, seed):
    torch.manual_seed(seed)
    config._attn_implementation = "eager"
    model = Qwen3_5ForCausalLM(config).float().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("A_log"):
                p.copy_(torch.rand_like(p) * 2 - 1)
            elif name.endswith("dt_bias"):
                p.copy_(torch.randn_like(p) * 0.5)
            elif p.dim() == 1:
                p.copy_(torch.randn_like(p) * 0.2 + (1 if "linear_attn.norm" in name else 0))
            elif "embed" in name:
                p.copy_(torch.randn_like(p) * 0.6)
            else:
                p.copy_(torch.randn_like(p) * 1.6 / p[0].numel() ** 0.5)
    return model


def store(model, storage):
    """The tensors as stored; the model's weights become exactly what those mean."""
    dtype, tensors, quantization = storage["dtype"], {}, {}
    tied = model.config.tie_word_embeddings
    with torch.no_grad():
        for name, p in model.named_parameters():
            if tied and name == "lm_head.weight":
                continue
            exact = name.endswith(("A_log", "dt_bias"))
            path = rename(name, storage["layout"])
            module = path.removesuffix(".weight")
            wanted = storage.get("overrides", {}).get(module, storage.get("default"))
            if p.dim() == 2 and wanted and p.shape[1] % wanted[1] == 0:
                bits, group = wanted
                parts = mx.quantize(to_mlx(p).astype(mlx_dtype(dtype)), group_size=group, bits=bits)
                value = mx.dequantize(*[parts[0], parts[1].astype(mx.float32), parts[2].astype(mx.float32)],
                                      group_size=group, bits=bits)
                p.copy_(from_mlx(value))
                for suffix, part in zip(("weight", "scales", "biases"), parts):
                    tensors[f"{module}.{suffix}"] = from_mlx(part)
                if module in storage["overrides"]:
                    quantization[module] = dict(group_size=group, bits=bits)
                continue
            if module in storage.get("overrides", {}):
                quantization[module] = False
            stored = p.clone()
            if storage["layout"] == "mlx" and is_shifted_norm(name):
                stored = (stored + 1).to(dtype)
                p.copy_(stored.float() - 1)
            elif not exact:
                stored = stored.to(dtype)
                p.copy_(stored.float())
            if storage["layout"] == "mlx" and "conv1d" in name:
                stored = stored.transpose(1, 2)
            tensors[path] = stored.contiguous()
    if "default" in storage:
        bits, group = storage["default"]
        quantization = dict(group_size=group, bits=bits, mode="affine", **quantization)
    return tensors, quantization


def rename(name, layout):
    if layout == "hub":
        return name.replace("model.", "model.language_model.", 1)
    return f"language_model.{name}" if layout == "mlx" else name


def is_shifted_norm(name):
    return name.endswith(("layernorm.weight", "model.norm.weight", "q_norm.weight", "k_norm.weight"))


def to_mlx(t):
    return mx.array(t.detach().numpy())


def mlx_dtype(dtype):
    return {torch.bfloat16: mx.bfloat16, torch.float16: mx.float16, torch.float32: mx.float32}[dtype]


def from_mlx(a):
    if a.dtype == mx.bfloat16:
        return torch.from_numpy(np.array(a.astype(mx.float32))).to(torch.bfloat16)
    a = np.array(a)
    return torch.from_numpy(a.view(np.int32)).view(torch.uint32) if a.dtype == np.uint32 else torch.from_numpy(a)


@torch.no_grad()
def run(model, length, seed):
    ids = np.random.default_rng(seed * 1000 + length).integers(2, model.config.vocab_size, length).tolist()
    positions = sorted({0, length // 3, length // 2, length - 2, length - 1})
    out = model(torch.tensor([ids]), use_cache=True)
    case = dict(prompt_ids=ids, logit_positions=positions, logits=rows(out.logits[0, positions]),
                greedy_ids=[], greedy_margin=[], decode_logits={})
    for step in range(STEPS):
        logits = out.logits[0, -1]
        top = logits.topk(2).values
        token = int(logits.argmax())
        case["greedy_ids"].append(token)
        case["greedy_margin"].append(float(top[0] - top[1]))
        if step in KEPT_STEPS:
            case["decode_logits"][str(step)] = rows(logits[None])[0]
        out = model(torch.tensor([[token]]), past_key_values=out.past_key_values, use_cache=True)
    return case


def rows(logits):
    return [[round(float(v), 6) for v in row] for row in logits]


def write(folder, config, storage, tensors, quantization):
    text = {k: v for k, v in config.to_dict().items() if v is not None and not k.startswith("_")}
    if storage["layout"] == "text":
        top = dict(text, architectures=["Qwen3_5ForCausalLM"])
    else:
        top = dict(architectures=["Qwen3_5ForConditionalGeneration"], model_type="qwen3_5", text_config=text,
                   tie_word_embeddings=text["tie_word_embeddings"])
    if quantization:
        top["quantization"] = quantization
    (folder / "config.json").write_text(json.dumps(top, indent=1) + "\n")
    for old in folder.glob("model*.safetensors*"):
        old.unlink()
    shards = storage.get("shards", 1)
    names = sorted(tensors)
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    index = {"metadata": {"total_size": sum(t.numel() * t.element_size() for t in tensors.values())}, "weight_map": {}}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[i::shards]}
        save_file(part, folder / file, metadata={"format": "pt"})
        index["weight_map"].update({name: file for name in part})
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


if __name__ == "__main__":
    main()
