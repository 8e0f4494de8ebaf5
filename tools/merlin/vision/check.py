"""Compares this folder's pixels, tower and language model with transformers, in float32: `check.py [--tower tower.safetensors]`.

Without `--tower` the shipped tower is compared, or a small random one where there is none. Needs transformers and torchvision; ends with
an error where they differ.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

import export as text_export  # noqa: E402
from corpus import template  # noqa: E402
from model import Merlin, delta_rule_chunks  # noqa: E402
from vision import language, weights  # noqa: E402
from vision.batches import LONGEST, Maker, Sizes  # noqa: E402
from vision.export import PREPROCESSOR, configured  # noqa: E402
from vision.pixels import FRAMES, MERGE, normalise, patches, resize, smart_resize  # noqa: E402
from vision.tower import Config, Tower  # noqa: E402

MERLIN = HERE.parents[2] / "models" / "merlin"


def hub_folder(out, hub):
    """A folder that transformers loads: merlin's text weights as what they stand for, and the tower."""
    state, _ = text_export.load(MERLIN)
    text = {f"model.language_model.{k.removeprefix('model.')}": v.float().contiguous() for k, v in state.items() if not k.startswith("mtp.")}
    save_file({**text, **{k: v.float().contiguous() for k, v in hub.items()}}, str(out / "model.safetensors"), metadata={"format": "pt"})
    config = configured(json.loads((MERLIN / "config.json").read_text()), MERLIN, weights.config_of(hub))
    config = {k: v for k, v in config.items() if not k.startswith("quantization")}
    config["text_config"]["dtype"] = "float32"
    (out / "config.json").write_text(json.dumps(config))
    (out / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))


def differ(name, ours, theirs, least):
    d = (ours.float() - theirs.float()).abs().max().item()
    print(f"{name}: at most {d:.2e} apart")
    if not d <= least:
        raise SystemExit(f"{name} differs by {d}, more than {least}")


def check_delta_rule():
    torch.manual_seed(0)
    q, k = (torch.randn(2, 128, 4, 64) for _ in range(2))
    k[:, 20:90] = k[:, 20:21]  # repeated keys, as a plain background has them
    v, g, beta = torch.randn(2, 128, 8, 64), -torch.rand(2, 128, 8) * 0.1, torch.rand(2, 128, 8)
    ours = language.delta_rule(q, k, v, g, beta)
    theirs = torch.stack([delta_rule_chunks(*(t[i] for t in (q, k, v, g, beta)))[0] for i in range(2)])
    differ("delta rule", ours, theirs, 2e-4)


def check_pixels(folder):
    from transformers import AutoImageProcessor

    processor, rng = AutoImageProcessor.from_pretrained(folder), np.random.default_rng(1)
    for height, width in ((256, 256), (300, 200), (40, 900), (13, 10), (1000, 777), (333, 320), (15, 2800)):
        image = rng.integers(0, 256, (height, width, 3), np.uint8)
        out = processor(images=[torch.from_numpy(image).permute(2, 0, 1)], return_tensors="pt")
        h, w = smart_resize(height, width)
        assert out["image_grid_thw"].tolist() == [[1, h // 16, w // 16]], (height, width, out["image_grid_thw"], h, w)
        ours = normalise(torch.from_numpy(patches(resize(image, h, w))))
        ours = ours.unflatten(1, (3, 1, 256)).expand(-1, -1, FRAMES, -1).flatten(1)
        differ(f"pixels of {width} x {height}", ours, out["pixel_values"], 0)


def check_model(folder, hub):
    from transformers import Qwen3_5ForConditionalGeneration

    theirs = Qwen3_5ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    sizes = Sizes(rows=8, length=224)
    arrays = {k: np.zeros(shape, kind) for k, (shape, kind) in sizes.arrays().items()}
    maker = Maker(sizes, MERLIN, 5)
    maker.fill(arrays)
    b = {k: torch.from_numpy(v) for k, v in arrays.items()}
    tower = Tower(weights.config_of(hub)).eval()
    tower.load_state_dict(weights.from_hub(hub))
    state, config = text_export.load(MERLIN)
    model = Merlin(config)
    model.load_state_dict({k: v.float() for k, v in state.items()})
    section = json.loads((MERLIN / "config.json").read_text())["text_config"]["rope_parameters"]["mrope_section"]
    with torch.no_grad():
        pixels = normalise(b["patches"])
        features, _ = tower(pixels, b["place"], b["cu"], LONGEST * MERGE**2)
        ids = b["ids"].flatten().long()
        x = language.splice(model, ids, b["spot"].long(), features)
        logits = model.head(language.hidden(model, x, language.Rows(model, b["position"], section))).view(sizes.rows, sizes.length, -1)
        used = 0
        for row in range(sizes.rows):
            of_row = (b["ids"][row] == maker.text.image).sum().item() * MERGE**2
            span, used = slice(used, used + of_row), used + of_row
            starts = [c for c in b["cu"].tolist() if span.start <= c < span.stop]
            grid = torch.tensor([[1, *b["place"][c, 2:].tolist()] for c in starts])
            frames = pixels[span].unflatten(1, (3, 1, 256)).expand(-1, -1, FRAMES, -1).flatten(1)
            seen = theirs.model.visual(frames, grid_thw=grid)
            seen = getattr(seen, "pooler_output", seen)
            differ(f"tower, row {row}, {len(grid)} pictures", features[span.start // 4 : span.stop // 4], seen, 1e-5 * max(1, seen.abs().max().item()))
            n = int(b["answer"][row].nonzero().max()) + 2
            line = b["ids"][row : row + 1, :n].long()
            out = theirs(input_ids=line, attention_mask=torch.ones_like(line), pixel_values=frames, image_grid_thw=grid, mm_token_type_ids=(line == maker.text.image).int()).logits[0]
            differ(f"logits, row {row}", logits[row, :n], out, 2e-3)


def check_rendering(text):
    """The ids of a conversation put together from pieces are those of the rendered template."""
    render, messages = template(), [
        {"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What shape is it?"}]},
        {"role": "assistant", "content": "It is a star."}, {"role": "user", "content": [{"type": "text", "text": "And this?"}, {"type": "image"}]}]
    rendered = text.encode(render(messages=messages, add_generation_prompt=True))
    ids = [*text.system("You are a helpful assistant."), *text.user("What shape is it?", 1, True), *text.assistant(False), *text.answer("It is a star.", None), *text.end,
           *text.user("And this?", 1, False), *text.assistant(True)]
    assert rendered == ids, (rendered, ids)
    print("rendering: equal")


def main(args):
    torch.manual_seed(1)
    shipped = weights.from_mlx(weights.load(str(MERLIN / "model.safetensors")))
    if args.tower or shipped:
        hub = weights.load(str(args.tower)) if args.tower else shipped
    else:
        config = Config(depth=2, hidden_size=128, intermediate_size=192, num_heads=2)
        hub = weights.to_hub(Tower(config).state_dict(), config)
    with tempfile.TemporaryDirectory() as folder:
        hub_folder(Path(folder), hub)
        check_rendering(Maker(Sizes(4), MERLIN, 1).text)
        check_delta_rule()
        check_pixels(folder)
        check_model(folder, hub)


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--tower", type=Path)
    main(p.parse_args())
