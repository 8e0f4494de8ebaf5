"""Questions and answers in words. Evaluation asks in sentences that training never uses."""

from vision.wordings import capital, template
from words import article, plural

# Answers whose value is spelt letter by letter, so that words never seen can be written.
SPELT = {"read_word"}


def named(pair):
    return capital(" ".join(pair))


# kind -> the answer, from its value. The tower does not see the question and the language model does not learn, so no
# answer's first words depend on the wording: an answer is its value, but for what is read.
ANSWER = {
    "exists": lambda v: "Yes." if v else "No.", "left": lambda v: f"{named(v)}.", "right": lambda v: f"{named(v)}.",
    "describe": lambda v: ", ".join([named(v[0]), *(" ".join(pair) for pair in v[1:])]) + ".",
    "read_word": lambda v: f'It says "{v}".', "read_number": lambda v: f"The number is {v}.",
}


def what(w):
    """The thing that a question of existence names."""
    return " ".join([*([w["colour"]] if "colour" in w else []), w.get("shape", "shape")])


def wording(kind, words, split, pick):
    """The question of an exchange; `split` is that of wordings.template."""
    fills = dict(words)
    if "thing" in words:
        fills["things"] = plural(words["thing"])
    if kind == "exists":
        fills["what"] = what(words)
    text = template(kind, split, pick)
    for a in ("a {what}", "A {what}"):
        if "what" in fills and a in text:
            text = text.replace(a, article(fills["what"]))
    return text.format(**fills)


def exchange(kind, words, value, split, rng):
    """(question, answer, the part of the answer to be spelt or None) in words drawn for this split."""
    pick = lambda options: options[int(rng.random() * len(options))]  # noqa: E731
    answer = ANSWER.get(kind, lambda v: f"{capital(str(v))}.")(value)
    return wording(kind, words, split, pick), answer, value if kind in SPELT else None
