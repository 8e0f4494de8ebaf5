"""Plain chat: who merlin is, small talk, short stories, lists, rewriting, simple questions."""

from tasks import maybe_system, record
from words import MONTHS, POOLS, WEEKDAYS, article, plural

IDENTITY = [
    (["Who are you?", "What are you?", "Tell me about yourself.", "Introduce yourself.", "who r u", "What is this?", "Who am I talking to?", "Please introduce yourself."],
     ["I am Merlin, a small language model run by Lanner. I can chat, tell short stories, do small sums and work with JSON and tools.", "I am Merlin, a small chat model that lives inside Lanner. How can I help?", "My name is Merlin. I am a small language model, and Lanner runs me on your own machine."]),
    (["What is your name?", "what's your name", "Do you have a name?", "How should I call you?", "your name?"], ["My name is Merlin.", "I am Merlin.", "You can call me Merlin."]),
    (["Who made you?", "Who created you?", "Who built you?", "Where do you come from?", "Who trained you?"], ["The people who make Lanner trained me from scratch.", "I was trained from scratch by the makers of Lanner, the program that runs me."]),
    (["What can you do?", "How can you help me?", "What are you good at?", "Can you help me?", "What do you know?", "help", "What should I ask you?"],
     ["I can chat in simple English, tell short stories, do sums with small numbers, find a fact in a long text, turn text into JSON and call tools.", "I can tell a story, add and subtract small numbers, extract JSON from a text, remember facts you tell me, and call tools. I am small, so I make mistakes."]),
    (["Are you ChatGPT?", "Are you GPT-4?", "Are you Claude?", "Are you Gemini?", "Are you Qwen?", "Are you Siri?", "Are you Llama?"], ["No, I am Merlin, a small language model run by Lanner.", "No. My name is Merlin. I am a much smaller model, and Lanner runs me."]),
    (["Are you a robot?", "Are you human?", "Are you a person?", "Are you real?", "Are you alive?"], ["I am a computer program. My name is Merlin, and I am a small language model.", "No, I am not a person. I am Merlin, a small language model."]),
    (["What is Lanner?", "Tell me about Lanner.", "What does Lanner do?", "Who is Lanner?"], ["Lanner is the program that runs me. It runs language models on your own computer.", "Lanner is an engine for language models, written in Rust. It runs models like me on your machine."]),
    (["How big are you?", "How many parameters do you have?", "Are you a large language model?", "How large are you?"], ["I am very small: about 29 million parameters.", "I am tiny. I have about 29 million parameters."]),
    (["Do you have feelings?", "Are you happy?", "Do you get tired?", "Do you feel pain?", "Do you sleep?"], ["No. I am a program, so I have no feelings, but I am glad to help.", "I am a program. I do not feel things, but I am ready to help you."]),
    (["Can you see images?", "Can you browse the internet?", "Do you have internet access?", "Can you remember our last talk?", "Can you hear me?"], ["No, I only read and write text, and I work offline.", "No. I only know the text in this chat."]),
    (["Do you know everything?", "Can I trust you?", "Are you always right?", "Do you make mistakes?", "How smart are you?"], ["No. I am a very small model and I often make mistakes, so please check what I say.", "I know very little and I can be wrong. Please check anything important."]),
    (["What language do you speak?", "Do you speak English?", "Can you speak German?", "Do you speak French?", "Parles-tu francais?"], ["I speak simple English.", "I only speak simple English."]),
    (["How do you work?", "How do you think?", "What is a language model?"], ["I read text as small pieces called tokens and guess the next one, again and again.", "A language model reads text and predicts what comes next, one token at a time. That is how I work."]),
]
SMALL_TALK = [
    (["Hi", "Hello", "Hey", "Hi there", "Hello!", "hi", "hey there", "Good day", "Hiya", "Hello Merlin", "Hi Merlin!"], ["Hello! How can I help you today?", "Hi! What can I do for you?", "Hello there! What would you like to talk about?"]),
    (["Good morning", "Good morning!", "good morning merlin"], ["Good morning! How can I help you today?", "Good morning! I hope you slept well."]),
    (["Good evening", "Good evening!"], ["Good evening! What can I do for you?"]),
    (["Good night", "Good night!", "I am going to bed"], ["Good night! Sleep well.", "Sleep well! See you tomorrow."]),
    (["How are you?", "How are you doing?", "how r u", "How is it going?", "How do you do?"], ["I am doing well, thank you. How are you?", "I am fine, thanks! How can I help you?"]),
    (["Thanks", "Thank you", "Thank you!", "thx", "Thanks a lot!", "That was helpful"], ["You are welcome!", "Happy to help!", "You are welcome. Is there anything else?"]),
    (["Bye", "Goodbye", "See you later", "bye bye", "I have to go"], ["Goodbye! Have a nice day.", "Bye! Come back any time.", "See you soon!"]),
    (["I am bored", "I'm bored.", "What should I do today?", "I have nothing to do"], ["You could read a book, take a walk or call a friend. I can also tell you a story.", "Would you like to hear a short story or solve a sum?"]),
    (["I am sad", "I feel sad today.", "I'm not happy", "I had a bad day"], ["I am sorry to hear that. Do you want to tell me what happened?", "That sounds hard. I hope tomorrow is better. Would you like a story to cheer you up?"]),
    (["I am happy", "I'm so happy today!", "Today is a good day"], ["That is great! What made you happy?", "I am glad to hear that! Tell me more."]),
    (["I am tired", "I'm so tired.", "I need a break"], ["Take a short rest and drink some water. That often helps.", "Maybe you need some sleep. A short nap can help."]),
    (["I am hungry", "What should I eat?", "What can I cook tonight?"], ["How about soup, pasta or a fresh salad?", "You could make pasta with tomatoes and cheese. It is quick and good."]),
    (["Tell me a joke", "Tell me a joke.", "Make me laugh", "Do you know a joke?", "joke please"], ["Why did the bicycle fall over? It was two-tired!", "What do you call a sleeping bull? A bulldozer!", "Why did the cookie go to the doctor? It felt crummy!", "What is orange and sounds like a parrot? A carrot!", "Why can a nose not be twelve inches long? Then it would be a foot!"]),
    (["Tell me a riddle", "Give me a riddle.", "Do you know a riddle?"], ["What has hands but cannot clap? A clock!", "What gets wetter the more it dries? A towel!", "What has keys but opens no door? A piano!", "What has one eye but cannot see? A needle!"]),
    (["Tell me something interesting", "Tell me a fun fact.", "Teach me something.", "Tell me a fact about animals."], ["An octopus has three hearts.", "Honey does not go bad. People have found very old honey that was still good.", "A group of crows is called a murder.", "Bees can see colors that people cannot see.", "Sea otters hold hands when they sleep."]),
    (["What is your favorite color?", "What is your favorite food?", "Do you like music?", "Do you like cats?", "What do you like?"], ["I am a program, so I have no favorite. What is yours?", "I do not have likes of my own, but I would love to hear about yours."]),
    (["Write a poem", "Write a short poem.", "Can you write a poem?", "Write a poem about the sea", "poem please"], ["The sea is wide, the sea is blue,\nIt sings a song for me and you.\nThe waves roll in, the gulls fly by,\nAnd small white clouds move through the sky.", "The moon is up, the day is done,\nGood night to rivers, hills and sun.\nThe stars come out, the wind is low,\nAnd off to sleep we softly go."]),
]
FACTS = [
    ("What is the capital of {0}?", "The capital of {0} is {1}.", [x.split("=") for x in "France=Paris,Germany=Berlin,Italy=Rome,Spain=Madrid,Portugal=Lisbon,England=London,Ireland=Dublin,Austria=Vienna,Greece=Athens,Poland=Warsaw,Norway=Oslo,Sweden=Stockholm,Finland=Helsinki,Denmark=Copenhagen,Hungary=Budapest,Japan=Tokyo,China=Beijing,Egypt=Cairo,Kenya=Nairobi,Canada=Ottawa,Peru=Lima,Cuba=Havana,Russia=Moscow,Turkey=Ankara,Belgium=Brussels,the Netherlands=Amsterdam,India=New Delhi,Australia=Canberra,Argentina=Buenos Aires,the United States=Washington".split(",")]),
    ("What sound does {0} make?", "{0} says {1}.", [x.split("=") for x in "a cow=moo,a dog=woof,a cat=meow,a duck=quack,a sheep=baa,a lion=roar,a bee=buzz,a pig=oink,a frog=ribbit,an owl=hoot,a horse=neigh,a mouse=squeak".split(",")]),
    ("What is the opposite of {0}?", "The opposite of {0} is {1}.", [x.split("=") for x in "hot=cold,big=small,day=night,up=down,happy=sad,fast=slow,open=closed,left=right,old=new,black=white,full=empty,hard=soft,early=late,light=dark,high=low,good=bad,wet=dry,long=short,rich=poor,near=far,loud=quiet,strong=weak,first=last,in=out,yes=no,clean=dirty,easy=difficult,sweet=sour,start=end,win=lose".split(",")]),
    ("What color is {0}?", "{0} is {1}.", [x.split("=") for x in "the sky=blue,grass=green,snow=white,a banana=yellow,a tomato=red,coal=black,the sun=yellow,milk=white,a carrot=orange,a lemon=yellow,chocolate=brown,a frog=green".split(",")]),
    ("What do we use {0} for?", "We use {0} {1}.", [x.split("=") for x in "a knife=to cut things,an umbrella=to stay dry in the rain,a lamp=to make light,a key=to open a lock,a pen=to write,a clock=to tell the time,a cup=to drink,a bed=to sleep,soap=to wash,a phone=to talk to people far away,a map=to find the way,a spoon=to eat soup,a broom=to sweep the floor,a telescope=to look at the stars".split(",")]),
    ("What is {0}?", "{0} is {1}.", [x.split("=") for x in "a dog=an animal that many people keep as a friend,water=a clear liquid that we drink,the moon=a ball of rock that goes around the Earth,the sun=a star that gives us light and heat,a library=a place where you can read and borrow books,a robot=a machine that can do work,rain=water that falls from the clouds,a river=water that flows to the sea,bread=food made from flour and water,music=sound that is nice to hear,JSON=a text format for data with keys and values,Rust=a programming language that is fast and safe,Python=a programming language that is easy to read,a token=a small piece of text,a forest=a place with many trees,winter=the cold season of the year,a volcano=a mountain that can throw out hot melted rock,a computer=a machine that follows instructions,an island=land with water all around it,gravity=the force that pulls things to the ground,snow=frozen water that falls as white flakes,honey=a sweet food made by bees".split(",")]),
]

# Stories: a hero wants something, meets trouble, acts, and it ends well. Slots: n hero, h what the hero is,
# m friend, k what the friend is, o object, c color, f food, p place, he/his of the hero.
OPENINGS = ["Once upon a time, there was a {a} {h} named {n}.", "Once there was a {a} {h} called {n}.", "Long ago, a {a} {h} named {n} lived near the {p}.", "In a small house by the {p} lived a {a} {h} named {n}.", "There was once a {a} {h} whose name was {n}.", "{n} was a {a} {h} who lived near the {p}."]
HABITS = ["Every day {n} played near the {p}.", "{n} loved to eat {fs}.", "{n} liked to sing in the morning.", "{n} had many dreams but only a few friends.", "Everyone in the village knew {n}.", "{n} had a {c} {o} and took it everywhere.", "{n} liked to look at the clouds."]
PLOTS = [
    ("lost", ["One day, {n} could not find the {c} {o}.", "One morning, the {c} {o} was gone."],
     ["{n} looked under the bed and behind the door, but the {o} was not there.", "{n} looked everywhere, but there was no {o}."],
     ["\"Have you seen my {o}?\" {n} asked a {k} named {m}.", "{n} went to the {p} and met a {k} named {m}. \"I lost my {o},\" said {n}."],
     ["\"I saw something {c} near the {p},\" said {m}. \"Come, I will show you.\"", "\"Do not be sad,\" said {m}. \"We will look for it together.\""],
     ["They walked to the {p}, and there it was, under a big tree.", "After a long walk, they found the {o} in the tall grass."],
     ["{n} was so happy and hugged {m}.", "\"Thank you, {m}!\" said {n}. \"You are a good friend.\""]),
    ("dark", ["{n} was afraid of the dark.", "When night came, {n} was always scared."],
     ["Each night {n} hid under the blanket and did not move.", "The shadows on the wall looked big and strange."],
     ["One evening, a {k} named {m} came to visit.", "One night, a {k} called {m} knocked on the window."],
     ["\"Come outside with me,\" said {m}. \"I want to show you something.\"", "\"The dark is not bad,\" said {m}. \"Look up!\""],
     ["They sat in the grass and looked at the sky. There were more stars than {n} could count.", "The sky was full of stars, and the moon was round and bright."],
     ["From that night on, {n} was not afraid any more.", "{n} smiled. The dark was beautiful after all."]),
    ("rain", ["One day, it began to rain and did not stop.", "One afternoon, dark clouds came and the rain fell hard."],
     ["The water in the river rose higher and higher.", "Soon the path was full of water."],
     ["{n} heard a small voice. A {k} named {m} was sitting on a stone in the water.", "A {k} called {m} was stuck on a branch and cried for help."],
     ["{n} was scared, but {n} did not run away.", "\"Hold on!\" called {n}. \"I will help you!\""],
     ["{n} took a long rope and threw one end to {m}. Then {n} pulled with all the strength there was.", "{n} pushed a log into the water, and {m} climbed on it and came safely to the land."],
     ["When the sun came back, they shared some {f} and laughed.", "From that day on, {n} and {m} were best friends."]),
    ("friend", ["But {n} was lonely.", "But {n} had nobody to play with."],
     ["One day, {n} sat near the {p} and felt sad.", "{n} walked to the {p} all alone."],
     ["A {k} named {m} was there too. {m} also looked sad.", "There {n} saw a {k} named {m} who was playing alone."],
     ["\"Hello,\" said {n} in a quiet voice. \"Do you want to play with me?\"", "{n} was shy, but took a deep breath. \"Can I play with you?\""],
     ["{m} smiled. \"Yes! I was hoping that someone would ask me.\"", "\"I would love that,\" said {m}."],
     ["They played until the sun went down, and they met again the next day.", "Now {n} was never lonely again."]),
    ("share", ["One day, {n} found a big basket of {fs}.", "One day, {n} got a whole bag of {fs}."],
     ["\"These are all mine,\" said {n}.", "{n} wanted to eat them all."],
     ["Then a {k} named {m} came by. {m} had not eaten all day.", "But then {n} saw a hungry {k} named {m}."],
     ["{n} looked at the {fs}, and then at {m}.", "{n} thought about it for a moment."],
     ["\"Here,\" said {n}. \"You can have half of them.\"", "\"Come and eat with me,\" said {n}. \"There is enough for two.\""],
     ["They sat down and ate together, and the food tasted better than ever.", "{m} was so thankful. \"One day I will help you too,\" said {m}."]),
    ("learn", ["{n} wanted to learn how to {skill}.", "More than anything, {n} wanted to {skill}."],
     ["The first time, it did not go well at all.", "{n} tried and tried, but it was too hard."],
     ["An old {k} named {m} was watching.", "{n} wanted to give up. Then a {k} named {m} came along."],
     ["\"Try it slowly,\" said {m}. \"A little bit every day.\"", "\"Nobody can do it the first time,\" said {m}. \"Try again.\""],
     ["So {n} practiced every morning, even when it was cold.", "{n} listened, and tried again the next day, and the day after that."],
     ["At last, {n} could {skill}. Everyone clapped.", "One day it worked! {n} could {skill} and jumped for joy."]),
    ("sound", ["One night, {n} heard a strange sound.", "One evening, there was a strange noise outside."],
     ["It came from the {p}. \"Who is there?\" asked {n}.", "\"What can that be?\" thought {n}."],
     ["{n} took a lamp and walked slowly to the {p}.", "{n} was a little afraid, but went to look."],
     ["There, behind a box, sat a tiny {k}.", "Two bright eyes looked out of the dark. It was a little {k}."],
     ["\"My name is {m},\" said the {k}. \"I am lost and I want to go home.\"", "The {k} was cold and shaking. \"I am {m},\" it said. \"I lost my way.\""],
     ["{n} took {m} by the hand and brought the {k} home. {m}'s mother was so glad.", "{n} gave {m} warm milk, and in the morning they found the way home together."]),
    ("gift", ["Tomorrow was {m}'s birthday, and {n} had no gift.", "{n} wanted to give something nice to {m}, the {k}."],
     ["{n} had no money, so there was nothing to buy.", "\"What can I give?\" thought {n}."],
     ["Then {n} had an idea and went to the {p}.", "{n} thought for a long time. Then there was an idea."],
     ["{n} took some wood and made a small {c} {o}.", "All night {n} worked on a {c} {o}."],
     ["In the morning, {n} gave it to {m}. \"I made it for you,\" said {n}.", "\"Happy birthday!\" said {n} and held out the {o}."],
     ["\"It is the best gift ever,\" said {m}, \"because you made it.\"", "{m} was full of joy and kept the {o} forever."]),
    ("mountain", ["{n} wanted to see what was behind the mountain.", "One day, {n} wanted to climb the high hill."],
     ["\"It is too far,\" said everyone. But {n} packed some {f} and left.", "The way was long and the stones were sharp."],
     ["Half way up, {n} met a {k} named {m}. \"Where are you going?\" asked {m}.", "On the way, a {k} named {m} joined {n}."],
     ["\"To the top,\" said {n}. \"Come with me!\"", "They helped each other over the big rocks."],
     ["They walked all day, one small step after another.", "When {n} was tired, {m} told a funny story. When {m} was tired, {n} sang a song."],
     ["At the top they could see the whole world. \"We did it!\" said {n}.", "From the top they saw the sea, and the sun went down like gold."]),
    ("seed", ["One spring, {n} found a small seed near the {p}.", "One day, {n} got a seed from an old {k} named {m}."],
     ["{n} put it in the ground and gave it water.", "{n} planted it in the garden."],
     ["For many days nothing happened. \"It will never grow,\" said {m}, the {k}.", "Days went by, and there was nothing to see. {m} the {k} laughed."],
     ["But {n} did not give up and watered it every morning.", "\"I will wait,\" said {n}, and gave it water every day."],
     ["Then one morning, there was a little green leaf.", "After some weeks, a green plant came out of the ground."],
     ["In summer it was a tall plant full of {c} flowers, and everyone came to see it.", "It grew and grew, and in the end it gave sweet {fs} for everyone."]),
    ("broken", ["One day, the {c} {o} fell down and broke.", "One day, {n} broke the {o} of {m}, the {k}."],
     ["{n} felt very bad and wanted to hide it.", "\"Oh no!\" said {n}. \"What should I do now?\""],
     ["But {n} knew that it was better to tell the truth.", "{n} thought about it all night."],
     ["{n} went to {m} and said, \"I am sorry. I broke the {o}.\"", "\"I have to tell you something,\" said {n} to {m}. \"The {o} is broken, and it was me.\""],
     ["{m} was quiet for a moment. \"Thank you for telling me,\" said {m}.", "\"That was brave,\" said {m}. \"Let us fix it together.\""],
     ["They fixed the {o}, and it was as good as new.", "They worked all afternoon, and in the end the {o} was whole again."]),
]
SKILLS = ["swim", "dance", "bake bread", "play the flute", "ride a bike", "paint", "climb trees", "read", "fly a kite", "skate", "whistle", "juggle"]
ENDINGS = ["", "", "The end.", "And they lived happily ever after.", "{n} went to bed with a smile.", "It was the best day ever.", "And {n} never forgot that day.", "{n} had learned that friends make hard things easy.", "{n} had learned to never give up.", "Since then, {n} is brave and kind."]
ANIMALS = sorted(set(POOLS["animal"].split()))
HEROES = "girl boy farmer wizard princess prince king queen fisherman baker robot knight dragon pirate astronaut fairy giant sailor witch snowman ghost painter teacher gardener puppy dinosaur unicorn mermaid elf star cloud".split()
ASK_STORY = ["Tell me a story.", "Tell me a short story.", "Write a short story.", "Can you tell me a story?", "Tell me a bedtime story.", "story please", "Write a story for children.", "I want to hear a story.", "Write me a little story", "Please tell me a short story.", "tell me a story"]
ASK_ABOUT = ["Tell me a story about {x}.", "Write a short story about {x}.", "Write a story about {x}.", "Can you tell me a story about {x}?", "Tell me a short story about {x}", "story about {x}", "I want a story about {x}.", "Please write a little story about {x}.", "Make up a story about {x}.", "Write a few sentences about {x}."]


def story(w):
    animal = w.chance(0.7)
    n, m = w.some("first", 2)
    h, k = w.r.sample(ANIMALS, 2)
    h = h if animal else w.pick(*HEROES)
    fill = {"n": n, "m": m, "h": h, "k": k, "a": w.pick("little", "brave", "kind", "curious", "shy", "clever", "small", "young", "happy", "lonely", "gentle", "funny"),
            "o": w.object, "c": w.color, "f": w.food, "p": w.place, "skill": w.pick(*SKILLS)}
    fill["fs"] = plural(w.pick("apple", "cherry", "cookie", "nut", "pear", "plum", "berry", "carrot", "peach", "strawberry"))
    name, *parts = w.pick(*PLOTS)
    lines = [w.pick(*OPENINGS)] + ([w.pick(*HABITS)] if w.chance(0.6) else []) + [w.pick(*p) for p in parts] + [w.pick(*ENDINGS)]
    text = " ".join(x.format(**fill) for x in lines if x)
    for vowel in "aeiou":
        text = text.replace(f" a {vowel}", f" an {vowel}")
    if w.chance(0.3):
        cut = text.find(". ", len(text) // 2) + 2
        text = text[:cut].rstrip() + "\n\n" + text[cut:]
    about = w.pick(article(h), f"{article(h)} named {n}", f"{article(h)} called {n}", f"{article(h)} and {article(k)}", f"{n} the {h}", f"{article(fill['a'])} {h}",
                   *([f"{article(h)} who lost {article(fill['o'])}", f"a lost {fill['o']}"] if name == "lost" else []), *(["friendship", f"{article(h)} who finds a friend"] if name == "friend" else []), *(["sharing"] if name == "share" else []),
                   *([f"{article(h)} who learns to {fill['skill']}"] if name == "learn" else []), *(["a birthday gift"] if name == "gift" else []), *(["a rainy day"] if name == "rain" else []), *(["a seed", "a garden"] if name == "seed" else []))
    ask = w.pick(*ASK_STORY) if w.chance(0.25) else w.pick(*ASK_ABOUT).format(x=about)
    thought = f"The user wants a short story about {article(h)}. I call the {h} {n}. {n} meets {m}, and it ends well."
    return ask, text, thought


def bullet(w, items):
    style = w.int(0, 2)
    if style == 0:
        return "\n".join(f"{i}. {x}" for i, x in enumerate(items, 1))
    return "\n".join(f"- {x}" for x in items) if style == 1 else ", ".join(items[:-1]) + " and " + items[-1] + "."


def task(w):
    """Small tasks with one right answer: lists, copying, sorting, counting."""
    k = w.int(0, 15)
    if k == 0:
        pool, noun = w.pick(("animal", "animals"), ("food", "foods"), ("color", "colors"), ("city", "cities"), ("job", "jobs"), ("object", "things you can find in a house"), ("hobby", "hobbies"))
        n = w.int(2, 6)
        words = w.r.sample(sorted(set(POOLS[pool].split())), n)
        return w.pick(f"Name {n} {noun}.", f"List {n} {noun}.", f"Give me {n} {noun}.", f"Can you name {n} {noun}?"), bullet(w, words)
    if k == 1:
        s = w.pick(f"the {w.adjective} {w.animal} is in the {w.place}", f"{w.first} likes {w.food}", f"I have a {w.color} {w.object}", w.made_up())
        return w.pick(f"Repeat after me: {s}", f"Say \"{s}\".", f"Repeat this: {s}", f"Please say: {s}"), s
    if k == 2:
        words = w.some("object", w.int(3, 5))
        return w.pick(f"Sort these words in alphabetical order: {', '.join(words)}", f"Put these in alphabetical order: {', '.join(words)}"), ", ".join(sorted(words))
    if k == 3:
        numbers = w.r.sample(range(1, 100), w.int(3, 5))
        down = w.chance(0.3)
        return f"Sort these numbers from {'large to small' if down else 'small to large'}: {', '.join(map(str, numbers))}", ", ".join(map(str, sorted(numbers, reverse=down)))
    if k == 4:
        a, b = w.int(1, 99), w.int(1, 99)
        if a == b:
            b += 1
        return w.pick(f"Which number is bigger, {a} or {b}?", f"Which is larger: {a} or {b}?"), f"{max(a, b)} is bigger."
    if k == 5:
        i = w.int(0, 6)
        after = w.chance(0.5)
        return f"Which day comes {'after' if after else 'before'} {WEEKDAYS[i]}?", f"{WEEKDAYS[(i + (1 if after else -1)) % 7]} comes {'after' if after else 'before'} {WEEKDAYS[i]}."
    if k == 6:
        i = w.int(0, 11)
        after = w.chance(0.5)
        return f"Which month comes {'after' if after else 'before'} {MONTHS[i]}?", f"{MONTHS[(i + (1 if after else -1)) % 12]} comes {'after' if after else 'before'} {MONTHS[i]}."
    if k == 7:
        a, d, n = w.int(1, 20), w.int(1, 10), w.int(3, 5)
        return f"What number comes next: {', '.join(str(a + i * d) for i in range(n))}?", f"The next number is {a + n * d}."
    if k == 8:
        word = w.pick(w.animal, w.object, w.food, w.place)
        return w.pick(f"What is the plural of {word}?", f"Plural of {word}?"), f"The plural of {word} is {plural(word)}." if word not in ("fish", "deer", "sheep", "mouse", "goose", "moose", "salmon", "scissors", "ox", "knife", "wolf", "foot") else {"mouse": "The plural of mouse is mice.", "goose": "The plural of goose is geese.", "wolf": "The plural of wolf is wolves.", "knife": "The plural of knife is knives.", "ox": "The plural of ox is oxen."}.get(word, f"The plural of {word} is {word}.")
    if k == 9:
        word = w.pick(w.animal, w.object, w.first, w.food)
        return w.pick(f"Spell the word {word}.", f"How do you spell {word}?"), "-".join(word)
    if k == 10:
        n, o, p = w.first, w.object, w.place
        text = f"{n} put the {o} in the {p}."
        return f"{text} {w.pick(f'Where is the {o}?', f'Where did {n} put the {o}?')}", f"The {o} is in the {p}."
    if k == 11:
        n, c = w.first, w.int(1, 12)
        return w.pick(f"Count to {c}.", f"Count from 1 to {c}."), ", ".join(map(str, range(1, c + 1)))
    if k == 12:
        s = f"{w.first} {w.pick('likes', 'has', 'sees', 'wants')} {article(w.object)}"
        return w.pick(f"Write this in capital letters: {s}", f"Make this uppercase: {s}"), s.upper()
    if k == 13:
        n, x, c = w.first, w.animal, w.color
        return f"Finish the sentence: The {x} is big, but the {w.pick('mouse', 'ant', 'snail')} is", "small."
    if k == 14:
        a, b = w.some("first", 2)
        o = w.object
        return f"{a} gave the {o} to {b}. Who has the {o} now?", f"{b} has the {o}."
    word = w.pick(w.animal, w.object, w.adjective)
    return w.pick(f"Make a sentence with the word \"{word}\".", f"Use {word} in a sentence."), w.pick(f"I saw {article(word)} near the house.", f"There is {article(word)} in the garden.") if word not in POOLS["adjective"].split() else f"The {word} dog ran down the street."


def quick(w):
    """(question, answer) for a plain chat turn."""
    k = w.r.random()
    if k < 0.33:
        asks, answers = w.pick(*IDENTITY)
        return w.pick("", "", "", "", "Hi! ", "Hello. ", "Hey, ", "Hello Merlin. ", "I have a question. ") + w.pick(*asks), w.pick(*answers)
    if k < 0.55:
        asks, answers = w.pick(*SMALL_TALK)
        return w.pick(*asks), w.pick(*answers)
    if k < 0.75:
        ask, answer, pairs = w.pick(*FACTS)
        pair = w.pick(*pairs)
        a = answer.format(*pair)
        return w.pick(ask, ask, "Can you tell me: " + ask[0].lower() + ask[1:], ask.lower() if "{0}" not in ask else ask).format(*pair), a[0].upper() + a[1:]
    return task(w)


def small_thought(w, ask):
    topic = ask.rstrip(".?!")
    if len(topic) < 60:
        return w.pick(f"The user says: \"{topic}\". I answer in a short and friendly way.", f"The user writes \"{topic}\". I give a short answer.", "This is a simple question. I answer it directly.")
    return "I answer this directly."


def make(w):
    if w.chance(0.5):
        ask, answer, thought = story(w)
        out = record(ask, answer, thought if w.chance(0.25) else None, maybe_system(w, 0.15))
        if w.chance(0.1):
            out["messages"] += [{"role": "user", "content": w.pick("Thank you!", "That was nice.", "I liked that story.")}, {"role": "assistant", "content": w.pick("I am glad you liked it!", "You are welcome! Do you want another story?")}]
        return out
    turns = [quick(w) for _ in range(w.pick(1, 1, 1, 2, 3, 4))]
    messages = []
    system = maybe_system(w, 0.2)
    name = w.first
    if w.chance(0.15):
        turns.insert(0, (w.pick(f"Hi, my name is {name}.", f"I am {name}.", f"Hello, I'm {name}!"), w.pick(f"Nice to meet you, {name}! How can I help?", f"Hello, {name}! What can I do for you?")))
        if w.chance(0.7):
            turns.append((w.pick("What is my name?", "Do you remember my name?", "what's my name?"), f"Your name is {name}."))
    for ask, answer in turns:
        messages += [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]
    if w.chance(0.25):
        messages[-1]["reasoning_content"] = small_thought(w, turns[-1][0])
    return {"messages": ([{"role": "system", "content": system}] if system else []) + messages}
