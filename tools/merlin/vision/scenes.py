"""Generated pictures with what can be asked about them.

A scene draws on a canvas and notes its objects (for the training's helper losses) and its exchanges: (kind of
question, words for its wording, the value to answer). The split `train` never draws what `eval`
draws: a part of the pairs of shape and colour, of the words and of the longer numbers.
"""

import zlib
from dataclasses import dataclass, field

import numpy as np

from words import POOLS
from vision import fonts, raster
from vision.pixels import FACTOR, MAX_PIXELS, MIN_PIXELS
from vision.strokes import Style, line

SHAPES, COLOURS = list(raster.SHAPES), list(raster.COLOURS)
UPPER, LOWER, DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz", "0123456789"
# Things that a patch can show, for the helper losses; 0 is nothing.
THINGS = ["", *SHAPES, "bar", *UPPER, *LOWER, *DIGITS]
THING = {name: i for i, name in enumerate(THINGS)}
HUE = {name: i + 1 for i, name in enumerate(COLOURS)}


def kept(text, share):
    """Whether evaluation keeps this for itself."""
    return zlib.crc32(f"picture {text}".encode()) % 100 < share


PAIRS = {split: [(s, c) for s in SHAPES for c in COLOURS if kept(f"{c} {s}", 15) == (split == "eval")] for split in ("train", "eval")}
_PLAIN = sorted({w.lower() for pool in POOLS.values() for w in pool.split() if w.isascii() and w.isalpha() and 2 <= len(w) <= 8})
WORDS = {split: [w for w in _PLAIN if kept(w, 15) == (split == "eval")] for split in ("train", "eval")}
KEPT_WORDS = set(WORDS["eval"])


def open_words(vocabulary):
    """Adds the words of a tokenizer's vocabulary to the training words."""
    more = {t[1:] for t in vocabulary if t.startswith("\u0120") and t[1:].isascii() and t[1:].isalpha() and t[1:].islower() and 2 <= len(t) - 1 <= 8}
    WORDS["train"] = sorted(set(WORDS["train"]) | {w for w in more if not kept(w, 15)})


@dataclass
class Scene:
    rng: np.random.Generator
    split: str
    height: int
    width: int
    scale: float = 1.0  # of the picture as drawn, compared with what the tower sees
    canvas: np.ndarray = None
    objects: list = field(default_factory=list)  # (x0, y0, x1, y1, thing, colour)
    exchanges: list = field(default_factory=list)  # (kind, words, value)

    def pick(self, options):
        return options[int(self.rng.integers(len(options)))]

    def chance(self, p):
        return self.rng.random() < p

    def ask(self, kind, value, **words):
        self.exchanges.append((kind, words, value))

    def pair(self, allowed=lambda s, c: True):
        """A (shape, colour) of this split; evaluation takes the pairs that training never shows."""
        for _ in range(200):
            s, c = self.pick(PAIRS[self.split])
            if allowed(s, c):
                return s, c
        return None

    def ground(self, colours):
        """Paints the background, apart from these RGB colours."""
        self.canvas = raster.background(self.rng, self.height, self.width, raster.background_colour(self.rng, colours))

    def shape(self, name, colour, rgb, cx, cy, r):
        raster.shape(self.canvas, self.rng, name, cx, cy, r, rgb)
        d = r * 0.75
        self.objects.append((cx - d, cy - d, cx + d, cy + d, name, colour))

    def text(self, mask, boxes, chars, colour, rgb, cx, cy, height, angle=0.0):
        """Writes a line whose capitals are `height` pixels high."""
        scale = height / STYLE_SIZE
        raster.text(self.canvas, mask, cx, cy, scale, angle, rgb)
        c, s, middle = np.cos(angle), np.sin(angle), mask.shape[1] / 2
        for char, (x0, x1) in zip(chars, boxes):
            along = ((x0 + x1) / 2 - middle - STYLE_SIZE * 0.1) * scale
            x, y, half = cx + along * c, cy + along * s, (x1 - x0) * scale * 0.4
            self.objects.append((x - half, y - height * 0.4, x + half, y + height * 0.4, char, colour))


STYLE_SIZE = 48


class Styles:
    """Text styles in use: faces of fonts, and own strokes in styles that are renewed one by one."""

    def __init__(self, rng, count=12, uses=60):
        self.rng, self.uses, self.left = rng, uses, uses
        self.styles = [Style(rng, STYLE_SIZE) for _ in range(count)]
        self.faces = fonts.load() if fonts.FILE.exists() else []

    def pick(self):
        if self.faces and self.rng.random() < 0.5:
            return fonts.Face(*self.faces[int(self.rng.integers(len(self.faces)))], spacing=max(0.0, self.rng.normal(1, 3)))
        self.left -= 1
        if self.left < 0:
            self.styles[int(self.rng.integers(len(self.styles)))] = Style(self.rng, STYLE_SIZE)
            self.left = self.uses
        return self.styles[int(self.rng.integers(len(self.styles)))]


def places(s, count, least, most):
    """Centres and radii of `count` objects that do not touch, left to right, as large as `most` of the shorter side if there is room."""
    w, h = s.width, s.height
    r = min(most * min(w, h), 0.62 * float(np.sqrt(w * h / max(count, 1))) / 1.3)
    while True:
        found = []
        for _ in range(60 * count):
            radius = min(max(least, r * s.rng.uniform(0.65, 1)), 0.46 * min(w, h) - 1)
            x, y = (s.rng.uniform(min(radius * 1.06 + 1, side / 2), max(side - radius * 1.06 - 1, side / 2)) for side in (w, h))
            if all(np.hypot(x - a, y - b) > 1.08 * (radius + q) + 3 for a, b, q in found):
                found.append((x, y, radius))
                if len(found) == count:
                    return sorted(found)
        r *= 0.85
        least = min(least, r)


def one(s, styles):
    """A single shape."""
    shape, colour = s.pair()
    rgb = raster.shade(s.rng, colour)
    s.ground([rgb])
    (x, y, r), = places(s, 1, 11 * s.scale, s.rng.uniform(0.14, 0.48))
    s.shape(shape, colour, rgb, x, y, r)
    s.ask("the_shape", shape)
    s.ask("the_colour", colour, thing=s.pick(["shape", "object", "figure"]))
    s.ask("colour_of", colour, thing=shape)
    s.ask("shape_of", shape, colour=colour)
    s.ask("describe", [(colour, shape)])
    truth(s, [(shape, colour)])
    s.ask("count_all", 1)


def several(s, styles):
    """Two to four shapes that differ in both shape and colour."""
    pairs = []
    for _ in range(int(s.rng.integers(2, 5))):
        pair = s.pair(lambda a, b: all(a != p and b != q for p, q in pairs))
        if pair:
            pairs.append(pair)
    rgbs = [raster.shade(s.rng, c) for _, c in pairs]
    s.ground(rgbs)
    spots = places(s, len(pairs), 11 * s.scale, s.rng.uniform(0.15, 0.3))
    for (shape, colour), rgb, (x, y, r) in zip(pairs, rgbs, spots):
        s.shape(shape, colour, rgb, x, y, r)
    for shape, colour in pairs:
        s.ask("colour_of", colour, thing=shape)
        s.ask("shape_of", shape, colour=colour)
    s.ask("count_all", len(pairs))
    if all(b[0] - a[0] > 0.08 * s.width for a, b in zip(spots, spots[1:])):
        s.ask("describe", [(c, p) for p, c in pairs])
        s.ask("describe", [(c, p) for p, c in pairs])
        s.ask("left", pairs[0][::-1])
        s.ask("right", pairs[-1][::-1])
    truth(s, pairs)


def truth(s, pairs):
    """Yes and no, equally often."""
    for _ in range(2):
        if s.chance(0.5):
            shape, colour = s.pick(pairs)
            s.ask("exists", True, **s.pick([{"shape": shape}, {"colour": colour}, {"shape": shape, "colour": colour}]))
        else:
            shape = s.pick([p for p in SHAPES if all(p != q for q, _ in pairs)])
            colour = s.pick([c for c in COLOURS if all(c != d for _, d in pairs)])
            s.ask("exists", False, **s.pick([{"shape": shape}, {"colour": colour}, {"shape": shape, "colour": s.pick(pairs)[1]}]))


def count(s, styles):
    """Zero to nine shapes of one or two kinds."""
    total = int(s.rng.integers(0, 10))
    first = s.pair()
    mode = s.rng.random()
    if mode < 0.45 or total < 2:
        kinds, split = [first], [total]
    else:
        # The second kind differs in shape, in colour, or in both.
        second = s.pair(lambda a, b: (a != first[0] or mode < 0.6) and (b != first[1] or mode > 0.85) and (a, b) != first) or first
        part = int(s.rng.integers(1, total))
        kinds, split = ([first, second], [part, total - part]) if second != first else ([first], [total])
    shades = [raster.shade(s.rng, c) for _, c in kinds]
    s.ground(shades)
    spots = places(s, total, 11 * s.scale, s.rng.uniform(0.1, 0.22)) if total else []
    s.rng.shuffle(spots)
    order = [k for k, n in enumerate(split) for _ in range(n)]
    for k, (x, y, r) in zip(order, spots):
        s.shape(*kinds[k], shades[k], x, y, r)
    shapes = {p: sum(n for (q, _), n in zip(kinds, split) if q == p) for p, _ in kinds}
    colours = {c: sum(n for (_, d), n in zip(kinds, split) if d == c) for _, c in kinds}
    for p, n in shapes.items():
        s.ask("count_shape", n, thing=p)
        s.ask("count_shape", n, thing=p)
    for c, n in colours.items():
        s.ask("count_colour", n, colour=c)
    s.ask("count_all", total)
    if s.chance(0.25):
        s.ask("count_shape", 0, thing=s.pick([p for p in SHAPES if p not in shapes]))
    if total:
        truth(s, kinds)


def word(s):
    """(word, as written) of this split; half of the training words are no words, so that reading is learnt, not the list."""
    if s.split == "eval" or s.chance(0.55):
        text = s.pick(WORDS[s.split])
    else:
        n = int(s.rng.integers(1, 9))
        if s.chance(0.5):
            text = "".join(s.pick(LOWER) for _ in range(n))
        else:
            text = "".join(s.pick("bcdfghklmnprstvwz") + s.pick("aeiou") for _ in range((n + 1) // 2))[:n]
        if text in KEPT_WORDS:
            return word(s)
    case = s.rng.random()
    return text.upper() if case < 0.6 else text if case < 0.85 else text.capitalize()


def number(s):
    n = int(s.rng.integers(1, 6))
    while True:
        text = "".join(s.pick(DIGITS) for _ in range(n))
        if n < 3 or kept(text, 10) == (s.split == "eval"):
            return text


def written(s, styles, value, kind):
    """A line of text alone on the picture."""
    colour = s.pick(COLOURS) if s.chance(0.6) else s.pick(["black", "white"])
    rgb = raster.shade(s.rng, colour)
    s.ground([rgb])
    mask, boxes = line(styles.pick(), value)
    angle = s.rng.normal(0, 0.05) if s.chance(0.4) else 0.0
    wide = mask.shape[1] / STYLE_SIZE
    largest = min(s.width * 0.94 / wide, s.height * 0.5)
    high = min(largest, max(13 * s.scale, largest * s.rng.uniform(0.5, 1)))
    free_x, free_y = max(s.width - wide * high, 0) / 2, max(s.height - 1.9 * high, 0) / 2
    s.text(mask, boxes, value, colour, rgb, s.width / 2 + s.rng.uniform(-1, 1) * free_x, s.height / 2 + s.rng.uniform(-1, 1) * free_y, high, angle)
    s.ask(kind, value)
    s.ask(kind, value)
    s.ask("colour_of", colour, thing=s.pick(["text", "writing"]) if kind == "read_word" else s.pick(["number", "text"]))


def words(s, styles):
    written(s, styles, word(s), "read_word")


def digits(s, styles):
    written(s, styles, number(s), "read_number")


def sign(s, styles):
    """A large shape with a number or a short word on it."""
    shape, colour = s.pair(lambda a, b: a in ("circle", "square", "rectangle", "oval", "hexagon", "diamond"))
    rgb = raster.shade(s.rng, colour)
    ink = s.pick([c for c in COLOURS if c != colour and raster.contrast(raster.shade(s.rng, c), rgb) > 120] or ["black" if rgb.mean() > 128 else "white"])
    ink_rgb = raster.shade(s.rng, ink)
    s.ground([rgb])
    (x, y, r), = places(s, 1, 0.4 * min(s.width, s.height), 0.48)
    s.shape(shape, colour, rgb, x, y, r)
    value, kind = (number(s)[:3], "read_number") if s.chance(0.5) else (word(s)[:4], "read_word")
    if kind == "read_word" and value.lower() in KEPT_WORDS and s.split == "train":
        value = value[:1]
    mask, boxes = line(styles.pick(), value)
    high = min(r * 1.15 / (mask.shape[1] / STYLE_SIZE), r * 0.6)
    s.text(mask, boxes, value, ink, ink_rgb, x, y, high)
    s.ask(kind, value)
    s.ask(kind, value)
    s.ask("colour_of", colour, thing=shape)
    s.ask("shape_of", shape, colour=colour)


def chart(s, styles):
    """Two to five bars with letters below and, mostly, values above."""
    n = int(s.rng.integers(2, 6))
    values = s.rng.permutation(np.arange(1, 10))[:n].tolist()
    labels = s.rng.permutation(list(UPPER))[:n].tolist()
    plain = s.chance(0.4)
    colours = [s.pick(COLOURS)] * n if plain else s.rng.permutation(COLOURS)[:n].tolist()
    shades = [raster.shade(s.rng, colours[0])] * n if plain else [raster.shade(s.rng, c) for c in colours]
    ink = "black" if s.chance(0.8) else "gray"
    ink_rgb = raster.shade(s.rng, "black") if ink == "black" else np.full(3, 70, np.float32)
    ground = raster.background_colour(s.rng, [*shades, ink_rgb], 70)
    s.canvas = raster.background(s.rng, s.height, s.width, ground)
    style, left, top = styles.pick(), s.width * s.rng.uniform(0.05, 0.12), s.height * s.rng.uniform(0.06, 0.12)
    slot = (s.width * s.rng.uniform(0.88, 0.95) - left) / n
    high = min(slot * 0.5, s.height * s.rng.uniform(0.085, 0.12))
    base = s.height - high * 2.0
    full = base - top - high * 1.7
    fat, shown = slot * s.rng.uniform(0.45, 0.75), s.chance(0.8)
    if s.chance(0.5):
        raster.paint(s.canvas, np.ones((max(1, int(s.height / 130)), int(slot * n)), np.float32), int(base), int(left), ink_rgb)
    for i, (v, label, colour, rgb) in enumerate(zip(values, labels, colours, shades)):
        x, tall = left + (i + 0.5) * slot, full * v / 9
        raster.paint(s.canvas, np.ones((max(1, int(tall)), int(fat)), np.float32), int(base - tall), int(x - fat / 2), rgb)
        s.objects.append((x - fat / 3, base - tall, x + fat / 3, base, "bar", colour))
        s.text(*line(style, label), label, ink, ink_rgb, x, base + high * 1.05, high)
        if shown:
            s.text(*line(style, str(v)), str(v), ink, ink_rgb, x, base - tall - high * 0.85, high)
            s.ask("bar_value", v, bar=label)
    s.ask("bar_high", labels[int(np.argmax(values))])
    s.ask("bar_low", labels[int(np.argmin(values))])
    s.ask("bar_count", n)
    if not plain:
        i = int(s.rng.integers(n))
        s.ask("bar_colour", colours[i], bar=labels[i])


MAKERS = {"one": one, "several": several, "count": count, "words": words, "digits": digits, "sign": sign, "chart": chart}
MIX = {"one": 0.10, "several": 0.20, "count": 0.26, "words": 0.15, "digits": 0.10, "sign": 0.05, "chart": 0.14}


def grid(rng, kind, most):
    """(height, width) in tokens: 64 to `most` of them, of varied shape."""
    while True:
        area = rng.uniform(62, most + 1)
        wide = rng.uniform(0.2, 1.1) if kind in ("words", "digits") and rng.random() < 0.4 else rng.normal(0.1, 0.33)
        h, w = round(np.sqrt(area * np.exp(-wide))), round(np.sqrt(area * np.exp(wide)))
        if MIN_PIXELS <= h * w * FACTOR**2 <= min(MAX_PIXELS, most * FACTOR**2) and h >= 2 and w >= 2:
            return h, w


def labels(scene, height, width):
    """(thing, colour) numbers of each patch of a `height` x `width` grid of patches, row by row."""
    things, hues = np.zeros((height, width), np.uint8), np.zeros((height, width), np.uint8)
    sy, sx = height / scene.height, width / scene.width
    for x0, y0, x1, y1, thing, colour in scene.objects:
        a, b = int(np.ceil(y0 * sy - 0.5)), int(np.floor(y1 * sy - 0.5)) + 1
        c, d = int(np.ceil(x0 * sx - 0.5)), int(np.floor(x1 * sx - 0.5)) + 1
        if b <= a:
            a = int((y0 + y1) / 2 * sy)
            b = a + 1
        if d <= c:
            c = int((x0 + x1) / 2 * sx)
            d = c + 1
        things[max(a, 0) : max(b, 0), max(c, 0) : max(d, 0)] = THING[thing]
        hues[max(a, 0) : max(b, 0), max(c, 0) : max(d, 0)] = HUE[colour]
    return things, hues


def make(rng, split, kind, most, styles, grain):
    """A finished scene at some size (its `canvas` then is uint8), and the (height, width) in tokens of its picture."""
    h, w = grid(rng, kind, most)
    height, width, scale = h * FACTOR, w * FACTOR, 1.0
    if rng.random() < 0.25:
        # Another size, as a user's picture would have: the preprocessor resizes it.
        scale = float(np.exp(rng.uniform(-0.45, 0.45)))
        height, width = (int(side * scale * rng.uniform(0.97, 1.03)) for side in (height, width))
    scene = Scene(rng, split, height, width, scale)
    MAKERS[kind](scene, styles)
    scene.canvas = raster.finish(scene.canvas, rng, grain)
    return scene, (h, w)
