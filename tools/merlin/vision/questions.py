"""Wordings of questions and answers. Evaluation asks in words that training never uses."""

from words import article, plural

# kind -> (wordings of training, wordings of evaluation)
ASK = {
    "the_shape": (
        ["What shape is this?", "What shape is it?", "Which shape is this?", "Which shape do you see?", "What shape is shown?", "What shape do you see?", "Name the shape.",
         "What is this shape called?", "Tell me the shape.", "What shape is in the picture?", "What shape is in the image?", "Which shape is in the picture?", "What is the shape?",
         "Identify the shape.", "What kind of shape is this?", "What figure is this?", "Look at the picture. What shape is it?", "which shape is it", "Can you name the shape?"],
        ["Which shape is shown here?", "What shape can you see?", "Tell me which shape this is.", "What shape does the picture show?"]),
    "the_colour": (
        ["What color is it?", "What colour is it?", "What color is the {thing}?", "What colour is the {thing}?", "Which color is the {thing}?", "Which colour does the {thing} have?",
         "What color does the {thing} have?", "Tell me the color of the {thing}.", "Name the color of the {thing}.", "What is the color of the {thing}?", "What's the color of the {thing}?",
         "Which color do you see?", "The {thing} has which color?", "what color is this {thing}", "Say the colour of this {thing}.", "In which color is the {thing} drawn?"],
        ["What is the colour of the {thing}?", "Can you tell me the color of the {thing}?", "Which color is it?", "What color is this {thing}?"]),
    "colour_of": (
        ["What color is the {thing}?", "What colour is the {thing}?", "Which color is the {thing}?", "Which colour is the {thing}?", "What color does the {thing} have?", "Which color does the {thing} have?",
         "Tell me the color of the {thing}.", "Name the color of the {thing}.", "Name the colour of the {thing}.", "What is the color of the {thing}?", "What's the color of the {thing}?",
         "Look at the {thing}. What color is it?", "what color is the {thing}", "The {thing}: which color?", "Say what color the {thing} is.", "In this picture, what color is the {thing}?",
         "I see a {thing}. What color is it?", "Please tell me what color the {thing} is.", "In which color is the {thing}?"],
        ["What is the colour of the {thing}?", "Can you tell me the color of the {thing}?", "What color is the {thing} in the picture?", "Tell me what color the {thing} is."]),
    "shape_of": (
        ["What shape is {colour}?", "Which shape is {colour}?", "What is the {colour} shape?", "What shape is the {colour} object?", "What is the {colour} thing?", "Name the {colour} shape.",
         "Which shape has the color {colour}?", "What is {colour}?", "Tell me which shape is {colour}.", "The {colour} shape is what?", "What kind of shape is {colour}?", "Look at the {colour} shape. What is it?",
         "what is the {colour} shape", "What shape does the {colour} object have?", "In this picture, which shape is {colour}?", "What is the shape of the {colour} object?"],
        ["What is the shape of the {colour} thing?", "Which of the shapes is {colour}?", "What shape is the {colour} one?", "Tell me what the {colour} shape is."]),
    "count_shape": (
        ["How many {things} are there?", "How many {things} do you see?", "How many {things} are in the picture?", "Count the {things}.", "How many {things}?", "What is the number of {things}?",
         "How many {things} are shown?", "How many {things} can you count?", "Please count the {things}.", "Tell me how many {things} there are.", "How many {things} does the picture show?",
         "how many {things} are there", "Number of {things}?", "I want to know how many {things} there are.", "Count all the {things} in the picture.", "How many {things} has the picture?"],
        ["How many {things} can you see?", "Can you count the {things}?", "How many {things} are in this image?", "Say how many {things} you see."]),
    "count_colour": (
        ["How many {colour} shapes are there?", "How many {colour} shapes do you see?", "How many shapes are {colour}?", "Count the {colour} shapes.", "How many {colour} shapes are in the picture?",
         "What is the number of {colour} shapes?", "How many of the shapes are {colour}?", "Tell me how many {colour} shapes there are.", "How many {colour} shapes are shown?", "How many {colour} shapes can you count?",
         "how many {colour} shapes", "Please count the {colour} shapes.", "How many {colour} shapes does the picture show?"],
        ["How many {colour} shapes can you see?", "Can you count the {colour} shapes?", "How many {colour} shapes are in this image?", "Say how many {colour} shapes you see."]),
    "count_all": (
        ["How many shapes are there?", "How many shapes do you see?", "How many shapes are in the picture?", "Count the shapes.", "How many shapes are there in all?", "What is the number of shapes?",
         "How many shapes are shown?", "How many shapes can you count?", "Please count all shapes.", "Tell me how many shapes there are.", "how many shapes are there", "How many shapes does the picture show?"],
        ["How many shapes can you see?", "Can you count the shapes?", "How many shapes are in this image?", "Say how many shapes you see."]),
    "exists": (
        ["Is there a {what}?", "Is there a {what} in the picture?", "Do you see a {what}?", "Does the picture show a {what}?", "Is a {what} in the picture?", "Can you find a {what}?", "Is there any {what}?",
         "Is a {what} shown?", "is there a {what}", "Look for a {what}. Is there one?", "Does the picture have a {what}?", "Is there a {what} here?"],
        ["Can you see a {what}?", "Is there a {what} in this image?", "Does this picture contain a {what}?"]),
    "left": (
        ["What is on the left?", "What do you see on the left?", "Which shape is on the left?", "What is at the left?", "What is farthest to the left?", "What is the leftmost shape?", "Which shape is farthest to the left?",
         "Name the shape on the left.", "What stands on the left side?"],
        ["What is on the left side?", "Which shape is the leftmost?", "What can you see on the left?"]),
    "right": (
        ["What is on the right?", "What do you see on the right?", "Which shape is on the right?", "What is at the right?", "What is farthest to the right?", "What is the rightmost shape?", "Which shape is farthest to the right?",
         "Name the shape on the right.", "What stands on the right side?"],
        ["What is on the right side?", "Which shape is the rightmost?", "What can you see on the right?"]),
    "describe": (
        ["What do you see?", "What is in the picture?", "Describe the picture.", "Describe the image.", "What does the picture show?", "What is shown here?", "Tell me what you see.", "What is this?", "List the shapes.",
         "What is in the image?", "Which shapes do you see?", "Describe what you see.", "What can be seen here?", "Please describe this picture.", "Name the shapes from left to right.", "Describe this."],
        ["What can you see in this picture?", "Describe this image.", "What does this image show?", "Which shapes are in the picture?"]),
    "read_word": (
        ["What does it say?", "What does the text say?", "Read the text.", "Read the word.", "What is written here?", "What word is this?", "Which word is this?", "What word do you see?", "What is the word?",
         "What is the text in the picture?", "Read this.", "What text is shown?", "Which word is written here?", "Please read the word.", "what does it say", "Tell me what it says.", "What does the picture say?",
         "Copy the text from the picture.", "Spell the word in the picture.", "Transcribe the text."],
        ["What does the image say?", "Can you read the word?", "What is written in the picture?", "Which word can you see?"]),
    "read_number": (
        ["What number is this?", "Which number is this?", "What number do you see?", "What is the number?", "Read the number.", "What number is shown?", "What number is written here?", "Which number is in the picture?",
         "Please read the number.", "Tell me the number.", "what number is it", "What does the number say?", "Which number do you see?", "What number is in the picture?", "Copy the number from the picture.", "What number does the picture show?"],
        ["Which number is shown?", "Can you read the number?", "What number can you see?", "Which number is written here?"]),
    "bar_value": (
        ["What is the value of {bar}?", "What is the value of bar {bar}?", "How high is {bar}?", "How high is bar {bar}?", "What value does {bar} have?", "What value does bar {bar} have?", "How much is {bar}?",
         "Which value has {bar}?", "What is {bar}?", "Tell me the value of {bar}.", "Read the value of {bar}.", "What number belongs to {bar}?", "value of {bar}?", "In the chart, what is {bar}?"],
        ["Which value does {bar} have?", "What is the value for {bar}?", "Tell me the value of bar {bar}.", "How much is bar {bar}?"]),
    "bar_high": (
        ["Which bar is the highest?", "Which bar is highest?", "What is the highest bar?", "Which bar is the tallest?", "Which is the highest bar?", "Which bar has the highest value?", "Which has the highest value?",
         "Name the highest bar.", "Tell me the highest bar.", "Which letter has the highest bar?", "What is the tallest bar?", "Which bar is the largest?", "which bar is highest"],
        ["Which bar has the largest value?", "Which is the tallest bar?", "Can you name the highest bar?", "What bar is the highest?"]),
    "bar_low": (
        ["Which bar is the lowest?", "Which bar is lowest?", "What is the lowest bar?", "Which bar is the shortest?", "Which is the lowest bar?", "Which bar has the lowest value?", "Which has the lowest value?",
         "Name the lowest bar.", "Tell me the lowest bar.", "Which letter has the lowest bar?", "What is the shortest bar?", "Which bar is the smallest?", "which bar is lowest"],
        ["Which bar has the smallest value?", "Which is the shortest bar?", "Can you name the lowest bar?", "What bar is the lowest?"]),
    "bar_count": (
        ["How many bars are there?", "How many bars do you see?", "Count the bars.", "How many bars does the chart have?", "How many bars are in the chart?", "What is the number of bars?", "How many bars are shown?",
         "Tell me how many bars there are.", "how many bars"],
        ["How many bars can you see?", "Can you count the bars?", "How many bars are in the picture?"]),
    "bar_colour": (
        ["What color is {bar}?", "What color is bar {bar}?", "Which color is bar {bar}?", "What colour is bar {bar}?", "What is the color of bar {bar}?", "Tell me the color of bar {bar}.", "Which color has {bar}?",
         "What is the color of {bar}?", "Name the color of bar {bar}."],
        ["Which color does bar {bar} have?", "What is the colour of bar {bar}?", "Can you tell me the color of bar {bar}?"]),
}
# Answers whose value is spelt letter by letter, so that words never seen can be written.
SPELT = {"read_word"}


def named(pair):
    return capital(" ".join(pair))


def capital(text):
    return text[0].upper() + text[1:]


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
    """The question of an exchange."""
    fills = dict(words)
    if "thing" in words:
        fills["things"] = plural(words["thing"])
    if kind == "exists":
        fills["what"] = what(words)
    text = pick(ASK[kind][split == "eval"])
    for a in ("a {what}", "A {what}"):
        if "what" in fills and a in text:
            text = text.replace(a, article(fills["what"]))
    return text.format(**fills)


def exchange(kind, words, value, split, rng):
    """(question, answer, the part of the answer to be spelt or None) in words drawn for this split."""
    pick = lambda options: options[int(rng.integers(len(options)))]  # noqa: E731
    answer = ANSWER.get(kind, lambda v: f"{capital(str(v))}.")(value)
    return wording(kind, words, split, pick), answer, value if kind in SPELT else None
