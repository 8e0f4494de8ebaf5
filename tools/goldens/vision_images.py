"""Small image files of every kind that the decoders support, and pixels by an integer recipe."""

import io
import struct
import zlib

import numpy as np
from PIL import Image

ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
XMP = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'


def pixels(width, height, seed=0):
    """Squares of noise and of gradients; `tests/support/mod.rs` has the same recipe."""
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(3), indexing="ij")
    h = (x * 0x9E3779B1 + y * 0x85EBCA77 + c * 0xC2B2AE3D + seed * 0x27D4EB2F) & 0xFFFFFFFF
    h ^= h >> 15
    h = (h * 0x2C1B3C6D) & 0xFFFFFFFF
    noise = (h ^ (h >> 12)) >> 24
    smooth = (x * 3 + y * 2 + c * 40) & 255
    return np.where((x // 8 + y // 8) % 2 == 0, noise, smooth).astype(np.uint8)


def picture(width, height, seed=0, mode="RGB"):
    return Image.fromarray(pixels(width, height, seed)).convert(mode)


def with_alpha(width, height):
    alpha = Image.fromarray(pixels(width, height, 9)[:, :, 0])
    image = picture(width, height, 3)
    image.putalpha(alpha)
    return image


def saved(image, kind, **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def pack_rows(values, depth):
    """Rows of samples [height, width * samples] as PNG stores them, without a filter."""
    if depth == 16:
        rows = values.astype(">u2").view(np.uint8).reshape(values.shape[0], -1)
    else:
        bits = np.unpackbits(values.astype(np.uint8)[:, :, None], axis=2)[:, :, 8 - depth :]
        rows = np.packbits(bits.reshape(values.shape[0], -1), axis=1)
    return b"".join(b"\0" + row.tobytes() for row in rows)


def png(values, depth, color, palette=None, transparency=None, interlaced=False):
    """A PNG of `values` [height, width, samples]; Pillow does not write most of these kinds."""
    height, width = values.shape[:2]
    passes = ADAM7 if interlaced else [(0, 0, 1, 1)]
    parts = [values[top::down, left::right] for left, top, right, down in passes]
    parts = [pack_rows(part.reshape(part.shape[0], -1), depth) for part in parts if part.size]
    data = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, int(interlaced)))
    if palette is not None:
        data += chunk(b"PLTE", palette)
    if transparency is not None:
        data += chunk(b"tRNS", transparency)
    return b"\x89PNG\r\n\x1a\n" + data + chunk(b"IDAT", zlib.compress(b"".join(parts), 9)) + chunk(b"IEND", b"")


def random_samples(width, height, color, depth, seed=5):
    generator = np.random.default_rng(seed)
    values = generator.integers(0, 1 << depth, (height, width, SAMPLES[color]), dtype=np.uint32)
    if color == 0 and depth == 16:
        values[::2] &= 0x1FF  # Pillow clips: some values must be below 256.
    return values


def png_files():
    files = {}
    for color, name in [(0, "grey"), (2, "rgb"), (4, "grey_alpha"), (6, "rgba"), (3, "palette")]:
        for depth in {0: [1, 2, 4, 8, 16], 3: [1, 2, 4, 8]}.get(color, [8, 16]):
            values = random_samples(13, 9, color, depth)
            # One entry is missing, so one index is beyond the palette.
            palette = pixels((1 << depth) - 1, 1, 4).tobytes() if color == 3 else None
            files[f"{name}_{depth}.png"] = png(values, depth, color, palette)
            if depth != 2:
                files[f"{name}_{depth}_interlaced.png"] = png(values, depth, color, palette, interlaced=True)
    indices = random_samples(13, 9, 3, 4)
    files["palette_transparent.png"] = png(indices, 4, 3, pixels(16, 1).tobytes(), bytes(range(0, 240, 15)))
    files["grey_transparent.png"] = png(random_samples(7, 5, 0, 8), 8, 0, None, b"\0\x07")
    for width, height in [(1, 1), (1, 9), (9, 1), (3, 2)]:
        values = random_samples(width, height, 2, 8)
        files[f"side_{width}x{height}_interlaced.png"] = png(values, 8, 2, interlaced=True)
    files["filters.png"] = saved(picture(40, 30), "PNG", optimize=True)
    frames = [picture(12, 8, seed) for seed in range(3)]
    files["animated.png"] = saved(frames[0], "PNG", save_all=True, append_images=frames[1:])
    text = b"XML:com.adobe.xmp\0\0\0\0\0" + XMP
    plain = saved(picture(6, 4), "PNG")
    files["xmp.png"] = plain[:33] + chunk(b"iTXt", text) + plain[33:]
    return files


def jpeg_files():
    files = {}
    for name, subsampling in [("444", 0), ("422", 1), ("420", 2)]:
        files[f"{name}.jpg"] = saved(picture(45, 35), "JPEG", quality=90, subsampling=subsampling)
        options = {"quality": 75, "subsampling": subsampling, "progressive": True}
        files[f"{name}_progressive.jpg"] = saved(picture(33, 47, 1), "JPEG", **options)
    files["grey.jpg"] = saved(picture(21, 19, mode="L"), "JPEG", quality=85)
    files["restart.jpg"] = saved(picture(50, 40, 2), "JPEG", quality=80, restart_marker_blocks=2)
    files["side_1x1.jpg"] = saved(picture(1, 1), "JPEG")
    files["side_200x1.jpg"] = saved(picture(200, 1), "JPEG")
    files["rgb_without_transform.jpg"] = saved(picture(24, 16), "JPEG", keep_rgb=True)
    files["xmp.jpg"] = saved(picture(32, 16), "JPEG", xmp=XMP)
    return files


def webp_files():
    lossless = {"lossless": True, "exact": True}
    frames = [with_alpha(20, 14), picture(20, 14, 2, "RGBA")]
    files = {
        "lossy.webp": saved(picture(45, 35), "WEBP", quality=80),
        "lossless.webp": saved(picture(31, 22), "WEBP", **lossless),
        "lossy_alpha.webp": saved(with_alpha(33, 20), "WEBP", quality=70, exact=True),
        "lossless_alpha.webp": saved(with_alpha(17, 23), "WEBP", **lossless),
        "side_1x9.webp": saved(picture(1, 9), "WEBP", quality=90),
        "animated.webp": saved(frames[0], "WEBP", save_all=True, append_images=frames[1:], **lossless),
        "animated_lossy.webp": saved(picture(24, 16), "WEBP", save_all=True, append_images=[picture(24, 16, 5)]),
        "xmp.webp": saved(picture(8, 6), "WEBP", xmp=XMP, **lossless),
    }
    # The first frame in a corner of a larger canvas.
    small = bytearray(files["animated.webp"])
    small[24:30] = struct.pack("<I", 29)[:3] + struct.pack("<I", 19)[:3]
    frame = small.index(b"ANMF") + 8
    small[frame : frame + 6] = struct.pack("<I", 3)[:3] + struct.pack("<I", 2)[:3]
    files["animated_offset.webp"] = bytes(small)
    return files


def gif_files():
    palette = picture(40, 30).quantize(60)
    frames = [picture(20, 12, seed).quantize(16) for seed in range(2)]
    files = {
        "palette.gif": saved(palette, "GIF", interlace=0),
        "interlaced.gif": saved(palette, "GIF", interlace=1),
        "interlaced_short.gif": saved(picture(9, 5).quantize(8), "GIF", interlace=1),
        "transparent.gif": saved(palette, "GIF", transparency=3),
        "animated.gif": saved(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "grey.gif": saved(picture(19, 11, mode="L"), "GIF"),
        "noise.gif": saved(Image.fromarray(pixels(120, 90)).quantize(256), "GIF"),
    }
    # A screen larger than the first frame: the rest has the first colour.
    larger = bytearray(files["palette.gif"])
    larger[6:10] = struct.pack("<HH", 50, 33)
    files["small_frame.gif"] = bytes(larger)
    smaller = bytearray(files["palette.gif"])
    smaller[6:10] = struct.pack("<HH", 5, 3)
    files["large_frame.gif"] = bytes(smaller)
    return files


def oriented_files():
    files = {}
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        image = picture(19, 11, orientation)
        files[f"exif_{orientation}.png"] = saved(image, "PNG", exif=exif)
        files[f"exif_{orientation}.jpg"] = saved(image, "JPEG", exif=exif, quality=95, subsampling=0)
        files[f"exif_{orientation}.webp"] = saved(image, "WEBP", exif=exif, lossless=True)
    return files


def all_files():
    return png_files() | jpeg_files() | webp_files() | gif_files() | oriented_files()
