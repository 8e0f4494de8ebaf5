#!/usr/bin/env python3
"""Records names, dtypes and shapes of published checkpoints' tensors, from their config.json alone.

    indexes.py FOLDER ../../crates/engine/tests/configs            all of them
    indexes.py FOLDER ../../crates/engine/tests/configs Qwen3-4B   some

FOLDER holds ORG--NAME/config.json, and model.safetensors.index.json where one is at hand: names and size must then be
the same. Models are made without memory for their weights, by transformers or, if quantised for MLX, by mlx-lm.

    source, family    the publisher's name, and the model file that loads it
    note, without     how the config differs from the published one
    config            config.json
    tensors           {pattern: [dtype, shape]}; `{0-3}` is an inclusive range, `{q,k,5,7-9}` a list
"""

import json
import math
import re
import sys
import warnings
from collections import defaultdict
from copy import deepcopy
from itertools import groupby
from pathlib import Path

import mlx.core as mx
import torch
import transformers
from mlx.utils import tree_flatten
from mlx_lm.utils import _get_classes, quantize_model
from transformers.core_model_loading import revert_weight_conversion

from manifest import EXACT, architecture, hub_layout, pack_mxfp4, reference_config, unused_tensors

SUPPORTED = {
    "llama", "mistral", "ministral3", "mistral3", "qwen2", "qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_moe", "qwen3_next",
    "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "gemma2", "gemma3", "gemma3_text", "gemma4",
    "gemma4_text", "gemma4_unified", "glm4", "glm4_moe", "deepseek_v3", "kimi_k2", "glm4_moe_lite", "kimi_linear", "lfm2",
    "lfm2_moe", "lfm2_vl", "gpt_oss"}
NVFP4 = "config of the NVFP4 conversion, without its quantization_config"
REBUILT = "config put together from published sizes"
# Qwen3.5 stores more in float32 than others do, Qwen3-Next and Qwen3.6 nothing
QWEN3_5_EXACT = (*EXACT, "linear_attn.norm.weight")
IRRELEVANT = ("auto_map", "transformers_version", "_name_or_path", "chunk_size_feed_forward", "id2label", "label2id",
              "is_encoder_decoder", "output_attentions", "output_hidden_states", "problem_type", "return_dict")
TORCH_NAMES = {"bfloat16": "BF16", "float16": "F16"}
MAX_JSON = 10_000

# Folder, family, billions of parameters, and more: `mtp`, the layout of a head that predicts further ahead
# (manifest.py); `head`, stored although it is tied; `exact`, ends of names stored in float32; `prefix`, where the text
# model lies if not where its class has it.
CHECKPOINTS = {}


def checkpoint(folder, family, billions, source=None, **rest):
    source = source or folder.replace("--", "/")
    CHECKPOINTS[source.split("/")[1]] = dict(folder=folder, family=family, billions=billions, source=source, **rest)


checkpoint("Qwen--Qwen2.5-0.5B", "qwen2", 0.494)
checkpoint("Qwen--Qwen3-0.6B", "qwen3", 0.752, head=True)
checkpoint("Qwen--Qwen3-1.7B", "qwen3", 2.03, head=True)
checkpoint("Qwen--Qwen3-4B", "qwen3", 4.02)
checkpoint("Qwen--Qwen3-8B", "qwen3", 8.19)
checkpoint("Qwen--Qwen3-32B", "qwen3", 32.8)
checkpoint("Qwen--Qwen3-30B-A3B", "qwen3", 30.5)
checkpoint("Qwen--Qwen3-235B-A22B", "qwen3", 235)
checkpoint("Qwen--Qwen3-Coder-480B-A35B-Instruct", "qwen3", 480)
checkpoint("Qwen--Qwen3-VL-8B-Instruct", "qwen3", 8.77)
checkpoint("Qwen--Qwen3-VL-30B-A3B-Instruct", "qwen3", 31.1)
checkpoint("Qwen--Qwen3-VL-235B-A22B-Instruct", "qwen3", 236)
checkpoint("mlx--Qwen3-14B-MLX-4bit", "qwen3", None, "Qwen/Qwen3-14B-MLX-4bit")
checkpoint("Qwen--Qwen3-Next-80B-A3B-Instruct", "qwen3_5", 81.3, mtp="split", exact=())
checkpoint("Qwen--Qwen3.5-0.8B", "qwen3_5", 0.87, mtp="fused", exact=QWEN3_5_EXACT)
checkpoint("Qwen--Qwen3.5-4B", "qwen3_5", None, mtp="fused", exact=QWEN3_5_EXACT,
           note=f"{REBUILT}; those of the vision part are guessed")
checkpoint("Qwen--Qwen3.5-9B", "qwen3_5", 9.65, mtp="fused", exact=QWEN3_5_EXACT)
checkpoint("Qwen--Qwen3.5-27B", "qwen3_5", 27.8, mtp="fused", exact=QWEN3_5_EXACT)
checkpoint("Qwen--Qwen3.5-35B-A3B", "qwen3_5", 36.0, mtp="split", exact=QWEN3_5_EXACT)
checkpoint("Qwen--Qwen3.5-122B-A10B", "qwen3_5", 125, mtp="split", exact=QWEN3_5_EXACT)
checkpoint("Qwen--Qwen3.5-397B-A17B", "qwen3_5", 403, mtp="split", exact=QWEN3_5_EXACT)
checkpoint("Qwen--Qwen3.6-27B", "qwen3_5", 27.8, mtp="fused", exact=(), note=NVFP4)
checkpoint("Qwen--Qwen3.6-35B-A3B", "qwen3_5", 36.0, mtp="fused", exact=(), note=NVFP4)
checkpoint("Qwen3.5-25B-REAP-A3B(moe,pruned)", "qwen3_5", 25.09, "bryce-hoehn/Qwen3.5-25B-REAP-A3B-Coding",
           architecture="Qwen3_5MoeForCausalLM", prefix="model.language_model.", exact=())
checkpoint("meta-llama--Llama-3.2-1B", "llama", 1.24)
checkpoint("meta-llama--Llama-3.2-3B", "llama", 3.21)
checkpoint("meta-llama--Meta-Llama-3.1-8B", "llama", 8.03)
checkpoint("meta-llama--Meta-Llama-3.1-70B", "llama", 70.6)
checkpoint("meta-llama--Meta-Llama-3.1-405B", "llama", 406)
checkpoint("mistralai--Mistral-7B-Instruct-v0.2", "llama", 7.24)
checkpoint("mistralai--Devstral-Small-2507", "llama", 23.57)
checkpoint("google--gemma-2-2b-it", "gemma2", 2.61)
checkpoint("google--gemma-3-4b-it", "gemma3", 4.30)
checkpoint("google--gemma-3-27b(medgemma-27b-it)", "gemma3", 27.4, "google/medgemma-27b-it")
checkpoint("google--gemma-4-E2B-it", "gemma4", 5.1)
checkpoint("google--gemma-4-26B-A4B", "gemma4", 26)
checkpoint("google--gemma-4-31B-it", "gemma4", 31, note=NVFP4)
checkpoint("mlx-community--gemma-4-e2b-it-4bit", "gemma4", None, note="text part only")
checkpoint("mlx-community--gemma-4-e4b-it-4bit", "gemma4", None, note="text part only")
checkpoint("THUDM--GLM-4-9B-0414", "glm4", 9.4, note=REBUILT)
checkpoint("deepseek-ai--DeepSeek-V3", "deepseek_v3", 685, mtp="nextn")
checkpoint("deepseek-ai--DeepSeek-R1", "deepseek_v3", 685, mtp="nextn")
checkpoint("moonshotai--Kimi-K2-Instruct", "deepseek_v3", 1026)
checkpoint("moonshotai--Kimi-Linear-48B-A3B-Instruct", "kimi_linear", 49.1, note=REBUILT)
checkpoint("LiquidAI--LFM2-350M", "lfm2", 0.354)
checkpoint("LiquidAI--LFM2-1.2B", "lfm2", 1.17)
checkpoint("openai--gpt-oss-20b", "gpt_oss", 20.9)
checkpoint("openai--gpt-oss-120b", "gpt_oss", 117)


def main():
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    configs, out = Path(sys.argv[1]), Path(sys.argv[2])
    for name in sys.argv[3:] or CHECKPOINTS:
        print(name, record(CHECKPOINTS[name], configs, out / f"{name}.json"), flush=True)
    types = {path.parent.name: json.loads(path.read_text())["model_type"] for path in configs.glob("*/config.json")}
    unsupported = {folder: kind for folder, kind in sorted(types.items()) if kind not in SUPPORTED}
    (out / "unsupported.json").write_text(json.dumps(unsupported, indent=1) + "\n")


def record(entry, configs, path):
    config = relevant(json.loads((configs / entry["folder"] / "config.json").read_text()))
    recorded = {key: entry[key] for key in ("source", "family", "note") if key in entry}
    if config.get("quantization_config", {}).get("quant_method") == "fp8":
        del config["quantization_config"]
        recorded["without"] = "quantization_config"
    recorded["config"] = config
    tensors = mlx_tensors(config) if "quantization" in config else hub_tensors(dict(entry, config=config))
    index = configs / entry["folder"] / "model.safetensors.index.json"
    if index.exists():
        check_index(tensors, json.loads(index.read_text()))
    total = parameters(tensors)
    billions = entry["billions"]
    assert billions is None or abs(total / 1e9 / billions - 1) < 0.01, f"{total / 1e9} billion, not {billions}"
    patterns = compact(tensors)
    assert {name: spec for pattern, spec in patterns for name in expand(pattern)} == tensors
    assert sum(len(expand(pattern)) for pattern, _ in patterns) == len(tensors)
    text = layout(recorded, patterns)
    assert len(text) < MAX_JSON, f"{len(text)} bytes of JSON"
    path.write_text(text)
    checked = ", index the same" if index.exists() else ""
    return f"{total / 1e9:.3f} billion, {len(tensors)} tensors, {len(patterns)} patterns, {len(text)} bytes{checked}"


def relevant(config):
    return {key: relevant(value) if isinstance(value, dict) else value for key, value in config.items()
            if key not in IRRELEVANT}


def hub_tensors(entry):
    """Specs by name, in the layout of the hub."""
    config = reference_config(entry)
    quantized = config.pop("quantization_config", None)
    exact = entry.get("exact", EXACT)
    parts = (config, text_config(config))
    named = [part[key] for part in parts for key in ("dtype", "torch_dtype") if part.get(key)]
    own = TORCH_NAMES[named[0] if named else "bfloat16"]
    with torch.device("meta"):
        tensors = saved(make(config, entry))
        tensors = pack_mxfp4(tensors) if quantized else tensors
        tensors = published(hub_layout(tensors, entry), entry)
        tensors |= unused_tensors(tensors, entry) if "mtp" in entry else {}
    return {name: ("U8" if t.dtype == torch.uint8 else "F32" if name.endswith(tuple(exact)) else own, list(t.shape))
            for name, t in tensors.items()}


def make(config, entry):
    config = deepcopy(config)  # transformers writes into its parts
    model = getattr(transformers, entry["architecture"]) if "architecture" in entry else architecture(entry)
    return model._from_config(transformers.AutoConfig.for_model(config.pop("model_type"), **config))


def saved(model):
    """The output of `save_pretrained`."""
    tied = model.all_tied_weights_keys
    return revert_weight_conversion(model, {name: t for name, t in model.state_dict().items() if name not in tied})


def published(tensors, entry):
    """Corrects differences to the publisher's layout that only full-size models have."""
    text = text_config(entry["config"])
    if "head" in entry:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    if "prefix" in entry:
        tensors = {re.sub("^model\\.", entry["prefix"], name): t for name, t in tensors.items()}
    if entry["family"] == "gemma3":
        tensors = {name.replace("vision_tower.", "vision_tower.vision_model."): t for name, t in tensors.items()}
    # Google stores keys and values even for layers that share them
    first_shared = text["num_hidden_layers"] - text.get("num_kv_shared_layers", 0)
    for layer in range(first_shared, text["num_hidden_layers"]):
        twin = next(i for i in range(first_shared) if text["layer_types"][i] == text["layer_types"][layer])
        path = "model.language_model.layers.{}.self_attn.{}.weight"
        for part in ("k_proj", "v_proj", "k_norm"):
            tensors[path.format(layer, part)] = tensors[path.format(twin, part)]
    return tensors


def text_config(config):
    return config.get("text_config", config)


def mlx_tensors(config):
    """Specs by name, as mlx-lm's converter writes them. Nothing is evaluated."""
    Model, Args = _get_classes(config)
    model = Model(Args.from_dict(deepcopy(config)))
    model.set_dtype(mx.bfloat16)
    q = config["quantization"]
    plain = {key: value for key, value in config.items() if not key.startswith("quantization")}
    model, _ = quantize_model(model, plain, q["group_size"], q["bits"], q.get("mode", "affine"))
    names = {mx.bfloat16: "BF16", mx.uint32: "U32"}
    return {name: (names[a.dtype], list(a.shape)) for name, a in tree_flatten(model.parameters())}


def check_index(tensors, index):
    names = set(index["weight_map"])
    assert names == set(tensors), (sorted(names - set(tensors))[:5], sorted(set(tensors) - names)[:5])
    bytes_each = {"BF16": 2, "F16": 2, "F32": 4, "U8": 1, "U32": 4}
    size = sum(bytes_each[dtype] * math.prod(shape) for dtype, shape in tensors.values())
    stated = index["metadata"]["total_size"]
    assert size == stated, f"{size} bytes, the index says {stated}"


def parameters(tensors):
    """MXFP4 blocks hold two numbers a byte; scales are no parameters. Meaningless for MLX."""
    counts = {"_blocks": 2, "_scales": 0}
    return sum(counts.get(name[-7:], 1) * math.prod(shape) for name, (_, shape) in tensors.items())


def compact(tensors):
    """Patterns and specs of `tensors`: numbers become ranges, then names at the same position lists."""
    groups = defaultdict(set)
    for name, (dtype, shape) in tensors.items():
        parts = name.split(".")
        skeleton = tuple(None if part.isdigit() else part for part in parts)
        groups[skeleton, dtype, tuple(shape)].add(tuple(int(part) for part in parts if part.isdigit()))
    patterns = []
    for (skeleton, *spec), numbers in groups.items():
        for ranges in products(numbers):
            ranges = iter(ranges)
            patterns.append((tuple(part or next(ranges) for part in skeleton), tuple(spec)))
    for place in reversed(range(max(len(parts) for parts, _ in patterns))):
        patterns = merge(patterns, place)
    return sorted((".".join(parts), (dtype, list(shape))) for parts, (dtype, shape) in patterns)


def products(numbers):
    """A set of tuples as few products of ranges."""
    if numbers == {()}:
        return [()]
    rests = defaultdict(set)
    for first, *rest in numbers:
        rests[first].add(tuple(rest))
    firsts = defaultdict(list)
    for first, rest in sorted(rests.items()):
        firsts[frozenset(rest)].append(first)
    return [(ranges(group), *product) for rest, group in firsts.items() for product in products(set(rest))]


def ranges(numbers):
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return texts[0] if len(numbers) == 1 else "{" + ",".join(texts) + "}"


def merge(patterns, place):
    """Joins patterns that differ in the name at `place` only."""
    merged = defaultdict(list)
    for parts, spec in patterns:
        name = parts[place] if place < len(parts) else ""
        joinable = name[:1].isalpha()
        rest = (parts[:place], parts[place + 1:]) if joinable else parts
        merged[rest, joinable, spec].append(name)
    out = []
    for (rest, joinable, spec), names in merged.items():
        if joinable:
            name = names[0] if len(names) == 1 else "{" + ",".join(sorted(names)) + "}"
            out.append((rest[0] + (name,) + rest[1], spec))
        else:
            out.append((rest, spec))
    return out


def expand(pattern):
    before, brace, rest = pattern.partition("{")
    if not brace:
        return [pattern]
    choices, _, after = rest.partition("}")
    tails = expand(after)
    return [f"{before}{choice}{tail}" for item in choices.split(",") for choice in numbers_in(item) for tail in tails]


def numbers_in(item):
    """`7-9` as three numbers, anything else as it is."""
    match = re.fullmatch(r"(\d+)-(\d+)", item)
    return [str(n) for n in range(int(match[1]), int(match[2]) + 1)] if match else [item]


def layout(recorded, patterns):
    """JSON with a line for every key of the config and every pattern."""
    def lines(pairs):
        return "{\n" + ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in pairs) + "\n }"
    parts = {key: json.dumps(value) for key, value in recorded.items()}
    parts |= {"config": lines(recorded["config"].items()), "tensors": lines(patterns)}
    return "{\n " + ",\n ".join(f'"{key}": {text}' for key, text in parts.items()) + "\n}\n"


if __name__ == "__main__":
    main()
