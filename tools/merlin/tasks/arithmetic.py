"""Small sums with worked reasoning: columns with carry and borrow, partial products, word problems."""

from tasks import maybe_system, record
from words import held_out, plural

COLUMNS = ["Ones", "Tens", "Hundreds", "Thousands", "Ten thousands"]
SIGNS = {"+": ["plus", "added to", "and"], "-": ["minus", "take away"], "x": ["times", "multiplied by"], "/": ["divided by"]}
ASK = ["{e}", "{e}", "{e}", "{e}", "{e} =", "{e} = ?", "{e}?", "What is {e}?", "What is {e}?", "What is {e}?", "what's {e}", "what is {e}",
       "How much is {e}?", "Calculate {e}.", "Compute {e}.", "Work out {e}.", "Solve: {e}", "Please compute {e}", "Can you calculate {e}?",
       "Find {e}.", "Tell me what {e} is.", "{e} equals what?", "What do you get for {e}?", "I need the result of {e}.", "Help me with {e}.",
       "Evaluate {e}", "What does {e} equal?", "Do the math: {e}", "Think step by step: what is {e}?", "Quick question: {e}?",
       "Work this out: {e}", "{e} is how much?", "Can you do {e}?", "I want to know {e}.", "If I take {e}, what do I get?", "Please solve {e} for me.",
       "My teacher asked me: {e}", "On the test it says {e}. What do I write?", "The question is {e}.", "Tell me the result of {e}.", "Could you tell me {e}?",
       "What would {e} be?", "Do you know what {e} is?", "Let us do some math. What is {e}?", "Show me how to do {e}.", "Get {e} right, please.", "{e}, what is that?"]
ASK += [f"{a} {b} {{e}}{c}" for a in ("Please tell me", "Can you tell me", "Just tell me", "I would like to know", "Show me", "Give me", "Write down", "Find out") for b in ("the answer to", "the result of", "the solution of", "what you get for", "the outcome of") for c in (".", "")]
ASK += [f"{a} {{e}}{b}" for a in ("My friend asks:", "The book says", "There is a sum here:", "On the board it says", "In my test I have", "Exercise 3:", "The first sum is", "Problem:", "Next:") for b in (". What do I get?", ". What is it?", ". Can you solve it?", ". How much is that?", ". I need the answer.", "")]
BEFORE = ["Hi! ", "Hello Merlin. ", "I have a question. ", "I am learning to count. ", "This is for school. ", "I am not good at math. ", "Help! ", "OK, next one. ", "Let me test you. ", "Here is a sum. ", "For my exercise: ", "We need this number. "]
AFTER = [" Thanks!", " Please show your steps.", " Thank you.", " Explain it.", " Be careful.", " I need it soon.", " Take your time.", " Check your answer."]
ASK_EVAL = ["{e}", "What is {e}?", "Could you work out {e} for me?", "My homework says {e}. What is the answer?", "How much is {e}?", "Give me the value of {e}."]
ONLY = ["What is {e}? Only give the number.", "{e}. Answer with just the number.", "Compute {e}. Reply with the number only."]
UNITS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()


def in_words(n):
    if n < 20:
        return UNITS[n]
    return TENS[n // 10] + ("-" + UNITS[n % 10] if n % 10 else "")


def result(a, op, b):
    return {"+": a + b, "-": a - b, "x": a * b, "/": a // b if b else 0}[op]


def reserved(a, op, b):
    """Two-digit sums that only evaluation may ask."""
    if op in "+x":
        a, b = sorted((a, b))
    return min(a, b) >= 10 and held_out(f"{a}{op}{b}", 10)


def add(a, b):
    lines, carry, n = [], 0, max(len(str(a)), len(str(b)))
    for i in range(n):
        x, y = a // 10**i % 10, b // 10**i % 10
        s = x + y + carry
        line = f"{COLUMNS[i]}: {x} + {y}" + (f" + {carry}" if carry else "") + f" = {s}"
        carry = s // 10
        lines.append(line + (f", write {s % 10}, carry 1." if carry and i < n - 1 else "."))
    return lines + [f"{a} + {b} = {a + b}."]


def subtract(a, b):
    if a < b:
        return [f"{a} is less than {b}, so the answer is negative.", *subtract(b, a), f"{a} - {b} = {a - b}."]
    lines, borrow = [], 0
    for i in range(len(str(a))):
        x, y = a // 10**i % 10, b // 10**i % 10
        take = f"{x} - {y}" + (" - 1" if borrow else "")
        d = x - y - borrow
        if d < 0:
            lines.append(f"{COLUMNS[i]}: {take} is below 0, borrow 10: {x + 10} - {y}" + (" - 1" if borrow else "") + f" = {d + 10}.")
            borrow = 1
        else:
            lines.append(f"{COLUMNS[i]}: {take} = {d}.")
            borrow = 0
    return lines + [f"{a} - {b} = {a - b}."]


def multiply(a, b):
    if a < b:
        return [f"{a} x {b} = {b} x {a}.", *multiply(b, a), *([f"{a} x {b} = {a * b}."])]
    if b < 10 and (a <= 12 or a % 10 == 0):
        return [f"{a} x {b} = {a * b}."]
    if b < 10:
        high, low = a // 10 * 10, a % 10
        return [f"{high} x {b} = {high * b}.", f"{low} x {b} = {low * b}.", *add(high * b, low * b), f"{a} x {b} = {a * b}."]
    if b % 10 == 0:
        return [*multiply(a, b // 10), f"{a} x {b} = {a * b}."]
    high, low = b // 10 * 10, b % 10
    return [*multiply(a, high), *multiply(a, low), *add(a * high, a * low), f"{a} x {b} = {a * b}."]


def steps(a, op, b):
    if op == "+":
        return add(a, b)
    if op == "-":
        return subtract(a, b)
    if op == "x":
        return multiply(a, b)
    return [f"{b} x {a // b} = {a}.", f"{a} / {b} = {a // b}."]


def operands(w, split):
    """(a, op, b); evaluation draws two-digit sums that training skips."""
    while True:
        op = w.pick("+", "+", "+", "+", "-", "-", "-", "-", "x", "x", "/") if split == "train" else w.pick("+", "+", "-", "-", "x")
        if split == "eval":
            a, b = w.int(10, 99), w.int(10, 99) if op != "x" else w.int(2, 12)
            if op == "-" and a < b:
                a, b = b, a
            if reserved(a, op, b) or (b < 10 and held_out(f"{a}{op}{b}", 10)):
                return a, op, b
            continue
        top = w.pick(9, 20, 99, 99, 99, 99, 99, 99, 999)
        if op == "x":
            a, b = w.pick((w.int(0, 12), w.int(0, 12)), (w.int(2, 99), w.int(2, 12)), (w.int(2, 9), w.int(10, 99)), (w.int(10, 99), w.int(10, 99)))
        elif op == "/":
            b = w.int(1, 12)
            a = b * w.int(0, 12)
        else:
            a, b = w.int(0, top), w.int(0, top)
            if top == 99 and w.chance(0.8):
                a, b = w.int(10, 99), w.int(10, 99)
            if op == "-" and a < b and w.chance(0.8):
                a, b = b, a
        if not reserved(a, op, b) and not (op == "x" and min(a, b) < 10 <= max(a, b) and held_out(f"{max(a, b)}x{min(a, b)}", 10)):
            return a, op, b


def plain(w, split, think):
    a, op, b = operands(w, split)
    r = result(a, op, b)
    shown = {"x": w.pick("*", "x", "*", "×"), "/": w.pick("/", "÷")}.get(op, op)
    e = f"{a} {shown} {b}"
    if split == "train":
        e = w.pick(e, e, e, e, e, f"{a}{shown}{b}", f"{a} {w.pick(*SIGNS[op])} {b}", f"{a} {w.pick(*SIGNS[op])} {b}")
        if w.chance(0.04) and max(a, b) < 100:
            e = f"{in_words(a)} {SIGNS[op][0]} {in_words(b)}"
    if split == "train" and w.chance(0.1):
        ask, answer = w.pick(*ONLY), str(r)
    else:
        ask, answer = w.pick(*(ASK if split == "train" else ASK_EVAL)), f"{a} {op} {b} = {r}."
    if split == "train":
        ask = (w.pick(*BEFORE) if w.chance(0.15) else "") + ask + (w.pick(*AFTER) if w.chance(0.12) and ask[-1] in ".?" else "")
    lead = f"I need {a} {op} {b}."
    thought = "\n".join([lead, *steps(a, op, b)])
    return record(ask.format(e=e), answer, thought if think else None, maybe_system(w), expect=r)


STORIES = [
    ("+", "{n} has {a} {o} and gets {b} more. How many {o} does {n} have now?", "{n} has {r} {o} now."),
    ("+", "There are {a} {o} in one box and {b} {o} in another box. How many {o} are there in total?", "There are {r} {o} in total."),
    ("+", "{n} read {a} pages on Monday and {b} pages on Tuesday. How many pages did {n} read?", "{n} read {r} pages."),
    ("+", "{n} found {a} {o}. {m} found {b} {o}. How many {o} did they find together?", "They found {r} {o} together."),
    ("+", "A bus has {a} people in it. {b} more people get on. How many people are on the bus?", "There are {r} people on the bus."),
    ("+", "{n} is {a} years old. {m} is {b} years older than {n}. How old is {m}?", "{m} is {r} years old."),
    ("-", "{n} has {a} {o} and gives {b} of them to {m}. How many {o} are left?", "{n} has {r} {o} left."),
    ("-", "There were {a} {o} in the shop. {b} were sold. How many {o} are left?", "There are {r} {o} left."),
    ("-", "{n} had {a} dollars and spent {b} dollars. How much money does {n} have now?", "{n} has {r} dollars now."),
    ("-", "A book has {a} pages. {n} has read {b} pages. How many pages are left to read?", "{n} has {r} pages left to read."),
    ("-", "{n} has {a} {o} and {m} has {b} {o}. How many more {o} does {n} have?", "{n} has {r} more {o}."),
    ("x", "There are {b} boxes with {a} {o} in each box. How many {o} are there?", "There are {r} {o}."),
    ("x", "{n} buys {b} {o} for {a} dollars each. How much does {n} pay?", "{n} pays {r} dollars."),
    ("x", "A row has {a} seats. There are {b} rows. How many seats are there?", "There are {r} seats."),
    ("/", "{n} shares {a} {o} equally among {b} friends. How many {o} does each friend get?", "Each friend gets {r} {o}."),
]


def story(w, think):
    kind, text, answer = w.pick(*STORIES)
    while True:
        a, op, b = operands(w, "train")
        if op == kind and result(a, op, b) >= 0 and b > 1:
            break
    r = result(a, op, b)
    n, m = w.some("first", 2)
    o = plural(w.pick(w.object, w.food))
    fill = {"n": n, "m": m, "a": a, "b": b, "o": o, "r": r}
    why = {"+": f"We add {a} and {b}.", "-": f"We subtract {b} from {a}.", "x": f"We multiply {a} by {b}.", "/": f"We divide {a} by {b}."}[op]
    return record(text.format(**fill), answer.format(**fill), "\n".join([why, *steps(a, op, b)]) if think else None, maybe_system(w, 0.15), expect=r)


def chain(w, think):
    """Three numbers, left to right."""
    while True:
        a, op, b = operands(w, "train")
        c, r1 = w.int(1, 99), result(a, op, b)
        op2 = w.pick("+", "-")
        if op in "+-" and r1 >= 0 and not reserved(r1, op2, c):
            break
    r = result(r1, op2, c)
    thought = "\n".join([f"First {a} {op} {b}.", *steps(a, op, b), f"Then {r1} {op2} {c}.", *steps(r1, op2, c)])
    e = f"{a} {op} {b} {op2} {c}"
    return record(w.pick(*ASK).format(e=e), f"{e} = {r}.", thought if think else None, maybe_system(w, 0.15), expect=r)


def make(w, split="train", think=None):
    if split == "eval":
        return plain(w, split, True)
    think = w.chance(0.7) if think is None else think
    k = w.int(0, 9)
    return story(w, think) if k < 2 else chain(w, think) if k == 2 else plain(w, split, think)
