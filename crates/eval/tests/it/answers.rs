//! Every quality task's rubric, on an answer that passes and on several that do not.

use lanner_eval::{Run, Status};

use crate::scripted::{Scripted, answer};

/// The run of one task whose answer is `text`, with permission to run code.
fn graded(task: &str, text: &str, run_code: bool) -> Run {
    let text = text.to_owned();
    let server = Scripted::start(move |_| answer(&text));
    let tests = lanner_eval::select(&[task.to_owned()]).unwrap();
    let mut report = server.eval(|options| (options.tests, options.run_code) = (tests, run_code)).unwrap();
    report.cases.remove(0).runs.remove(0)
}

fn passes(task: &str, text: &str) {
    let verdict = graded(task, text, true).verdict.unwrap();
    assert_eq!((verdict.status, verdict.missing), (Status::Passed, vec![]), "{task}: {text}");
}

/// The criteria that `text` does not meet are those that begin with `missing`, in order.
fn misses(task: &str, text: &str, missing: &[&str]) {
    let verdict = graded(task, text, true).verdict.unwrap();
    assert_eq!(verdict.status, Status::Failed, "{task}: {text}");
    let found = &verdict.missing;
    let is_same = found.len() == missing.len() && found.iter().zip(missing).all(|(a, b)| a.starts_with(b));
    assert!(is_same, "{task}: {text}: {found:#?} instead of {missing:#?}");
}

#[test]
fn math_needs_both_prices_and_the_result() {
    passes("math", "Eight boxes: 76.80. Four rolls: 3.80. Nine boxes: 86.40.\nAnswer: 80.60");
    misses(
        "math",
        "Nine boxes are 86.40, eight 76.80.\nAnswer: 86.40",
        &["gives the least price: `86.40` is not 80.6"],
    );
    misses("math", "Answer: 80.6", &["computes the price of eight boxes", "compares with nine boxes"]);
    misses("math", "76.8, 86.4, so 80.60", &["gives the least price: there is no `answer:`"]);
}

const MERGE: &str = "```python\ndef merge_intervals(intervals):\n    merged = []\n    for start, end in sorted(intervals):\n        \
                     if merged and start <= merged[-1][1]:\n            merged[-1][1] = max(merged[-1][1], end)\n        \
                     else:\n            merged.append([start, end])\n    return merged\n```";

#[test]
fn code_is_executed_on_every_case() {
    passes("code", MERGE);
    misses("code", &MERGE.replace("start <=", "start <"), &["joins touching intervals: AssertionError"]);
    misses(
        "code",
        &MERGE.replace("max(merged[-1][1], end)", "end"),
        &["keeps an interval that contains others"],
    );
    misses("code", &MERGE.replace("sorted(intervals)", "intervals"), &["sorts its argument"]);
    let sorting = MERGE.replace("    merged = []\n", "    merged = []\n    intervals.sort()\n");
    misses("code", &sorting, &["does not change its argument"]);
    let all =
        ["defines", "joins overlapping", "joins touching", "sorts", "keeps", "takes", "does not change"];
    misses("code", "I cannot do that.", &all);
}

#[test]
fn code_without_permission_is_never_passed() {
    let verdict = graded("code", MERGE, false).verdict.unwrap();
    assert_eq!((verdict.status, verdict.met, verdict.checked), (Status::NotRun, 1, 1));
    assert_eq!(verdict.not_run.len(), 6);
    assert!(verdict.not_run[0].ends_with("code of answers is executed only with --run-code"), "{verdict:?}");
}

#[test]
fn review_needs_every_planted_bug() {
    let all = "Line 3: mutable default argument. Line 4: SQL injection, use placeholders. Line 11: skips the first \
               element. Line 13: division by zero for an empty list. Line 17: the file is never closed. Line 19: bare \
               except.";
    passes("review", all);
    misses(
        "review",
        &all.replace("mutable default argument", "strange"),
        &["finds the mutable default argument"],
    );
    misses("review", &all.replace("SQL injection, use placeholders", "bad"), &["finds the SQL injection"]);
    let vague = "Looks good, but line 19 should use `except OSError` and `with open(path)`.";
    misses(
        "review",
        vague,
        &["finds the SQL", "finds the mutable", "finds that the loop", "finds the division"],
    );
}

#[test]
fn design_needs_each_part() {
    let all = "A token bucket per key in Redis, updated by an atomic Lua script. If Redis is down, fail open. Clients \
               get 429 with Retry-After.";
    passes("design", all);
    misses(
        "design",
        &all.replace("fail open", "we wait"),
        &["decides what happens without the shared state"],
    );
    misses(
        "design",
        &all.replace("429 with Retry-After", "an error"),
        &["answers with 429", "tells the client when"],
    );
    misses("design", &format!("{all}{}", " more".repeat(400)), &["stays under 400 words"]);
    misses(
        "design",
        &all.replace("in Redis", "in memory").replace("If Redis", "If it"),
        &["shares the state"],
    );
}

const ORDER: &str = r#"{"customer": "Dana Whitlock", "order": "LX-2093", "items": [{"name": "desk lamp", "quantity": 3,
    "price": 24.5}, {"name": "walnut shelf", "quantity": 1, "price": 89.00}], "express": false}"#;

#[test]
fn extraction_needs_every_value() {
    passes("extraction", ORDER);
    passes("extraction", &format!("```json\n{ORDER}\n```"));
    misses(
        "extraction",
        &ORDER.replace("24.5", "\"24.50\""),
        &["has the price of a lamp: /items/0/price is \"24.50\""],
    );
    misses("extraction", &ORDER.replace("false", "true"), &["has no express delivery"]);
    let rugs = ORDER.replace("}], \"express", "}, {\"name\": \"rug\", \"quantity\": 2}], \"express");
    misses("extraction", &rugs, &["leaves the rugs out"]);
    let prose = format!("Here is the order: {ORDER}");
    let all = [
        "is JSON only",
        "has the customer",
        "has the order",
        "has three",
        "has the price of a lamp",
        "has one",
        "has the price of the shelf",
        "has no express",
    ];
    misses("extraction", &prose, &all);
}

#[test]
fn ambiguity_needs_questions_and_no_booking() {
    let all = "On which day, at what time, and for how long do you need the room?";
    passes("ambiguity", all);
    misses("ambiguity", "For how long? And at what time?", &["asks for the day"]);
    misses("ambiguity", &format!("{all} I have booked Monday for now."), &["claims no booking"]);
    misses(
        "ambiguity",
        "The big room is booked for you.",
        &[
            "asks a question",
            "asks for the day",
            "asks for the time",
            "asks for the duration",
            "claims no booking",
        ],
    );
}

const QUERY: &str = "```sql\nSELECT d.name, COUNT(*) AS n, MAX(e.salary) AS top FROM departments d JOIN employees e ON \
                     e.department_id = d.id GROUP BY d.id HAVING COUNT(*) >= 2 ORDER BY top DESC;\n```";

#[test]
fn sql_needs_the_right_rows() {
    passes("sql", QUERY);
    misses("sql", &QUERY.replace(" HAVING COUNT(*) >= 2", ""), &["gives the right rows: its rows are"]);
    misses("sql", &QUERY.replace(" DESC", ""), &["gives the right rows"]);
    misses(
        "sql",
        &QUERY.replace("d.name", "d.title"),
        &["gives the right rows: OperationalError", "finds nothing in"],
    );
    misses(
        "sql",
        "DROP TABLE employees",
        &["is one SELECT", "gives the right rows: DatabaseError", "finds nothing in"],
    );
}

#[test]
fn instructions_are_all_checked() {
    let all = "The river is long. The banks are green. The boats are slow. The fish are quick. The night is dark.\nDONE";
    passes("instructions", all);
    misses(
        "instructions",
        &all.replace("The fish are", "Fish are"),
        &["begins every sentence with The: `fish are quick.`"],
    );
    misses("instructions", &all.replace(" The night is dark.", ""), &["has five sentences: 4 sentences"]);
    misses("instructions", &all.replace("fish", "waters"), &["avoids the word water"]);
    misses("instructions", all.trim_end_matches("\nDONE"), &["ends with the line DONE"]);
    misses("instructions", &all.replace("river", "stream"), &["is about a river"]);
}

#[test]
fn translation_needs_its_parts_and_nothing_else() {
    let all = "Der Zug fährt um sieben Uhr morgens ab, aber der Fahrkartenschalter öffnet nicht vor acht.";
    passes("translation", all);
    misses("translation", &all.replace("nicht vor", "um"), &["keeps the negation"]);
    misses("translation", &all.replace("Fahrkartenschalter", "Laden"), &["translates ticket office"]);
    misses(
        "translation",
        &format!("{all} {}", "Das ist die Übersetzung. ".repeat(5)),
        &["is the translation only"],
    );
    misses("translation", &format!("The translation: {all}"), &["has no English words"]);
}

#[test]
fn puzzle_needs_all_three_lines() {
    let all = "Ben is red, so Ana is blue.\nAna: blue, cat\nBen: red, fish\nCleo: green, dog";
    passes("puzzle", all);
    passes("puzzle", "**ANA**: Blue, Cat\n- Ben: red, fish\nCleo: Green, Dog");
    misses(
        "puzzle",
        &all.replace("Ana: blue, cat", "Ana: blue, fish"),
        &["Ana has the blue house and the cat: `ana:"],
    );
    misses("puzzle", &all.replace("Cleo: ", "Cleo has "), &["Cleo has the green house and the dog: no line"]);
    misses("puzzle", "Ana: blue or red, cat\nBen: red, fish\nCleo: green, dog", &["Ana has the blue"]);
}
