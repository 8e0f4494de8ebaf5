"""Writes merlin in the published Qwen3.5 layout (bf16) and converts that to the shipped 4-bit MLX folder."""

import argparse
import json
import shutil
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import quant
from model import Config

TOKENIZER = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
END, END_OF_TURN = 8178, 8180
GENERATION = {"do_sample": True, "temperature": 0.7, "top_p": 0.9, "top_k": 40, "eos_token_id": [END_OF_TURN, END], "pad_token_id": END}
# Stored as gain minus one in the published layout, as the gain itself in MLX's.
ZERO_CENTRED = ("input_layernorm.weight", "post_attention_layernorm.weight", "model.norm.weight", "q_norm.weight", "k_norm.weight",
                "mtp.norm.weight", "pre_fc_norm_embedding.weight", "pre_fc_norm_hidden.weight")


def text_config(c):
    """The fields of a qwen3_5_text config."""
    d = asdict(c)
    theta, partial = d.pop("rope_theta"), d.pop("partial_rotary_factor")
    half = int(c.head_dim * partial) // 2
    section = [half - 2 * (half // 3), half // 3, half // 3]
    return {
        "model_type": "qwen3_5_text", **d,
        "layer_types": ["linear_attention" if c.is_linear(i) else "full_attention" for i in range(c.num_hidden_layers)],
        "rope_parameters": {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": partial, "mrope_section": section, "mrope_interleaved": True},
        "hidden_act": "silu", "attention_bias": False, "attention_dropout": 0.0, "attn_output_gate": True, "mamba_ssm_dtype": "float32",
        "tie_word_embeddings": True, "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False, "initializer_range": 0.02,
        "use_cache": True, "dtype": "bfloat16", "bos_token_id": None, "eos_token_id": END_OF_TURN, "pad_token_id": END,
    }


def read_config(folder):
    raw = json.loads((Path(folder) / "config.json").read_text())
    text = raw.get("text_config", raw)
    rope = text["rope_parameters"]
    known = {k: v for k, v in text.items() if k in Config.__dataclass_fields__}
    return Config(**{**known, "rope_theta": rope["rope_theta"], "partial_rotary_factor": rope["partial_rotary_factor"]}), raw


def write_json(path, data):
    Path(path).write_text(json.dumps(data, indent=2) + "\n")


def save_hub(state, config, out):
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    state = {k: v.to("cpu", torch.float32 if k.endswith("A_log") else torch.bfloat16).contiguous() for k, v in state.items()}
    save_file(state, str(out / "model.safetensors"), metadata={"format": "pt"})
    write_json(out / "config.json", {"architectures": ["Qwen3_5ForCausalLM"], **text_config(config)})
    write_json(out / "generation_config.json", GENERATION)


def load(folder, device="cpu"):
    """(state of model.Merlin, config) from either layout, without the vision tower."""
    config, raw = read_config(folder)
    state = load_file(str(Path(folder) / "model.safetensors"))
    state = {name: v for name, v in state.items() if not name.startswith("vision_tower.")}
    return {k: v.to(device) for k, v in (from_mlx(state, raw["quantization"]) if "quantization" in raw else state).items()}, config


def from_mlx(state, quantization):
    out = {}
    for name, v in state.items():
        if name.endswith((".scales", ".biases")):
            continue
        base, name = name.removesuffix(".weight"), name.removeprefix("language_model.")
        if base + ".scales" in state:
            bits = quantization.get(base, quantization)["bits"]
            # uint32 has no shifts in torch; the bit pattern is what counts.
            v = quant.unpack(v.view(torch.int32).to(torch.int64) & 0xFFFFFFFF, state[base + ".scales"], state[base + ".biases"], bits).bfloat16()
        elif "conv1d" in name:
            v = v.transpose(1, 2)
        elif name.endswith(ZERO_CENTRED):
            v = v.float() - 1
        out[name] = v.contiguous()
    return out


def to_mlx(state):
    """The tensors and the quantisation table of an MLX folder."""
    out, table = {}, {"group_size": quant.GROUP, "bits": quant.BITS, "mode": "affine"}
    for name, v in state.items():
        bits, name = quant.bits_of(name), "language_model." + name
        base = name.removesuffix(".weight")
        if bits:
            words, scales, biases = quant.pack(v, bits)
            out.update({name: words.view(torch.uint32), base + ".scales": scales, base + ".biases": biases})
            if bits != quant.BITS:
                table[base] = {"group_size": quant.GROUP, "bits": bits}
        elif "conv1d" in name:
            out[name] = v.transpose(1, 2).contiguous()
        elif name.endswith(ZERO_CENTRED):
            out[name] = (v.float() + 1).bfloat16()
        else:
            out[name] = v
    return out, table


def export(source, out):
    config, _ = read_config(source)
    tensors, table = to_mlx(load_file(str(Path(source) / "model.safetensors")))
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(out / "model.safetensors"), metadata={"format": "mlx"})
    text = text_config(config)
    write_json(out / "config.json", {
        "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "tie_word_embeddings": True,
        "eos_token_id": [END_OF_TURN, END], "text_config": text, "quantization": table, "quantization_config": table})
    write_json(out / "generation_config.json", GENERATION)


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--source", type=Path, required=True, help="folder train.py wrote")
    p.add_argument("--tokenizer", type=Path, default=Path("../../models/merlin"))
    p.add_argument("--out", type=Path, default=Path("../../models/merlin"))
    args = p.parse_args()
    export(args.source, args.out)
    for folder in (args.out, args.source):
        for name in TOKENIZER:
            if (folder / name).resolve() != (args.tokenizer / name).resolve():
                shutil.copy(args.tokenizer / name, folder / name)
