"""Records what transformers makes of images: decoded pixels, tensors and prompt expansions.

    vision.py ../../crates/vision/tests

Writes the image files of vision_images.py to images/, and goldens.json. Decoding is
`transformers.image_utils.load_image`, preprocessing the torchvision image processors.
"""

import hashlib
import json
import pathlib
import sys
import tempfile
from types import SimpleNamespace

import numpy as np
import torch
import transformers
from PIL import Image
from transformers.image_utils import load_image
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor
from transformers.models.gemma4.processing_gemma4 import Gemma4Processor
from transformers.models.gemma4_unified.processing_gemma4_unified import Gemma4UnifiedProcessor
from transformers.models.lfm2_vl.processing_lfm2_vl import Lfm2VlProcessor
from transformers.models.pixtral.processing_pixtral import PixtralProcessor
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.processing_utils import ProcessorMixin

from vision_images import all_files, pixels

HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
QWEN = {"size": {"shortest_edge": 65536, "longest_edge": 16777216}, "patch_size": 16, "merge_size": 2, **HALF}
GEMMA3 = {"resample": 2, "do_pan_and_scan": None, "rescale_factor": 0.00392156862745098, **HALF}
GEMMA4 = {"do_normalize": False, "patch_size": 16, "pooling_kernel_size": 3, "resample": 3}
PIXTRAL = {"processor_class": "PixtralProcessor", "patch_size": 14}

# Name: class, preprocessor_config.json, processor_config.json. A nested image processor is in the
# latter.
CONFIGS = {
    "qwen3_5": (Qwen3VLProcessor, {"image_processor_type": "Qwen2VLImageProcessorFast", **QWEN}, None),
    "qwen_small": (
        Qwen3VLProcessor,
        {"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 3136, "max_pixels": 50176},
        None,
    ),
    "gemma3": (
        Gemma3Processor,
        {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 896, "width": 896}, **GEMMA3},
        {"image_seq_length": 256},
    ),
    "gemma4": (Gemma4Processor, None, {"image_processor_type": "Gemma4ImageProcessor", "max_soft_tokens": 280, **GEMMA4}),
    "gemma4_70": (Gemma4Processor, {"image_processor_type": "Gemma4ImageProcessor", "max_soft_tokens": 70, **GEMMA4}, None),
    "gemma4_unified": (
        Gemma4UnifiedProcessor,
        {"image_processor_type": "Gemma4UnifiedImageProcessor", "max_soft_tokens": 280, **GEMMA4},
        None,
    ),
    "mistral3": (
        PixtralProcessor,
        {"image_processor_type": "PixtralImageProcessorFast", "size": {"longest_edge": 1540}, **PIXTRAL},
        {"patch_size": 14, "spatial_merge_size": 2},
    ),
    "pixtral": (
        PixtralProcessor,
        {"image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": 512}, "patch_size": {"height": 16, "width": 16}},
        {"patch_size": 16},
    ),
    "lfm2_vl": (Lfm2VlProcessor, {"image_processor_type": "Lfm2VlImageProcessorFast", **HALF}, None),
}
# Sides of one pixel, aspect 200, odd multiples of half a patch (rounding to even), tiles.
SIZES = [
    (1, 1), (1, 200), (200, 1), (7, 1400), (272, 304), (336, 240), (448, 448), (97, 61), (640, 480),
    (1000, 600), (511, 1025), (1300, 900), (2100, 700), (900, 1700),
]
THREE = [(320, 256), (257, 400), (320, 256)]
TOKENS = SimpleNamespace(
    image_token="<image>", boi_token="<boi>", eoi_token="<eoi>", init_kwargs={}, boi_token_id=1, image_token_id=2,
    add_special_tokens=lambda tokens: None, convert_tokens_to_ids=lambda token: 3,
)
# The tokens above by the names that each family's tokenizer has.
NAMES = {
    Gemma3Processor: {"<image>": "<image_soft_token>", "<boi>": "<start_of_image>", "<eoi>": "<end_of_image>"},
    Gemma4Processor: {"<image>": "<|image|>", "<boi>": "<|image>", "<eoi>": "<image|>"},
    Gemma4UnifiedProcessor: {"<image>": "<|image|>", "<boi>": "<|image>", "<eoi>": "<image|>"},
    Qwen3VLProcessor: {"<image>": "<|image_pad|>"},
}


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def image_processor(preprocessor, processor):
    with tempfile.TemporaryDirectory() as folder:
        for name, content in [("preprocessor_config.json", preprocessor), ("processor_config.json", processor)]:
            if content is not None:
                pathlib.Path(folder, name).write_text(json.dumps(content))
        return transformers.AutoImageProcessor.from_pretrained(folder, backend="torchvision")


def full_processor(cls, images, processor):
    """A processor without a tokenizer: only its rule of expansion is used."""
    options = {key: value for key, value in (processor or {}).items() if key != "image_processor"}
    arguments = {"image_processor": images, "tokenizer": TOKENS, **options}
    if cls in (Gemma4Processor, Gemma4UnifiedProcessor):
        arguments |= {"feature_extractor": None, "video_processor": None}
    original, ProcessorMixin.__init__ = ProcessorMixin.__init__, lambda self, *args, **options: None
    try:
        full = cls(**arguments)
    finally:
        ProcessorMixin.__init__ = original
    full.image_processor, full.tokenizer = images, TOKENS
    for name in ("image_token", "boi_token", "eoi_token"):
        if not hasattr(full, name):
            setattr(full, name, getattr(TOKENS, name))
    return full


def runs(text):
    """Text with runs of its most repeated token counted: [["text", 1], ["<image>", 256], ...]."""
    out = []
    import re

    for part in re.findall(r"<\|?[^<>]*\|?>|\[[A-Z_]+\]|[^<\[]+", text):
        if out and out[-1][0] == part:
            out[-1][1] += 1
        else:
            out.append([part, 1])
    return out


def tensors_of(cls, inputs, index, count):
    """The tensors of one image of a batch, without padding, with rows and columns of patches."""
    values = inputs["pixel_values"]
    if cls is Qwen3VLProcessor:
        grids = inputs["image_grid_thw"]
        start = int(grids[:index].prod(-1).sum())
        length = int(grids[index].prod())
        return [(values[start : start + length], int(grids[index][1]), int(grids[index][2]))]
    if cls is PixtralProcessor:
        height, width = (int(side) for side in inputs["image_sizes"][index])
        return [(values[index][:, :height, :width], height, width)]
    if cls is Gemma3Processor:
        return [(values[index], values.shape[2], values.shape[3])]
    if cls in (Gemma4Processor, Gemma4UnifiedProcessor):
        positions = inputs["image_position_ids"][index]
        length = int((positions[:, 0] >= 0).sum())
        columns, rows = (int(side) + 1 for side in positions.max(0).values)
        raster = [[x, y] for y in range(rows) for x in range(columns)]
        assert positions[:length].tolist() == raster
        return [(values[index][:length], rows, columns)]
    counts = []
    for image in range(count):
        tiles = int(inputs["image_rows"][image]) * int(inputs["image_cols"][image])
        counts.append(tiles + 1 if tiles > 1 else tiles)
    start = sum(counts[:index])
    out = []
    for tile in range(start, start + counts[index]):
        rows, columns = (int(side) for side in inputs["spatial_shapes"][tile])
        out.append((values[tile][: rows * columns], rows, columns))
    return out


def record_images(cls, images, full, sizes, first_seed):
    pictures = [Image.fromarray(pixels(*size, first_seed + seed)) for seed, size in enumerate(sizes)]
    options = {"return_row_col_info": True} if cls is Lfm2VlProcessor else {}
    if cls is PixtralProcessor:
        options["patch_size"] = full.patch_size * full.spatial_merge_size
    nested = [[picture] for picture in pictures] if cls is Lfm2VlProcessor else pictures
    try:
        inputs = images(nested, return_tensors="pt", **options)
    except (ValueError, RuntimeError) as error:
        assert len(sizes) == 1, error
        return [{"size": sizes[0], "seed": first_seed, "error": True}]
    out = []
    for index, size in enumerate(sizes):
        special = {"use_image_special_tokens": True} if cls is Lfm2VlProcessor else {}
        text = full.replace_image_token(inputs, image_idx=index, **special)
        for general, name in NAMES.get(cls, {}).items():
            text = text.replace(general, "\0" + name)
        tensors = []
        for values, rows, columns in tensors_of(cls, inputs, index, len(sizes)):
            assert values.dtype == torch.float32
            flat = values.contiguous().numpy().ravel()
            picked = [flat[len(flat) * part // 7].item() for part in range(7)]
            tensors.append(
                {"shape": list(values.shape), "rows": rows, "columns": columns, "sha256": digest(flat), "picked": picked}
            )
        expansion = runs(text.replace("\0", ""))
        out.append({"size": size, "seed": first_seed + index, "expansion": expansion, "tensors": tensors})
    return out


def record_family(name):
    cls, preprocessor, processor = CONFIGS[name]
    if preprocessor is None:
        processor = {"image_processor": processor}
    images = image_processor(preprocessor, processor)
    full = full_processor(cls, images, processor)
    cases = [case for size in SIZES for case in record_images(cls, images, full, [size], 0)]
    return {
        "preprocessor_config": preprocessor,
        "processor_config": processor,
        "images": cases,
        "three": record_images(cls, images, full, THREE, 1),
    }


def record_files(folder):
    """Decodes all files; of JPEG the pixels themselves are kept, for a comparison with a tolerance."""
    out = {}
    folder.mkdir(exist_ok=True)
    for name, data in sorted(all_files().items()):
        path = folder / name
        path.write_bytes(data)
        image = np.asarray(load_image(str(path)))
        out[name] = {"width": image.shape[1], "height": image.shape[0], "sha256": digest(image)}
        if name.endswith(".jpg"):
            Image.fromarray(image).save(folder / f"{name}.png", optimize=True)
    return out


def main():
    folder = pathlib.Path(sys.argv[1])
    goldens = {
        "transformers": transformers.__version__,
        "files": record_files(folder / "images"),
        "families": {name: record_family(name) for name in CONFIGS},
    }
    text = json.dumps(goldens, separators=(",", ":"))
    # One line for each file, family and image.
    text = text.replace('{"size"', '\n{"size"').replace("},\"", '},\n"')
    (folder / "goldens.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
