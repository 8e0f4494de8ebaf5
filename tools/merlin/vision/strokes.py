"""Letters and digits of an own stroke font, drawn in random styles: weight, width, slant, serifs, squareness, shake.

A glyph is a list of strokes; a stroke is points `x,y` and arcs `@cx,cy,rx,ry,from,to` (degrees, clockwise from
the right). Units are hundredths of the height of a capital; y grows downwards, the baseline is at 100.
"""

import numpy as np

GLYPHS = {
    "A": "0,100 30,0 60,100; 12,65 48,65", "B": "0,0 0,100; 0,0 30,0 @30,24,24,24,-90,90 0,48; 0,48 32,48 @32,74,28,26,-90,90 0,100",
    "C": "@32,50,32,50,-50,-310", "D": "0,0 0,100; 0,0 25,0 @25,50,35,50,-90,90 0,100", "E": "55,0 0,0 0,100 55,100; 0,48 45,48",
    "F": "55,0 0,0 0,100; 0,48 45,48", "G": "@33,50,33,50,-50,-330 62,55 38,55", "H": "0,0 0,100; 58,0 58,100; 0,50 58,50",
    "I": "8,0 8,100", "J": "42,0 42,70 @22,72,20,28,0,150", "K": "0,0 0,100; 55,0 0,60; 20,42 58,100", "L": "0,0 0,100 52,100",
    "M": "0,100 0,0 35,70 70,0 70,100", "N": "0,100 0,0 58,100 58,0", "O": "@33,50,33,50,0,360",
    "P": "0,100 0,0 30,0 @30,27,26,27,-90,90 0,54", "Q": "@33,50,33,50,0,360; 40,72 66,105",
    "R": "0,100 0,0 30,0 @30,27,26,27,-90,90 0,54; 28,54 58,100", "S": "@29,25,26,25,-30,-270 @29,75,28,25,-90,150",
    "T": "0,0 60,0; 30,0 30,100", "U": "0,0 0,65 @29,68,29,32,180,0 58,0", "V": "0,0 30,100 60,0", "W": "0,0 22,100 42,20 62,100 84,0",
    "X": "0,0 58,100; 58,0 0,100", "Y": "0,0 30,50 60,0; 30,50 30,100", "Z": "0,0 58,0 0,100 58,100",
    "0": "@25,50,25,50,0,360", "1": "4,24 24,0 24,100", "2": "@28,28,27,28,-160,20 0,100 56,100", "3": "@26,25,25,25,-150,90 @27,74,28,26,-90,150",
    "4": "42,100 42,0 0,68 58,68", "5": "50,0 8,0 4,47 @26,68,28,32,-140,140", "6": "44,0 22,22 6,48 2,68; @28,70,26,30,0,360",
    "7": "0,0 56,0 20,100", "8": "@28,25,22,25,0,360; @28,75,27,25,0,360", "9": "@28,30,26,30,0,360; 54,32 50,55 34,78 12,100",
    "a": "@24,68,24,32,0,360; 48,36 48,100", "b": "0,0 0,100; @25,68,25,32,0,360", "c": "@26,68,26,32,-50,-310", "d": "50,0 50,100; @25,68,25,32,0,360",
    "e": "2,66 50,66 @26,68,25,32,0,-310", "f": "@34,18,14,18,-40,-180 20,100; 4,40 40,40", "g": "@25,68,25,32,0,360; 50,36 50,105 @26,106,24,24,0,150",
    "h": "0,0 0,100; 0,62 @24,60,24,25,180,360 48,100", "i": "8,38 8,100; 8,13 8,17", "j": "24,38 24,106 @8,106,16,22,0,120; 24,13 24,17",
    "k": "0,0 0,100; 42,38 0,76; 16,62 44,100", "l": "8,0 8,100", "m": "0,38 0,100; 0,60 @20,58,20,23,180,360 40,100; 40,60 @60,58,20,23,180,360 80,100",
    "n": "0,38 0,100; 0,60 @24,60,24,25,180,360 48,100", "o": "@26,68,26,32,0,360", "p": "0,38 0,132; @25,68,25,32,0,360",
    "q": "50,38 50,132; @25,68,25,32,0,360", "r": "0,38 0,100; 0,62 @22,60,22,24,180,300", "s": "@22,51,19,16,-30,-270 @22,83,20,17,-90,150",
    "t": "18,10 18,84 @32,84,14,16,180,70; 2,38 38,38", "u": "0,38 0,74 @24,74,24,26,180,0; 48,38 48,100", "v": "0,38 24,100 48,38",
    "w": "0,38 18,100 34,50 50,100 68,38", "x": "0,38 46,100; 46,38 0,100", "y": "0,38 24,98; 48,38 14,132", "z": "2,38 46,38 2,100 48,100",
}
# Other ways to draw some of them, as fonts differ.
VARIANTS = {
    "I": "0,0 32,0; 16,0 16,100; 0,100 32,100", "l": "8,0 8,86 @20,86,12,14,180,80", "1": "4,24 24,0 24,100; 4,100 44,100",
    "a": "@20,52,20,16,-160,0 40,52 40,100; @20,80,20,20,0,360", "g": "@25,66,23,28,0,360; 2,128 48,128 48,108 8,100; 44,42 56,36",
    "7": "0,0 56,0 20,100; 14,50 44,50", "4": "44,100 44,0; 44,0 2,66 60,66", "0": "@25,50,25,50,0,360; 38,22 12,78", "y": "0,38 0,66 @22,68,22,26,180,0; 44,38 44,108 @24,108,20,22,0,150",
    "J": "20,0 52,0; 38,0 38,70 @20,72,18,28,0,150", "t": "18,10 18,100; 2,38 38,38", "Q": "@33,50,33,50,0,360; 30,80 62,112",
}
TOP, BOTTOM, SIDE = -20, 150, 16


class Style:
    """One random way to draw all glyphs; `glyph` gives alpha masks whose capitals are `size` pixels high."""

    def __init__(self, rng, size=48):
        self.rng, self.size, self.made = rng, size, {}
        self.weight = rng.uniform(6, 13) if rng.random() < 0.6 else rng.uniform(13, 23)
        self.width = rng.uniform(0.75, 1.2)
        self.slant = rng.uniform(0.1, 0.3) if rng.random() < 0.2 else 0.0
        self.square = rng.uniform(2.0, 3.5) if rng.random() < 0.4 else 2.0
        self.shake = rng.uniform(0.5, 3.0) if rng.random() < 0.3 else 0.0
        self.serifs = self.weight < 15 and rng.random() < 0.25
        self.variants = {c for c in VARIANTS if rng.random() < 0.4}
        self.spacing = rng.uniform(9, 26)

    def glyph(self, char):
        """(mask [h, w] of 0..1, offset of its left edge, advance), in pixels; the mask starts at TOP."""
        if char not in self.made:
            self.made[char] = self.draw(char)
        return self.made[char]

    def strokes(self, char):
        text = VARIANTS[char] if char in self.variants else GLYPHS[char]
        for stroke in text.split(";"):
            points = np.concatenate([self.points(part) for part in stroke.split()])
            yield points + self.rng.normal(0, self.shake, points.shape) if self.shake else points

    def points(self, part):
        if not part.startswith("@"):
            return np.array([part.split(",")], float)
        cx, cy, rx, ry, a, b = (float(v) for v in part[1:].split(","))
        t = np.radians(np.linspace(a, b, max(4, int(abs(b - a) / 24) + 1)))
        power = 2 / self.square
        x, y = (np.sign(f(t)) * np.abs(f(t)) ** power for f in (np.cos, np.sin))
        return np.stack([cx + rx * x, cy + ry * y], 1)

    def segments(self, char):
        """[n, 5]: both ends and the half-width of each segment, in units."""
        out = []
        for points in self.strokes(char):
            half = np.full((len(points) - 1, 1), self.weight / 2)
            out.append(np.concatenate([points[:-1], points[1:], half], 1))
            if self.serifs:
                out += [serif(end, before, self.weight) for end, before in ((points[0], points[1]), (points[-1], points[-2])) if abs(end[0] - before[0]) < abs(end[1] - before[1]) * 0.7]
        s = np.concatenate(out)
        for x, y in ((0, 1), (2, 3)):
            s[:, x] = s[:, x] * self.width + (100 - s[:, y]) * self.slant
        return s

    def draw(self, char):
        s = self.segments(char)
        left, right = s[:, [0, 2]].min() - SIDE, s[:, [0, 2]].max() + SIDE
        unit = 100 / self.size
        x = np.arange(left, right, unit, dtype=np.float32)[None, :, None]
        y = np.arange(TOP, BOTTOM, unit, dtype=np.float32)[:, None, None]
        ax, ay, bx, by, half = s.astype(np.float32).T
        dx, dy = bx - ax, by - ay
        t = np.clip(((x - ax) * dx + (y - ay) * dy) / np.maximum(dx * dx + dy * dy, 1e-3), 0, 1)
        far = np.sqrt((x - ax - t * dx) ** 2 + (y - ay - t * dy) ** 2) - half
        mask = np.clip(0.5 - far.min(-1) / unit, 0, 1)
        ink = s[:, [0, 2]].max() - s[:, [0, 2]].min()
        return mask, -SIDE / unit, (ink + self.weight + self.spacing) / unit


def serif(end, before, weight):
    return np.array([[end[0] - 11, end[1], end[0] + 11, end[1], weight * 0.35]])


def line(style, text):
    """A line of text: its mask (capitals `style.size` pixels high) and the (x0, x1) of each character."""
    pad = int(style.size * 0.3)
    glyphs = [style.glyph(c) for c in text]
    width = int(sum(g[2] for g in glyphs)) + 2 * pad + max(g[0].shape[1] for g in glyphs)
    out = np.zeros((max(g[0].shape[0] for g in glyphs), width), np.float32)
    x, boxes = float(pad), []
    for mask, offset, advance in glyphs:
        a = max(0, int(round(x + offset)))
        part = out[: mask.shape[0], a : a + mask.shape[1]]
        np.maximum(part, mask[:, : part.shape[1]], out=part)
        boxes.append((x, x + advance))
        x += advance
    return out[:, : int(x) + pad], boxes
