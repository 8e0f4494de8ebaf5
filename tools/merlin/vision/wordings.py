"""Sentences that ask: a small grammar. Each kind of question has phrases of up to four forms, each form has frames, and a part of
the sentences that they make together is held out: training uses every phrase and every frame, but not those sentences.

In a phrase, `@` marks where "in the picture" or the like may stand, COLOR is spelt in both ways, and {fields} are filled in later.
In a frame, `~` is the phrase and `^` the phrase with a capital letter.
"""

import zlib

HELD_OUT = 15  # percent of the sentences
PLACES = ["", "", "", " in the picture", " in this picture", " in the image", " in this image", " here"]
# The first frame of each form is the plain one.
FRAMES = {
    "direct": ["^?", "Look at the picture. ^?", "Look at this image. ^?", "In this picture, ~?", "In the image, ~?", "Tell me: ~?", "Please tell me: ~?", "Question: ~?", "Hi! ^?", "OK, ~?", "So, ~?",
               "One question: ~?", "^? Please answer.", "Here is a picture. ^?"],
    "indirect": ["Tell me ~.", "Can you tell me ~?", "Please tell me ~.", "Could you tell me ~?", "Say ~.", "Please say ~.", "Can you say ~?", "I want to know ~.", "I would like to know ~.", "I'd like to know ~.",
                 "Do you know ~?", "Let me know ~.", "Can you see ~?", "Look at the picture and tell me ~."],
    "order": ["^.", "Please ~.", "Can you ~?", "Could you ~?", "Can you please ~?", "Would you ~?", "Will you ~?", "^, please.", "Now ~.", "Try to ~.", "I want you to ~.", "I'd like you to ~.", "Look at the picture and ~.",
              "Can you ~ for me?"],
    "noun": ["What is ~?", "What's ~?", "Tell me ~.", "Please tell me ~.", "Can you tell me ~?", "Could you tell me ~?", "Can you say ~?", "Say ~.", "Give me ~.", "I want to know ~.", "I'd like to know ~.", "Do you know ~?",
             "Look at the picture. What is ~?"],
}
SHARES = {"direct": 4, "indirect": 2, "order": 2, "noun": 2}
# Kind -> form -> phrases.
PHRASES = {
    "the_shape": {
        "direct": ["what shape is this", "what shape is it", "which shape is this", "which shape is it", "what shape do you see@", "which shape do you see@", "what shape is shown@", "which shape is shown@", "what shape can you see@",
                   "which shape can you see@", "what is this shape called", "what shape is@ ", "which shape is@ ", "what kind of shape is this", "what kind of shape is it", "what figure is this", "what shape does the picture show",
                   "which shape does the picture show", "what shape does this picture have"],
        "indirect": ["what shape this is", "which shape this is", "what shape it is", "which shape it is", "what shape you see@", "which shape you see@", "what shape is shown@", "which shape is@ ", "what kind of shape this is"],
        "order": ["name the shape@", "name this shape", "identify the shape@", "name the shape you see", "say which shape it is", "tell me the shape", "tell me the name of the shape"],
        "noun": ["the shape@", "this shape", "the name of the shape@", "the name of this shape"]},
    "the_colour": {
        "direct": ["what COLOR is it", "what COLOR is this", "which COLOR is it", "what COLOR is the {thing}@", "which COLOR is the {thing}@", "what COLOR is this {thing}", "which COLOR is this {thing}", "which COLOR does the {thing} have",
                   "what COLOR does the {thing} have", "which COLOR do you see", "the {thing} has which COLOR", "in which COLOR is the {thing} drawn", "what COLOR do you see", "what COLOR has the {thing}"],
        "indirect": ["what COLOR it is", "which COLOR it is", "what COLOR the {thing} is", "which COLOR the {thing} is", "what COLOR this {thing} is", "which COLOR this {thing} is", "what COLOR the {thing} has", "which COLOR the {thing} has"],
        "order": ["name the COLOR", "name the COLOR of the {thing}@", "say the COLOR of the {thing}", "say the COLOR of this {thing}", "name its COLOR", "tell me the COLOR of the {thing}"],
        "noun": ["the COLOR of the {thing}@", "the COLOR of this {thing}", "the COLOR", "its COLOR"]},
    "colour_of": {
        "direct": ["what COLOR is the {thing}@", "which COLOR is the {thing}@", "what COLOR does the {thing} have@", "which COLOR does the {thing} have@", "which COLOR has the {thing}@", "the {thing} is which COLOR", "in which COLOR is the {thing}",
                   "what COLOR is this {thing}", "which COLOR is this {thing}"],
        "indirect": ["what COLOR the {thing} is@", "which COLOR the {thing} is@", "what COLOR the {thing} has@", "which COLOR the {thing} has@", "in which COLOR the {thing} is"],
        "order": ["name the COLOR of the {thing}@", "say the COLOR of the {thing}@", "say what COLOR the {thing} is", "look at the {thing} and name its COLOR", "tell me the COLOR of the {thing}@"],
        "noun": ["the COLOR of the {thing}@", "the {thing}'s COLOR"]},
    "shape_of": {
        "direct": ["what shape is {colour}@", "which shape is {colour}@", "what is the {colour} shape@", "what shape is the {colour} object@", "which shape is the {colour} object@", "what is the {colour} thing@", "what is the {colour} object@",
                   "which shape has the COLOR {colour}", "what is {colour}@", "the {colour} shape is what", "what kind of shape is {colour}@", "what shape does the {colour} object have", "what is the shape of the {colour} object@",
                   "which of the shapes is {colour}", "which one of the shapes is {colour}", "what shape is the {colour} one", "which shape is the {colour} one", "what shape is the {colour} thing@", "what is the {colour} one"],
        "indirect": ["which shape is {colour}@", "what shape is {colour}@", "which of the shapes is {colour}", "what the {colour} shape is@", "what the {colour} thing is", "which shape the {colour} object is", "what shape the {colour} one is",
                     "what is {colour}@", "what shape the {colour} object has"],
        "order": ["name the {colour} shape@", "name the {colour} object@", "identify the {colour} shape@", "say what the {colour} shape is", "say which shape is {colour}", "find the {colour} shape and name it", "look at the {colour} shape and name it"],
        "noun": ["the {colour} shape@", "the {colour} object@", "the shape of the {colour} object@", "the shape of the {colour} thing@", "the name of the {colour} shape"]},
    "count_shape": {
        "direct": ["how many {things} are there@", "how many {things} do you see@", "how many {things} are@ ", "how many {things} are shown@", "how many {things} can you count@", "how many {things} can you see@", "how many {things}",
                   "how many {things} does the picture show", "how many {things} has the picture", "how many {things} does the picture have", "how many of the shapes are {things}"],
        "indirect": ["how many {things} there are@", "how many {things} you see@", "how many {things} you can see@", "how many {things} you can count@", "how many {things} are shown@", "how many {things} are@ ", "how many {things} the picture shows"],
        "order": ["count the {things}@", "count all {things}@", "count all the {things}@", "count every {thing}@", "count how many {things} there are@", "count the {things} you see"],
        "noun": ["the number of {things}@", "the total number of {things}@"]},
    "count_colour": {
        "direct": ["how many {colour} shapes are there@", "how many {colour} shapes do you see@", "how many {colour} shapes are@ ", "how many shapes are {colour}@", "how many of the shapes are {colour}@", "how many {colour} shapes are shown@",
                   "how many {colour} shapes can you count@", "how many {colour} shapes can you see@", "how many {colour} shapes", "how many {colour} shapes does the picture show", "how many {colour} shapes does the picture have",
                   "how many {colour} objects are there@", "how many {colour} things do you see@"],
        "indirect": ["how many {colour} shapes there are@", "how many {colour} shapes you see@", "how many {colour} shapes you can see@", "how many shapes are {colour}@", "how many of the shapes are {colour}", "how many {colour} shapes you can count@",
                     "how many {colour} shapes are shown@"],
        "order": ["count the {colour} shapes@", "count all {colour} shapes@", "count all the {colour} shapes@", "count every {colour} shape@", "count how many shapes are {colour}", "count the {colour} objects@"],
        "noun": ["the number of {colour} shapes@", "the total number of {colour} shapes@"]},
    "count_all": {
        "direct": ["how many shapes are there@", "how many shapes do you see@", "how many shapes are@ ", "how many shapes are shown@", "how many shapes can you count@", "how many shapes can you see@", "how many shapes", "how many shapes does the picture show",
                   "how many shapes does the picture have", "how many shapes are there in all", "how many objects are there@", "how many things do you see@"],
        "indirect": ["how many shapes there are@", "how many shapes you see@", "how many shapes you can see@", "how many shapes you can count@", "how many shapes are shown@", "how many shapes are@ ", "how many shapes there are in all"],
        "order": ["count the shapes@", "count all shapes@", "count all the shapes@", "count every shape@", "count how many shapes there are@", "count the objects@"],
        "noun": ["the number of shapes@", "the total number of shapes@"]},
    "exists": {
        "direct": ["is there a {what}@", "do you see a {what}@", "does the picture show a {what}", "is a {what} shown@", "can you find a {what}@", "can you see a {what}@", "is there any {what}@", "does the picture have a {what}", "is a {what}@ ",
                   "does this picture contain a {what}", "does the picture contain a {what}", "do you find a {what}@"],
        "indirect": ["whether there is a {what}@", "if there is a {what}@", "if you see a {what}@", "whether you see a {what}@", "whether the picture shows a {what}", "if the picture has a {what}", "if you can see a {what}@"],
        "order": ["check whether there is a {what}@", "look for a {what} and say whether there is one", "say whether there is a {what}@", "say yes if there is a {what}@"]},
    "left": {
        "direct": ["what is on the left@", "what do you see on the left@", "which shape is on the left@", "what is at the left", "what is farthest to the left@", "what is the leftmost shape@", "which shape is farthest to the left@", "which shape is the leftmost@",
                   "what stands on the left side", "what is on the left side@", "what can you see on the left@", "which shape do you see on the left"],
        "indirect": ["what is on the left@", "which shape is on the left@", "what you see on the left", "which shape is the leftmost", "what is farthest to the left", "what stands on the left side"],
        "order": ["name the shape on the left@", "name the leftmost shape@", "name what is on the left", "name the shape farthest to the left"],
        "noun": ["the shape on the left@", "the leftmost shape@", "the shape on the left side"]},
    "describe": {
        "direct": ["what do you see@", "what is@ ", "what does the picture show", "what does the image show", "what is shown@", "what is this", "which shapes do you see@", "what can be seen@", "what can you see@", "which shapes are@ ", "which shapes are there@",
                   "what does this picture show", "which shapes can you see@", "which shapes are shown@"],
        "indirect": ["what you see@", "what is@ ", "what the picture shows", "which shapes you see@", "what is shown@", "which shapes there are@", "what you can see@", "which shapes are@ "],
        "order": ["describe the picture", "describe the image", "describe this picture", "describe this image", "describe this", "describe what you see@", "list the shapes@", "list all shapes@", "name the shapes@", "name the shapes from left to right",
                  "list what you see@", "name what you see@"]},
    "read_word": {
        "direct": ["what does it say", "what does the text say", "what is written@", "what word is this", "which word is this", "what word do you see@", "which word do you see@", "what is the word@", "what is the text@", "what text is shown@",
                   "which word is written@", "what does the picture say", "what does the image say", "what word is shown@", "which word can you see@", "what word can you see@", "what word is written@"],
        "indirect": ["what it says", "what the text says", "what is written@", "which word this is", "what word you see@", "what the picture says", "which word is written@", "what word this is", "what the image says", "which word you can see@"],
        "order": ["read the text@", "read the word@", "read this", "read this word", "read what it says", "copy the text@", "spell the word@", "transcribe the text@", "read what is written@", "write down the word"],
        "noun": ["the word@", "the text@", "the written word"]},
    "read_number": {
        "direct": ["what number is this", "which number is this", "what number do you see@", "which number do you see@", "what is the number@", "what number is shown@", "which number is shown@", "what number is written@", "which number is written@",
                   "which number is@ ", "what number is@ ", "what does the number say", "what number is it", "which number is it", "what number does the picture show", "what number can you see@", "which number can you see@"],
        "indirect": ["what number this is", "which number this is", "what number you see@", "which number you see@", "what number is shown@", "which number is written@", "what the number is", "what number it is", "which number you can see@"],
        "order": ["read the number@", "read this number", "copy the number@", "name the number@", "read the number you see", "write down the number", "transcribe the number@"],
        "noun": ["the number@", "this number", "the written number"]},
    "bar_value": {
        "direct": ["what is the value of {bar}", "what is the value of bar {bar}", "how high is {bar}", "how high is bar {bar}", "what value does {bar} have", "what value does bar {bar} have", "which value does {bar} have", "how much is {bar}",
                   "how much is bar {bar}", "which value has {bar}", "what is {bar}", "what number belongs to {bar}", "what is the value for {bar}", "what value has bar {bar}"],
        "indirect": ["what the value of {bar} is", "how high {bar} is", "how high bar {bar} is", "what value {bar} has", "which value bar {bar} has", "how much {bar} is"],
        "order": ["read the value of {bar}", "read the value of bar {bar}", "name the value of {bar}", "find the value of {bar}"],
        "noun": ["the value of {bar}", "the value of bar {bar}", "the value for {bar}", "the height of bar {bar}"]},
    "bar_high": {
        "direct": ["which bar is the highest", "which bar is highest", "what is the highest bar", "which bar is the tallest", "which is the highest bar", "which bar has the highest value", "which has the highest value", "which letter has the highest bar",
                   "what is the tallest bar", "which bar is the largest", "which bar has the largest value", "which is the tallest bar", "what bar is the highest"],
        "indirect": ["which bar is the highest", "which bar is highest", "which bar has the highest value", "which bar is the tallest", "which bar is the largest", "which letter has the highest bar"],
        "order": ["name the highest bar", "name the tallest bar", "find the highest bar", "name the bar with the highest value", "find the bar with the largest value"],
        "noun": ["the highest bar", "the tallest bar", "the bar with the highest value", "the largest bar"]},
    "bar_low": {
        "direct": ["which bar is the lowest", "which bar is lowest", "what is the lowest bar", "which bar is the shortest", "which is the lowest bar", "which bar has the lowest value", "which has the lowest value", "which letter has the lowest bar",
                   "what is the shortest bar", "which bar is the smallest", "which bar has the smallest value", "which is the shortest bar", "what bar is the lowest"],
        "indirect": ["which bar is the lowest", "which bar is lowest", "which bar has the lowest value", "which bar is the shortest", "which bar is the smallest", "which letter has the lowest bar"],
        "order": ["name the lowest bar", "name the shortest bar", "find the lowest bar", "name the bar with the lowest value", "find the bar with the smallest value"],
        "noun": ["the lowest bar", "the shortest bar", "the bar with the lowest value", "the smallest bar"]},
    "bar_count": {
        "direct": ["how many bars are there@", "how many bars do you see@", "how many bars does the chart have", "how many bars are in the chart", "how many bars are shown@", "how many bars can you see@", "how many bars can you count@", "how many bars", "how many bars are@ "],
        "indirect": ["how many bars there are@", "how many bars you see@", "how many bars the chart has", "how many bars are shown@", "how many bars you can see@"],
        "order": ["count the bars@", "count all bars@", "count all the bars@", "count the bars of the chart", "count how many bars there are@"],
        "noun": ["the number of bars@", "the number of bars in the chart", "the total number of bars@"]},
    "bar_colour": {
        "direct": ["what COLOR is {bar}", "what COLOR is bar {bar}", "which COLOR is bar {bar}", "which COLOR has {bar}", "which COLOR does bar {bar} have", "what COLOR does {bar} have", "what COLOR has bar {bar}", "in which COLOR is bar {bar}"],
        "indirect": ["what COLOR bar {bar} is", "which COLOR bar {bar} is", "what COLOR {bar} is", "which COLOR bar {bar} has"],
        "order": ["name the COLOR of bar {bar}", "name the COLOR of {bar}", "say the COLOR of bar {bar}", "tell me the COLOR of bar {bar}"],
        "noun": ["the COLOR of bar {bar}", "the COLOR of {bar}", "bar {bar}'s COLOR"]},
}
PHRASES["right"] = {form: [p.replace("left", "right") for p in phrases] for form, phrases in PHRASES["left"].items()}
# Sentences with phrases or frames that training never has, for the figures on unfamiliar wordings.
UNFAMILIAR = {
    "the_shape": ["Which geometric shape would you call this?", "This shape is known as what?", "What am I looking at, which shape?"],
    "the_colour": ["How would you describe its color?", "It is painted in what color?", "The color here is what?"],
    "colour_of": ["How is the {thing} colored?", "The {thing} is painted in what color?", "I can't tell the color of the {thing}. Help me."],
    "shape_of": ["Which shape did they paint {colour}?", "Something is {colour}. What shape has it?", "Of all the shapes, which is the {colour} one?"],
    "count_shape": ["How many {things} would you say there are?", "What is the count of {things}?", "The picture contains how many {things}?"],
    "count_colour": ["How many {colour} shapes would you say there are?", "What is the count of {colour} shapes?", "The picture contains how many {colour} shapes?"],
    "count_all": ["How many shapes would you say there are?", "What is the count of all shapes?", "The picture contains how many shapes?"],
    "read_word": ["Which letters are printed here?", "What has been written down?", "Someone wrote a word. Which?"],
    "read_number": ["Which digits are printed here?", "What figure has been written down?", "Someone wrote a number. Which?"],
}


def capital(text):
    return text[0].upper() + text[1:]


def held_out(sentence):
    """Whether evaluation keeps this sentence, its fields not yet filled in, for itself; spelling and style do not matter."""
    same = sentence.rstrip("?.").lower().replace("colour", "color")
    return zlib.crc32(f"question {same}".encode()) % 100 < HELD_OUT


def placed(phrase, frame, pick):
    """The phrase with a place, where it takes one; `@` and a space at the end mean that it needs one."""
    if phrase.endswith("@ "):
        return phrase[:-2] + pick(PLACES[3:7])
    if phrase.endswith("@"):
        return phrase[:-1] + ("" if "picture" in frame or "image" in frame else pick(PLACES))
    return phrase


def sentence(kind, pick):
    """A question of that kind, its fields not yet filled in."""
    forms = PHRASES[kind]
    form = pick([name for name, share in SHARES.items() if name in forms for _ in range(share)])
    frame = FRAMES[form][0] if pick((0, 1, 2)) == 0 else pick(FRAMES[form])
    phrase = placed(pick(forms[form]), frame, pick)
    while "COLOR" in phrase:
        phrase = phrase.replace("COLOR", pick(("color", "colour")), 1)
    text = capital(frame.replace("~", phrase).replace("^", capital(phrase)))
    style = pick(range(16))
    # As people type.
    return text[0].lower() + text[1:].rstrip("?.") if style == 0 else text.rstrip("?.") if style == 1 else text


def template(kind, split, pick):
    """A question for `train`, for `eval` (a held-out sentence), or `unfamiliar`."""
    if split == "unfamiliar":
        return pick(UNFAMILIAR[kind])
    while True:
        text = sentence(kind, pick)
        if held_out(text) == (split == "eval"):
            return text
