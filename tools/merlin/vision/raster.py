"""A small anti-aliasing rasteriser on numpy: backgrounds, shapes by signed distance, warped masks of text, grain."""

import colorsys

import numpy as np

# Hue (degrees), saturation and value that each colour's name covers; the ranges leave gaps between the names.
COLOURS = {
    "red": ((-8, 6), (0.8, 1), (0.72, 1)), "orange": ((24, 34), (0.88, 1), (0.93, 1)), "yellow": ((51, 60), (0.75, 1), (0.92, 1)),
    "green": ((100, 145), (0.6, 1), (0.42, 0.8)), "blue": ((212, 238), (0.75, 1), (0.6, 1)), "purple": ((268, 286), (0.55, 0.9), (0.45, 0.72)),
    "pink": ((322, 345), (0.32, 0.55), (0.95, 1)), "brown": ((18, 27), (0.62, 0.8), (0.33, 0.5)), "black": ((0, 360), (0, 0.2), (0, 0.1)),
    "white": ((0, 360), (0, 0.03), (0.96, 1)), "gray": ((0, 360), (0, 0.04), (0.42, 0.62)),
}


def shade(rng, name):
    """One colour of that name, as RGB of 0..255."""
    h, s, v = (rng.uniform(*r) for r in COLOURS[name])
    return np.array(colorsys.hsv_to_rgb(h / 360 % 1, s, v), np.float32) * 255


def contrast(a, b):
    """Distance of two RGB colours, weighted about as eyes do."""
    return float(np.sqrt((((a - b) ** 2) * (0.8, 1.2, 0.6)).sum()))


def background_colour(rng, against, least=95):
    """A colour that differs from all of `against`: mostly light, sometimes dark or vivid."""
    best, found = None, -1.0
    for _ in range(12):
        kind = rng.random()
        value = rng.uniform(0.82, 1) if kind < 0.55 else rng.uniform(0, 0.3) if kind < 0.8 else rng.uniform(0.3, 0.9)
        colour = np.array(colorsys.hsv_to_rgb(rng.random(), rng.uniform(0, 0.25 if kind < 0.9 else 0.8), value), np.float32) * 255
        if rng.random() < 0.2:
            colour = np.full(3, 255, np.float32)
        nearest = min(contrast(colour, a) for a in against)
        if nearest >= least:
            return colour
        if nearest > found:
            best, found = colour, nearest
    return best


def background(rng, height, width, colour):
    """[height, width, 3] floats: flat, a gradient, soft clouds, stripes or paper lines, all near `colour`."""
    canvas = np.empty((height, width, 3), np.float32)
    canvas[:] = colour
    kind, depth = rng.random(), rng.uniform(4, 22)
    y, x = np.arange(height, dtype=np.float32)[:, None], np.arange(width, dtype=np.float32)[None, :]
    if kind < 0.25:
        a = rng.uniform(0, 2 * np.pi)
        ramp = x * (float(np.cos(a)) * depth / width) + y * (float(np.sin(a)) * depth / height)
    elif kind < 0.4:
        coarse = rng.normal(0, depth / 2, (5, 5)).astype(np.float32)
        knots = np.arange(5, dtype=np.float32)
        ramp = np.maximum(1 - np.abs(y * (4 / height) - knots), 0) @ coarse @ np.maximum(1 - np.abs(x.T * (4 / width) - knots), 0).T
    elif kind < 0.5:
        period, a = rng.uniform(6, 40), rng.uniform(0, np.pi)
        ramp = (np.sin((float(np.cos(a)) * x + float(np.sin(a)) * y) * (2 * np.pi / period)) > rng.uniform(-0.5, 0.9)) * np.float32(depth * 0.7)
    elif kind < 0.57:
        step = int(rng.integers(12, 40))
        ramp = ((y % step < 1) | ((x % step < 1) & (rng.random() < 0.5))) * np.float32(-depth)
    else:
        return canvas
    canvas += ramp[..., None]
    return canvas


def bilinear(image, y, x):
    """Samples a [h, w] array at float positions; 0 outside."""
    h, w = image.shape
    y0, x0 = np.floor(y).astype(np.int32), np.floor(x).astype(np.int32)
    fy, fx = y - y0, x - x0
    padded = np.zeros((h + 3, w + 3), np.float32)
    padded[1 : h + 1, 1 : w + 1] = image
    at = (np.clip(y0 + 1, 0, h + 1)) * (w + 3) + np.clip(x0 + 1, 0, w + 1)
    flat = padded.ravel()
    top = flat[at] * (1 - fx) + flat[at + 1] * fx
    low = flat[at + w + 3] * (1 - fx) + flat[at + w + 4] * fx
    return top * (1 - fy) + low * fy


def polygon(x, y, sides, radius):
    """Distance to a regular polygon with a vertex at the top."""
    sector = 2 * np.pi / sides
    a = np.arctan2(x, -y)
    a = np.abs((a % sector) - sector / 2)
    return np.hypot(x, y) * np.cos(a) - radius * float(np.cos(sector / 2))


def box(x, y, w, h):
    dx, dy = np.abs(x) - w, np.abs(y) - h
    return np.hypot(np.maximum(dx, 0), np.maximum(dy, 0)) + np.minimum(np.maximum(dx, dy), 0)


def star(x, y, radius, inner):
    """A five-pointed star: folds the plane into half a point, then the distance to its edge."""
    sector = 2 * np.pi / 5
    a = np.arctan2(x, -y)
    a = np.abs((a + sector / 2) % sector - sector / 2)
    r = np.hypot(x, y)
    px, py = r * np.sin(a), r * np.cos(a)
    ex, ey = float(inner * np.sin(sector / 2)), float(inner * np.cos(sector / 2) - radius)
    return (px * -ey + (py - radius) * ex) / float(np.hypot(ex, ey))


def heart(x, y, r):
    """Two lobes, and below their centres the square whose lower sides touch them."""
    ax = np.abs(x)
    lobes = np.hypot(ax - 0.48 * r, y + 0.25 * r) - 0.5 * r
    wedge = np.maximum(ax + y - 0.937 * r, ax - y - 0.73 * r) * 0.70710678
    return np.minimum(lobes, np.maximum(wedge, -(y + 0.25 * r)))


def moon(x, y, r):
    return np.maximum(np.hypot(x, y) - r, r * 0.85 - np.hypot(x - r * 0.52, y))


# Distance functions of (x, y, radius, a shape number of 0..1 that varies proportions).
SHAPES = {
    "circle": lambda x, y, r, k: np.hypot(x, y) - r,
    "square": lambda x, y, r, k: box(x, y, r * 0.82, r * 0.82),
    "triangle": lambda x, y, r, k: polygon(x, y - r * 0.15, 3, r * 1.12),
    "rectangle": lambda x, y, r, k: box(x, y, r, r * (0.4 + 0.18 * k)),
    "oval": lambda x, y, r, k: (np.hypot(x / r, y / (r * (0.5 + 0.12 * k))) - 1) * r * (0.5 + 0.12 * k),
    "star": lambda x, y, r, k: star(x, y, r * 1.08, r * (0.42 + 0.1 * k)),
    "heart": lambda x, y, r, k: heart(x, y, r),
    "diamond": lambda x, y, r, k: (np.abs(x) / (0.6 + 0.1 * k) + np.abs(y) - r * 1.05) * 0.55,
    "cross": lambda x, y, r, k: np.minimum(box(x, y, r, r * (0.26 + 0.1 * k)), box(x, y, r * (0.26 + 0.1 * k), r)),
    "ring": lambda x, y, r, k: np.abs(np.hypot(x, y) - r * (0.8 - 0.07 * k)) - r * (0.14 + 0.07 * k),
    "hexagon": lambda x, y, r, k: polygon(x, y, 6, r),
    "moon": lambda x, y, r, k: moon(x, y, r),
}
# How far each may be turned without turning into another: degrees to both sides.
TURNS = {"square": 14, "triangle": 15, "rectangle": 20, "oval": 20, "star": 36, "heart": 15, "diamond": 8, "cross": 14, "ring": 180, "hexagon": 30, "moon": 35, "circle": 180}


def paint(canvas, alpha, top, left, colour):
    """Blends a colour ([3], or [h, w, 3]) into the canvas where `alpha` [h, w] says, clipped at the borders."""
    height, width = canvas.shape[:2]
    y0, x0, y1, x1 = max(top, 0), max(left, 0), min(top + alpha.shape[0], height), min(left + alpha.shape[1], width)
    if y0 >= y1 or x0 >= x1:
        return
    a = alpha[y0 - top : y1 - top, x0 - left : x1 - left, None]
    if colour.ndim == 3:
        colour = colour[y0 - top : y1 - top, x0 - left : x1 - left]
    part = canvas[y0:y1, x0:x1]
    part += a * (colour - part)


def shape(canvas, rng, name, cx, cy, r, colour):
    """A filled shape, sometimes with a darker rim or a shaded body."""
    turn = np.radians(rng.uniform(-TURNS[name], TURNS[name]))
    if name == "rectangle" and rng.random() < 0.3:
        turn += np.pi / 2
    r = float(r)
    half = int(r * 1.3) + 3
    top, left = int(cy) - half, int(cx) - half
    y = np.arange(top, top + 2 * half, dtype=np.float32)[:, None] + 0.5 - cy
    x = np.arange(left, left + 2 * half, dtype=np.float32)[None, :] + 0.5 - cx
    c, s = np.float32(np.cos(turn)), np.float32(np.sin(turn))
    k = rng.random()
    d = SHAPES[name](x * c + y * s, y * c - x * s, r, k)
    style = rng.random()
    if style < 0.15:
        d = d - r * 0.08
    alpha = np.clip(0.5 - d, 0, 1)
    if 0.15 <= style < 0.3:
        colour = colour * (1 + (0.16 / r) * (x * c - y * s))[..., None].clip(0.8, 1.15)
    paint(canvas, alpha, top, left, colour)
    if style > 0.85 and r > 14:
        rim = np.clip(0.5 - np.abs(d + r * 0.05) + r * 0.05, 0, 1)
        paint(canvas, rim, top, left, colour * 0.55)


def text(canvas, mask, cx, cy, scale, angle, colour):
    """Paints a text mask, turned by `angle` radians, its centre at (cx, cy)."""
    while scale < 0.6 and min(mask.shape) > 8:
        # Halved until sampling between two pixels no longer skips any.
        h, w = mask.shape[0] // 2 * 2, mask.shape[1] // 2 * 2
        mask = mask[:h, :w].reshape(h // 2, 2, w // 2, 2).mean((1, 3))
        scale *= 2
    h, w = mask.shape
    c, s = np.cos(angle), np.sin(angle)
    half_w = int((abs(w * c) + abs(h * s)) * scale / 2) + 2
    half_h = int((abs(w * s) + abs(h * c)) * scale / 2) + 2
    top, left = int(cy) - half_h, int(cx) - half_w
    y = np.arange(top, top + 2 * half_h, dtype=np.float32)[:, None] + np.float32(0.5 - cy)
    x = np.arange(left, left + 2 * half_w, dtype=np.float32)[None, :] + np.float32(0.5 - cx)
    alpha = bilinear(mask, (y * np.float32(c / scale) - x * np.float32(s / scale)) + (h - 1) / 2, (x * np.float32(c / scale) + y * np.float32(s / scale)) + (w - 1) / 2)
    paint(canvas, alpha, top, left, colour)


def finish(canvas, rng, grain):
    """Grain, a change of brightness, and whole numbers: [h, w, 3] uint8."""
    kind = rng.random()
    if kind < 0.35:
        start = int(rng.integers(0, len(grain) - canvas.size))
        canvas += grain[start : start + canvas.size].reshape(canvas.shape) * np.float32(rng.uniform(1, 9))
    canvas += 0.5
    return np.clip(canvas, 0, 255, out=canvas).astype(np.uint8)
