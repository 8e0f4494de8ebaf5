"""From a picture to patches, as crates/vision and transformers' Qwen2VLImageProcessorFast do it."""

import math

import numpy as np
import torch
import torch.nn.functional as F

PATCH, MERGE, FRAMES = 16, 2, 2
FACTOR = PATCH * MERGE
# 64 to 100 tokens a picture.
MIN_PIXELS, MAX_PIXELS = 64 * FACTOR**2, 100 * FACTOR**2
PREPROCESSOR = {
    "size": {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS}, "patch_size": PATCH, "temporal_patch_size": FRAMES, "merge_size": MERGE,
    "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "processor_class": "Qwen3VLProcessor", "image_processor_type": "Qwen2VLImageProcessorFast",
}


def smart_resize(height, width):
    """Sides as multiples of FACTOR, with about the same aspect ratio, their product within the limits."""
    if max(height, width) / min(height, width) > 200:
        raise ValueError(f"{width} x {height}: one side is more than 200 times the other")
    h, w = (round(side / FACTOR) * FACTOR for side in (height, width))
    if h * w > MAX_PIXELS:
        beta = math.sqrt(height * width / MAX_PIXELS)
        h, w = (max(FACTOR, math.floor(side / beta / FACTOR) * FACTOR) for side in (height, width))
    elif h * w < MIN_PIXELS:
        beta = math.sqrt(MIN_PIXELS / (height * width))
        h, w = (math.ceil(side * beta / FACTOR) * FACTOR for side in (height, width))
    return h, w


def resize(pixels, height, width):
    """[h, w, 3] uint8 to another size: bicubic with anti-aliasing on whole numbers, as torchvision does it."""
    if pixels.shape[:2] == (height, width):
        return pixels
    x = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    return F.interpolate(x, (height, width), mode="bicubic", antialias=True)[0].permute(1, 2, 0).numpy()


def patches(pixels):
    """[patches, 3 * 16 * 16] uint8 in merge order: blocks of 2 x 2 patches, row by row. Both frames of a patch are this one."""
    h, w = pixels.shape[0] // FACTOR, pixels.shape[1] // FACTOR
    x = pixels.reshape(h, MERGE, PATCH, w, MERGE, PATCH, 3).transpose(0, 3, 1, 4, 6, 2, 5)
    return np.ascontiguousarray(x).reshape(h * w * MERGE**2, -1)


def normalise(x):
    """Whole numbers of 0..255 to floats of -1..1, in the processor's one step."""
    return (x.float() - 127.5) / 127.5


def places(height, width):
    """Row and column of each patch of a grid of patches, in merge order: two arrays of int."""
    index = np.arange(height * width).reshape(height // MERGE, MERGE, width // MERGE, MERGE).transpose(0, 2, 1, 3).ravel()
    return index // width, index % width
