"""Copying: a text, list, table or piece of code to repeat, exactly or with one named edit.

A content is drawn, then an edit of it, then a way to ask for it. Evaluation has its own words, wordings and some
shapes of its own.
"""

import bisect
import collections
import json
import re

from tasks import maybe_system, record
from tasks.chat import quick, small_thought, story
from words import MONTHS, OPEN, POOLS, WEEKDAYS, article, plural


class Content:
    """`text` to copy; `noun`s to call it; `names` are what code may rename, `items` and `joint` make up a list."""

    def __init__(self, text, nouns, lang="", names=(), items=(), joint="", data=None, indent=None):
        words = set(re.findall(r"\w+", text))
        self.text, self.nouns, self.lang, self.names = text.strip(), nouns, lang, [n for n in names if n in words]
        self.items, self.joint, self.data, self.indent = list(items), joint, data, indent


def spelt_once(text, found):
    """Those of the words that the text has in this spelling only, and how often."""
    spellings, alone = collections.Counter(re.findall(r"\w+", text.lower())), collections.Counter(re.findall(r"(?<![\w-])\w+(?![\w-])", text))
    return {x: alone[x] for x in found if 0 < alone[x] == spellings[x.lower()]}


def whole(word):
    """The word by itself, not inside another or beside a hyphen."""
    return re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])")


# --- contents

TEXTS = ["text", "text", "text", "paragraph", "passage", "note"]
LISTS = ["list", "list", "list", "text"]
CODES = ["code", "code", "code", "function", "snippet", "program"]


def tidy(text):
    """No blanks at the ends of lines, no piles of empty lines."""
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]+\n", "\n", text)).strip()


def prose(w, filler):
    text = tidy(filler(w, int(60 * 25 ** w.r.random())))
    if w.chance(0.15):
        words = text.split(" ")
        for _ in range(w.int(1, 4)):
            words.insert(w.int(0, len(words)), w.pick(w.made_up(), w.digits(w.int(2, 6)), w.code(), w.made_up().capitalize()))
        text = " ".join(words)
    return Content(text, TEXTS if len(text) > 90 else ["text", "sentence", "line"])


ACTS = ["{a} went to the {p} with {b}.", "{a} bought {n} {fs} and {b} bought {o}.", "{b} gave the {c} {o} to {a}.", "Then {a} asked {b} where the {o} was.",
        "On {d} {a} and {b} met at the {p} in {t}.", "{a}'s {o} was {j} and {c}.", "{b} put {a}'s {o} behind the {p}.", "The {j} {x} looked at {a} and ran away.",
        "\"Where is my {o}?\" asked {b}.", "\"It is in the {p},\" said {a}.", "{a} had {n} {fs} in a {j} {o}.", "The {p} was {n} miles away, so {b} took {o}.",
        "In {t} there was a {j} {p} with a {c} door.", "When {a} came home, the {x} was asleep under the {o}.", "{a} paid {n} dollars and left.", "{b} wrote a letter to {a}.",
        "The {x} belongs to {b}.", "At {h} the {p} closes.", "{a} likes {f}, but {b} likes {g}.", "Nobody in {t} had ever seen such a {j} {o}.", "The code of {a}'s room is {k}.",
        "{b} called {a} from the {p} at {h}.", "After that, {a} never went to {t} again.", "{a} works as a {w} and knows {b} well.", "Every {d} the {x} sits on the {o}."]


def sentences(w):
    a, b = w.some("first", 2)
    out = []
    o, p, x, t, f = w.object, w.place, w.animal, w.town(), w.food
    for s in w.r.sample(ACTS, w.int(1, 9)):
        keep = w.chance(0.6)
        out.append(s.format(a=a, b=b, o=(o if keep else w.object) if "the {o}" in s or "'s {o}" in s or "my {o}" in s or "{j} {o}" in s or "{c} {o}" in s else article(w.object), p=p if keep else w.place, x=x if keep else w.animal,
                            t=t, f=f, g=w.food, fs=plural(f), c=w.color, j=w.adjective, n=w.int(2, 99), d=w.pick(*WEEKDAYS), h=w.time(), k=w.code(), w=w.job))
    return Content(w.pick(" ", " ", " ", "\n").join(out), TEXTS if len(out) > 1 else ["sentence", "text"])


def nonsense(w):
    k = w.int(0, 3)
    if k == 0:
        words = [w.made_up() for _ in range(w.int(3, 40))]
    elif k == 1:
        words = [w.digits(w.int(1, 8)) for _ in range(w.int(2, 30))]
    elif k == 2:
        words = [w.code() for _ in range(w.int(2, 20))]
    else:
        words = [w.pick(w.object, w.adjective, w.made_up(), w.code(), w.animal, w.first, w.digits(3)) for _ in range(w.int(4, 40))]
    return Content(w.pick(" ", " ", "\n", ", ").join(words), ["text", "line", "words", "text"] if k != 1 else ["numbers", "line", "text"])


THINGS = ["object", "animal", "food", "city", "first", "place", "thing", "job"]


def entry(w):
    """A maker of list entries of one kind."""
    pool = w.pick(*THINGS)
    holder, verb = w.pick("bag", "basket", "crate", "jar", "shelf", "drawer", "tin", "sack", "tray", w.made_up()), w.pick("of", "full of", "for", "with")
    color = w.color
    return w.pick(lambda: getattr(w, pool), lambda: getattr(w, pool), lambda: f"{w.int(1, 60)} {plural(w.food)}", lambda: f"{w.adjective} {getattr(w, pool)}", lambda: w.person(),
                  lambda: f"a {color} {holder} {verb} {plural(w.pick(w.object, w.animal))}" if w.chance(0.8) else f"a {w.pick('small', 'large', 'second')} {color} {holder} {verb} {w.food}",
                  lambda: f"{w.first} has {article(w.animal)}", lambda: f"the {w.pick('old', 'new')} {getattr(w, pool)} from {w.town()}", lambda: w.code(), lambda: w.made_up(),
                  lambda: f"{w.first}: {w.int(1, 99)}", lambda: f"{w.person()}, {w.phone()}", lambda: f"{w.int(1, 200)} {w.street} Street, {w.town()}", lambda: w.email(), lambda: w.date()[0],
                  lambda: f"{w.pick('buy', 'clean', 'find', 'sell', 'paint', 'call about')} the {w.adjective} {w.object}")


def listing(w):
    make, items = entry(w), []
    for _ in range(w.int(2, 16)):
        item = make()
        if item not in items:
            items.append(item)
    k = w.int(0, 5)
    if k == 0 and not any("," in i for i in items):
        return Content(", ".join(items) + w.pick("", ".", "."), LISTS, items=items, joint=", ")
    if k == 1:
        return Content("\n".join(f"{i}{dot} {x}" for dot in (w.pick(".", ".", ")"),) for i, x in enumerate(items, 1)), LISTS, items=items, joint="number")
    if k == 2:
        return Content("\n".join(items), LISTS, items=items, joint="\n")
    mark = w.pick("- ", "- ", "* ")
    return Content("\n".join(mark + x for x in items), LISTS, items=[mark + x for x in items], joint="\n")


STEPS = ["Put the {o} on the table.", "Mix the {f} with {n} cups of {g}.", "Wait {n} minutes.", "Cut {n} {fs} into small pieces.", "Turn the {o} {n} times.", "Open the {o} and take out the {c} part.",
         "Clean the {o} with warm water.", "Add {n} spoons of {g}.", "Bake the {f} for {n} minutes.", "Press the {c} button.", "Write the number {k} on the {o}.", "Ask {a} for help.", "Carry everything to the {p}.",
         "Serve the {f} with {g}.", "Check that the {o} is {j}.", "Heat the {g} slowly.", "Close the {p} behind you.", "Tie the {o} to the {p}.", "Let it dry for {n} hours."]


def steps(w):
    o, f, g = w.object, w.food, w.food
    lines = [s.format(o=o if w.chance(0.5) else w.object, f=f, g=g if w.chance(0.6) else w.food, fs=plural(w.food), n=w.int(2, 60), c=w.color, k=w.digits(3), a=w.first, p=w.place, j=w.adjective) for s in w.r.sample(STEPS, w.int(2, 9))]
    k = w.int(0, 3)
    if k == 0:
        return Content("\n".join(f"{i}. {x}" for i, x in enumerate(lines, 1)), ["steps", "list", "recipe", "text"], items=lines, joint="number")
    if k == 1:
        return Content("\n".join(f"- {x}" for x in lines), ["steps", "list", "text"], items=["- " + x for x in lines], joint="\n")
    if k == 2:
        return Content("\n".join(f"Step {i}: {x}" for i, x in enumerate(lines, 1)), ["steps", "text"])
    return Content(" ".join(x if i == 0 else joined(w, x) for i, x in enumerate(lines)), ["text", "recipe", "text"])


def joined(w, sentence):
    start = w.pick("", "", "Then ", "Next, ", "After that, ", "Now ")
    return start + sentence[0].lower() + sentence[1:] if start else sentence


def letter(w):
    """Evaluation only."""
    a, b = w.some("first", 2)
    return Content(f"Dear {a},\n\nthank you for the {w.object}. {b} and I will be in {w.town()} on {w.date()[0]} and stay at the {w.place} until {w.time()}. Please bring {w.int(2, 20)} {plural(w.food)} and the {w.color} {w.object}.\n\nYours,\n{b}", ["letter", "text"])


def timetable(w):
    """Evaluation only."""
    return Content("\n".join(f"{w.time()}  {w.town()}  platform {w.int(1, 19)}" for _ in range(w.int(3, 8))), ["timetable", "text"])


def key(w):
    word = w.pick(w.object, w.thing, w.place, w.pick(*COMMON), w.made_up())
    return word if w.chance(0.6) else f"{word}_{w.pick('id', 'name', 'count', 'size', 'date', 'code', 'type', w.animal)}"


def value(w, deep=0):
    k = w.int(0, 9 if deep else 7)
    if k < 3:
        return w.pick(w.person(), w.town(), w.object, w.code(), w.made_up(), w.email(), w.date()[1], f"{w.adjective} {w.animal}")
    if k < 5:
        return w.int(0, 9999) if w.chance(0.7) else round(w.r.random() * 100, 2)
    if k == 5:
        return w.chance(0.5)
    if k == 6:
        return [w.pick(w.food, w.made_up(), w.object) for _ in range(w.int(1, 5))]
    if k == 7:
        return w.pick(w.first, w.company, w.job, w.phone())
    return {key(w): value(w) for _ in range(w.int(1, 4))}


def dumps(data, indent):
    return json.dumps(data, ensure_ascii=False, indent=indent)


def jsons(w):
    indent = w.pick(None, None, 2, 2, 4)
    data = {key(w): value(w, 1) for _ in range(w.int(2, 9))}
    if w.chance(0.15):
        rows = [{k: value(w) for k in list(data)[:3]} for _ in range(w.int(2, 5))]
        return Content(dumps(rows, indent), ["JSON", "JSON", "list", "data"], "json")
    return Content(dumps(data, indent), ["JSON", "JSON", "JSON", "object", "JSON object", "data"], "json", data=data, indent=indent)


def config(w):
    k, lines, names = w.int(0, 3), [], []
    for s in range(w.int(1, 4)):
        section = key(w)
        lines += [f"{section}:" if k == 0 else f"[{section}]"] if k < 3 else []
        for _ in range(w.int(1, 6)):
            name = key(w) if k < 3 else key(w).upper()
            v = value(w)
            names.append(name)
            if k == 0:
                lines.append(f"  {name}: {v if isinstance(v, str) else dumps(v, None)}")
            elif k == 1:
                lines.append(f"{name} = {dumps(v, None)}")
            else:
                lines.append(f"{name}={v if isinstance(v, (str, int, float)) else len(v)}")
        lines += [""] if k in (1, 2) else []
    return Content("\n".join(lines), ["file", "config", "config file", "text", "settings"], w.pick("", ["yaml", "toml", "ini", "sh"][k]), names)


def table(w):
    makers = w.r.sample([lambda: w.first, lambda: w.town(), lambda: str(w.int(1, 999)), lambda: w.object, lambda: w.color, lambda: w.code(), lambda: w.food, lambda: w.date()[1], lambda: w.made_up(), lambda: f"{w.int(1, 99)}.{w.digits(2)}"], w.int(2, 5))
    heads = [w.pick("name", "city", "number", "thing", "color", "code", "price", "item", "date", "note", w.made_up(), w.object) for _ in makers]
    rows = [heads] + [[m() for m in makers] for _ in range(w.int(2, 9))]
    if w.chance(0.5):
        return Content("\n".join(",".join(r) for r in rows), ["CSV", "table", "data", "lines"], w.pick("", "csv"))
    lines = ["| " + " | ".join(r) + " |" for r in rows]
    return Content("\n".join(lines[:1] + ["|" + "---|" * len(heads)] + lines[1:]), ["table", "table", "text"])


# --- code

COMMON = "count items result value index name path data line size limit start end key node list text user file row user price score level step offset buffer queue state flag error message config report token cache input output record entry order group".split()
VERBS = "get set load save find make read write parse build update remove count check send open close sort merge filter print format convert compute split join clean move copy fetch".split()
EVAL_VERBS = "collect render measure scan trim pack apply reset".split()


class Code:
    """Writes random code in one of several languages."""

    def __init__(self, w, lang):
        self.w, self.lang, self.names, self.lines = w, lang, [], []
        self.python, self.end = lang == "python", "" if lang == "python" else ";"
        self.step = w.pick("    ", "    ", "    ", "  ") if lang != "rust" else "    "
        self.camel = lang == "javascript" and w.chance(0.8)

    def join(self, *parts):
        return parts[0] + "".join(p.capitalize() for p in parts[1:]) if self.camel else "_".join(parts)

    def fresh(self, verb=False):
        w = self.w
        word = lambda: w.pick(w.pick(*COMMON) if w.split == "train" else w.object, w.object, w.thing, w.animal, w.adjective, w.made_up())
        while True:
            if verb:
                name = self.join(w.pick(*(VERBS if w.split == "train" else EVAL_VERBS)), word()) if w.chance(0.8) else word()
            else:
                name = word() if w.chance(0.7) else self.join(word(), word()) if w.chance(0.8) else w.r.choice("abcdefghkmnpqrstuvwxyz")
            if name.isidentifier() and name not in self.names and name not in KEYWORDS:
                self.names.append(name)
                return name

    def string(self):
        w = self.w
        return '"' + w.pick(f"{w.adjective} {w.object}", w.made_up(), f"no {w.object}", w.first, f"{w.object} not found", f"{w.adjective} {w.thing}: ", w.object, w.code()) + '"'

    def number(self):
        return str(self.w.pick(0, 1, 2, 10, 100, self.w.int(0, 999), self.w.int(0, 99)))

    def atom(self, known):
        return self.w.pick(*known) if known and self.w.chance(0.7) else self.number()

    def expr(self, known):
        w, k = self.w, self.w.int(0, 6)
        if k < 2:
            return self.atom(known)
        if k < 5:
            return f"{self.atom(known)} {w.pick('+', '-', '*', '+', '/', '%')} {self.atom(known)}"
        if k == 5:
            return f"{self.w.pick(*self.names) if w.chance(0.3) else w.pick('max', 'min', 'len', 'abs', 'round', w.made_up())}({', '.join(self.atom(known) for _ in range(w.int(1, 2)))})"
        return self.string()

    def test(self, known):
        w, a = self.w, self.w.pick(*known)
        one = f"{a} {w.pick('<', '>', '==', '!=', '<=', '>=')} {self.atom(known) if w.chance(0.8) or self.lang in ('c', 'rust') else self.string()}"
        if w.chance(0.2):
            one += f" {'and' if self.python else '&&'} {w.pick(*known)} {w.pick('<', '>', '!=')} {self.number()}"
        return one

    def put(self, level, text):
        self.lines.append(self.step * level + text)

    def open(self, level, head):
        self.put(level, head + (":" if self.python else " {"))

    def close(self, level, tail=""):
        if not self.python:
            self.put(level, "}" + tail)

    def condition(self, word, test):
        return f"{word} ({test})" if self.lang in ("c", "javascript") else f"{word} {test}"

    def new(self, name, expr):
        return {"python": f"{name} = {expr}", "javascript": f"{self.w.pick('let', 'const')} {name} = {expr};", "rust": f"let {self.w.pick('', 'mut ')}{name} = {expr};"}.get(self.lang, f"{self.w.pick('int', 'int', 'long', 'double')} {name} = {expr};")

    def say(self, known):
        args = ", ".join([self.string()] * self.w.int(0, 1) + [self.w.pick(*known)])
        call = {"python": self.w.pick("print", "log", self.w.made_up()), "javascript": self.w.pick("console.log", "alert"), "rust": "println!", "c": "printf"}[self.lang]
        return f"{call}({args}){self.end}" if self.lang != "rust" else f"println!(\"{self.w.object} {{}}\", {self.w.pick(*known)});"

    def block(self, level, known, n):
        """About n lines; `known` are the names in reach."""
        w, known = self.w, list(known)
        begun = len(self.lines)
        while len(self.lines) - begun < n:
            k = w.int(0, 9)
            if k < 3:
                name = self.fresh()
                self.put(level, self.new(name, self.expr(known)))
                known.append(name)
            elif k == 3 and known:
                a = w.pick(*known)
                self.put(level, w.pick(f"{a} = {a} {w.pick('+', '-', '*')} {self.atom(known)}", f"{a} {w.pick('+=', '-=', '*=')} {self.atom(known)}") + self.end)
            elif k < 6 and level < 4:
                self.open(level, self.condition("if", self.test(known)))
                self.block(level + 1, known, w.int(1, 2))
                if w.chance(0.3):
                    self.put(level, "else:" if self.python else "} else {")
                    self.block(level + 1, known, 1)
                self.close(level)
            elif k == 6 and level < 3:
                i, over = self.fresh(), w.pick(*known)
                head = {"python": f"for {i} in {w.pick(over, over, f'range({self.atom(known)})')}", "javascript": f"for (const {i} of {over})", "rust": f"for {i} in {w.pick(over, f'0..{over}')}", "c": f"for (int {i} = 0; {i} < {over}; {i}++)"}[self.lang]
                self.open(level, head)
                self.block(level + 1, known + [i], w.int(1, 3))
                self.close(level)
            elif k == 7 and level < 3 and w.chance(0.4):
                self.open(level, self.condition("while", self.test(known)))
                self.block(level + 1, known, w.int(1, 2))
                self.close(level)
            elif k == 8:
                self.put(level, self.say(known))
            elif k == 9 and w.chance(0.4):
                self.put(level, ("# " if self.python else "// ") + w.pick(f"{w.adjective} {plural(w.object)} first", f"the {w.object} of the {w.place}", f"see {w.code()}", f"only for {w.first}"))
        if level > 1 and w.chance(0.3):
            self.put(level, "return " + self.atom(known) + self.end if w.chance(0.6) else w.pick("break", "continue") + self.end)

    def function(self, level, n, method=False):
        w = self.w
        name, params = self.fresh(True), [self.fresh() for _ in range(w.int(1, 3))]
        args = ", ".join((["self"] if method and self.python else ["&self"] if method and self.lang == "rust" else []) + [self.typed(p) for p in params])
        head = {"python": f"def {name}({args})", "javascript": f"{'' if method else 'function '}{name}({args})", "rust": f"{w.pick('', 'pub ')}fn {name}({args}) -> {w.pick('i32', 'u64', 'f32', 'usize')}", "c": f"{w.pick('int', 'void', 'double')} {name}({args})"}[self.lang]
        self.open(level, head)
        if self.python and w.chance(0.15):
            self.put(level + 1, f'"""{w.pick("Gives", "Finds", "Makes", "Counts")} the {w.adjective} {plural(w.object)}."""')
        self.block(level + 1, params, n)
        if w.chance(0.7):
            self.put(level + 1, self.atom(params) if self.lang == "rust" else f"return {self.expr(params)}{self.end}")
        self.close(level)

    def typed(self, p):
        if self.lang == "rust":
            return f"{p}: {self.w.pick('i32', 'u64', '&str', 'f32', '&[i32]', 'usize')}"
        if self.lang == "c":
            return f"{self.w.pick('int', 'char *', 'double', 'long')} {p}".replace("* ", "*")
        return p

    def classes(self, n):
        w, name = self.w, self.w.pick(self.w.object, self.w.thing, self.w.made_up()).capitalize()
        self.names.append(name)
        if self.lang == "rust":
            self.open(0, f"struct {name}")
            for _ in range(w.int(1, 4)):
                self.put(1, f"{self.fresh()}: {w.pick('i32', 'String', 'f64', 'Vec<u32>')},")
            self.close(0)
            return
        self.open(0, f"class {name}")
        fields = [self.fresh() for _ in range(w.int(1, 4))]
        self.open(1, f"def __init__(self, {', '.join(fields)})" if self.python else f"constructor({', '.join(fields)})")
        for f in fields:
            self.put(2, f"self.{f} = {f}" if self.python else f"this.{f} = {f};")
        self.close(1)
        if n > 3:
            if self.python:
                self.lines.append("")
            self.function(1, n - 3, True)
        self.close(0)


KEYWORDS = set("if else for while return def class in is and or not let const fn int void double long char struct pub self this mut break continue function from import as with print try except pass del new true false None True False var do case switch use impl match loop move ref static type where yield async await lambda global raise log max min len abs round range".split())


def code(w, lang=None):
    lang = lang or w.pick("python", "python", "python", "javascript", "rust", "c")
    c = Code(w, lang)
    n = w.pick(1, 2, 2, 3, 4, 5, 7, 9, 12, 15)
    if lang == "c" or w.chance(0.85):
        c.function(0, n)
        if n < 6 and w.chance(0.25):
            c.lines.append("")
            c.function(0, n)
    elif w.chance(0.6):
        c.classes(n)
    else:
        c.block(0, [c.fresh()], n + 2)
    nouns = CODES if lang != "python" else CODES + ["Python code", "Python function"]
    return Content("\n".join(c.lines), nouns if w.chance(0.9) else [lang], w.pick("", lang), c.names)


def query(w):
    """Evaluation only: SQL."""
    t, a, b = w.thing, w.object, w.food
    names = [t, a, b, w.animal]
    return Content(f"SELECT {a}, {b}, {names[3]}\nFROM {t}_{w.place}\nWHERE {a} > {w.int(2, 900)} AND {b} = '{w.first}'\nORDER BY {names[3]};", ["query", "code"], w.pick("", "sql"), names)


# --- edits: each returns (clauses to ask for it, phrases with "with ...", the new text), or None where it does not apply

POOLED = {x for words in POOLS.values() for x in words.split()}
COLORS = set("red blue green yellow black white orange purple pink brown gray gold silver".split())
STOP = set("the and for that this with from was were are his her she him they them their you your not but had has have its one two all out into then than when what who will would could said there here some very just".split())


def spelt(w, a, b):
    q = w.pick("", "", "", '"', '"', "'", "`")
    return q + a + q, q + b + q


def other(w, a, c):
    """A replacement of the same kind, not in the text yet."""
    while True:
        if a.isdigit():
            b = w.digits(len(a)) if w.chance(0.6) else str(w.int(1, 999))
        elif a in c.names:
            b = w.pick(w.object, w.thing, w.animal, w.pick(*COMMON) if w.split == "train" else w.place, w.made_up(), f"{w.adjective}_{w.object}", f"new_{a}", f"{a}_{w.object}", f"{a}_{w.int(1, 9)}")
            b = b.upper() if a.isupper() and len(a) > 1 else b.capitalize() if a[0].isupper() else b
        elif a in COLORS:
            b = w.color
        elif a[0].isupper():
            b = w.pick(w.first, w.first, w.town(), w.made_up().capitalize(), w.last)
        else:
            b = w.pick(w.object, w.animal, w.food, w.place, w.adjective, w.thing, w.made_up())
        # "a" and "an" stay right, and the new word is new.
        if b.lower() not in c.text.lower() and (a in c.names or (a[0].lower() in "aeiou") == (b[0].lower() in "aeiou")) and b not in KEYWORDS:
            return b


def target(w, c, words=r"[A-Za-z][a-z]{2,}|\d+"):
    """A word of the text that is spelt in one way only; rather one that comes several times."""
    if c.names and w.chance(0.75):
        found = c.names
    else:
        found = [x for x in re.findall(rf"(?<![\w-])(?:{words})(?![\w-])", c.text) if x.lower() not in STOP and x not in KEYWORDS]
    # Names are what people mostly ask for.
    if w.chance(0.3):
        found = re.findall(r"(?<=[a-z,] )[A-Z][a-z]{2,}(?![\w-])", c.text) or found
    good = spelt_once(c.text, sorted(set(w.r.sample(found, min(len(found), 12)))))
    if not good:
        return None
    several = [x for x, n in good.items() if n > 1]
    return w.pick(*(several if several and w.chance(0.65) else good))


def replace(w, c):
    a = target(w, c)
    if a is None:
        return None
    b = other(w, a, c)
    x, y = spelt(w, a, b)
    asks = [f"write {y} instead of {x}", f"change {x} to {y}", f"replace {x} with {y}", f"use {y} instead of {x}", f"replace every {x} with {y}", f"replace {x} by {y}", f"change every {x} to {y}", f"put {y} instead of {x}", f"say {y} instead of {x}",
            f"change {x} into {y}", f"replace all {x} with {y}", f"write {y} where it says {x}", f"change the word {x} to {y}", f"replace the word {x} with {y}", f"use the word {y} instead of {x}", f"make it {y} instead of {x}", f"turn every {x} into {y}", f"change {x} -> {y}"]
    ways = [f"with {y} instead of {x}", f"with the word {y} instead of {x}", f"with {x} changed to {y}", f"with {x} replaced by {y}", f"with every {x} changed to {y}", f"using {y} instead of {x}"]
    if a in c.names:
        asks += [f"rename {x} to {y}", f"rename {x} to {y}", f"rename the variable {x} to {y}", f"call it {y} instead of {x}", f"rename {x} as {y}", f"give {x} the name {y}", f"change the name {x} to {y}", f"let {x} be called {y}"]
        ways += [f"with the name {y} instead of {x}", f"with {x} renamed to {y}", f"with {x} called {y}", f"with {x} named {y}"]
    elif a[0].isupper():
        asks += [f"call {x} {y}", f"change the name {x} to {y}", f"rename {x} to {y}", f"let it be about {y} instead of {x}"]
        ways += [f"with the name {y} instead of {x}"]
    elif a.isdigit():
        asks += [f"change the number {x} to {y}", f"write the number {y} instead of {x}", f"replace the number {x} with {y}"]
    return asks, ways, whole(a).sub(b, c.text)


def in_line(w, c):
    """Changes one word in one line."""
    lines = c.text.split("\n")
    if not 2 <= len(lines) <= 15:
        return None
    i = w.r.randrange(len(lines))
    body = re.sub(r"^\s*\d+[.)] ", "", lines[i])
    words = [x for x in re.findall(r"(?<![\w-])[A-Za-z]{3,}(?![\w-])", body) if len(whole(x).findall(lines[i])) == 1 and x not in KEYWORDS]
    if not words or not body.strip() or "" in lines:
        return None
    a = w.pick(*words)
    b = other(w, a, c)
    x, y = spelt(w, a, b)
    nth = w.pick(f"line {i + 1}", f"line {i + 1}", f"line number {i + 1}", *([ORDINALS[i] + " line"] if i < len(ORDINALS) else []))
    the = f"the {nth}" if nth.endswith(" line") else nth
    lines[i] = whole(a).sub(b, lines[i])
    return [f"change {x} to {y} in {the}", f"replace {x} with {y} in {the}", f"in {the}, write {y} instead of {x}", f"in {the}, change {x} to {y}", f"only in {the}, replace {x} with {y}"], [f"with {y} instead of {x} in {the}", f"with {x} changed to {y} in {the}"], "\n".join(lines)


ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth"]


def letters(w, c):
    a = target(w, c, r"[A-Za-z][a-z]{2,}")
    if a is None or a in c.names:
        return None
    x, _ = spelt(w, a, a)
    return [f"write {x} in capital letters", f"write the word {x} in capitals", f"put {x} in upper case", f"make {x} uppercase", f"write {x} in capitals", f"change {x} to upper case"], [f"with {x} in capital letters", f"with {x} in upper case", f"with the word {x} in capitals"], whole(a).sub(a.upper(), c.text)


def swap(w, c):
    names = list(spelt_once(c.text, sorted({*re.findall(r"(?<=[a-z,] )[A-Z][a-z]{2,}\b", c.text), *(x for x in c.names if len(x) > 1)})))
    if len(names) < 2:
        return None
    a, b = w.r.sample(names, 2)
    x, y = spelt(w, a, b)
    both = re.compile(rf"(?<![\w-])(?:{re.escape(a)}|{re.escape(b)})(?![\w-])")
    return [f"swap {x} and {y}", f"exchange {x} and {y}", f"swap the names {x} and {y}", f"write {x} for {y} and {y} for {x}", f"let {x} and {y} trade places"], [f"with {x} and {y} swapped", f"with {x} and {y} exchanged"], both.sub(lambda m: b if m[0] == a else a, c.text)


def drop(w, c):
    """Removes an item or a line."""
    if len(c.items) > 2 and c.joint in (", ", "\n"):
        i = w.r.randrange(len(c.items))
        if c.items.count(c.items[i]) > 1:
            return None
        rest = c.items[:i] + c.items[i + 1 :]
        x, _ = spelt(w, c.items[i].lstrip("-* "), "")
        return [f"leave out {x}", f"remove {x}", f"delete {x}", f"leave {x} out", f"drop {x}", f"take {x} out", f"remove the entry {x}"], [f"without {x}"], c.joint.join(rest) + ("." if c.text.endswith(".") and c.joint == ", " else "")
    lines = c.text.split("\n")
    if not 3 <= len(lines) <= 14 or "" in lines or c.lang == "json" or c.joint == "number":
        return None
    i = w.r.randrange(len(lines)) if w.chance(0.7) else w.pick(0, len(lines) - 1)
    the = w.pick(f"line {i + 1}", *([f"the {ORDINALS[i]} line"] if i < 6 else []), *(["the last line"] * 3 if i == len(lines) - 1 else []))
    return [f"leave out {the}", f"remove {the}", f"delete {the}", f"drop {the}"], [f"without {the}"], "\n".join(lines[:i] + lines[i + 1 :])


def add(w, c):
    """Puts one more item or line at the end."""
    if c.items:
        new = w.pick(f"{w.adjective} {w.object}", w.food, w.made_up(), w.first, w.animal)
        x, _ = spelt(w, new, "")
        asks = [f"add {x} at the end", f"add {x}", f"put {x} at the end", f"add {x} as the last item", f"append {x}", f"add {x} to the end"], [f"with {x} added at the end", f"with {x} at the end", f"and {x} as the last entry"]
        if c.joint == ", ":
            return *asks, c.text.rstrip(".") + ", " + new + ("." if c.text.endswith(".") else "")
        if c.joint == "number":
            dot = re.match(r"\d+([.)])", c.text)[1]
            return *asks, f"{c.text}\n{len(c.items) + 1}{dot} {new}"
        mark = c.items[0][:2] if c.items[0][:2] in ("- ", "* ") else ""
        return *asks, f"{c.text}\n{mark}{new}"
    if c.lang == "json" or c.names:
        return None
    new = w.pick(f"{w.first} likes {w.food}.", f"The {w.object} is {w.color}.", f"That was in {w.pick(*MONTHS)}.", f"{w.first} said goodbye.", f"The {w.animal} slept.")
    glue = "\n" if "\n" in c.text else " "
    return [f"add this sentence at the end: {new}", f'add "{new}" at the end', f'put "{new}" at the end', f'end with "{new}"'], [f'with "{new}" at the end', f'followed by "{new}"'], c.text + glue + new


def known(word):
    """Whether the model can know how to spell it; made-up words it cannot."""
    plain = OPEN["plain"]
    i = bisect.bisect_left(plain, word)
    return word in POOLED or plain[i : i + 1] == [word]


def typo(w, c):
    """A misspelt word in what is asked, put right in the answer."""
    words = [] if c.names else [x for x, n in spelt_once(c.text, sorted(set(re.findall(r"(?<![\w-])[a-z]{5,}(?![\w-])", c.text)))).items() if n == 1]
    if not words:
        return None
    a = w.pick(*words)
    i = w.int(1, len(a) - 2)
    b = w.pick(a[:i] + a[i + 1 :], a[:i] + a[i] + a[i:], a[:i] + a[i + 1] + a[i] + a[i + 2 :])
    if b == a or whole(b).search(c.text):
        return None
    right, c.text = c.text, whole(a).sub(b, c.text)
    x, y = spelt(w, b, a)
    if not known(a):
        return [f"correct {x} to {y}", f"change {x} to {y}", f"spell {x} as {y}"], [f"with {x} corrected to {y}", f"with {y} instead of {x}"], right
    if w.chance(0.4):
        return [f"fix the spelling of {x}", f"correct {x} to {y}", f"change {x} to {y}", f"spell {x} right", f"correct the word {x}", f"write {x} correctly"], [f"with {x} corrected to {y}", f"with {x} spelt right"], right
    return ["fix the misspelt word", "correct the spelling", "fix the typo", "correct the spelling mistake", "fix the spelling mistake", "correct the typo", "fix the misspelled word"], ["with the spelling mistake fixed", "with the typo corrected", "without the typo"], right


def in_json(w, c):
    """One value, key or entry of an object."""
    if c.data is None:
        return None
    data, k = dict(c.data), w.pick(*c.data)
    q, new = w.pick(k, k, f'"{k}"', f"'{k}'", f"`{k}`"), value(w)
    kind = w.int(0, 4)
    if kind < 2:
        # Rather one of the same type.
        new = next((v for v in (value(w) for _ in range(6)) if type(v) is type(data[k])), new)
        data[k] = new
        v = dumps(new, None) if not isinstance(new, str) or w.chance(0.5) else new
        out = [f"change {q} to {v}", f"set {q} to {v}", f"change the value of {q} to {v}", f"make {q} {v}", f"let {q} be {v}", f"change the {q} to {v}"], [f"with {q} set to {v}", f"with {q} changed to {v}"]
    elif kind == 2:
        name = other(w, k, c) if k.isidentifier() else w.made_up()
        data = {name if x == k else x: v for x, v in data.items()}
        n = q.replace(k, name)
        out = [f"rename the key {q} to {n}", f"rename {q} to {n}", f"call the key {n} instead of {q}", f"change the key {q} to {n}"], [f"with the key {n} instead of {q}", f"with {q} renamed to {n}"]
    elif kind == 3:
        name = key(w)
        if name in data:
            return None
        data[name], v = new, dumps(new, None)
        out = [f"add the key {name} with the value {v}", f'add "{name}": {v}', f'add "{name}": {v} at the end', f"add {name} = {v} as the last key"], [f'with "{name}": {v} added', f'with "{name}": {v} at the end']
    elif len(data) > 2:
        del data[k]
        out = [f"remove {q}", f"remove the key {q}", f"leave out {q}", f"delete the key {q}", f"drop {q}"], [f"without {q}", f"without the key {q}"]
    else:
        return None
    return *out, dumps(data, c.indent)


def edited(w, c):
    while True:
        if c.data is not None and w.chance(0.7):
            out = in_json(w, c)
        else:
            out = w.pick(replace, replace, replace, replace, replace, replace, in_line, letters, swap, drop, drop, add, add, typo)(w, c)
        if out and out[2] != c.text and out[2].strip():
            return out
        if w.chance(0.05):
            return None


# --- asking

VERB = ["Repeat", "Repeat", "Repeat", "Copy", "Copy", "Copy", "Write", "Write out", "Print", "Say", "Echo", "Type", "Output", "Return", "Show me", "Give me", "Send me", "Type out", "Write down", "Read back", "Recite", "Quote", "Restate", "Duplicate"]
EXACTLY = ["", "", "", "exactly", "exactly", "exactly", "word for word", "as it is", "without changes", "unchanged", "exactly as it is", "without changing anything", "again", "once more", "verbatim", "one more time", "exactly as written", "and nothing else", "character by character", "in full", "completely", "just as it is", "precisely"]
POLITE = ["{x}", "{x}", "{x}", "{x}", "{x}", "Please {y}", "Please {y}", "Can you {y}", "Could you {y}", "I want you to {y}", "I need you to {y}", "Your task: {y}", "Would you {y}", "{x}, please", "Now {y}", "Hi! {x}", "Task: {y}", "You should {y}", "Try to {y}", "I would like you to {y}", "Hey, {y}", "Be so kind and {y}", "Kindly {y}", "{y}"]
TAILS = ["Do not change anything{e}.", "Do not add anything{e}.", "Answer with the {n} only.", "Nothing else.", "No comments, please.", "Only write the {n}.", "Keep everything{e} as it is.", "Do not explain.", "I need only the {n}.", "Give me the whole {n}.", "Do not leave anything out.", "Keep the line breaks."]
EVAL_COPY = ["Reproduce the {n} below, letter for letter.", "Give this {n} back to me with no alterations:", "What I need is an identical copy of this {n}.", "I will show you some {n}. Reproduce it faithfully:", "Mirror this {n} back to me:", "Please reproduce this {n} exactly."]
EVAL_EDIT = ["Reproduce this {n}, only {c}:", "Give the {n} below back to me, but {c}.", "Take this {n} and {c}, keeping the rest:", "I will show you some {n}. Reproduce it, but {c}:", "{C} here, and leave the rest alone:", "Make a copy of the {n} below in which you {c}."]


def command(w, c, clause, way):
    """One sentence without its end: what to do with the content, called `noun`."""
    noun = w.pick(*c.nouns)
    this = w.pick(f"this {noun}", f"this {noun}", f"this {noun}", f"the {noun}", f"the following {noun}", f"the {noun} below", "this", "the following", f"that {noun}")
    if noun.endswith("s"):
        this = this.replace("this", "these").replace("that", "those")
    verb = w.pick(*VERB)
    whole_thing = f"{verb} {this} {w.pick(*EXACTLY)}".strip()
    if clause is None:
        x = whole_thing
    else:
        plain = f"{verb} {this}"
        x = w.pick(f"{plain}, but {clause}", f"{plain} and {clause}", f"{plain} and {clause}", f"{plain} {way}", f"{plain} {way}", f"{plain}, {way}", f"{plain} again, but {way}", f"{clause[0].upper()}{clause[1:]} in {this}", f"{clause[0].upper()}{clause[1:]} in {this}",
                   f"{clause[0].upper()}{clause[1:]}", f"In {this}, {clause}", f"Take {this} and {clause}", f"{clause[0].upper()}{clause[1:]} and {verb.lower()} {this.replace('the following ', 'the ')}", f"Edit {this}: {clause}", f"I have {this if this.startswith('this') else f'a {noun}'}. {clause[0].upper()}{clause[1:]}")
    form = w.pick(*POLITE)
    low = x[0].lower() + x[1:]
    out = form.format(x=x, y=low)
    question = form.startswith(("Can", "Could", "Would"))
    return out, "?" if question else ".", noun


def ask(w, c, clause, way, split):
    """(prompt, how the content is fenced)"""
    if split == "eval":
        noun = w.pick(*c.nouns)
        text = w.pick(*EVAL_COPY).format(n=noun) if clause is None else w.pick(*EVAL_EDIT).format(n=noun, c=clause, C=clause[0].upper() + clause[1:])
        fence = w.pick("", "", "```" + c.lang if c.lang else "")
        body = f"{fence}\n{c.text}\n```" if fence else c.text
        return text + "\n\n" + body, fence
    text, end, noun = command(w, c, clause, way)
    tail = " " + w.pick(*TAILS).format(n=noun, e=w.pick("", " else") if clause else "") if w.chance(0.2) else ""
    if clause and tail in (" Do not change anything.", " Do not add anything.", " Keep everything as it is.", " Do not leave anything out."):
        tail = ""
    if w.chance(0.06):
        text = text.lower() if clause is None else text[0].lower() + text[1:]
    fence, body = "", c.text
    code = bool(c.lang or c.names)
    how = w.r.random()
    if how < (0.35 if code else 0.06):
        fence = "```" + (c.lang if w.chance(0.6) else "")
        body = f"{fence}\n{body}\n```"
    elif how < 0.5 and not code:
        body = w.pick('"{}"', '"{}"', '"""\n{}\n"""', "<text>\n{}\n</text>", "---\n{}\n---", "“{}”", "Text: {}", "'{}'", "<<<\n{}\n>>>").format(body) if '"' not in body else w.pick("<text>\n{}\n</text>", '"""\n{}\n"""', "---\n{}\n---").format(body)
    several = "\n" in c.text or fence
    gap = w.pick("\n", "\n\n", "\n\n") if several or w.chance(0.35) else " "
    if w.chance(0.75):
        colon = w.pick(":", ":", ":", end) if not tail else end + tail
        return text + (colon if end == "." or colon != ":" else w.pick(":", "?")) + gap + body, fence
    text = re.sub(r"\b(this|the following) ", "the ", text).replace(" below", " above") if w.chance(0.5) else text.replace(" below", "").replace("the following", "the")
    return body + w.pick("\n\n", "\n\n", "\n") + text + end + tail, fence


def again(w, c, clause, way, noun="text"):
    """A later turn about a content of an earlier one."""
    it = w.pick("it", "it", f"the {noun}", f"that {noun}", "that")
    if clause is None:
        return w.pick(f"Say {it} again.", "Again, please.", f"Repeat {it}.", f"Now repeat {it} exactly.", f"Write {it} once more.", f"Repeat {it} word for word.", f"Can you repeat {it}?", f"Copy {it}.", "Once more.", f"Please show me {it} again.", f"Write {it} out again.", f"Give me {it} again, unchanged.", "One more time, please.")
    upper = clause[0].upper() + clause[1:]
    return w.pick(f"Now {clause}.", f"Now {clause}, please.", f"{upper}.", f"Good. Now {clause}.", f"Thanks. Please {clause}.", f"Write {it} again, but {clause}.", f"Repeat {it} {way}.", f"The same {way}.", f"Again, but {way}.", f"Can you {clause}?", f"Write {it} again {way}.", f"Please {clause} and write {it} again.", f"Repeat {it}, but {clause}.", f"OK, {clause}")


def thought(w, clause):
    return w.pick("I copy it as it is.", "I repeat the text exactly.", "The user wants the same text again.") if clause is None else w.pick(f"I copy it and {clause}.", f"I have to {clause}. The rest stays.", f"Everything stays, but I {clause}.")


def contents(w, split, filler):
    if split == "eval":
        return w.pick(lambda w: prose(w, filler), lambda w: prose(w, filler), sentences, listing, letter, timetable, code, code, jsons, query, table)(w)
    k = w.r.random()
    for share, make in ((0.28, lambda w: prose(w, filler)), (0.38, sentences), (0.42, nonsense), (0.54, listing), (0.58, steps), (0.68, jsons), (0.72, config), (0.77, table), (1, code)):
        if k < share:
            return make(w)


def one(w, c, split, edit):
    """(clause, way, new text); no clause for an exact copy."""
    got = edited(w, c) if edit else None
    return (w.pick(*got[0]), w.pick(*got[1]), got[2]) if got else (None, None, c.text)


def fenced(text, fence):
    return f"{fence}\n{text}\n```" if fence else text


def make(w, filler, split="train", edit=None):
    """`filler(w, size)` gives about `size` characters of prose; `edit` asks for an edit or none."""
    while True:
        wanted = w.chance(0.65) if edit is None else edit
        c = contents(w, split, filler)
        if not 12 <= len(c.text) <= 1600 or "\n\n\n" in c.text:
            continue
        clause, way, text = one(w, c, split, wanted)
        if wanted == (clause is not None) and text.strip() == text:
            break
    prompt, fence = ask(w, c, clause, way, split)
    answer = fenced(text, fence)
    if split == "eval":
        return record(prompt, answer)
    out = record(prompt, answer, thought(w, clause) if w.chance(0.06) else None, maybe_system(w, 0.2))
    messages, k = out["messages"], w.r.random()
    if k < 0.10:
        # Small talk first.
        at = 1 if messages[0]["role"] == "system" else 0
        for q, a in [quick(w) for _ in range(w.int(1, 3))]:
            messages[at:at] = [{"role": "user", "content": q}, {"role": "assistant", "content": a}]
    elif k < 0.14:
        # The text comes first, and what to do with it in the next turn.
        intro = w.pick("Here is a {n}:", "Read this {n}:", "Please remember this {n}:", "I have a {n} for you:", "Look at this {n}:").format(n=w.pick(*c.nouns))
        out["messages"] = messages = [{"role": "user", "content": f"{intro}\n\n{fenced(c.text, fence)}"}, {"role": "assistant", "content": w.pick("OK.", "I have read it. What should I do with it?", "Got it.", "Thank you. What now?")},
                                      {"role": "user", "content": again(w, c, clause, way, w.pick(*c.nouns))}, messages[-1]]
    elif k < 0.19:
        # About the assistant's own words.
        q, text, _ = story(w) if w.chance(0.7) else (*quick(w), None)
        c, fence = Content(text, ["text", "story"]), ""
        clause, way, new = one(w, c, split, w.chance(0.5) and len(text) > 60)
        if c.text != text.strip():
            # A typo would have to be in what was said.
            clause, way, new = None, None, text
        out["messages"] = messages = [{"role": "user", "content": q}, {"role": "assistant", "content": text}, {"role": "user", "content": again(w, c, clause, way)}, {"role": "assistant", "content": new}]
    if k > 0.82:
        follow(w, messages, c, text, fence)
    return out


def follow(w, messages, c, text, fence):
    """One or two more turns, each about the answer before."""
    for _ in range(w.pick(1, 1, 2)):
        c = Content(text, c.nouns, c.lang, c.names)
        before = c.text
        clause, way, text = one(w, c, "train", w.chance(0.8))
        if c.text != before:
            return
        messages += [{"role": "user", "content": again(w, c, clause, way, w.pick(*c.nouns))}, {"role": "assistant", "content": fenced(text, fence)}]
