"""Tool calls: choose among several tools, fill the arguments, read the result, or answer without a tool.

Half of the tools are written out below, half are made from verbs, nouns and parameters, so that no
list of names can be learnt by heart. Evaluation has tools of its own.
"""

import json

from tasks import SYSTEMS, maybe_system
from tasks.extract import draw, kind_of
from words import article

# (names, descriptions, {parameter: (other names, kind, description)}, requests, result, reply)
TOOLS = [
    (["clean_room"], ["Clean a room"], {"room": (["place"], "room", "Room"), "minutes": (["duration"], "int", "How long")}, ["Clean the {room} for {minutes} minutes.", "Please clean the {room}, {minutes} minutes."], lambda w: {"status": "ok"}, "The {room} is being cleaned."),
    (["lend_book"], ["Lend a book to a reader"], {"title": (["book"], "title", "Title"), "reader": (["to", "name"], "person", "Who gets it")}, ["Lend {title} to {reader}.", "{reader} wants to borrow \"{title}\"."], lambda w: {"status": "ok"}, "{title} now goes to {reader}."),
    (["hire_driver"], ["Hire a driver"], {"from": (["start"], "city", "Start"), "day": (["when"], "day", "Day")}, ["I need a driver from {from} on {day}.", "Get me a driver in {from} for {day}."], None, None),
    (["check_bill"], ["Look at a bill"], {"number": (["bill", "id"], "code", "Bill number")}, ["Show me bill {number}.", "How much is bill {number}?"], None, None),
    (["buy_gift"], ["Buy a gift for a person"], {"gift": (["item"], "object", "What"), "person": (["for", "name"], "first", "For whom")}, ["Buy a {gift} for {person}.", "{person} wants a {gift}. Please buy it."], None, None),
    (["walk_dog"], ["Walk a dog"], {"dog": (["name"], "first", "Name of the dog"), "minutes": (["time"], "int", "Minutes")}, ["Walk {dog} for {minutes} minutes.", "Take the dog {dog} out for {minutes} minutes."], None, None),
    (["join_team"], ["Add a player to a team"], {"player": (["name"], "first", "Player"), "team": (["group"], "thing", "Team")}, ["Put {player} in team {team}.", "Add {player} to the {team} team.", "{player} wants to join {team}."], None, None),
    (["cook_meal"], ["Cook a meal"], {"dish": (["meal"], "food", "Dish"), "people": (["portions"], "small", "People")}, ["Cook {dish} for {people} people.", "We are {people}. Please make {dish}."], None, None),
    (["visit_museum"], ["Plan a visit"], {"place": (["where"], "place", "Place"), "city": (["in"], "city", "City"), "time": (["at"], "time", "Time")}, ["Plan a visit to the {place} in {city} at {time}.", "At {time} I want to see the {place} in {city}."], None, None),
    (["park_car"], ["Find a parking spot"], {"car": (["plate"], "code", "Plate"), "hours": (["duration"], "small", "Hours")}, ["Park the car {car} for {hours} hours.", "I need parking for {car}, {hours} hours."], None, None),
    (["mail_letter"], ["Send a letter by mail"], {"address": (["to"], "address", "Address"), "name": (["recipient"], "person", "Name")}, ["Send a letter to {name}, {address}.", "Mail a letter to {address} for {name}."], None, None),
    (["sell_item"], ["Sell an item"], {"item": (["thing"], "object", "Item"), "price": (["amount"], "big", "Price")}, ["Sell my {item} for {price} dollars.", "I want {price} dollars for the {item}."], None, None),
    (["get_weather", "weather", "current_weather", "get_current_weather", "fetch_weather", "lookup_weather"], ["Get the weather for a city", "Current weather in a place", "Look up the weather"],
     {"city": (["location", "place", "city_name"], "city", "Name of the city")},
     ["What is the weather in {city}?", "How is the weather in {city} today?", "Is it raining in {city}?", "weather {city}", "Tell me the weather for {city}.", "Do I need an umbrella in {city}?", "What's it like outside in {city}?", "What's the weather like in {city}?"],
     lambda w: {"condition": draw(w, "weather")[0], "temperature": w.int(-5, 35)}, "It is {condition} in {city} with {temperature} degrees."),
    (["get_forecast", "weather_forecast", "forecast"], ["Weather forecast for a city on a day", "Get the forecast"],
     {"city": (["location", "place"], "city", "City"), "day": (["date", "when"], "day", "Day of the week")},
     ["What will the weather be in {city} on {day}?", "Forecast for {city} on {day}, please.", "Will it rain on {day} in {city}?"],
     lambda w: {"condition": draw(w, "weather")[0]}, "It will be {condition} in {city} on {day}."),
    (["get_time", "current_time", "time_in", "get_local_time"], ["Get the current time in a city", "Local time of a place"],
     {"city": (["location", "place", "timezone_city"], "city", "City name")},
     ["What time is it in {city}?", "Tell me the time in {city}.", "What is the local time in {city} now?"], lambda w: {"time": w.time()}, "It is {time} in {city}."),
    (["add", "add_numbers", "sum", "calculate_sum"], ["Add two numbers", "Returns the sum of two numbers"],
     {"a": (["x", "first", "number1"], "big", "First number"), "b": (["y", "second", "number2"], "int", "Second number")},
     ["What is {a} plus {b}?", "Add {a} and {b}.", "Use the tool to add {a} to {b}.", "{a} + {b}"], None, None),
    (["multiply", "multiply_numbers", "product"], ["Multiply two numbers"], {"a": (["x", "first"], "big", "First number"), "b": (["y", "second"], "int", "Second number")},
     ["What is {a} times {b}?", "Multiply {a} by {b}.", "{a} * {b}"], None, None),
    (["calculator", "calculate", "evaluate", "math"], ["Evaluate a math expression", "Calculator for arithmetic"], {"expression": (["expr", "formula", "input"], "expr", "Expression to compute")},
     ["What is {expression}?", "Calculate {expression}.", "Compute {expression} with the calculator.", "How much is {expression}?"], None, None),
    (["send_email", "email", "write_email", "mail_send"], ["Send an email", "Send an email to someone"],
     {"to": (["recipient", "address", "email"], "email", "Email address"), "subject": (["title", "topic"], "title", "Subject line")},
     ["Send an email to {to} with the subject \"{subject}\".", "Email {to} about \"{subject}\".", "Write to {to}, subject: {subject}", "Please mail {to} with the title {subject}."], lambda w: {"status": "sent"}, "I sent the email to {to}."),
    (["send_message", "text_message", "send_sms", "message"], ["Send a text message to a person"],
     {"person": (["to", "contact", "recipient", "name"], "first", "Who gets it"), "text": (["message", "body", "content"], "saying", "The text")},
     ["Send a message to {person}: {text}", "Text {person} \"{text}\"", "Tell {person} that \"{text}\"", "Message {person} and say \"{text}\"."], lambda w: {"status": "sent"}, "I sent your message to {person}."),
    (["set_alarm", "create_alarm", "alarm", "wake_up"], ["Set an alarm", "Set an alarm clock"], {"time": (["at", "hour", "alarm_time"], "time", "Time as HH:MM")},
     ["Set an alarm for {time}.", "Wake me up at {time}.", "Alarm at {time} please.", "I have to get up at {time}."], lambda w: {"status": "ok"}, "Your alarm is set for {time}."),
    (["set_timer", "start_timer", "timer", "countdown"], ["Start a timer", "Set a timer in minutes"], {"minutes": (["duration", "length", "duration_minutes"], "int", "Minutes")},
     ["Set a timer for {minutes} minutes.", "Start a {minutes} minute timer.", "Timer: {minutes} minutes", "Count down {minutes} minutes."], lambda w: {"status": "ok"}, "The timer is set for {minutes} minutes."),
    (["create_reminder", "add_reminder", "remind_me", "set_reminder"], ["Create a reminder"], {"text": (["title", "task", "what"], "chore", "What to remember"), "time": (["at", "when"], "time", "Time")},
     ["Remind me to {text} at {time}.", "Set a reminder at {time} to {text}.", "At {time}, remind me to {text}."], lambda w: {"status": "ok"}, "I will remind you to {text} at {time}."),
    (["create_event", "add_event", "schedule_event", "calendar_add"], ["Add an event to the calendar"],
     {"title": (["name", "event"], "eventname", "Event title"), "date": (["day", "when"], "date", "Date as YYYY-MM-DD"), "time": (["start", "at"], "time", "Start time")},
     ["Add a {title} on {date} at {time} to my calendar.", "Schedule a {title} for {date} at {time}.", "Put {title} in the calendar: {date}, {time}."], lambda w: {"status": "created"}, "I added the {title} to your calendar."),
    (["play_song", "play_music", "music_play", "play"], ["Play a song", "Play music"], {"title": (["song", "track", "name"], "title", "Song title"), "artist": (["by", "singer", "musician"], "person", "Artist")},
     ["Play {title} by {artist}.", "I want to hear {title} by {artist}.", "Put on \"{title}\" from {artist}."], lambda w: {"status": "playing"}, "Now playing {title} by {artist}."),
    (["turn_on_light", "light_on", "lights_on"], ["Turn on a light"], {"room": (["location", "place"], "room", "Room")},
     ["Turn on the light in the {room}.", "Lights on in the {room}.", "Please switch on the {room} light.", "It is dark in the {room}."], lambda w: {"status": "on"}, "The light in the {room} is on."),
    (["turn_off_light", "light_off", "lights_off"], ["Turn off a light"], {"room": (["location", "place"], "room", "Room")},
     ["Turn off the light in the {room}.", "Lights off in the {room}.", "Please switch off the {room} light."], lambda w: {"status": "off"}, "The light in the {room} is off."),
    (["set_temperature", "set_thermostat", "thermostat"], ["Set the temperature of a room"], {"room": (["location", "zone"], "room", "Room"), "degrees": (["temperature", "value", "target"], "int", "Degrees")},
     ["Set the {room} to {degrees} degrees.", "Make it {degrees} degrees in the {room}.", "Heat the {room} to {degrees} degrees."], lambda w: {"status": "ok"}, "The {room} is set to {degrees} degrees."),
    (["translate", "translate_text", "translator"], ["Translate text into a language"], {"text": (["phrase", "input", "source"], "saying", "Text"), "language": (["target", "to", "target_language"], "language", "Language")},
     ["Translate \"{text}\" into {language}.", "How do you say \"{text}\" in {language}?", "What is \"{text}\" in {language}?"], None, None),
    (["web_search", "search", "search_web", "internet_search"], ["Search the web"], {"query": (["q", "text", "search_term"], "querytext", "Search words")},
     ["Search the web for {query}.", "Look up {query} online.", "Find information about {query} on the internet.", "Google {query}"], None, None),
    (["get_stock_price", "stock_price", "stock_quote"], ["Get the price of a stock"], {"company": (["symbol", "name", "stock"], "company", "Company")},
     ["What is the stock price of {company}?", "How is {company} stock doing?", "Price of {company} shares?"], lambda w: {"price": w.int(10, 900)}, "The {company} stock costs {price} dollars."),
    (["book_flight", "reserve_flight", "flight_booking"], ["Book a flight"], {"from": (["origin", "from_city", "departure"], "city", "From"), "to": (["destination", "to_city", "arrival"], "city", "To"), "date": (["day", "departure_date"], "date", "Date YYYY-MM-DD")},
     ["Book a flight from {from} to {to} on {date}.", "I need to fly from {from} to {to} on {date}.", "Get me a flight to {to} from {from} for {date}."], lambda w: {"status": "booked", "number": w.code()}, "Your flight from {from} to {to} is booked. The number is {number}."),
    (["find_flights", "search_flights"], ["Search for flights"], {"from": (["origin"], "city", "From"), "to": (["destination"], "city", "To")},
     ["Find flights from {from} to {to}.", "Which flights go from {from} to {to}?", "Show me flights to {to} from {from}."], None, None),
    (["book_table", "reserve_table", "restaurant_booking"], ["Book a table in a restaurant"], {"restaurant": (["name", "place"], "company", "Restaurant"), "people": (["guests", "party_size", "seats"], "small", "How many people"), "time": (["at", "hour"], "time", "Time")},
     ["Book a table for {people} at {restaurant} at {time}.", "Reserve a table at {restaurant} for {people} people, {time}.", "We are {people} and want to eat at {restaurant} at {time}."], lambda w: {"status": "confirmed"}, "Your table for {people} at {restaurant} is booked for {time}."),
    (["order_food", "place_order", "food_order"], ["Order food"], {"item": (["food", "dish", "product"], "food", "What to order"), "quantity": (["count", "amount", "number"], "small", "How many")},
     ["Order {quantity} portions of {item}.", "I want to order {item}, {quantity} times.", "Get me {quantity} x {item}."], lambda w: {"status": "ordered"}, "I ordered {quantity} x {item} for you."),
    (["get_order_status", "track_order", "order_status"], ["Check the status of an order"], {"order_id": (["id", "number", "order_number"], "code", "Order number")},
     ["Where is my order {order_id}?", "What is the status of order {order_id}?", "Track order {order_id}."], lambda w: {"status": w.pick("shipped", "delivered", "pending", "packed")}, "Your order {order_id} is {status}."),
    (["convert_currency", "currency_convert", "exchange"], ["Convert money to another currency"], {"amount": (["value", "sum"], "big", "Amount"), "from": (["source", "from_currency"], "money_code", "Currency code"), "to": (["target", "to_currency"], "money_code", "Currency code")},
     ["Convert {amount} {from} to {to}.", "How much is {amount} {from} in {to}?", "Change {amount} {from} into {to}."], None, None),
    (["convert_units", "unit_convert"], ["Convert between units"], {"value": (["amount", "number"], "int", "Number"), "from": (["from_unit", "unit"], "unit", "Unit"), "to": (["to_unit", "target_unit"], "unit", "Unit")},
     ["Convert {value} {from} to {to}.", "How many {to} are {value} {from}?"], None, None),
    (["add_to_list", "list_add", "add_item", "shopping_add"], ["Add something to a list", "Put an item on the shopping list"], {"item": (["thing", "product", "entry"], "food", "Item")},
     ["Add {item} to my shopping list.", "Put {item} on the list.", "I need to buy {item}, add it to the list."], lambda w: {"status": "ok"}, "I added {item} to your list."),
    (["create_note", "save_note", "add_note", "take_note"], ["Save a note"], {"text": (["content", "note", "body"], "saying", "Text of the note")},
     ["Save a note: {text}", "Note down \"{text}\".", "Make a note that says \"{text}\"."], lambda w: {"status": "saved"}, "I saved your note."),
    (["call", "make_call", "phone_call", "call_contact"], ["Call a person"], {"name": (["contact", "person", "who"], "person", "Who to call")},
     ["Call {name}.", "Phone {name} for me.", "I want to talk to {name} on the phone."], lambda w: {"status": "calling"}, "Calling {name}."),
    (["get_directions", "route", "navigate", "find_route"], ["Find the way between two places"], {"from": (["start", "origin"], "city", "Start"), "to": (["end", "destination", "goal"], "city", "End")},
     ["How do I get from {from} to {to}?", "Directions from {from} to {to}, please.", "Show me the way to {to} from {from}."], None, None),
    (["find_recipe", "search_recipe", "recipe_search"], ["Find a recipe with an ingredient"], {"ingredient": (["food", "with", "main_ingredient"], "food", "Ingredient")},
     ["Find a recipe with {ingredient}.", "What can I cook with {ingredient}?", "I have {ingredient}. Find me a recipe."], None, None),
    (["get_user", "find_user", "lookup_user", "user_info"], ["Look up a user"], {"user_id": (["id", "user", "number"], "big", "User id")},
     ["Show me user {user_id}.", "Look up the user with id {user_id}.", "Who is user number {user_id}?"], None, None),
    (["read_file", "open_file", "cat", "file_read"], ["Read a file"], {"path": (["file", "filename", "name"], "path", "File path")},
     ["Read the file {path}.", "What is in {path}?", "Show me the content of {path}.", "Open {path}"], None, None),
    (["list_files", "ls", "list_directory"], ["List the files of a folder"], {"folder": (["directory", "path", "dir"], "folder", "Folder")},
     ["Which files are in {folder}?", "List the folder {folder}.", "Show the files in {folder}"], None, None),
    (["roll_dice", "dice", "throw_dice"], ["Roll dice"], {"sides": (["faces", "size"], "small", "Sides of a die"), "count": (["number", "times"], "small", "How many dice")},
     ["Roll {count} dice with {sides} sides.", "Throw {count} {sides}-sided dice."], None, None),
    (["random_number", "get_random", "random"], ["Pick a random number"], {"low": (["min", "from"], "small", "Lowest"), "high": (["max", "to"], "big", "Highest")},
     ["Pick a random number between {low} and {high}.", "Give me a random number from {low} to {high}."], None, None),
    (["set_volume", "volume", "change_volume"], ["Set the sound volume"], {"level": (["volume", "value", "percent"], "int", "0 to 100")},
     ["Set the volume to {level}.", "Volume {level} please.", "Make the sound level {level}."], lambda w: {"status": "ok"}, "The volume is now {level}."),
    (["get_definition", "define", "dictionary", "define_word"], ["Look up a word in the dictionary"], {"word": (["term", "text"], "object", "Word")},
     ["What does the word {word} mean?", "Define {word}.", "Look up \"{word}\" in the dictionary."], None, None),
    (["book_hotel", "reserve_hotel", "reserve_room"], ["Book a hotel room"], {"city": (["location", "place"], "city", "City"), "nights": (["number_of_nights", "stay"], "small", "Nights"), "date": (["check_in", "arrival"], "date", "Arrival date YYYY-MM-DD")},
     ["Book a hotel in {city} for {nights} nights from {date}.", "I need a room in {city} on {date} for {nights} nights."], lambda w: {"status": "booked"}, "Your hotel in {city} is booked for {nights} nights."),
]
EVAL_TOOLS = [
    (["water_plants"], ["Water the plants of one room"], {"room": ([], "room", "Which room"), "liters": ([], "small", "How much water")}, ["Water the plants in the {room} with {liters} liters.", "Give the plants in the {room} {liters} liters of water."], None, None),
    (["rent_bike"], ["Rent a bike at a station"], {"station": ([], "city", "City of the station"), "hours": ([], "small", "How long")}, ["I want to rent a bike in {station} for {hours} hours.", "Rent a bike for {hours} hours at {station}."], None, None),
    (["find_doctor"], ["Find a doctor in a city"], {"city": ([], "city", "City"), "day": ([], "day", "Day of the visit")}, ["Find a doctor in {city} for {day}.", "I need a doctor on {day} in {city}."], None, None),
    (["pay_bill"], ["Pay a bill"], {"bill_number": ([], "code", "Number of the bill"), "amount": ([], "big", "Dollars")}, ["Pay the bill {bill_number} of {amount} dollars.", "Please pay {amount} dollars for bill {bill_number}."], None, None),
    (["track_package"], ["Find out where a package is"], {"package_id": ([], "code", "Package number")}, ["Where is package {package_id}?", "Can you track the package {package_id}?"], None, None),
    (["get_air_quality"], ["Air quality of a city"], {"city": ([], "city", "City")}, ["How is the air in {city}?", "What is the air quality in {city}?"], None, None),
    (["invite_friend"], ["Invite a friend to an event"], {"friend": ([], "first", "Name of the friend"), "event": ([], "eventname", "Event")}, ["Invite {friend} to the {event}.", "Please ask {friend} to come to the {event}."], None, None),
    (["feed_pet"], ["Feed an animal"], {"animal": ([], "animal", "Which animal"), "food": ([], "food", "What it eats")}, ["Feed the {animal} some {food}.", "Give {food} to the {animal}."], None, None),
    (["open_garage"], ["Open the garage door"], {"code": ([], "code", "Door code")}, ["Open the garage with code {code}.", "Open the garage door. The code is {code}."], None, None),
    (["buy_ticket"], ["Buy tickets for a train"], {"destination": ([], "city", "Where to"), "seats": ([], "small", "How many seats"), "time": ([], "time", "Departure")}, ["Buy {seats} train tickets to {destination} at {time}.", "I need {seats} seats on the {time} train to {destination}."], None, None),
    (["print_document"], ["Print a document"], {"path": ([], "path", "The file"), "copies": ([], "small", "How many copies")}, ["Print {copies} copies of {path}.", "Please print {path}, {copies} copies."], None, None),
    (["hire_cleaner"], ["Book a cleaner for a home"], {"address": ([], "address", "Street and number"), "day": ([], "day", "Day")}, ["Book a cleaner for {address} on {day}.", "I need a cleaner on {day} at {address}."], None, None),
]
VERBS = "create delete update find open close start stop share rename archive cancel order check show add remove count print download upload lock unlock reserve approve reject assign review export import schedule restart inspect repair clean paint sell buy return".split()
NOUNS = "invoice playlist folder project account report photo recipe customer parcel garden contract coupon document gallery survey meeting room ticket backup printer camera door window lamp server database table form badge license course lesson exam team channel thread post comment album podcast station route vehicle bus boat gate desk locker shelf label poster banner menu budget payment refund loan card member visitor patient claim sensor robot drone pump engine filter profile page site domain key token device job".split()
VERBS_EVAL = "create delete find open close share cancel check show add remove inspect repair".split()
NOUNS_EVAL = "subscription appointment voucher warehouse newsletter elevator aquarium passport battery workflow cabinet statue".split()
# parameter: (type kind, description, how a request mentions it)
PARAMS = {
    "name": ("title", "Name", [" called \"{v}\"", " named {v}", " with the name {v}"]), "id": ("code", "Identifier", [" with id {v}", " number {v}", " {v}", " with the number {v}"]),
    "owner": ("person", "Who owns it", [" for {v}", " owned by {v}", " of {v}"]), "date": ("date", "Date as YYYY-MM-DD", [" on {v}", " for {v}"]),
    "city": ("city", "City", [" in {v}"]), "time": ("time", "Time", [" at {v}"]), "color": ("color", "Color", [" in {v}", " with color {v}", ", color {v}"]),
    "priority": ("level", "Priority", [" with {v} priority", ", priority {v}"]), "count": ("small", "How many", [", {v} times", " with count {v}"]),
    "email": ("email", "Email address", [" for {v}", ", email {v}"]), "size": ("size", "Size", [" in size {v}", ", size {v}"]), "price": ("money", "Price", [" for {v} dollars", " at a price of {v} dollars"]),
    "room": ("room", "Room", [" in the {v}"]), "day": ("day", "Day of the week", [" on {v}", " this {v}"]), "reason": ("saying", "Reason", [" because \"{v}\"", ", reason: {v}"]),
    "tag": ("thing", "Tag", [" with the tag {v}", " tagged {v}"]), "from": ("city", "Start", [" from {v}"]), "to": ("city", "End", [" to {v}"]), "recipient": ("person", "Who gets it", [" to {v}"]),
    "company": ("company", "Company", [" at {v}", " for the company {v}"]), "language": ("language", "Language", [" in {v}"]), "year": ("year", "Year", [" from {v}", " for the year {v}"]), "phone": ("phone", "Phone number", [", phone {v}", " with phone number {v}"]),
}
CLASH = [{"color", "city", "language", "room", "size"}, {"owner", "recipient", "email", "price", "company"}, {"date", "day", "year"}, {"from", "year"}, {"to", "recipient"}]
POLITE = ["{r}", "{r}", "{r}", "{r}", "Please {l}", "Can you {l}?", "Could you {l}?", "I want you to {l}.", "Hey, {l}", "I need you to {l}.", "Would you {l}?"]
ROOMS = "kitchen bedroom bathroom hallway garage attic cellar study nursery office balcony lounge pantry basement".split() + ["living room", "dining room", "guest room"]
SAYINGS = ["see you soon", "dinner is ready", "good morning", "I am late", "thank you for your help", "where are you", "happy birthday", "the meeting is over", "please call me back", "I love you", "have a nice day", "the door is open", "we need more milk", "good night", "how are you", "the train is late", "I am at home", "do not wait for me", "the keys are on the table"]
CHORES = ["call mom", "buy milk", "water the plants", "feed the cat", "take out the trash", "pay the rent", "go to the gym", "clean the kitchen", "send the report", "walk the dog", "take my medicine", "wash the car", "pick up the kids", "charge my phone", "return the book"]


def value(w, kind):
    """(value, as said) for the kinds only tools use, else as in extraction."""
    v = {
        "room": lambda: w.pick(*ROOMS), "chore": lambda: w.pick(*CHORES), "money_code": lambda: w.pick("USD", "EUR", "GBP", "JPY", "CHF", "INR", "CAD", "AUD"),
        "saying": lambda: w.pick(*SAYINGS) if w.chance(0.5) else f"{w.first} {w.pick('is in', 'went to', 'will be in', 'likes')} {w.city}" if w.chance(0.5) else f"the {w.adjective} {w.object} is in the {w.place}",
        "unit": lambda: w.pick("meters", "feet", "miles", "kilometers", "grams", "pounds", "liters", "inches", "kilograms", "ounces"),
        "expr": lambda: f"{w.int(2, 999)} {w.pick('+', '-', '*', '/')} {w.int(2, 999)}" + (f" {w.pick('+', '-')} {w.int(2, 99)}" if w.chance(0.2) else ""),
        "querytext": lambda: w.pick(f"{w.adjective} {w.object}s", f"{w.topic} in {w.city}", f"{w.person()}", f"the history of {w.city}", f"{w.food} recipes", f"{w.animal} facts", f"cheap {w.object}s"),
        "path": lambda: w.pick("", "/home/", "docs/", "src/", "/tmp/", "data/") + w.pick(w.thing, w.object, w.made_up()) + w.pick(".txt", ".md", ".json", ".csv", ".pdf", ".py"),
        "folder": lambda: w.pick("/home/", "docs/", "src/", "/var/", "data/", "") + w.pick(w.thing, w.object, w.made_up()),
    }.get(kind)
    if v:
        out = v()
        return out, out
    return draw(w, kind)


def spec(w, name, description, params, required):
    props = {}
    for p, (_, kind, text) in params.items():
        props[p] = {"type": kind_of(value(w, kind)[0]) if kind != "money" else "number"}
        if kind in ("level", "size"):
            props[p]["enum"] = ["low", "medium", "high", "urgent"] if kind == "level" else ["small", "medium", "large"]
        if w.chance(0.8):
            props[p]["description"] = text
    function = {"name": name, "description": description, "parameters": {"type": "object", "properties": props}}
    if w.chance(0.85):
        function["parameters"]["required"] = required
    return {"type": "function", "function": function}


def written(w, split, tool=None):
    """A use of a written-out tool: (spec, request, call, result, reply)."""
    names, descriptions, params, requests, result, reply = tool or w.pick(*(TOOLS if split == "train" else EVAL_TOOLS))
    renamed, said, args = {}, {}, {}
    for p, (aliases, kind, text) in params.items():
        new = w.pick(*aliases) if aliases and w.chance(0.4) else p
        if split == "train" and w.chance(0.2):
            new = w.pick(f"{new}_{w.pick('name', 'value', 'text', 'arg', w.thing)}", f"the_{new}", f"{w.thing}_{new}", f"my_{new}", new.upper(), new.capitalize(), f"target_{new}")
        renamed[new if new not in renamed else p] = ([], kind, text)
        args[new if new not in args else p], said[p] = value(w, kind)
    name = w.pick(*names) if w.chance(0.7) else names[0]
    if split == "train" and w.chance(0.3):
        name = w.pick(f"{name}_{w.thing}", f"{w.thing}_{name}", f"my_{name}", f"do_{name}", f"{name}_v{w.int(2, 9)}", f"{name}_tool", f"{name}_now", f"{w.company.lower()}_{name}")
    ask = w.pick(*requests)
    if split == "train" and w.chance(0.25):
        # A plain request made of the tool's own words, for tools no one wrote examples for.
        phrase = w.pick(*descriptions)
        ask = phrase[0].upper() + phrase[1:] + w.pick(": ", " with ", ". ", ", ") + w.pick(", ", " and ", "; ").join(f"{w.pick('the ', '')}{p.replace('_', ' ')} {w.pick('', 'is ', 'should be ')}{{{p}}}" for p in params) + "."
    for p, s in said.items():
        ask = ask.replace("{" + p + "}", s)
    result = result(w) if result else None
    if result and reply:
        for k, v in [*said.items(), *result.items()]:
            reply = reply.replace("{" + k + "}", str(v))
    return spec(w, style(w, name) if w.chance(0.25) else name, w.pick(*descriptions), renamed, list(renamed)), ask, args, result, reply


def style(w, name):
    parts = name.split("_")
    return w.pick(parts[0] + "".join(p.capitalize() for p in parts[1:]), "-".join(parts), ".".join(parts), "".join(p.capitalize() for p in parts))


def made(w, split, verb=None, noun=None):
    """A use of a tool made from a verb, a noun and parameters."""
    verbs, nouns = (VERBS, NOUNS) if split == "train" else (VERBS_EVAL, NOUNS_EVAL)
    verb = verb or w.pick(*verbs)
    noun = noun or (w.object if w.open and w.chance(0.6) else w.pick(*nouns))
    if noun in NOUNS_EVAL and split == "train":
        noun = "thing"
    keys = w.r.sample(list(PARAMS), w.pick(1, 1, 2, 2, 3))
    keys = [k for i, k in enumerate(keys) if not any(k in c and set(keys[:i]) & c for c in CLASH)]
    name = w.pick(f"{verb}_{noun}", f"{verb}_{noun}", f"{noun}_{verb}", f"{verb}_{noun}") if w.chance(0.7) else style(w, f"{verb}_{noun}")
    description = w.pick(f"{verb.capitalize()} {article(noun)}", f"{verb.capitalize()} {article(noun)}", f"Use this to {verb} {article(noun)}", f"{verb.capitalize()} {article(noun)} with the given data")
    ask, args, params = f"{verb} {w.pick('the', 'a' if noun[0] not in 'aeiou' else 'an')} {noun}", {}, {}
    for k in keys:
        kind, text, phrases = PARAMS[k]
        key = w.pick(k, k, k, f"{noun}_{k}")
        args[key], s = value(w, kind)
        ask += w.pick(*phrases).format(v=s)
        params[key] = ([], kind, text)
    ask = w.pick(*POLITE).format(r=ask.capitalize() if ask.islower() else ask[0].upper() + ask[1:], l=ask)
    if ask[-1] not in ".?!\"" and w.chance(0.7):
        ask += "."
    required = list(args)
    if w.chance(0.3):
        extra = w.pick(*PARAMS)
        if extra not in params and not any(extra in c and set(keys) & c for c in CLASH):
            params[extra] = ([], PARAMS[extra][0], PARAMS[extra][1] + " (optional)")
    done = {"create": "created", "delete": "deleted", "update": "updated", "find": "found", "cancel": "canceled"}.get(verb)
    return spec(w, name, description, params, required), ask, args, {"status": w.pick("ok", "done", "success")}, f"Done. The {noun} is {done}." if done else w.pick(f"Done: {verb} {noun}.", "Done.", "That is done."), verb, noun


def use(w, split):
    return written(w, split) if w.chance(0.5) else made(w, split)[:5]


def with_others(w, split, chosen, tool_use):
    """The chosen tool among others with different names."""
    tools = [chosen]
    for _ in range(w.pick(0, 1, 1, 2, 2, 3, 4)):
        if len(tool_use) > 5 and w.chance(0.5):
            verb, noun = tool_use[5:]
            verbs, nouns = (VERBS, NOUNS) if split == "train" else (VERBS_EVAL, NOUNS_EVAL)
            other = made(w, split, noun=noun, verb=w.pick(*[v for v in verbs if v != verb]))[0] if w.chance(0.5) else made(w, split, verb=verb, noun=w.pick(*[n for n in nouns if n != noun]))[0]
        else:
            other = use(w, split)[0]
        if all(other["function"]["description"] != t["function"]["description"] and other["function"]["name"] != t["function"]["name"] for t in tools):
            tools.append(other)
    w.r.shuffle(tools)
    return tools


def call(tool, args):
    return {"type": "function", "function": {"name": tool["function"]["name"], "arguments": args}}


def reason(tool, args):
    return f"The tool {tool['function']['name']} fits this request.\n" + "\n".join(f"{k}: {json.dumps(v)}" for k, v in args.items())


def make(w, split="train", think=None, talk=None):
    """`talk(w)` gives a (question, answer) that needs no tool."""
    tool_use = written(w, split) if w.chance(0.5) else made(w, split)
    tool, ask, args, result, reply = tool_use[:5]
    think = w.chance(0.2) if think is None else think
    tools = with_others(w, split, tool, tool_use)
    system = w.pick(*SYSTEMS) if w.chance(0.3) else None
    messages = [{"role": "system", "content": system}] if system else []
    if split == "train" and talk and w.chance(0.12):
        question, answer = talk(w)
        turn = {"role": "assistant", "content": answer}
        if think:
            turn["reasoning_content"] = "No tool is needed here. I answer directly."
        messages += [{"role": "user", "content": question}, turn]
        if w.chance(0.6):
            return {"messages": messages, "tools": tools, "answer": None}
    turn = {"role": "assistant", "content": "", "tool_calls": [call(tool, args)]}
    if think:
        turn["reasoning_content"] = reason(tool, args)
    messages += [{"role": "user", "content": ask}, turn]
    if split == "train" and result and reply and w.chance(0.45):
        failed = w.chance(0.08)
        result = {"error": w.pick("not found", "timeout", "no access", "invalid value")} if failed else result
        reply = f"Sorry, that did not work. The tool says: {result['error']}." if failed else reply
        messages.append({"role": "tool", "content": json.dumps(result)})
        turn = {"role": "assistant", "content": reply}
        if think:
            turn["reasoning_content"] = "The tool gave a result. I tell the user."
        messages.append(turn)
    elif split == "train" and w.chance(0.08):
        again = written(w, split, next((t for t in TOOLS if tool["function"]["name"] in t[0]), None) or w.pick(*TOOLS))
        if again[0]["function"]["name"] == tool["function"]["name"] and set(again[2]) == set(args):
            turn["tool_calls"].append(call(tool, again[2]))
            messages[-2]["content"] = f"{ask} {again[1]}"
            turn.pop("reasoning_content", None)
    return {"messages": messages, "tools": tools, "answer": {"name": tool["function"]["name"], "arguments": args}}
