"""Puts a trained tower into merlin's folder: `export.py --tower tower.safetensors`.

The text tensors stay what they are, to the bit. The tower goes into model.safetensors under MLX's names, its matrices
in 4 bits; config.json gets `vision_config` and the picture tokens; preprocessor_config.json is written.
"""

import argparse
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from safetensors.torch import load_file, save_file  # noqa: E402

from export import write_json  # noqa: E402
from vision import weights  # noqa: E402
from vision.pixels import PREPROCESSOR  # noqa: E402

MERLIN = HERE.parents[2] / "models" / "merlin"
LIMIT = 6_000_000  # bytes that the tower may add
TOKENS = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>", "vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>"}


def token_ids(folder):
    """The fields of config.json that name the picture tokens: the tokenizer has had them from the start."""
    added = {t["content"]: t["id"] for t in json.loads((folder / "tokenizer.json").read_text())["added_tokens"]}
    return {field: added[name] for field, name in TOKENS.items()}


def configured(config, folder, tower):
    """config.json with what a picture needs, before the quantisation table."""
    added = {**token_ids(folder), "vision_config": weights.vision_config(tower)}
    head = {k: v for k, v in config.items() if k not in added and not k.startswith("quantization")}
    return {**head, **added, **{k: v for k, v in config.items() if k.startswith("quantization")}}


def export(tower, folder, out):
    hub = weights.load(str(tower))
    path = folder / "model.safetensors"
    text = {k: v for k, v in load_file(str(path)).items() if not k.startswith(weights.MLX)}
    eyes = weights.to_mlx(hub)
    size = sum(v.numel() * v.element_size() for v in eyes.values())
    if size > LIMIT:
        raise SystemExit(f"the tower has {size} bytes, more than {LIMIT}")
    config = configured(json.loads((folder / "config.json").read_text()), folder, weights.config_of(hub))
    out.mkdir(parents=True, exist_ok=True)
    save_file({**text, **eyes}, str(out / "model.safetensors"), metadata={"format": "mlx"})
    write_json(out / "config.json", config)
    write_json(out / "preprocessor_config.json", PREPROCESSOR)
    print(f"{len(eyes)} tensors, {size / 1e6:.2f} MB, beside {len(text)} of text")


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tower", type=Path, required=True, help="tower.safetensors of train.py")
    p.add_argument("--merlin", type=Path, default=MERLIN)
    p.add_argument("--out", type=Path, default=MERLIN)
    args = p.parse_args()
    export(args.tower, args.merlin, args.out)
