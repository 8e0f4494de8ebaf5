"""Faces of real fonts beside the own strokes: `fonts.py FILE.ttf...` draws their letters and digits into fonts.npz.

Each face is one strip of all glyphs, placed as strokes.Style places its own. Only drawing them needs Pillow.
"""

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import numpy as np  # noqa: E402

from vision.strokes import BOTTOM, GLYPHS, SIDE, TOP  # noqa: E402

FILE, SIZE = HERE / "fonts.npz", 48


class Face:
    """A face with the interface of strokes.Style."""

    def __init__(self, strip, widths, advances, spacing):
        ends = np.cumsum(widths)
        self.size, self.spacing = SIZE, spacing
        self.glyphs = {c: (strip[:, e - w : e], float(a)) for c, e, w, a in zip(GLYPHS, ends, widths, advances)}

    def glyph(self, char):
        mask, advance = self.glyphs[char]
        return mask.astype(np.float32) / 255, -SIDE * SIZE / 100, advance + self.spacing


def load():
    """(strip, widths, advances) of each face."""
    with np.load(FILE) as f:
        return [tuple(f[f"{name}.{part}"] for part in ("strip", "widths", "advances")) for name in f["names"].tolist()]


def draw(path):
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.truetype(path, 100)
    box = font.getbbox("H", anchor="ls")
    font = ImageFont.truetype(path, 100 * SIZE / -box[1])
    height, pad = int(np.ceil((BOTTOM - TOP) * SIZE / 100)), SIDE * SIZE / 100
    strip, widths, advances = [], [], []
    for c in GLYPHS:
        left, _, right, _ = font.getbbox(c, anchor="ls")
        # A glyph that begins left of its origin is moved inside.
        image = Image.new("L", (int(right - min(left, 0) + 2 * pad) + 1, height))
        ImageDraw.Draw(image).text((pad - min(left, 0), (100 - TOP) * SIZE / 100), c, 255, font, anchor="ls")
        strip.append(np.asarray(image))
        widths.append(image.width)
        advances.append(font.getlength(c))
    return np.concatenate(strip, 1), np.array(widths, np.int16), np.array(advances, np.float32)


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("files", nargs="+")
    args = p.parse_args()
    out = {"names": np.array([Path(f).stem for f in args.files])}
    for f in args.files:
        out.update({f"{Path(f).stem}.{part}": a for part, a in zip(("strip", "widths", "advances"), draw(f))})
    np.savez_compressed(FILE, **out)
    print(f"{len(args.files)} faces, {FILE.stat().st_size} bytes")
