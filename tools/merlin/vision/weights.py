"""The tower's weights in the published layout (bf16) and in MLX's (4-bit), and the configuration that goes with them."""

from dataclasses import asdict

import torch
from safetensors.torch import load_file, save_file

import quant
from vision.pixels import FRAMES
from vision.tower import Config

HUB, MLX = "model.visual.", "vision_tower."
PATCH_WEIGHT = "patch_embed.proj.weight"


def is_quantised(name):
    return name.endswith(".weight") and "norm" not in name and name.startswith(("blocks.", "merger."))


def to_hub(state, config):
    """The patch embedding gets its two equal frames, each half of the weight."""
    out = {name: v.detach().to("cpu", torch.bfloat16).contiguous() for name, v in state.items()}
    frame = out[PATCH_WEIGHT].unflatten(1, (config.in_channels, 1, config.patch_size, config.patch_size)) / FRAMES
    out[PATCH_WEIGHT] = frame.expand(-1, -1, FRAMES, -1, -1).contiguous()
    return {HUB + name: v for name, v in out.items()}


def from_hub(state):
    out = {name.removeprefix(HUB): v for name, v in state.items() if name.startswith(HUB)}
    out[PATCH_WEIGHT] = out[PATCH_WEIGHT].float().sum(2).flatten(1)
    return {name: v.float() for name, v in out.items()}


def to_mlx(hub):
    """MLX's names and layout, with the matrices of the blocks and the merger quantised."""
    out = {}
    for name, v in hub.items():
        name = name.removeprefix(HUB)
        if is_quantised(name):
            base = MLX + name.removesuffix(".weight")
            words, scales, biases = quant.pack(v, quant.BITS)
            out.update({f"{base}.weight": words.view(torch.uint32), f"{base}.scales": scales, f"{base}.biases": biases})
        else:
            out[MLX + name] = v.permute(0, 2, 3, 4, 1).contiguous() if name == PATCH_WEIGHT else v
    return out


def from_mlx(tensors):
    """The published layout again, each quantised matrix as the values that it stands for."""
    out = {}
    for name, v in tensors.items():
        if not name.startswith(MLX) or name.endswith((".scales", ".biases")):
            continue
        base, hub = name.removesuffix(".weight"), HUB + name.removeprefix(MLX)
        if base + ".scales" in tensors:
            words = v.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
            v = quant.unpack(words, tensors[base + ".scales"], tensors[base + ".biases"], quant.BITS)
        out[hub] = v.permute(0, 4, 1, 2, 3).contiguous() if hub == HUB + PATCH_WEIGHT else v
    return out


def vision_config(c):
    """The published `vision_config`."""
    return {"model_type": "qwen3_5", **asdict(c), "hidden_act": "gelu_pytorch_tanh", "deepstack_visual_indexes": [], "initializer_range": 0.02}


def config_of(hub):
    """The shape of a tower from its weights; heads are 64 wide."""
    hidden = hub[HUB + "pos_embed.weight"].shape[1]
    return Config(
        depth=1 + max(int(n.split(".")[3]) for n in hub if n.startswith(HUB + "blocks.")), hidden_size=hidden, num_heads=max(1, hidden // 64),
        intermediate_size=hub[HUB + "blocks.0.mlp.linear_fc1.weight"].shape[0], out_hidden_size=hub[HUB + "merger.linear_fc2.weight"].shape[0],
        num_position_embeddings=hub[HUB + "pos_embed.weight"].shape[0])


def save(path, tensors):
    """Replaces the file at once, so that an interrupted run leaves a whole one."""
    part = path.with_name(path.name + ".part")
    save_file(tensors, str(part), metadata={"format": "pt"})
    part.replace(path)


load = load_file
