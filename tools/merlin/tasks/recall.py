"""Facts hidden in long text and asked for later: needles, key-value lists, facts told early in a chat."""

import json

from tasks import maybe_system, record
from words import article

LABELS = ["secret code", "password", "access code", "PIN", "magic number", "passcode", "locker number", "room number", "door code",
          "launch code", "serial number", "ticket number", "secret word", "special number", "order number", "code word", "flight number",
          "badge number", "special magic number", "lucky number", "account number", "wifi password", "safe combination", "key phrase",
          "meeting code", "code name", "invoice number", "bus number", "gate number", "secret number", "token", "reference number"]
LABELS_EVAL = ["vault code", "secret key", "access code", "tracking number", "magic number", "entry code", "member number", "shelf number", "pass phrase", "secret password"]
STATE = ["The {l} is {v}.", "The {l} is {v}.", "The {l} is: {v}.", "Remember: the {l} is {v}.", "Please note that the {l} is {v}.",
         "By the way, the {l} is {v}.", "Do not forget that the {l} is {v}.", "IMPORTANT: The {l} is {v}.", "Note: the {l} is {v}.",
         "I will tell you a secret: the {l} is {v}.", "The {l} was set to {v}.", "Use {v} as the {l}.", "Someone wrote that the {l} is {v}.",
         "On the wall it said that the {l} is {v}.", "They agreed that the {l} would be {v}.", "{v} is the {l}.", "Here is the {l}: {v}.",
         "The {l} you need is {v}.", "Keep this in mind: the {l} is {v}.", "It is important to remember that the {l} is {v}.",
         "A small note said: the {l} is {v}.", "What is the {l}? It is {v}.", "The needle is this: the {l} is {v}."]
STATE_EVAL = ["The {l} is {v}.", "Remember that the {l} is {v}.", "Nobody else knows it, but the {l} is {v}.", "The {l} is \"{v}\".", "For the record, the {l} is {v}."]
ASK = ["What is the {l}?", "What is the {l}?", "What is the {l}?", "What was the {l}?", "Tell me the {l}.", "Which {l} was mentioned?", "What is the {l} in the text?",
       "Find the {l} in the text above.", "According to the text, what is the {l}?", "Do you remember the {l}?", "Can you recall the {l}?",
       "{l}?", "I need the {l}.", "Please give me the {l}.", "What {l} is mentioned in the text?", "What's the {l}", "What is the {l} that I mentioned?",
       "What is the {l} mentioned above?", "Based on the text, what is the {l}?", "Look at the text again. What is the {l}?",
       "Could you tell me the {l}?", "Do you know the {l}?", "I forgot the {l}. What is it?", "What does the text say about the {l}?", "Now tell me: what is the {l}?",
       "Somewhere in the text is the {l}. What is it?", "What did I say the {l} was?", "Please look up the {l}.", "Can you find the {l}?", "So, what is the {l}?"]
ASK_EVAL = ["What is the {l}?", "What is the {l} mentioned in the text?", "Can you tell me what the {l} is?", "What was the {l} again?"]
ONLY = ["What is the {l}? Answer with the value only.", "What is the {l}? Only give the {l}.", "Reply with just the {l}."]
SENTENCES = ["The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.",
             "The cat sat on the mat and looked at the rain.", "It was a quiet day and nothing much happened.",
             "The quick brown fox jumps over the lazy dog.", "People walked by and talked about the weather."]


def value(w):
    k = w.int(0, 9)
    if k < 4:
        return w.digits(w.int(2, 7))
    if k < 6:
        return w.code()
    if k == 6:
        return w.pick(w.thing, w.made_up(), w.animal)
    if k == 7:
        return f"{w.pick(w.color, w.adjective)} {w.pick(w.animal, w.object, w.thing)}"
    if k == 8:
        return f"{w.thing}-{w.pick(w.thing, w.animal, w.digits(2), w.color)}"
    return w.pick(w.first, w.town(), w.made_up().upper())


def labelled(w, split):
    """A code of some thing: (statement, question, full answer, value)."""
    label = w.pick(*(LABELS if split == "train" else LABELS_EVAL))
    if w.open and w.chance(0.35):
        label = f"{w.pick(w.object, w.thing, w.place)} {w.pick('code', 'number', 'word', 'key', 'name', 'value', 'id', 'color', 'phrase', 'date')}"
    of = w.pick("", "", f" for {w.first}", f" of the {w.place}", f" for the {w.adjective} {w.object}", f" for {w.town()}", f" for the {w.place}", f" of {w.person()}", f" for {w.adjective}-{w.thing}", f" for the {w.company} {w.place}")
    l, v = label + of, value(w)
    state = w.pick(*(STATE if split == "train" else STATE_EVAL)).format(l=l, v=v)
    if split == "train" and w.chance(0.15):
        ask = w.pick(*ONLY).format(l=l)
        return state, ask, v, v
    ask = w.pick(*(ASK if split == "train" else ASK_EVAL)).format(l=l)
    return state, ask[0].upper() + ask[1:], f"The {l} is {v}.", v


def personal(w, split):
    n = w.pick(w.first, w.person())
    o, p, c, a, j, f, h, x = w.object, w.place, w.town(), w.animal, w.job, w.food, w.hobby, w.color
    year, k = str(w.int(1900, 2025)), w.int(2, 99)
    d = w.date()[0]
    return w.pick(
        (f"{n} lives in {c}.", f"Where does {n} live?", f"{n} lives in {c}.", c),
        (f"{n} works as {article(j)}.", f"What is {n}'s job?", f"{n} works as {article(j)}.", j),
        (f"{n}'s favorite food is {f}.", f"What is {n}'s favorite food?", f"{n}'s favorite food is {f}.", f),
        (f"{n}'s favorite color is {x}.", f"What is the favorite color of {n}?", f"{n}'s favorite color is {x}.", x),
        (f"{n} has {article(a)} called {w.first}.", f"What animal does {n} have?", f"{n} has {article(a)}.", a),
        (f"{n} was born in {year}.", f"In what year was {n} born?", f"{n} was born in {year}.", year),
        (f"{n} hid the {x} {o} in the {p}.", f"Where is the {x} {o}?", f"The {x} {o} is in the {p}.", p),
        (f"The {x} {o} is in the {p}.", f"Where is the {x} {o}?", f"The {x} {o} is in the {p}.", p),
        (f"{n} put {k} coins in the {o}.", f"How many coins did {n} put in the {o}?", f"{n} put {k} coins in the {o}.", str(k)),
        (f"{n} likes {h} on Sundays.", f"What does {n} like on Sundays?", f"{n} likes {h} on Sundays.", h),
        (f"The {w.company} meeting is on {d}.", "When is the meeting?", f"The meeting is on {d}.", d),
        (f"The best thing to do in {c} is to eat {f} and visit the {p}.", f"What is the best thing to do in {c}?", f"The best thing to do in {c} is to eat {f} and visit the {p}.", p),
        (f"{n} bought {article(o)} from {w.company} for {k} dollars.", f"How much did {n} pay for the {o}?", f"{n} paid {k} dollars for the {o}.", str(k)),
        (f"The dragon's name is {n}.", "What is the dragon's name?", f"The dragon's name is {n}.", n),
        (f"The capital of {w.made_up().capitalize()} is {c}." , None, None, c),
    )


def fact(w, split):
    while True:
        f = labelled(w, split) if split == "eval" or w.chance(0.6) else personal(w, split)
        if f[1]:
            return f


def facts(w, split, n):
    """n facts whose questions differ, so no answer is ambiguous."""
    out, seen = [], set()
    while len(out) < n:
        f = fact(w, split)
        # Questions that share a label but not an owner ("What is the PIN?") would be ambiguous.
        key = " ".join(f[2].split()[:3]) if f[2] != f[3] else f[1]
        if key not in seen and f[1] not in seen:
            seen.update((key, f[1]))
            out.append(f)
    return out


def hay(w, size, filler):
    """About `size` characters of text as a list of sentences or paragraphs."""
    if w.chance(0.07):
        s = w.pick(*SENTENCES)
        return [s] * max(1, size // len(s))
    if w.chance(0.08):
        out, total = [], 0
        while total < size:
            s = f"The {w.pick(*LABELS)} for {w.adjective}-{w.thing} is {value(w)}." if w.chance(0.5) else personal(w, "train")[0]
            out.append(s)
            total += len(s)
        return out
    text = filler(w, size)
    by = w.pick("\n\n", ". ", ". ")
    return [p + ("." if by == ". " and i < text.count(by) else "") for i, p in enumerate(text.split(by))]


def bury(w, pieces, needles, depth=None):
    """Insert the needles between the pieces; `depth` 0..1 fixes the place of the first."""
    spots = [w.r.random() if depth is None or i else depth for i in range(len(needles))]
    total = sum(map(len, pieces)) or 1
    marks = sorted(zip(spots, needles), key=lambda m: m[0])
    out, passed = [], 0
    for p in pieces:
        while marks and marks[0][0] * total <= passed:
            out.append(marks.pop(0)[1])
        out.append(p)
        passed += len(p)
    out += [n for _, n in marks]
    joint = "\n\n" if any("\n\n" in p for p in pieces) or w.chance(0.15) else " "
    return joint.join(out)


WRAP = ["{d}\n\n{q}", "{d}\n\n{q}", "{d}\n\nQuestion: {q}", "Read the text and answer the question.\n\n{d}\n\n{q}", "Text:\n{d}\n\nQuestion: {q}", "{q}\n\n{d}",
        "Here is a text:\n\n{d}\n\n{q}", "Context: {d}\n\nQuestion: {q}\nAnswer:", "Something is hidden in this text. Find it.\n\n{d}\n\n{q}",
        "\"\"\"\n{d}\n\"\"\"\n\n{q}", "I will ask you about this text.\n\n{d}\n\nMy question: {q}", "{q} The answer is in this text:\n\n{d}", "{d}\n{q}",
        "Read carefully: {d}\n\nNow answer: {q}", "Some special information is hidden within the following text. Remember it.\n\n{d}\n\n{q}", "{q}\n\n{d}\n\n{q}",
        "<document>\n{d}\n</document>\n\n{q}"]
WRAP_EVAL = ["{d}\n\n{q}", "Read this text and then answer.\n\n{d}\n\n{q}", "Below is a long text. I will ask about one detail in it.\n\n{d}\n\nQuestion: {q}"]


def thought(w, f):
    return w.pick(f"I look for this in the text. It says: \"{f[0]}\" So the answer is {f[3]}.", f"The text says: \"{f[0]}\"")


def in_text(w, size, filler):
    n = w.pick(1, 1, 2, 2, 3, 4, 6)
    known = facts(w, "train", n)
    doc = bury(w, hay(w, size, filler), [f[0] for f in known])
    asked = w.r.sample(known, w.int(1, min(n, 4)))
    messages = []
    if w.chance(0.12):
        messages.append({"role": "system", "content": doc})
        first = asked[0][1]
    elif w.chance(0.15):
        intro = w.pick("Read this text. I will ask about it later.", "Please remember this text.", "Here is something to read:")
        messages += [{"role": "user", "content": f"{intro}\n\n{doc}"}, {"role": "assistant", "content": w.pick("OK, I have read it.", "I have read the text. What do you want to know?", "Done. Ask me about it.")}]
        first = asked[0][1]
    else:
        first = w.pick(*WRAP).format(d=doc, q=asked[0][1])
    for i, f in enumerate(asked):
        messages.append({"role": "user", "content": first if i == 0 else f[1]})
        messages.append({"role": "assistant", "content": f[2]})
    if w.chance(0.15):
        messages[-1]["reasoning_content"] = thought(w, asked[-1])
    if w.chance(0.003):
        absent = f"the {w.pick(*LABELS)} for {w.adjective}-{w.made_up()}"
        messages += [{"role": "user", "content": f"What is {absent}?"}, {"role": "assistant", "content": f"The text does not say what {absent} is."}]
    return {"messages": messages}


def pairs(w, size):
    """A list of keys and values without any other text."""
    keys = w.pick(lambda: w.code(), lambda: w.made_up(), lambda: f"{w.adjective}-{w.thing}", lambda: w.person(), lambda: w.object)
    val = w.pick(lambda: w.digits(4), lambda: value(w), lambda: w.town(), lambda: w.code(), lambda: w.made_up())
    data, total, tries = {}, 0, 0
    while total < size and tries < 400:
        k, v = keys(), val()
        tries += 1
        if k not in data:
            data[k] = v
            total += len(k) + len(v) + 6
    style = w.int(0, 4)
    if style == 0:
        doc = json.dumps(data)
    elif style == 1:
        doc = "\n".join(f"{k}: {v}" for k, v in data.items())
    elif style == 2:
        doc = "\n".join(f"- {k} = {v}" for k, v in data.items())
    elif style == 3:
        doc = ", ".join(f"{k} is {v}" for k, v in data.items()) + "."
    else:
        doc = json.dumps(data, indent=1)
    asked = w.r.sample(list(data), min(len(data), w.int(2, 6)))
    q = w.pick("What is the value of {k}?", "What is the value for the key \"{k}\"?", "{k}?", "Which value does {k} have?", "Look up {k}.")
    messages = []
    for i, k in enumerate(asked):
        ask = q.format(k=k)
        if i == 0:
            ask = w.pick("{d}\n\n{q}", "Here is a list:\n{d}\n\n{q}", "Data:\n{d}\n\n{q}").format(d=doc, q=ask)
        messages += [{"role": "user", "content": ask}, {"role": "assistant", "content": data[k]}]
    return {"messages": messages}


def in_chat(w, size, chats):
    """Facts told in passing, other talk, then the question."""
    known = facts(w, "train", w.int(1, 3))
    talk = chats(w, size)
    messages = [{"role": "system", "content": w.pick("You are a helpful assistant.", "You are Merlin.")}] if w.chance(0.2) else []
    spots = sorted(w.r.randint(0, len(talk) // 3) for _ in known)
    for i, (u, a) in enumerate(talk + [("", "")]):
        for s, f in zip(spots, known):
            if s == i:
                ask = w.pick("{f}", "Please remember this: {f}", "Remember: {f}", "I want to tell you something. {f}").format(f=f[0])
                messages += [{"role": "user", "content": ask}, {"role": "assistant", "content": w.pick("Got it.", "Okay, I will remember that.", "Thank you for telling me.", "Noted.", f"Okay. {f[2]}" if f[2] != f[3] else "Okay.")}]
        if u:
            messages += [{"role": "user", "content": u}, {"role": "assistant", "content": a}]
    for f in w.r.sample(known, len(known)):
        messages += [{"role": "user", "content": f[1]}, {"role": "assistant", "content": f[2]}]
    return {"messages": messages}


def make(w, filler, chats):
    """`filler(w, size)` gives text, `chats(w, size)` gives (user, assistant) pairs, about `size` characters."""
    size = int(60 * (20 ** w.r.random())) if w.chance(0.3) else w.int(1200, 4350)
    size = int(size * 3.7)
    k = w.r.random()
    if k < 0.74:
        return in_text(w, size, filler)
    if k < 0.86:
        return pairs(w, min(size, w.int(100, 9000)))
    return in_chat(w, size, chats)


def needle(w, tokens_of, filler, tokens, depth):
    """The evaluation task: one needle at `depth` of a text, the whole prompt just under `tokens` tokens."""
    f = labelled(w, "eval")
    wrap = w.pick(*WRAP_EVAL)
    text = filler(w, tokens * 7)
    pieces = [p + "." for p in text.split(". ")]
    room = tokens - tokens_of(wrap + f[0] + f[1]) - 24
    kept, used = [], 0
    for p in pieces:
        n = tokens_of(" " + p)
        if used + n > room:
            break
        kept.append(p)
        used += n
    doc = bury(w, kept, [f[0]], depth)
    return record(wrap.format(d=doc, q=f[1]), f[2], expect=f[3])
