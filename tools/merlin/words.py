"""Word pools for the synthetic tasks. Every pool is cut in two, so evaluation uses words training never saw."""

import collections
import random
import re
import zlib

POOLS = {
    "first": """Ada Adam Aisha Alan Alba Alex Alice Amara Amir Amy Ana Andre Anika Anna Anton Arjun Astrid Ava Axel Bea Ben
Bianca Boris Bram Bruno Caleb Carla Carlos Celia Chen Chloe Clara Cole Cora Dana Daniel Daria David Dev Diego Dina Dora
Dylan Edith Elena Eli Elias Ella Elsa Emil Emma Enzo Erik Esme Ethan Eva Evan Farah Felix Finn Fiona Flora Frank Freya
Gabe Gina Grace Greta Gus Hana Hank Hans Harper Hazel Heidi Helen Henry Hugo Ida Igor Ines Ingrid Iris Isaac Isla Ivan
Ivy Jack Jade Jake Jamal James Jana Jane Jasper Jean Jenny Jin Joan Joel John Jonas Jose Joy Juan Judy Julia June Kai
Kara Karl Kate Kenji Kim Kira Kofi Lara Lars Laura Layla Lea Lena Leo Lia Liam Lily Lina Linda Lisa Liv Logan Lola Luca
Lucy Luis Luka Luna Mabel Maeve Mara Marco Maria Mark Marta Mary Mateo Max Maya Mei Mia Milan Milo Mina Mona Nadia Nasir
Nate Neil Nia Nico Nina Noah Noor Nora Olaf Olga Oliver Omar Oscar Otto Owen Pablo Paula Pedro Penny Pia Piotr Priya
Quinn Rafa Raj Ravi Rita Robin Rosa Rose Ruby Ruth Ryan Sadie Salma Sam Sana Sara Sean Sofia Sonia Stella Sven Tara Tariq
Tess Theo Tim Tina Tom Una Uma Vera Victor Viola Wendy Will Yara Yusuf Zara Zoe""",
    "last": """Abbott Adams Ahmed Allen Alvarez Andersen Baker Banks Barnes Bauer Becker Bell Bennett Berg Bianchi Blake
Bose Brooks Brown Burke Byrne Campbell Carter Castro Chan Chen Clark Cohen Cole Conti Cooper Costa Cruz Dahl Davis Diaz
Dixon Duarte Dubois Dunn Edwards Ellis Evans Farrell Fischer Fisher Flores Ford Foster Fox Garcia Gibson Gomez Grant Gray
Green Gupta Haas Hall Hansen Harris Hart Hayes Hill Holm Horvat Hughes Hunt Ibarra Ito Jansen Jensen Jones Joshi Kane
Kaur Keller Kelly Khan Kim King Klein Koch Kumar Lang Larsen Lee Lewis Lind Lopez Lund Marsh Martin Mason Meyer Mills
Moreau Morgan Moss Murphy Nair Nelson Nguyen Novak Nowak Okafor Olsen Ortiz Owens Park Patel Perez Perry Petrov Price
Quinn Rao Reed Reyes Rivera Rossi Roth Russo Sato Schmidt Shah Shaw Silva Singh Smith Soto Stone Suzuki Tanaka Tate Taylor
Torres Tran Turner Vance Vega Vogel Wagner Walker Walsh Wang Ward Watts Weber Wells West White Wolf Wood Wright Yang York
Young Zhang Zimmer""",
    "city": """Accra Amman Amsterdam Ankara Antwerp Athens Atlanta Auckland Austin Baku Bangkok Barcelona Basel Beijing
Belfast Berlin Bern Bilbao Bogota Bologna Boston Brighton Bristol Brussels Budapest Cairo Calgary Cardiff Chicago Cologne
Copenhagen Cork Dakar Dallas Delhi Denver Detroit Dresden Dubai Dublin Durban Edinburgh Florence Frankfurt Galway Geneva
Genoa Ghent Glasgow Graz Hamburg Hanoi Havana Helsinki Houston Istanbul Jakarta Kyiv Krakow Kyoto Lagos Leeds Leipzig Lima
Lisbon Liverpool London Lyon Madrid Malaga Malmo Manchester Manila Melbourne Miami Milan Montreal Mumbai Munich Nairobi
Naples Nice Osaka Oslo Ottawa Oxford Paris Perth Phoenix Porto Prague Quito Riga Rome Rotterdam Salzburg Santiago Seattle
Seoul Seville Sofia Stockholm Sydney Tallinn Tampa Tokyo Toronto Tunis Turin Utrecht Valencia Vienna Vilnius Warsaw
Winnipeg York Zagreb Zurich""",
    "object": """anchor apron backpack badge ball banjo basket bell bench bicycle blanket boat book bottle bowl box bracelet
brush bucket button camera candle canvas carpet cart chair chest clock coat coin comb compass cup cushion desk diary door
drum engine envelope fan fiddle flag flute fork frame globe glove guitar hammer harp hat helmet horn jacket jar jug kettle
key kite knife ladder lamp lantern letter locket magnet map mask mirror mug needle notebook oven paddle paintbrush pan
parcel pen pencil phone piano pillow plate pot printer purse puzzle radio rake ribbon ring robot rocket rope ruler saddle
sandal scarf scissors shovel sled sofa spoon stamp stove suitcase table teapot telescope tent ticket tower toy tractor tray
trumpet umbrella vase violin wagon wallet watch wheel whistle window""",
    "animal": """badger bat bear beaver bee bird butterfly camel cat chicken cow crab crow deer dog dolphin donkey duck eagle
elephant falcon ferret fish fox frog gecko giraffe goat goose hamster hare hawk hedgehog heron horse jaguar kangaroo kitten
koala lamb lion lizard llama lynx mole monkey moose mouse octopus otter owl ox panda parrot penguin pig pony puppy rabbit
raccoon raven robin seal shark sheep snail sparrow squirrel swan tiger toad turtle walrus whale wolf zebra""",
    "food": """apple apricot avocado banana bean beet berry bread broccoli butter cabbage cake carrot cheese cherry chocolate
coconut coffee cookie corn cucumber egg fig garlic grape honey jam kale kiwi lemon lentil lettuce lime mango melon milk
mushroom noodle nut oat olive onion orange papaya pasta pea peach pear pepper pickle pie pineapple plum potato pumpkin
radish raisin rice salad salmon soup spinach squash strawberry sugar tea tomato tofu turnip walnut yogurt""",
    "color": """red blue green yellow black white orange purple pink brown gray gold silver crimson violet teal navy beige
maroon turquoise amber ivory scarlet indigo""",
    "job": """accountant actor architect artist baker barber biologist butcher carpenter chef chemist clerk coach cook dentist
designer doctor driver editor electrician engineer farmer firefighter fisherman florist gardener geologist guard guide
historian janitor journalist judge lawyer librarian lifeguard mechanic miner musician nurse painter pharmacist photographer
pilot plumber poet potter professor programmer reporter sailor scientist singer surgeon tailor teacher translator vet waiter
welder writer""",
    "place": """attic bakery bank barn basement bridge cabin cafe castle cave cellar church cottage farm fountain garage garden
gym hall harbor hospital hotel island kitchen lake library lighthouse market meadow mill mine museum office orchard palace
park pier pond port school shed shop stable station studio temple theater tower tunnel valley village warehouse well""",
    "adjective": """ancient big brave bright broken calm clever cold curious dusty empty fast fresh funny gentle giant green
happy heavy hidden hollow kind lazy light little lonely long loud lucky narrow new noisy odd old plain proud quick quiet
rare round rusty secret sharp shiny short shy silent silly slow small smooth soft spare strange strong sunny tall tiny warm
wide wild wise wooden young""",
    "thing": """amber apex arrow atlas aurora beacon birch blaze bloom breeze canyon cedar cloud comet copper coral cosmos crystal
dawn delta dune echo ember fern flint forest frost galaxy glacier granite grove harbor hazel horizon iris ivory jade jasper
lagoon lark lava lotus lunar maple marble meteor mist monsoon moss nebula north oasis ocean onyx opal orbit orchid pearl
pebble phoenix pine planet prairie quartz rain reef ridge river sable sapphire shadow sierra silver sky slate snow solar
spark spruce star storm summit sunset thunder tide topaz torrent tulip valley velvet violet willow wind winter zephyr""",
    "hobby": """chess painting running swimming cooking dancing reading singing gardening knitting fishing hiking cycling
skating climbing sailing drawing writing yoga pottery archery baking juggling origami surfing""",
    "topic": """history music science sports travel cooking art nature space health money weather books films games fashion
language animals cars cities farming robots oceans mountains birds trains castles volcanoes dinosaurs rivers""",
    "street": """Oak Maple Elm Cedar Pine Birch Lake Hill Park River Mill Church Bridge Market Station Garden Spring Forest
Meadow Harbor King Queen School Sunset Willow Cherry Rose Garden North South Stone Castle""",
    "company": """Acme Bluefin Brightside Cloudnine Corex Dynamo Everfield Fairway Globex Greenleaf Helix Ironwood Juniper Kestrel
Lumina Meridian Nimbus Northwind Omnia Pinnacle Quanta Redstone Silverline Skylark Solara Summit Terra Umbra Vertex Vista
Westbrook Zenith""",
}
WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
SMALL = {"color", "adjective", "topic", "hobby"}


def held_out(text, share=20):
    return zlib.crc32(text.encode()) % 100 < share


# Plain words and names of the corpus, for drawing from more than the pools: a model that sees a hundred
# nouns learns the hundred; one that sees ten thousand learns to copy. Set by `open_words`.
OPEN = {"plain": [], "name": []}
NAMES = {"first", "last", "city", "company", "street"}


def open_words(texts):
    """Fills OPEN from texts, without the words kept for evaluation."""
    plain, name = collections.Counter(), collections.Counter()
    for t in texts:
        plain.update(re.findall(r"(?<=[a-z,] )[a-z]{3,11}\b", t))
        name.update(re.findall(r"(?<=[a-z,] )[A-Z][a-z]{2,10}\b", t))
    kept = {w.lower() for p, text in POOLS.items() for w in text.split() if p not in SMALL and held_out(p + w)}
    common = {w for w, _ in plain.most_common(120)}
    OPEN["plain"] = sorted(w for w, n in plain.items() if n >= 4 and w not in common and w not in kept)
    OPEN["name"] = sorted(w for w, n in name.items() if n >= 3 and n > plain[w.lower()] and w.lower() not in kept)


class Words:
    """Draws words for one split. Small everyday pools (colours, adjectives) are shared by both.
    A share `open` of the draws leaves the pools for any word of the corpus, or a made-up one."""

    def __init__(self, split, seed, open=0.0):
        self.r = random.Random(f"{split}{seed}")
        self.split = split
        self.open = open if OPEN["plain"] else 0.0
        self.pools = {}
        for name, text in POOLS.items():
            words = sorted(set(text.split()))
            if name not in SMALL:
                words = [w for w in words if held_out(name + w) == (split == "eval")]
            self.pools[name] = words

    def __getattr__(self, name):
        if name in POOLS:
            if self.open and self.r.random() < self.open:
                word = self.r.choice(OPEN["name" if name in NAMES else "plain"]) if self.chance(0.8) else self.made_up()
                return word.capitalize() if name in NAMES else word
            return self.r.choice(self.pools[name])
        raise AttributeError(name)

    def some(self, name, n):
        """n different words."""
        words = []
        while len(words) < n:
            word = getattr(self, name)
            if word not in words:
                words.append(word)
        return words

    def pick(self, *options):
        return self.r.choice(options)

    def chance(self, p):
        return self.r.random() < p

    def int(self, a, b):
        return self.r.randint(a, b)

    def made_up(self):
        """A word that exists nowhere, to teach copying rather than knowing."""
        syllables = self.r.choices("ba be bi bo ka ke ki lo la le li ma me mi mo na ne no pa pe ra re ri ro sa se si so ta te ti to va vi zo zu dra fin gar hol jen kel lor mun nor pol quin ros sten tur vel wex yar".split(), k=self.r.randint(2, 3))
        word = "".join(syllables) + self.pick("", "", "n", "s", "x", "th", "r")
        return word

    def person(self):
        first = self.first if self.chance(0.85) else self.made_up().capitalize()
        last = self.last if self.chance(0.75) else self.made_up().capitalize()
        return f"{first} {last}"

    def town(self):
        return self.city if self.chance(0.8) else self.made_up().capitalize()

    def digits(self, n):
        return "".join(self.r.choice("0123456789") for _ in range(n))

    def code(self):
        k = self.int(0, 4)
        if k == 0:
            return f"{self.r.choice('ABCDEFGHJKLMNPQRSTUVWXYZ')}{self.digits(self.int(2, 4))}"
        if k == 1:
            return f"{''.join(self.r.choices('ABCDEFGHJKLMNPQRSTUVWXYZ', k=self.int(2, 3)))}-{self.digits(self.int(3, 5))}"
        if k == 2:
            return self.digits(self.int(3, 8))
        if k == 3:
            return "".join(self.r.choices("abcdefghijkmnopqrstuvwxyz0123456789", k=self.int(5, 8)))
        return f"{self.thing}-{self.int(10, 99)}"

    def email(self, person=None):
        a, b = (person or self.person()).lower().split()[:2]
        return self.pick(f"{a}.{b}", f"{a}{b}", f"{a[0]}{b}", f"{a}{self.int(1, 99)}", f"{a}_{b}") + "@" + self.pick("example.com", "mail.com", "post.net", f"{self.company.lower()}.com", f"{self.thing}.org")

    def phone(self):
        return self.pick(f"555-{self.digits(4)}", f"{self.int(200, 989)}-555-{self.digits(4)}", f"+1 {self.int(200, 989)} 555 {self.digits(4)}", f"0{self.digits(3)} {self.digits(6)}")

    def date(self):
        """(as said, as ISO)"""
        y, m, d = self.int(2018, 2031), self.int(1, 12), self.int(1, 28)
        name = MONTHS[m - 1]
        said = self.pick(f"{name} {d}, {y}", f"{d} {name} {y}", f"{y}-{m:02}-{d:02}")
        return said, f"{y}-{m:02}-{d:02}"

    def time(self):
        return f"{self.int(7, 21):02}:{self.pick('00', '15', '30', '45')}"


def article(noun):
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def plural(noun):
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    if noun.endswith("fe"):
        return noun[:-2] + "ves"
    return noun + "s"
