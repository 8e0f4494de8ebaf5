"""JSON extraction: a text, the keys wanted, and exactly that JSON as the answer.

A domain is a list of fields and a list of sentences that mention them. Evaluation has its own
domains, words and prompts.
"""

import json

from tasks import maybe_system, record
from words import MONTHS, WEEKDAYS, article, plural

# Fields: key -> (other names for it, kind). The kind says how a value is drawn and how it is said.
ALIASES = {
    "name": ["full_name", "person", "name"], "age": ["age", "age_years"], "city": ["city", "town", "location"], "job": ["job", "occupation", "profession"],
    "email": ["email", "email_address", "mail"], "phone": ["phone", "phone_number", "telephone"], "item": ["item", "product", "article"],
    "quantity": ["quantity", "count", "amount"], "price": ["price", "cost", "unit_price"], "color": ["color", "colour"], "date": ["date", "day"],
    "time": ["time", "start_time", "at"], "place": ["place", "location", "venue"], "title": ["title", "name"], "year": ["year", "published"],
    "author": ["author", "writer", "written_by"], "from": ["from", "origin", "departure"], "to": ["to", "destination", "arrival"],
    "customer": ["customer", "buyer", "client"], "company": ["company", "employer", "organization"], "order_id": ["order_id", "order_number", "id"],
    "animal": ["animal", "species", "pet"], "owner": ["owner", "person"], "hobby": ["hobby", "interest"], "weight": ["weight", "weight_kg"],
    "temperature": ["temperature", "temp", "degrees"], "event": ["event", "event_name", "what"], "pages": ["pages", "page_count"],
    "rating": ["rating", "stars", "score"], "status": ["status", "state"], "total": ["total", "total_price", "sum"],
}


def draw(w, kind):
    """(JSON value, how the text says it)"""
    if kind == "person":
        v = w.person()
    elif kind == "first":
        v = w.first if w.chance(0.8) else w.made_up().capitalize()
    elif kind == "city":
        v = w.town()
    elif kind == "int":
        v = w.int(1, 99)
        return v, str(v)
    elif kind == "small":
        v = w.int(2, 12)
        return v, str(v)
    elif kind == "big":
        v = w.int(100, 9999)
        return v, str(v)
    elif kind == "age":
        v = w.int(3, 95)
        return v, str(v)
    elif kind == "year":
        v = w.int(1900, 2030)
        return v, str(v)
    elif kind == "money":
        v = w.int(2, 300) if w.chance(0.5) else round(w.r.uniform(1, 200), 2)
        return v, f"{v:.2f}" if isinstance(v, float) else str(v)
    elif kind == "date":
        said, iso = w.date()
        return iso, said
    elif kind == "day":
        v = w.pick(*WEEKDAYS)
    elif kind == "month":
        v = w.pick(*MONTHS)
    elif kind == "time":
        v = w.time()
    elif kind == "code":
        v = w.code() if w.chance(0.7) else w.pick("A", "B", "K", "T", "X") + w.digits(3)
    elif kind == "title":
        v = w.pick(f"The {w.adjective.capitalize()} {w.object.capitalize()}", f"{w.first} and the {w.animal.capitalize()}", f"{w.thing.capitalize()} {w.place.capitalize()}", f"The {w.thing.capitalize()}")
    elif kind == "email":
        v = w.email()
    elif kind == "phone":
        v = w.phone()
    elif kind == "address":
        v = f"{w.int(1, 250)} {w.street} {w.pick('Street', 'Road', 'Lane', 'Avenue')}"
    elif kind == "foods":
        v = w.some("food", w.int(2, 4))
        return v, ", ".join(v[:-1]) + " and " + v[-1]
    elif kind == "names":
        v = w.some("first", w.int(2, 4))
        return v, ", ".join(v[:-1]) + " and " + v[-1]
    elif kind == "items":
        v = w.some("object", w.int(2, 4))
        return v, ", ".join(v[:-1]) + " and " + v[-1]
    elif kind == "weather":
        v = w.pick("sunny", "cloudy", "rainy", "windy", "snowy", "foggy", "stormy", "clear")
    elif kind == "level":
        v = w.pick("low", "medium", "high", "urgent")
    elif kind == "size":
        v = w.pick("small", "medium", "large")
    elif kind == "eventname":
        v = w.pick("meeting", "concert", "workshop", "lunch", "party", "lecture", "exhibition", "wedding", "football match", "book club", "dance class", "team dinner", "interview", "picnic", "film night")
    elif kind == "sport":
        v = w.pick("football", "tennis", "basketball", "hockey", "rugby", "volleyball", "cricket", "handball")
    elif kind == "language":
        v = w.pick("English", "French", "German", "Spanish", "Italian", "Dutch", "Polish", "Greek", "Swedish", "Turkish", "Hindi", "Japanese")
    elif kind == "genre":
        v = w.pick("comedy", "drama", "fantasy", "mystery", "romance", "adventure", "science fiction", "horror", "history")
    else:
        v = getattr(w, kind)
    return v, v


# (fields, full texts). In a text, {a:x} would be plain format; `[an job]` puts the right article first.
DOMAINS = [
    ("person", {"name": "person", "age": "age", "city": "city", "job": "job"},
     ["{name} is {age} years old, lives in {city} and works as [an job].", "My name is {name}. I am {age}. I live in {city} and I am [an job].", "{name}, {age}, is [an job] from {city}.",
      "Meet {name}, [an job] from {city} who just turned {age}.", "I am [an job] and my name is {name}. My home is in {city}. I am {age} years old.", "In {city} there lives [an job] called {name}. {name} is {age}."]),
    ("contact", {"name": "person", "email": "email", "phone": "phone", "company": "company"},
     ["{name} works at {company}. Email: {email}. Phone: {phone}.", "You can reach {name} of {company} at {email} or {phone}.", "Contact {name} ({company}), phone {phone}, email {email}.",
      "Hi, this is {name} from {company}. My number is {phone} and my email is {email}.", "For questions call {phone} or write to {email}. Ask for {name} at {company}."]),
    ("order", {"customer": "person", "item": "object", "quantity": "small", "price": "money"},
     ["{customer} ordered {quantity} [s item] for ${price} each.", "Order from {customer}: {quantity} x {item}, {price} dollars each.", "I am {customer} and I want {quantity} [s item]. Each costs ${price}.",
      "{customer} bought {quantity} [s item] at {price} dollars apiece.", "Please send {quantity} [s item] to {customer}. The unit price is ${price}."]),
    ("invoice", {"order_id": "code", "customer": "person", "date": "date", "total": "money", "status": "level"},
     ["Invoice {order_id} for {customer}, dated {date}, has a total of ${total}. The priority is {status}.", "On {date} we sent invoice {order_id} to {customer}. The total is {total} dollars and the priority is {status}.",
      "{customer} got invoice {order_id} of ${total} on {date}. Priority: {status}."]),
    ("event", {"event": "eventname", "date": "date", "time": "time", "place": "city"},
     ["The {event} is on {date} at {time} in {place}.", "Join us for a {event} in {place} on {date}. It starts at {time}.", "{event} in {place}: {date}, {time}.", "On {date} at {time} there will be a {event} in {place}.",
      "Please come to the {event}. We start at {time} on {date}. The place is {place}."]),
    ("weekly", {"event": "eventname", "day": "day", "time": "time", "place": "place"},
     ["There is a {event} every {day} at {time} in the {place}.", "Every {day} we have a {event} in the {place}. It begins at {time}.", "The {event} is at {time} on {day} in the {place}."]),
    ("weather", {"city": "city", "condition": "weather", "temperature": "int", "day": "day"},
     ["On {day} it will be {condition} in {city} with {temperature} degrees.", "Weather for {city} on {day}: {condition}, {temperature} degrees.", "{city} will be {condition} on {day}. The temperature will be {temperature} degrees.", "Expect {temperature} degrees and {condition} skies in {city} this {day}."]),
    ("shopping", {"person": "first", "items": "foods", "place": "place"},
     ["{person} needs to buy {items} at the {place}.", "{person} went to the {place} and bought {items}.", "Shopping list of {person} for the {place}: {items}.", "At the {place}, {person} got {items}."]),
    ("pet", {"owner": "first", "animal": "animal", "name": "first", "age": "small", "color": "color"},
     ["{owner} has a {color} {animal} named {name} that is {age} years old.", "{name} is a {color} {animal}, {age} years old, and belongs to {owner}.", "My name is {owner} and my {animal} is called {name}. It is {color} and {age} years old.", "{owner}'s {animal} {name} is {age} years old. Its fur is {color}."]),
    ("flight", {"flight": "code", "from": "city", "to": "city", "date": "date", "seat": "code"},
     ["Flight {flight} goes from {from} to {to} on {date}. Your seat is {seat}.", "Your trip from {from} to {to} is booked on {date}. Flight {flight}, seat {seat}.", "On {date} you fly to {to} from {from} with flight {flight} in seat {seat}."]),
    ("train", {"from": "city", "to": "city", "time": "time", "platform": "small", "price": "money"},
     ["The train from {from} to {to} leaves at {time} from platform {platform}. A ticket costs ${price}.", "At {time} a train leaves platform {platform} in {from} for {to}. The price is {price} dollars.", "For {price} dollars you can go from {from} to {to}. The train is at platform {platform} and leaves at {time}."]),
    ("book", {"title": "title", "author": "person", "year": "year", "pages": "big"},
     ["\"{title}\" by {author} came out in {year} and has {pages} pages.", "{author} wrote \"{title}\" in {year}. It is {pages} pages long.", "I am reading \"{title}\", a book of {pages} pages by {author} from {year}.", "The book {title} ({year}, {pages} pages) was written by {author}."]),
    ("film", {"title": "title", "director": "person", "year": "year", "genre": "genre"},
     ["\"{title}\" is a {genre} film by {director} from {year}.", "{director} made the {genre} film \"{title}\" in {year}.", "In {year} {director} directed \"{title}\". The genre is {genre}."]),
    ("product", {"product": "object", "brand": "company", "price": "money", "color": "color", "size": "size"},
     ["The {brand} {product} comes in {color}, size {size}, and costs ${price}.", "New from {brand}: a {size} {color} {product} for {price} dollars.", "A {color} {product} by {brand}. Size: {size}. Price: ${price}.", "{brand} sells a {size} {product} in {color} for ${price}."]),
    ("restaurant", {"name": "person", "people": "small", "date": "date", "time": "time"},
     ["Book a table for {people} people on {date} at {time} under the name {name}.", "I want a table on {date} at {time} for {people}. My name is {name}.", "Reservation: {name}, {people} guests, {date}, {time}.", "{name} would like to reserve a table for {people} at {time} on {date}."]),
    ("task", {"task": "title", "assignee": "first", "due": "date", "priority": "level"},
     ["{assignee} must finish \"{task}\" by {due}. The priority is {priority}.", "Task: {task}. Assigned to {assignee}. Due {due}. Priority {priority}.", "Please ask {assignee} to do \"{task}\" before {due}. This is {priority} priority."]),
    ("move", {"name": "person", "address": "address", "city": "city"},
     ["{name} lives at {address} in {city}.", "The address of {name} is {address}, {city}.", "{name} moved to {city}. The new address is {address}.", "Send it to {name}, {address}, {city}."]),
    ("sport", {"winner": "city", "loser": "city", "sport": "sport", "day": "day"},
     ["{winner} beat {loser} at {sport} on {day}.", "On {day} the {sport} team of {winner} won against {loser}.", "{loser} lost the {sport} game to {winner} on {day}."]),
    ("hobby", {"name": "first", "hobby": "hobby", "years": "small", "food": "food"},
     ["{name} loves {hobby} and has done it for {years} years. {name} also likes {food}.", "For {years} years {name} has enjoyed {hobby}. A favorite snack is {food}.", "{name} eats {food} after {hobby}, a hobby of {years} years."]),
    ("delivery", {"package": "code", "to": "person", "city": "city", "weight": "int", "date": "date"},
     ["Package {package} for {to} in {city} weighs {weight} kg and arrives on {date}.", "A parcel of {weight} kg goes to {to} in {city}. Its number is {package}. It arrives {date}.", "{to} in {city} will get package {package} ({weight} kg) on {date}."]),
    ("review", {"reviewer": "first", "product": "object", "rating": "small", "brand": "company"},
     ["{reviewer} gave the {brand} {product} {rating} stars.", "Review by {reviewer}: the {product} from {brand} gets {rating} stars.", "The {brand} {product} got a rating of {rating} from {reviewer}."]),
    ("team", {"team": "thing", "members": "names", "city": "city", "year": "year"},
     ["Team {team} from {city} started in {year}. Its members are {members}.", "{members} founded the team {team} in {city} in {year}.", "In {year}, {members} started team {team} in {city}."]),
    ("lost", {"item": "object", "color": "color", "place": "place", "finder": "first"},
     ["{finder} found a {color} {item} in the {place}.", "A {color} {item} was found in the {place} by {finder}.", "In the {place}, {finder} picked up a {item}. It was {color}."]),
    ("job", {"name": "person", "company": "company", "job": "job", "salary": "big", "year": "year"},
     ["{name} joined {company} in {year} as [an job] and earns {salary} dollars a month.", "Since {year}, {name} has been [an job] at {company}. The salary is {salary} dollars.", "{company} hired {name} as [an job] in {year} for {salary} dollars a month."]),
    ("languages", {"name": "first", "language": "language", "city": "city", "level": "size"},
     ["{name} is learning {language} in {city} with a {level} group.", "In {city}, {name} studies {language}. The group is {level}."]),
    ("birthday", {"name": "first", "month": "month", "age": "age", "gift": "object"},
     ["{name} turns {age} in {month} and wants [an gift].", "In {month} {name} will be {age}. The gift is [an gift]."]),
    ("plant", {"plant": "food", "height": "int", "place": "place", "color": "color"},
     ["The {plant} plant in the {place} is {height} cm tall and has {color} flowers.", "A {plant} with {color} flowers grows in the {place}. It is {height} cm high."]),
    ("server", {"server": "thing", "status": "weather", "port": "big", "user": "email"},
     ["Server {server} listens on port {port}. The owner is {user}. The state is {status}.", "{user} runs {server} on port {port}. Today it looks {status}."]),
]
DOMAINS += [
    ("loan", {"book": "title", "reader": "person", "due": "date"}, ["{reader} borrowed \"{book}\" and must bring it back by {due}.", "\"{book}\" is with {reader} until {due}.", "Please return {book} on {due}, {reader}."]),
    ("interview", {"candidate": "person", "position": "job", "company": "company", "time": "time"}, ["{candidate} has an interview at {company} at {time} for the position of {position}.", "At {time}, {company} meets {candidate}, who wants to be [an position]."]),
    ("flat", {"rooms": "small", "rent": "big", "city": "city", "floor": "small"}, ["For rent: {rooms} rooms in {city} on floor {floor}, {rent} dollars a month.", "The flat in {city} has {rooms} rooms, is on floor {floor} and costs {rent} dollars.", "{rent} dollars gets you {rooms} rooms on floor {floor} in {city}."]),
    ("repair", {"device": "object", "problem": "adjective", "technician": "first", "fee": "money"}, ["{technician} fixed the {device}. It was {problem}. The bill is ${fee}.", "The {device} was {problem}, so {technician} repaired it for {fee} dollars."]),
    ("lecture", {"speaker": "person", "topic": "topic", "hall": "code", "date": "date"}, ["{speaker} speaks about {topic} in hall {hall} on {date}.", "On {date} there is a talk on {topic} by {speaker}, hall {hall}.", "Hear {speaker} on {topic}! Hall {hall}, {date}."]),
    ("race", {"runner": "person", "country": "city", "place": "small", "minutes": "int"}, ["{runner} from {country} came in number {place} after {minutes} minutes.", "After {minutes} minutes {runner} of {country} finished at place {place}."]),
    ("transfer", {"sender": "person", "receiver": "person", "amount": "money", "date": "date"}, ["{sender} sent {amount} dollars to {receiver} on {date}.", "On {date}, {receiver} got ${amount} from {sender}.", "Transfer of {amount} dollars from {sender} to {receiver}, {date}."]),
    ("recipe", {"dish": "food", "minutes": "int", "servings": "small", "ingredients": "foods"}, ["To make {dish} for {servings} people you need {ingredients}. It takes {minutes} minutes.", "{dish}: {minutes} minutes, serves {servings}. Use {ingredients}."]),
    ("taxi", {"passenger": "first", "pickup": "address", "dropoff": "place", "time": "time"}, ["Pick up {passenger} at {pickup} at {time} and drive to the {dropoff}.", "{passenger} needs a taxi from {pickup} to the {dropoff} at {time}."]),
    ("game", {"team_a": "thing", "team_b": "thing", "score_a": "small", "score_b": "int"}, ["{team_a} played against {team_b}. The score was {score_a} to {score_b}.", "{team_a} {score_a}, {team_b} {score_b}. That was the final score."]),
    ("trip", {"class_teacher": "person", "students": "int", "destination": "city", "month": "month"}, ["{class_teacher} goes to {destination} with {students} students in {month}.", "In {month}, {students} students visit {destination} with {class_teacher}."]),
    ("zoo", {"species": "animal", "number": "int", "keeper": "first", "diet": "food"}, ["The zoo has {number} [s species]. {keeper} feeds them {diet}.", "{keeper} looks after {number} [s species] that eat {diet}."]),
    ("gym", {"trainer": "first", "activity": "hobby", "weekday": "day", "fee": "money"}, ["{trainer} gives {activity} lessons on {weekday} for {fee} dollars.", "Learn {activity} with {trainer} every {weekday}. A lesson is ${fee}."]),
    ("store", {"shop": "company", "opens": "time", "closes": "time", "street": "address"}, ["{shop} at {street} opens at {opens} and closes at {closes}.", "From {opens} to {closes} you can shop at {shop}, {street}."]),
    ("ship", {"ship": "thing", "captain": "person", "port": "city", "cargo": "object", "tons": "big"}, ["The ship {ship} under captain {captain} leaves {port} with {tons} tons of [s cargo].", "Captain {captain} brings {tons} tons of [s cargo] from {port} on the {ship}."]),
    ("patient", {"patient": "person", "doctor": "person", "room": "code", "visit": "date"}, ["{patient} sees doctor {doctor} in room {room} on {visit}.", "Doctor {doctor} will visit {patient} in room {room} on {visit}."]),
    ("sale", {"seller": "first", "goods": "object", "buyer_city": "city", "sum": "big"}, ["{seller} sold a {goods} to a man from {buyer_city} for {sum} dollars.", "A {goods} went to {buyer_city} for {sum} dollars. {seller} sold it."]),
    ("message", {"sender": "first", "recipient": "first", "subject": "title", "time": "time"}, ["{sender} wrote to {recipient} at {time} about \"{subject}\".", "At {time}, {recipient} got a note from {sender}: \"{subject}\"."]),
]
# One sentence each, for breadth: role words, not sentence shapes, must decide what goes where.
BRIEF = [
    ({"pilot": "person", "plane": "code", "airport": "city"}, "{pilot} landed plane {plane} in {airport}."),
    ({"singer": "person", "song": "title", "year": "year"}, "{singer} sang \"{song}\" for the first time in {year}."),
    ({"boss": "person", "worker": "first", "task": "title"}, "{boss} told {worker} to start \"{task}\"."),
    ({"mayor": "person", "town": "city", "people": "big"}, "{town} has {people} people and its mayor is {mayor}."),
    ({"child": "first", "toy": "object", "color": "color", "price": "money"}, "{child} wants the {color} {toy} for ${price}."),
    ({"cook": "first", "meal": "food", "guests": "small", "hour": "time"}, "{cook} cooks {meal} for {guests} guests at {hour}."),
    ({"dog": "first", "walker": "person", "park": "street"}, "{walker} walks the dog {dog} in {park} Park."),
    ({"nurse": "person", "ward": "code", "shift": "time"}, "Nurse {nurse} starts in ward {ward} at {shift}."),
    ({"tenant": "person", "landlord": "person", "rent": "big"}, "{tenant} pays {landlord} a rent of {rent} dollars."),
    ({"phone": "phone", "shop": "company", "street": "address"}, "Call {shop} at {phone} or go to {street}."),
    ({"winner": "person", "prize": "object", "contest": "eventname"}, "{winner} won a {prize} at the {contest}."),
    ({"band": "thing", "city": "city", "date": "date", "tickets": "big"}, "The band {band} plays in {city} on {date}. There are {tickets} tickets."),
    ({"student": "person", "grade": "small", "school": "street"}, "{student} is in grade {grade} at {school} School."),
    ({"bridge": "street", "length": "big", "built": "year"}, "{bridge} Bridge was built in {built} and is {length} meters long."),
    ({"baker": "first", "bread": "food", "loaves": "int"}, "Every morning {baker} bakes {loaves} loaves of {bread} bread."),
    ({"user": "email", "plan": "size", "until": "date"}, "{user} has the {plan} plan until {until}."),
    ({"lawyer": "person", "client": "person", "case": "code"}, "{lawyer} speaks for {client} in case {case}."),
    ({"gate": "code", "bus": "code", "leaves": "time"}, "Bus {bus} leaves from gate {gate} at {leaves}."),
    ({"fisher": "first", "fish": "int", "lake": "street"}, "{fisher} caught {fish} fish in {lake} Lake."),
    ({"couple": "names", "wedding": "date", "church": "street"}, "{couple} marry on {wedding} in {church} Church."),
    ({"machine": "object", "watts": "big", "maker": "company"}, "The {machine} by {maker} uses {watts} watts."),
    ({"player": "person", "goals": "small", "club": "company"}, "{player} of {club} scored {goals} goals."),
    ({"thief": "first", "stolen": "object", "from": "place", "when": "day"}, "{thief} stole a {stolen} from the {from} on {when}."),
    ({"editor": "person", "magazine": "thing", "issue": "small"}, "{editor} is the editor of {magazine}. This is issue {issue}."),
    ({"king": "first", "queen": "first", "castle": "street"}, "King {king} and queen {queen} live in {castle} Castle."),
    ({"hiker": "first", "km": "int", "mountain": "street", "hours": "small"}, "{hiker} walked {km} km on {mountain} Mountain in {hours} hours."),
    ({"cat": "first", "age": "small", "home": "city"}, "The cat {cat} is {age} years old and lives in {home}."),
    ({"meeting": "code", "host": "person", "attendees": "names"}, "{host} invites {attendees} to meeting {meeting}."),
    ({"drink": "food", "cups": "small", "waiter": "first", "table": "int"}, "{waiter} brings {cups} cups of {drink} to table {table}."),
    ({"poet": "person", "poem": "title", "lines": "int"}, "\"{poem}\" by {poet} has {lines} lines."),
    ({"engineer": "person", "project": "thing", "deadline": "date"}, "{engineer} leads project {project}, which must end by {deadline}."),
    ({"room": "code", "beds": "small", "view": "place", "cost": "money"}, "Room {room} has {beds} beds, a view of the {view} and costs ${cost}."),
    ({"witness": "person", "saw": "animal", "near": "place"}, "{witness} saw a {saw} near the {near}."),
    ({"vendor": "company", "part": "object", "stock": "big"}, "{vendor} has {stock} [s part] in stock."),
    ({"judge": "person", "court": "city", "verdict": "adjective"}, "In {court}, judge {judge} called the case {verdict}."),
    ({"sister": "first", "brother": "first", "gap": "small"}, "{sister} is {gap} years older than her brother {brother}."),
    ({"coach": "person", "team": "thing", "wins": "int"}, "Coach {coach} has {wins} wins with {team}."),
    ({"password": "code", "site": "company", "account": "email"}, "The account {account} at {site} has the password {password}."),
    ({"planet": "thing", "moons": "int", "found": "year", "by": "person"}, "{by} found the planet {planet} in {found}. It has {moons} moons."),
    ({"garden": "street", "trees": "int", "fruit": "food"}, "In {garden} Garden there are {trees} trees with {fruit}."),
    ({"guide": "first", "tour": "city", "starts": "time", "price": "money"}, "{guide} shows you {tour}. The tour starts at {starts} and costs ${price}."),
    ({"knight": "first", "sword": "thing", "horse": "first"}, "The knight {knight} has a sword called {sword} and rides {horse}."),
    ({"library": "street", "books": "big", "opened": "year"}, "{library} Library opened in {opened} with {books} books."),
    ({"dentist": "person", "appointment": "date", "at": "time"}, "Your visit to {dentist} is on {appointment} at {at}."),
    ({"truck": "code", "load": "object", "route": "city"}, "Truck {truck} takes [s load] to {route}."),
    ({"aunt": "first", "sweater": "color", "for": "first"}, "Aunt {aunt} made a {sweater} sweater for {for}."),
    ({"inspector": "person", "factory": "company", "faults": "small", "date": "date"}, "On {date} {inspector} found {faults} faults at {factory}."),
    ({"channel": "thing", "show": "title", "evening": "day"}, "{channel} shows \"{show}\" on {evening} evening."),
    ({"duke": "person", "estate": "street", "sheep": "big"}, "Duke {duke} of {estate} owns {sheep} sheep."),
    ({"soldier": "person", "medal": "color", "battle": "city"}, "{soldier} got a {medal} medal after the battle of {battle}."),
]
DOMAINS += [("brief", fields, [text]) for fields, text in BRIEF] * 1
# Other keys for a field, by what it holds: a key says what is wanted, not which sentence it came from.
KEYS_BY_KIND = {
    "person": "name person customer client author owner patient student player host winner member employee manager user sender tenant artist singer actor doctor nurse boss lawyer chef captain".split(),
    "first": "name person friend child user player owner who helper cousin neighbor".split(), "city": "city town location place destination origin home region hometown where".split(),
    "object": "item product thing object article goods tool device gift".split(), "small": "count quantity number amount how_many units size_of_group".split(),
    "int": "number amount value count quantity".split(), "big": "number amount value total sum".split(), "money": "price amount total fee rate value charge bill".split(),
    "date": "date day due_date deadline on_date scheduled".split(), "day": "day day_of_week on_day".split(), "time": "time hour starts_at clock begins".split(),
    "code": "code id number reference identifier key serial".split(), "title": "title name label heading work".split(), "animal": "animal species pet creature beast".split(),
    "food": "food dish ingredient meal product snack".split(), "job": "job work profession role position occupation".split(), "place": "place location building site spot".split(),
    "eventname": "event activity occasion what happening".split(), "company": "company brand firm maker employer business".split(), "year": "year since built founded".split(), "thing": "name label title team".split(),
    "language": "language course topic spoken".split(), "color": "color colour shade paint".split(),
}
EVAL_DOMAINS = [
    ("ticket", {"buyer": "person", "show": "eventname", "seats": "small", "cost": "money", "when": "date"},
     ["{buyer} bought {seats} tickets for the {show} on {when} and paid ${cost}.", "For {cost} dollars, {buyer} got {seats} seats at the {show} on {when}."]),
    ("car", {"driver": "person", "brand": "company", "plate": "code", "color": "color", "year": "year"},
     ["{driver} drives a {color} {brand} from {year} with the plate {plate}.", "The {color} {brand} with plate {plate} was built in {year}. It belongs to {driver}."]),
    ("hotel", {"guest": "person", "hotel": "thing", "city": "city", "nights": "small", "arrival": "date"},
     ["{guest} will stay {nights} nights at the {hotel} hotel in {city} from {arrival}.", "The {hotel} hotel in {city} has a booking for {guest}: {nights} nights, arriving {arrival}."]),
    ("course", {"teacher": "person", "subject": "language", "room": "code", "weekday": "day", "start": "time"},
     ["{teacher} teaches {subject} in room {room} every {weekday} at {start}.", "The {subject} class of {teacher} is on {weekday} at {start} in room {room}."]),
    ("farm", {"farmer": "first", "animals": "int", "kind": "animal", "village": "city"},
     ["{farmer} keeps {animals} [s kind] on a farm near {village}.", "Near {village}, farmer {farmer} has {animals} [s kind]."]),
    ("museum", {"painting": "title", "painter": "person", "year": "year", "museum_city": "city"},
     ["The painting \"{painting}\" by {painter} from {year} hangs in a museum in {museum_city}.", "{painter} painted \"{painting}\" in {year}. You can see it in {museum_city}."]),
]


def fill(w, template, said):
    """Replaces {key} and the bracket forms [an key], [s key], [key]."""
    out = template
    for key, s in said.items():
        out = out.replace("{" + key + "}", s)
        if f" {key}]" in out or f"[{key}]" in out:
            out = out.replace(f"[an {key}]", article(s)).replace(f"[s {key}]", plural(s)).replace(f"[{key}]", s)
    return out[0].upper() + out[1:] if out[0].islower() and w.chance(0.7) else out


def kind_of(v):
    if isinstance(v, bool):
        return "boolean"
    if isinstance(v, int):
        return "integer"
    if isinstance(v, float):
        return "number"
    return "array" if isinstance(v, list) else "string"


def schema(w, data):
    types = {k: kind_of(v) if v is not None else "string" for k, v in data.items()}
    props = {k: {"type": "array", "items": {"type": "string"}} if t == "array" else {"type": t} for k, t in types.items()}
    full = {"type": "object", "properties": props}
    if w.chance(0.6):
        full["required"] = list(props)
    return w.pick(json.dumps(full), json.dumps(full, indent=2), json.dumps({k: t for k, t in types.items()}),
                  "{" + ", ".join(f'"{k}": {t}' for k, t in types.items()) + "}")


KEYS = ["Extract {k} as JSON.\n\n{t}", "Extract the {k} from this text as JSON:\n{t}", "{t}\n\nExtract {k} as JSON.", "Read the text and output JSON ({k}).\n\n{t}",
        "Return a JSON object with the keys {k}.\n\nText: {t}", "Give me the {k} in JSON.\n{t}", "Text: {t}\nKeys: {k}\nJSON:", "From the text below, extract {k}. Answer with JSON only.\n\n{t}",
        "{t}\n\nWrite this as JSON with {k}.", "Extract the following fields as JSON: {k}.\n\n\"{t}\"", "Turn this into JSON with the fields {k}: {t}", "{t}\nReturn only JSON with {k}.",
        "Find {k} in the text. Reply with JSON.\n\nText: \"{t}\"", "I need a JSON object with {k}.\n\n{t}", "Please extract {k} from the following message and reply in JSON.\n\n{t}",
        "Parse this and give JSON with keys {k}:\n\n{t}", "Convert to JSON. Fields: {k}. Text: {t}", "What are the {k}? Answer in JSON.\n\n{t}", "Extract JSON with keys {k} from: {t}"]
SCHEMAS = ["Extract data that matches this JSON schema.\nSchema: {s}\nText: {t}", "Schema:\n{s}\n\nText:\n{t}\n\nJSON:", "{t}\n\nFill this schema: {s}", "Use this schema: {s}\n\nExtract from: {t}",
           "Return JSON that follows the schema.\n\n{s}\n\n{t}", "Extract information from the text into this format:\n{s}\n\nText: {t}", "Given the text \"{t}\", produce JSON matching {s}",
           "Output JSON for this schema and nothing else.\n{s}\n\nInput: {t}", "Read the text and fill in the JSON.\n{s}\n\n{t}", "JSON schema:\n{s}\n\nExtract the values from this text:\n{t}"]
KEYS_EVAL = ["Extract the {k} from the text as JSON.\n\nText: {t}", "{t}\n\nGive me a JSON object with {k}.", "Please read this and return the fields {k} as a JSON object:\n{t}"]
SCHEMAS_EVAL = ["Extract the information from the text. Follow this schema:\n{s}\n\nText: {t}", "{t}\n\nReturn JSON matching this schema: {s}"]


DO = ["Extract", "Get", "Find", "Pull out", "Return", "Give me", "Collect", "List", "Read out", "Identify", "Take", "Write down", "Pick out", "Output", "Report", "Show"]
WHAT = ["{k}", "the {k}", "the fields {k}", "the values for {k}", "these fields: {k}", "the following: {k}", "the keys {k}", "the attributes {k}", "the details {k}", "the information ({k})"]
FORM = ["as JSON", "as a JSON object", "in JSON", "in JSON format", "as one JSON object", "and reply with JSON", "and answer with JSON only", "as valid JSON", "and put it in JSON"]
SOURCE = ["from the text", "from this text", "from the message", "from the sentence", "from the note", "from this", "from the input", "mentioned here", "you find"]
LEAD = ["", "", "", "Please ", "Can you ", "I want you to ", "Your task: ", "Read the text. ", "Task: ", "You get a text. "]
LABEL = ["Text: {t}", "{t}", "{t}", "Input: {t}", "\"{t}\"", "Text:\n{t}", "Message: {t}", "Sentence: {t}", "### Text\n{t}", "Here it is: {t}", "<text>{t}</text>", "Note: {t}"]
FOLLOW = ["Follow this schema:", "Use this schema:", "Schema:", "The answer must fit this schema:", "Fill in this form:", "Expected format:", "Match this JSON schema:", "The format is", "Answer in this shape:", "Stick to this JSON schema:"]


def built(w, schema_text=None):
    """A prompt put together from parts; the keys or the schema and the text go in later."""
    parts = [w.pick(*WHAT) if not schema_text else w.pick("the data", "the information", "all values", "what is asked", "the facts"), w.pick(*SOURCE), w.pick(*FORM)]
    if w.chance(0.3):
        parts = [parts[0], parts[2], parts[1]]
    if w.chance(0.25):
        parts.pop(1)
    verb = w.pick(*DO)
    lead = w.pick(*LEAD)
    ask = lead + (verb if not lead or lead[-2] in ".:" else verb[0].lower() + verb[1:]) + " " + " ".join(parts) + w.pick(".", ".", ":", "", "!")
    if schema_text:
        ask += w.pick(" ", "\n", "\n\n") + w.pick(*FOLLOW) + w.pick(" ", "\n") + "{s}"
    text = w.pick(*LABEL)
    gap = w.pick("\n\n", "\n\n", "\n", " ")
    return ask + gap + text if w.chance(0.6) else text + w.pick("\n\n", "\n") + ask


def listed(w, keys):
    style = w.int(0, 5)
    quoted = [f'"{k}"' for k in keys] if style in (1, 4) else [f"`{k}`" for k in keys] if style == 5 else list(keys)
    if style in (0, 1, 5) or len(keys) == 1:
        return ", ".join(quoted)
    if style == 2:
        return ", ".join(quoted[:-1]) + " and " + quoted[-1]
    return ", ".join(quoted)


def prompt(w, data, text, split):
    keys, schemas = (KEYS, SCHEMAS) if split == "train" else (KEYS_EVAL, SCHEMAS_EVAL)
    fresh = split == "train" and w.chance(0.6)
    if w.chance(0.6):
        shown = listed(w, list(data))
        return (built(w) if fresh else w.pick(*keys)).replace("{k}", shown).replace("{t}", text)
    return (built(w, True) if fresh else w.pick(*schemas)).replace("{s}", schema(w, data)).replace("{t}", text)


def one(w, split, known=True):
    """(text, data) from one domain, which training knows or not."""
    _, fields, texts = w.pick(*(DOMAINS if known else EVAL_DOMAINS))
    drawn = {k: draw(w, kind) for k, kind in fields.items()}
    text = fill(w, w.pick(*texts), {k: s for k, (_, s) in drawn.items()})
    data = {}
    for k, (v, _) in drawn.items():
        alias, kind = k, fields[k]
        if split == "train" and kind in KEYS_BY_KIND and list(fields.values()).count(kind) == 1 and w.chance(0.45):
            alias = w.pick(*KEYS_BY_KIND[kind])
        elif split == "train" and k in ALIASES and w.chance(0.35):
            alias = w.pick(*ALIASES[k])
        data[alias if alias not in data and alias not in fields else k] = v
    return text, data


def choose(w, data):
    keys = list(data)
    if w.chance(0.5):
        w.r.shuffle(keys)
    if w.chance(0.5) and len(keys) > 1:
        keys = keys[: w.int(1 if w.chance(0.2) else 2, len(keys))]
    return {k: data[k] for k in keys}


def labelled(w):
    """Any keys at all, written as label: value lines."""
    keys = []
    while len(keys) < w.int(3, 8):
        k = w.pick(w.object, w.thing, w.place, w.made_up(), f"{w.adjective}_{w.object}", f"{w.thing}_id", w.food, w.animal)
        if k not in keys:
            keys.append(k)
    data, lines = {}, []
    for k in keys:
        v, s = draw(w, w.pick("person", "city", "int", "money", "code", "title", "date", "email", "object", "color", "time", "adjective", "big"))
        data[k] = v
        lines.append((k, s))
    sep, between = w.pick((": ", "\n"), (" = ", "\n"), (": ", ", "), (" is ", ". "), (": ", "; "), (" - ", "\n"))
    label = w.pick(str, str.capitalize, lambda k: k.replace("_", " "), lambda k: k.replace("_", " ").title())
    if any(label(k) != k and label(k).lower().replace(" ", "_") != k for k in keys):
        label = str
    return between.join(label(k) + sep + s for k, s in lines), data


def described(w):
    """One thing with properties of any name, in running text."""
    subject, data, said = w.pick(f"the {w.object}", w.person(), f"the {w.place}", f"the {w.company} {w.object}"), {}, []
    for _ in range(w.int(2, 5)):
        key = w.pick(w.thing, w.object, w.place, f"{w.adjective}_{w.object}", w.job)
        if key in data:
            continue
        v, s = draw(w, w.pick("person", "city", "int", "money", "code", "title", "date", "object", "color", "time", "big", "animal", "food", "job", "eventname", "year"))
        data[key] = v
        name = key.replace("_", " ")
        said.append(w.pick(f"The {name} of {subject} is {s}.", f"Its {name} is {s}.", f"It has the {name} {s}.", f"The {name} is {s}.", f"For {name}, we have {s}.", f"{s} is the {name}.", f"{name.capitalize()}: {s}."))
    return f"This is about {subject}. " * w.chance(0.5) + " ".join(said), data


def words_list(w):
    """Words moved into JSON strings: the same word has other tokens after a quote than after a space."""
    words = [w.pick(w.object, w.thing, w.first, w.city, w.animal, w.food, w.job, w.made_up(), w.person()) for _ in range(w.int(3, 14))]
    words = list(dict.fromkeys(words))
    k = w.int(0, 3)
    said = ", ".join(words[:-1]) + w.pick(", ", " and ") + words[-1] if len(words) > 1 else words[0]
    if k == 0:
        return w.pick("Write these words as a JSON list: {t}", "Make a JSON array of: {t}", "{t}\n\nPut these in a JSON list.").format(t=said), words
    if k == 1:
        key = w.pick(w.object, w.thing, w.place)
        return w.pick("Make a JSON object with the key {k} and the list {t}.", "Put {t} in JSON under \"{k}\".").format(k=key, t=said), {key: words}
    pairs = dict(zip(words[::2], words[1::2])) or {words[0]: words[0]}
    shown = w.pick(", ", "; ", "\n").join(f"{a} {w.pick('is', '=', '->', 'has', 'means')} {b}" for a, b in pairs.items())
    return w.pick("Write this as a JSON object: {t}", "Turn this into JSON:\n{t}", "{t}\n\nAs JSON, please.").format(t=shown), pairs


def several(w):
    """A list of objects."""
    _, fields, texts = w.pick(*[d for d in DOMAINS if len(d[1]) <= 4])
    keys = w.r.sample(list(fields), min(len(fields), w.int(2, 3)))
    rows, said = [], []
    for _ in range(w.int(2, 3)):
        drawn = {k: draw(w, kind) for k, kind in fields.items()}
        said.append(fill(w, w.pick(*texts), {k: s for k, (_, s) in drawn.items()}))
        rows.append({k: drawn[k][0] for k in keys})
    ask = w.pick("Extract {k} of each as a JSON list.\n\n{t}", "{t}\n\nReturn a JSON array of objects with {k}.", "List every entry as JSON with {k}.\n\n{t}")
    return ask.format(k=listed(w, keys), t=" ".join(said)), rows


def make(w, split="train", think=None, filler=None, known=True):
    if split == "train" and w.chance(0.06):
        ask, data = several(w)
    elif split == "train" and w.chance(0.15):
        ask, data = words_list(w)
    else:
        text, data = w.pick(labelled, described)(w) if split == "train" and w.chance(0.25) else one(w, split, known)
        data = choose(w, data)
        if split == "train":
            if w.chance(0.12):
                extra = one(w, split)[0] if w.chance(0.4) or not filler else filler(w, w.int(80, 500))
                text = w.pick(f"{text} {extra}", f"{extra} {text}") if not set(data) & {"name", "person"} or filler else text
            if w.chance(0.05):
                missing = w.pick(*[k for k in ("nickname", "website", "fax", "notes", "discount", "zip_code", "country") if k not in data])
                data[missing] = None
        ask = prompt(w, data, text, split)
    answer = json.dumps(data)
    thought = None
    if think or (think is None and w.chance(0.2)):
        rows = [r for r in (data if isinstance(data, list) else [data]) if isinstance(r, dict)]
        thought = "I read the text and find each value.\n" + "\n".join(f"{k}: {json.dumps(v)}" for row in rows for k, v in row.items())
    return record(ask, answer, thought, maybe_system(w) if w.chance(0.8) else w.pick("You extract data as JSON. Reply with JSON only.", "Answer only with JSON.", "You turn text into JSON."), expect=data)
