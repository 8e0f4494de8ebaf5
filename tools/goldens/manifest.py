"""The manifest of a checkpoint: the tensors that its publisher would store, and the ranges of their values.

Names and shapes come from transformers, which writes the layout it reads. `hub_layout` mends what it writes
otherwise than the publisher does, `unused_tensors` adds what real checkpoints hold and text generation skips.
"""

import math
import re
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file

# Always published in float32.
EXACT = ("A_log", "e_score_correction_bias", "expert_bias")
FUSED_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")


def hub_manifest(golden):
    """Specs by name, in the layout of the hub."""
    shapes = hub_layout(initial_tensors(golden), golden)
    shapes.update(unused_tensors(shapes, golden))
    return {name: spec(name, t, golden) for name, t in sorted(shapes.items())}


def initial_tensors(golden):
    """The state that transformers saves of a new model. Only shapes and the mean of norm weights matter."""
    config = reference_config(golden)
    quantized = config.pop("quantization_config", None)
    config = transformers.AutoConfig.for_model(config.pop("model_type"), **config)
    model = architecture(golden)._from_config(config, dtype=torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tensors = {}
        for file in Path(folder).glob("*.safetensors"):
            tensors.update(load_file(file))
    return pack_mxfp4(tensors) if quantized else tensors


def architecture(golden):
    return getattr(transformers, golden["config"]["architectures"][0])


def reference_config(golden):
    """The config as transformers must see it: it has no kimi_k2, which is DeepSeek-V3."""
    config = dict(golden["config"])
    if config["model_type"] == "kimi_k2":
        config["model_type"] = "deepseek_v3"
    return config


def hub_layout(tensors, golden):
    """Renames and regroups tensors that transformers saves in another layout than the publisher."""
    family = golden["config"]["model_type"]
    if family == "kimi_linear":  # the dense layers' MLP comes out under the name of the MoE
        dense = re.compile(r"block_sparse_moe\.(gate|up|down)_proj")
        tensors = {dense.sub(r"mlp.\1_proj", name): t for name, t in tensors.items()}
    if family == "qwen3_5_moe" and not golden.get("split_experts"):  # some fine-tunes keep them one by one
        tensors = fuse_experts(tensors)
    if family == "qwen3_vl_moe" and not golden.get("saved"):  # transformers saves what its model holds
        tensors = {name: t.transpose(1, 2) if ".experts." in name else t for name, t in tensors.items()}
    if family == "lfm2_vl":
        tensors = {name.replace("vision_tower.", "vision_tower.vision_model."): t for name, t in tensors.items()}
    return tensors


def fuse_experts(tensors):
    """experts.N.{gate,up,down}_proj.weight as experts.gate_up_proj [E, 2I, H] and experts.down_proj [E, H, I]."""
    fused, experts = {}, {}
    for name, t in tensors.items():
        if match := FUSED_EXPERT.fullmatch(name):
            experts.setdefault(match[1], {})[int(match[2]), match[3]] = t
        else:
            fused[name] = t
    for path, parts in experts.items():
        count = 1 + max(expert for expert, _ in parts)
        fused[f"{path}.gate_up_proj"] = torch.stack(
            [torch.cat([parts[i, "gate"], parts[i, "up"]]) for i in range(count)])
        fused[f"{path}.down_proj"] = torch.stack([parts[i, "down"] for i in range(count)])
    return fused


def split_experts(tensors):
    """The reverse of `fuse_experts`."""
    split = {}
    for name, t in tensors.items():
        path = name.removesuffix(".gate_up_proj").removesuffix(".down_proj")
        if not path.endswith(".experts"):
            split[name] = t
            continue
        for i, expert in enumerate(t):
            if name.endswith("gate_up_proj"):
                split[f"{path}.{i}.gate_proj.weight"], split[f"{path}.{i}.up_proj.weight"] = expert.chunk(2)
            else:
                split[f"{path}.{i}.down_proj.weight"] = expert
    return split


def pack_mxfp4(tensors):
    """gpt-oss as published: experts [E, in, out] as blocks [E, out, in / 32, 16] and scales [E, out, in / 32]."""
    packed = {}
    for name, t in tensors.items():
        if name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
            experts, fan_in, fan_out = t.shape
            packed[f"{name}_blocks"] = torch.zeros(experts, fan_out, fan_in // 32, 16, dtype=torch.uint8)
            packed[f"{name}_scales"] = torch.zeros(experts, fan_out, fan_in // 32, dtype=torch.uint8)
        else:
            packed[name] = t
    return packed


def unused_tensors(tensors, golden):
    """Further tensors of published checkpoints."""
    text = golden["config"].get("text_config", golden["config"])
    return unused_keys(tensors, text) if text.get("num_kv_shared_layers") else prediction_head(tensors, golden, text)


def unused_keys(tensors, text):
    """Gemma 4: the layers that reuse keys and values have projections for them nonetheless."""
    types, unused = text["layer_types"], {}
    for i in range(len(types) - text["num_kv_shared_layers"], len(types)):
        source = f"layers.{types.index(types[i])}.self_attn."
        for name, t in tensors.items():
            if source in name and "vision" not in name and re.search(r"\.(k_proj|v_proj|k_norm)\.", name):
                unused[name.replace(source, f"layers.{i}.self_attn.")] = t
    return unused


def prediction_head(tensors, golden, text):
    """A multi-token-prediction head where published checkpoints have one: a copy of the last layer and a joint."""
    hidden, vocab = text["hidden_size"], text["vocab_size"]
    layers, style = text.get("num_hidden_layers"), golden.get("mtp")
    if style is None:
        return {}
    norm, joint, table = torch.zeros(hidden), torch.zeros(hidden, 2 * hidden), torch.zeros(vocab, hidden)
    source = next(i for i in reversed(range(layers)) if any(f"layers.{i}.self_attn.o_proj." in n for n in tensors))
    layer = {n.split(f"layers.{source}.")[1]: t for n, t in tensors.items()
             if f"layers.{source}." in n and "visual" not in n}
    if style == "nextn":  # DeepSeek and GLM: one more layer
        path = f"model.layers.{layers}"
        extra = {"enorm.weight": norm + 1, "hnorm.weight": norm + 1, "eh_proj.weight": joint,
                 "embed_tokens.weight": table, "shared_head.norm.weight": norm + 1, "shared_head.head.weight": table}
        return {f"{path}.{name}": t for name, t in {**layer, **extra}.items()}
    # Qwen: a head of its own, its experts stored one by one or fused
    head = {f"mtp.layers.0.{name}": t for name, t in layer.items()}
    head = split_experts(head) if style == "split" else head
    norms = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    return {**head, "mtp.fc.weight": joint, **{f"mtp.{name}.weight": norm for name in norms}}


def spec(name, initial, golden):
    """One manifest entry."""
    shape = list(initial.shape)
    if initial.dtype == torch.uint8:
        low, high = (121, 123) if name.endswith("_scales") else (0, 255)
        return dict(dtype="U8", shape=shape, low=low, high=high)
    family = golden["config"]["model_type"]
    centre = norm_centre(name, float(initial.float().mean()), family) if len(shape) == 1 else None
    mean, spread = value_range(name, shape, centre, family)
    dtype = "F32" if name.endswith(EXACT) else golden["dtype"]
    return dict(dtype=dtype, shape=shape, mean=mean, spread=short(spread))


def norm_centre(name, initial, family):
    """The range of a norm's weights. Attention is made sharper, and Gemma's small logits larger, to be sensitive; but
    Gemma 4, which does not divide by the root of the head's size, has it sharp enough."""
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return round(initial) + (-0.5 if "gemma4" in family else 0.5)
    final = name.endswith(("model.norm.weight", "language_model.norm.weight"))
    return round(initial) + (3.0 if final and "gemma" in family else 0.0)


def value_range(name, shape, centre, family):
    """Mean and spread. Plain initialisation hides errors (norms all one, biases and sinks all zero): every tensor
    gets values that matter, and layers outweigh the embedding, or greedy decoding only repeats the prompt's end."""
    leaf = name.rsplit(".", 1)[-1]
    owner = name.rsplit(".", 2)[-2]
    if leaf == "A_log":
        return -1.5, 2.5
    if leaf == "dt_bias":
        return -1.0, 2.0
    if leaf == "layer_scalar":
        return 0.8, 0.1
    if leaf in ("e_score_correction_bias", "expert_bias"):
        return 0.0, uniform(0.1)
    if leaf in ("input_min", "output_min", "input_max", "output_max"):  # where some of the values are
        return (-1.5 if leaf.endswith("min") else 1.5), 0.25
    if leaf == "sinks":
        return 0.0, uniform(1.0)
    if leaf == "bias" or leaf.endswith("proj_bias"):
        return 0.0, uniform(0.2)
    if len(shape) == 1:  # a norm
        return centre, uniform(0.2)
    if "embed" in owner:  # Gemma multiplies by sqrt(hidden)
        return 0.0, uniform(0.05 if "gemma" in family else 0.2)
    if "conv" in name and len(shape) == 3:
        return 0.0, uniform(0.5)
    gain = 3.0 if "lm_head" in name else 1.0 if "expert" in name or "switch_mlp" in name else 1.5
    if len(shape) == 3:  # experts or heads; some families keep their experts [E, in, out]
        transposed = family in ("gpt_oss", "qwen3_vl_moe") and leaf != "weight"
        fan_in = shape[1] if transposed else shape[2]
    else:
        fan_in = math.prod(shape[1:])
    return 0.0, uniform(gain / math.sqrt(fan_in))


def uniform(deviation):
    """Half the width of the uniform distribution with this standard deviation."""
    return deviation * math.sqrt(3)


def short(number):
    """Few digits, so that every JSON parser reads the same number."""
    return float(f"{number:.4g}")
