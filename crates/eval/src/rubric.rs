//! Rubrics: criteria that a program checks on an answer, each with what is missing where it fails.

use serde::Deserialize;
use serde_json::Value;

use crate::{
    Status, Verdict,
    child::{Execution, Interpreter},
};

/// One line of a rubric.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Criterion {
    /// What a right answer does: `names the SQL injection`.
    pub name: String,
    pub check: Check,
}

/// Texts are compared in lower case, with plain quotes and spaces.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Check {
    /// At least one of these texts occurs.
    Any(Vec<String>),
    /// None of these texts occurs.
    None(Vec<String>),
    /// The number after the last occurrence of `after`.
    Number {
        after: String,
        value: f64,
    },
    /// The last line that begins with `start` has all of `all` and none of `none`.
    Line {
        start: String,
        all: Vec<String>,
        none: Vec<String>,
    },
    /// The last line is this one.
    LastLine(String),
    /// This many sentences, the lines `except` not counted.
    Sentences {
        count: usize,
        except: Vec<String>,
    },
    /// Every sentence begins with this word, the lines `except` not counted.
    EachSentenceStarts {
        with: String,
        except: Vec<String>,
    },
    MaxWords(usize),
    /// The answer is JSON, alone or in one fenced block.
    Json,
    /// A value in that JSON.
    Field {
        pointer: String,
        value: Value,
    },
    /// The code defines this function.
    Defines(String),
    /// The code passes this check, which raises an exception if it does not.
    Python(Vec<String>),
    /// The query has these rows, in this order.
    Sql {
        setup: Vec<String>,
        rows: Vec<Vec<Value>>,
    },
}

enum Outcome {
    Met,
    Missing(String),
    NotRun(String),
}

/// Checks every criterion.
pub(crate) fn grade(criteria: &[Criterion], answer: &str, interpreter: &Interpreter) -> Verdict {
    let (mut missing, mut not_run) = (vec![], vec![]);
    for Criterion { name, check } in criteria {
        match check.of(answer, interpreter) {
            Outcome::Met => {}
            Outcome::Missing(found) => missing.push(format!("{name}: {found}")),
            Outcome::NotRun(reason) => not_run.push(format!("{name}: {reason}")),
        }
    }
    verdict(criteria.len(), missing, not_run)
}

/// The verdict of a rubric of `criteria` criteria.
pub(crate) fn verdict(criteria: usize, missing: Vec<String>, not_run: Vec<String>) -> Verdict {
    let checked = criteria - not_run.len();
    let status = match (missing.is_empty(), not_run.is_empty()) {
        (false, _) => Status::Failed,
        (true, false) => Status::NotRun,
        (true, true) => Status::Passed,
    };
    Verdict { status, met: checked - missing.len(), checked, missing, not_run }
}

impl Check {
    fn of(&self, answer: &str, interpreter: &Interpreter) -> Outcome {
        let plain = plain(answer);
        match self {
            Check::Any(texts) => {
                let is_there = texts.iter().any(|text| plain.contains(text.as_str()));
                met(is_there, || format!("none of `{}` is in the answer", texts.join("`, `")))
            }
            Check::None(texts) => {
                let wrong = texts.iter().find(|text| plain.contains(text.as_str()));
                met(wrong.is_none(), || format!("`{}` is in the answer", wrong.map_or("", |text| text)))
            }
            Check::Number { after, value } => number(&plain, after, *value),
            Check::Line { start, all, none } => line(&plain, start, all, none),
            Check::LastLine(expected) => {
                let last = plain.trim_end().lines().last().unwrap_or_default().trim();
                met(last == expected, || format!("the last line is `{last}`, not `{expected}`"))
            }
            Check::Sentences { count, except } => {
                let found = sentences(&plain, except).len();
                met(found == *count, || format!("{found} sentences instead of {count}"))
            }
            Check::EachSentenceStarts { with, except } => {
                let sentences = sentences(&plain, except);
                let wrong = sentences.iter().find(|text| text.split_whitespace().next() != Some(with));
                let is_right = wrong.is_none() && !sentences.is_empty();
                met(is_right, || match wrong {
                    Some(wrong) => format!("`{}` does not", cut(wrong)),
                    None => "there is no sentence".into(),
                })
            }
            Check::MaxWords(most) => {
                let words = plain.split_whitespace().count();
                met(words <= *most, || format!("{words} words are more than {most}"))
            }
            Check::Json => met(json(answer).is_some(), || format!("`{}` is no JSON", cut(answer.trim()))),
            Check::Field { pointer, value } => field(answer, pointer, value),
            Check::Defines(function) => {
                let is_there = code(answer).contains(&format!("def {function}("));
                met(is_there, || format!("there is no `def {function}(`"))
            }
            Check::Python(check) => outcome(interpreter.python(&code(answer), &check.join("\n"))),
            Check::Sql { setup, rows } => sql(answer, setup, rows, interpreter),
        }
    }
}

fn met(is_met: bool, missing: impl FnOnce() -> String) -> Outcome {
    if is_met { Outcome::Met } else { Outcome::Missing(missing()) }
}

fn outcome(execution: Execution) -> Outcome {
    match execution {
        Execution::Done(_) => Outcome::Met,
        Execution::Failed(error) => Outcome::Missing(error),
        Execution::NotRun(reason) => Outcome::NotRun(reason),
    }
}

fn number(plain: &str, after: &str, expected: f64) -> Outcome {
    let Some((_, rest)) = plain.rsplit_once(after) else {
        return Outcome::Missing(format!("there is no `{after}`"));
    };
    let digits = rest.trim_start_matches(|c: char| !c.is_ascii_digit() && c != '-' && c != '\n');
    let number: String = digits.chars().take_while(|c| c.is_ascii_digit() || "-.,".contains(*c)).collect();
    // A comma groups digits, and a full stop at the end closes the sentence.
    let found: Option<f64> = number.replace(',', "").trim_end_matches('.').parse().ok();
    let is_right = found.is_some_and(|found| (found - expected).abs() < 1e-6);
    met(is_right, || format!("`{}` is not {expected}", cut(rest.trim())))
}

fn line(plain: &str, start: &str, all: &[String], none: &[String]) -> Outcome {
    let undecorated =
        |line: &str| line.replace(['*', '`'], "").trim_start_matches(['-', ' ', '#']).to_owned();
    let Some(found) = plain.lines().rev().map(undecorated).find(|line| line.starts_with(start)) else {
        return Outcome::Missing(format!("no line begins with `{start}`"));
    };
    let has_all = all.iter().all(|text| found.contains(text.as_str()));
    let has_none = none.iter().all(|text| !found.contains(text.as_str()));
    met(has_all && has_none, || format!("`{}` is wrong", cut(&found)))
}

fn field(answer: &str, pointer: &str, expected: &Value) -> Outcome {
    let Some(json) = json(answer) else { return Outcome::Missing("the answer is no JSON".into()) };
    match json.pointer(pointer) {
        None => Outcome::Missing(format!("there is no {pointer}")),
        Some(found) => met(same(found, expected), || format!("{pointer} is {found}, not {expected}")),
    }
}

fn sql(answer: &str, setup: &[String], rows: &[Vec<Value>], interpreter: &Interpreter) -> Outcome {
    let found = match interpreter.sql(&setup.join("\n"), &code(answer)) {
        Execution::Done(found) => found,
        other => return outcome(other),
    };
    let expected = Value::from(rows.iter().cloned().map(Value::from).collect::<Vec<_>>());
    met(same(&found, &expected), || format!("its rows are {}, not {expected}", cut(&found.to_string())))
}

/// Equal, with numbers compared as numbers and texts without case.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => {
            let (a, b) = (a.as_f64().unwrap_or(f64::NAN), b.as_f64().unwrap_or(f64::NAN));
            (a - b).abs() < 1e-6
        }
        (Value::String(a), Value::String(b)) => a.trim().eq_ignore_ascii_case(b.trim()),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        _ => a == b,
    }
}

/// The whole answer as JSON, or that of its only fenced block.
fn json(answer: &str) -> Option<Value> {
    let text = answer.trim();
    let fenced: Vec<&str> = fences(text).collect();
    let text = if let [one] = fenced[..] { one } else { text };
    serde_json::from_str(text).ok().filter(|value: &Value| value.is_object() || value.is_array())
}

/// The fenced blocks of an answer, joined; the whole answer if it has none.
fn code(answer: &str) -> String {
    let blocks: Vec<&str> = fences(answer).collect();
    if blocks.is_empty() { answer.trim().to_owned() } else { blocks.join("\n") }
}

/// What stands between lines of three backticks; a block that is not closed ends with the answer.
fn fences(text: &str) -> impl Iterator<Item = &str> {
    let parts = text.split("```").skip(1).step_by(2);
    parts.map(|part| part.split_once('\n').map_or("", |(_, block)| block).trim())
}

/// Sentences end with `.`, `!` or `?` before a space or the end.
fn sentences<'a>(plain: &'a str, except: &[String]) -> Vec<&'a str> {
    let lines = plain.lines().map(str::trim).filter(|line| !except.iter().any(|text| text == line));
    let mut found = vec![];
    for line in lines {
        let mut start = 0;
        for (at, c) in line.char_indices().filter(|(_, c)| ".!?".contains(*c)) {
            let end = at + c.len_utf8();
            if line[end..].starts_with(char::is_whitespace) || end == line.len() {
                found.push(line[start..end].trim());
                start = end;
            }
        }
        found.push(line[start..].trim());
    }
    found.retain(|sentence| sentence.chars().any(char::is_alphanumeric));
    found
}

fn plain(answer: &str) -> String {
    let quote = |c| match c {
        '\u{2018}' | '\u{2019}' => '\'',
        '\u{201c}' | '\u{201d}' => '"',
        '\u{a0}' | '\u{202f}' => ' ',
        '\u{2010}' | '\u{2011}' => '-',
        c => c,
    };
    answer.to_lowercase().chars().map(quote).collect()
}

fn cut(text: &str) -> String {
    let mut cut: String = text.chars().take(120).collect();
    if cut.len() < text.len() {
        cut += "…";
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict_of(check: &str, answer: &str) -> Result<(), String> {
        let check: Check = serde_json::from_str(check).unwrap();
        let interpreter = Interpreter { program: "python3".into(), run_code: true };
        match check.of(answer, &interpreter) {
            Outcome::Met => Ok(()),
            Outcome::Missing(found) => Err(found),
            Outcome::NotRun(reason) => panic!("{reason}"),
        }
    }

    fn check(check: &str, right: &[&str], wrong: &[(&str, &str)]) {
        for answer in right {
            assert_eq!(verdict_of(check, answer), Ok(()), "{answer}");
        }
        for (answer, expected) in wrong {
            assert_eq!(verdict_of(check, answer), Err((*expected).to_owned()), "{answer}");
        }
    }

    #[test]
    fn texts_are_found_without_case_and_curly_quotes() {
        check(
            r#"{"any":["don't","never"]}"#,
            &["Don\u{2019}t do it", "NEVER"],
            &[("do", "none of `don't`, `never` is in the answer")],
        );
        check(r#"{"none":["booked"]}"#, &["when?", ""], &[("I Booked it", "`booked` is in the answer")]);
    }

    #[test]
    fn number_is_that_after_the_last_marker() {
        check(
            r#"{"number":{"after":"answer:","value":1080.5}}"#,
            &["Answer: 1,080.50", "Answer: 3 no.\n**Answer:** $1080.5.", "answer: = 1080.5 euros"],
            &[
                ("1080.5", "there is no `answer:`"),
                ("Answer: 1080", "`1080` is not 1080.5"),
                ("Answer:\n1080.5", "`1080.5` is not 1080.5"),
            ],
        );
    }

    #[test]
    fn line_is_the_last_with_its_start() {
        check(
            r#"{"line":{"start":"ana:","all":["cat"],"none":["dog"]}}"#,
            &["Ana: cat", "Ana: dog\n- **Ana:** a Cat\nBen: dog"],
            &[
                ("Ana has the cat", "no line begins with `ana:`"),
                ("Ana: cat or dog", "`ana: cat or dog` is wrong"),
            ],
        );
        check(
            r#"{"last_line":"done"}"#,
            &["A.\nDONE\n"],
            &[("Done.", "the last line is `done.`, not `done`")],
        );
    }

    #[test]
    fn sentences_are_counted_without_the_excepted_line() {
        check(
            r#"{"sentences":{"count":2,"except":["end"]}}"#,
            &["One 3.5 two. Three!\nEND", "One?\n\nTwo"],
            &[("One.", "1 sentences instead of 2"), ("A. B. END", "3 sentences instead of 2")],
        );
        check(
            r#"{"each_sentence_starts":{"with":"the","except":["end"]}}"#,
            &["The a. The b.\nEND"],
            &[("The a. Then b.", "`then b.` does not"), ("END", "there is no sentence")],
        );
        check(r#"{"max_words":3}"#, &["a b c"], &[("a b c d", "4 words are more than 3")]);
    }

    #[test]
    fn json_is_alone_or_in_one_fence() {
        let good = "```json\n{\"a\": {\"b\": [1, 2]}}\n```";
        check(r#""json""#, &["{}", " [1]\n", good], &[("yes", "`yes` is no JSON"), ("3", "`3` is no JSON")]);
        check(
            r#"{"field":{"pointer":"/a/b","value":[1.0,2]}}"#,
            &[good],
            &[
                ("{\"a\": 1}", "there is no /a/b"),
                ("{\"a\":{\"b\":[1]}}", "/a/b is [1], not [1.0,2]"),
                ("a", "the answer is no JSON"),
            ],
        );
    }

    #[test]
    fn code_is_run_from_fences() {
        let right = "Here:\n```python\ndef f(x):\n    return x + 1\n```\nand\n```\ny = 2\n```";
        check(
            r#"{"python":["assert f(y) == 3"]}"#,
            &[right],
            &[("f = 1", "NameError: name 'y' is not defined")],
        );
        check(r#"{"defines":"f"}"#, &[right], &[("def g(x)", "there is no `def f(`")]);
    }

    #[test]
    fn query_has_the_expected_rows() {
        check(
            r#"{"sql":{"setup":["CREATE TABLE t (a);","INSERT INTO t VALUES (2), (1);"],"rows":[[1],[2.0]]}}"#,
            &["```sql\nSELECT a FROM t ORDER BY a;\n```"],
            &[
                ("SELECT a FROM t ORDER BY a DESC", "its rows are [[2],[1]], not [[1],[2.0]]"),
                ("SELECT b FROM t", "OperationalError: no such column: b"),
            ],
        );
    }

    #[test]
    fn verdict_with_an_unchecked_criterion_is_never_passed() {
        let criteria: Vec<Criterion> = serde_json::from_str(
            r#"[{"name":"says a","check":{"any":["a"]}},{"name":"runs","check":{"python":["f()"]}}]"#,
        )
        .unwrap();
        let interpreter = Interpreter { program: "python3".into(), run_code: false };
        let unchecked = grade(&criteria, "a", &interpreter);
        assert_eq!((unchecked.status, unchecked.met, unchecked.checked), (Status::NotRun, 1, 1));
        let failed = grade(&criteria, "b", &interpreter);
        assert_eq!((failed.status, failed.met, failed.not_run.len()), (Status::Failed, 0, 1));
        assert_eq!(failed.missing, ["says a: none of `a` is in the answer"]);
    }
}
