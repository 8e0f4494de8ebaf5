//! The tests: what each sends, which case each answer belongs to, and when an answer is right.

use serde_json::{Value, json};

use crate::{
    EvalError, Run, Verdict,
    child::Interpreter,
    client::ChatRequest,
    judge::Judge,
    prompts::{LONG_ANSWER, Question, SESSION, TASKS, TOOLS, Task, needle, prose, tools},
    rubric::{grade, verdict},
    run::Bench,
};

const QUESTIONS: &str = "qa";
/// Nominal tokens of the shorter needle text.
const SHORT_TEXT: usize = 4000;
/// Where the fact is, in percent of the text.
const DEPTHS: [usize; 3] = [10, 50, 90];

/// A group of cases that `--tests` selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestName {
    /// 512 generated tokens.
    Generation,
    /// A large tool schema, cold and warm.
    Tools,
    /// Five turns.
    Session,
    /// A fact in a long text.
    Needle,
    /// Short questions, with thinking on and off.
    Questions,
    /// All quality tasks, or the one with this index.
    Quality(Option<usize>),
}

/// The names that `--tests` takes for groups.
const GROUPS: [(&str, TestName); 6] = [
    ("generation", TestName::Generation),
    ("tools", TestName::Tools),
    ("session", TestName::Session),
    ("needle", TestName::Needle),
    (QUESTIONS, TestName::Questions),
    ("quality", TestName::Quality(None)),
];

/// The tests of these names: a group, or one quality task. All groups if there are none.
///
/// # Errors
/// There is no test of a name.
pub fn select(names: &[String]) -> Result<Vec<TestName>, EvalError> {
    if names.is_empty() {
        return Ok(GROUPS.map(|(_, test)| test).to_vec());
    }
    names.iter().map(|name| find(name)).collect()
}

fn find(name: &str) -> Result<TestName, EvalError> {
    let group = GROUPS.iter().find(|(known, _)| *known == name).map(|(_, test)| *test);
    let task = || TASKS.iter().position(|task| task.name == name).map(|index| TestName::Quality(Some(index)));
    group.or_else(task).ok_or_else(|| {
        let groups = GROUPS.iter().map(|(name, _)| *name);
        let known: Vec<&str> = groups.chain(TASKS.iter().map(|task| task.name.as_str())).collect();
        EvalError::UnknownTest { name: name.to_owned(), known: known.join(", ") }
    })
}

impl TestName {
    /// As in `--tests`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            TestName::Quality(Some(index)) => &TASKS[index].name,
            group => GROUPS.iter().find(|(_, test)| *test == group).map_or("quality", |(name, _)| name),
        }
    }

    /// Runs the test once and records its cases.
    pub(crate) fn run(self, bench: &mut Bench<'_>, round: usize) {
        match self {
            TestName::Generation => generation(bench),
            TestName::Tools => tool_schema(bench),
            TestName::Session => session(bench),
            TestName::Needle => needles(bench, round),
            TestName::Questions => questions(bench),
            TestName::Quality(only) => {
                let chosen =
                    TASKS.iter().enumerate().filter(|(index, _)| only.is_none_or(|only| only == *index));
                chosen.for_each(|(_, task)| quality(bench, task));
            }
        }
    }
}

fn message(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}

fn generation(bench: &mut Bench<'_>) {
    let prompt = format!("Story {}. {LONG_ANSWER}", bench.nonce());
    let request =
        ChatRequest { messages: vec![message("user", &prompt)], max_tokens: 512, ..ChatRequest::default() };
    bench.ask("generation", "512 tokens", &request, |_| None);
}

/// The second request shares the whole tool schema with the first.
fn tool_schema(bench: &mut Bench<'_>) {
    let nonce = bench.nonce();
    let tools = tools(bench.long_tokens(), &nonce);
    let system = format!("Desk {nonce}. You are the assistant of an office and have tools.");
    for (name, question) in [("cold", &TOOLS.cold), ("warm", &TOOLS.warm)] {
        let request = ChatRequest {
            messages: vec![message("system", &system), message("user", question)],
            max_tokens: 32,
            tools: Some(tools.clone()),
            ..ChatRequest::default()
        };
        bench.ask("tools", &format!("{} tokens, {name}", bench.long_tokens()), &request, |_| None);
    }
}

/// Every turn sends the whole conversation with the model's own answers.
fn session(bench: &mut Bench<'_>) {
    let system = format!("Desk {}. {}", bench.nonce(), SESSION.system);
    // A catalogue makes the history long enough for its reuse to show.
    let catalogue = prose(1000, 3).join(" ");
    let mut messages = vec![message("system", &format!("{system}\n\nFrom the guest book:\n{catalogue}"))];
    let last = SESSION.turns.len() - 1;
    for (turn, text) in SESSION.turns.iter().enumerate() {
        messages.push(message("user", text));
        let request = ChatRequest { messages: messages.clone(), max_tokens: 96, ..ChatRequest::default() };
        let grade = |answer: &Answer<'_>| (turn == last).then(|| contains(answer, &SESSION.answers));
        let answer = bench.ask("session", &format!("turn {}", turn + 1), &request, grade);
        messages.push(message("assistant", answer.as_deref().unwrap_or("(no answer)")));
    }
}

fn needles(bench: &mut Bench<'_>, round: usize) {
    for tokens in [SHORT_TEXT, bench.long_tokens()] {
        for (i, depth) in DEPTHS.into_iter().enumerate() {
            let needle = needle(tokens, depth, (round * DEPTHS.len() + i) as u64);
            let system = format!("Text {}. {}", bench.nonce(), needle.text);
            let request = ChatRequest {
                messages: vec![message("system", &system), message("user", &needle.question)],
                max_tokens: 512,
                ..ChatRequest::default()
            };
            let expected = [needle.answer];
            let name = format!("{tokens} tokens, at {depth} %");
            bench.ask("needle", &name, &request, |answer| Some(contains(answer, &expected)));
        }
    }
}

fn questions(bench: &mut Bench<'_>) {
    for Question { name, prompt, answers } in crate::prompts::QUESTIONS.iter() {
        for thinking in [false, true] {
            let request = ChatRequest {
                messages: vec![message("user", prompt)],
                max_tokens: 2048,
                thinking: Some(thinking),
                ..ChatRequest::default()
            };
            let name = format!("{name}, thinking {}", if thinking { "on" } else { "off" });
            bench.ask(QUESTIONS, &name, &request, |answer| Some(contains(answer, answers)));
        }
    }
}

fn quality(bench: &mut Bench<'_>, task: &Task) {
    let system = task.system.as_deref().map(|system| message("system", system));
    let request = ChatRequest {
        messages: system.into_iter().chain([message("user", &task.prompt)]).collect(),
        max_tokens: task.max_tokens,
        ..ChatRequest::default()
    };
    let interpreter = bench.interpreter().clone();
    let verdict = |answer: &Answer<'_>| Some(quality_verdict(answer, task, &interpreter));
    if bench.ask("quality", &task.name, &request, verdict).is_some() {
        bench.judge_last(task);
    }
}

fn quality_verdict(answer: &Answer<'_>, task: &Task, interpreter: &Interpreter) -> Verdict {
    match missing_answer(answer) {
        Some(reason) => verdict_without_answer(task.criteria.len(), reason),
        None => grade(&task.criteria, answer.content, interpreter),
    }
}

/// No criterion is met, whatever it asks for.
fn verdict_without_answer(criteria: usize, reason: String) -> Verdict {
    let mut verdict = verdict(criteria, vec![reason], vec![]);
    verdict.met = 0;
    verdict
}

/// An answer as a client reads it.
pub(crate) struct Answer<'a> {
    pub content: &'a str,
    pub reasoning_chars: usize,
    pub finish_reason: &'a str,
}

/// One of `expected` must be in the content; reasoning is no answer.
fn contains(answer: &Answer<'_>, expected: &[String]) -> Verdict {
    if let Some(reason) = missing_answer(answer) {
        return verdict_without_answer(1, reason);
    }
    let content = answer.content.to_lowercase();
    let is_right = expected.iter().any(|text| content.contains(text));
    let shown: String = answer.content.trim().chars().take(120).collect();
    let missing = (!is_right).then(|| format!("`{}` is not in `{shown}`", expected.join("` or `")));
    verdict(1, missing.into_iter().collect(), vec![])
}

fn missing_answer(answer: &Answer<'_>) -> Option<String> {
    answer.content.trim().is_empty().then(|| {
        let Answer { reasoning_chars, finish_reason, .. } = answer;
        format!("the content is empty after {reasoning_chars} characters of reasoning (finish_reason {finish_reason})")
    })
}

impl Bench<'_> {
    /// Has the judge read the answer to `task` that was recorded last.
    fn judge_last(&mut self, task: &Task) {
        let Some((judge, run)) = self.judge_and_last_run() else { return };
        opinion(judge, task, run);
    }
}

fn opinion(judge: &Judge, task: &Task, run: &mut Run) {
    match judge.score(task, &run.answer) {
        Ok(score) => run.judge = Some(score),
        Err(error) => run.judge_error = Some(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Status;

    fn answer(content: &str) -> Answer<'_> {
        Answer { content, reasoning_chars: 70, finish_reason: "length" }
    }

    #[test]
    fn tests_are_selected_by_group_or_task() {
        let names = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|&name| name.into()).collect();
            select(&names).map(|tests| tests.iter().map(|test| test.name()).collect::<Vec<_>>())
        };
        assert_eq!(names(&["qa", "sql"]).unwrap(), ["qa", "sql"]);
        assert_eq!(names(&[]).unwrap(), ["generation", "tools", "session", "needle", "qa", "quality"]);
        let error = names(&["fly"]).unwrap_err().to_string();
        assert!(
            error.starts_with("--tests: there is no test `fly`; there are generation, tools,"),
            "{error}"
        );
        assert!(error.ends_with("translation, puzzle"), "{error}");
    }

    #[test]
    fn fact_counts_only_in_the_content() {
        let expected = ["42".to_owned()];
        assert_eq!(contains(&answer("It is 42."), &expected).status, Status::Passed);
        let wrong = contains(&answer("43"), &expected);
        assert_eq!((wrong.status, wrong.missing), (Status::Failed, vec!["`42` is not in `43`".to_owned()]));
        let empty = contains(&answer(" "), &expected);
        assert_eq!(
            empty.missing,
            ["the content is empty after 70 characters of reasoning (finish_reason length)"]
        );
    }

    #[test]
    fn empty_answer_meets_no_criterion() {
        let interpreter = Interpreter { program: "python3".into(), run_code: false };
        for task in TASKS.iter() {
            let verdict = quality_verdict(&answer(""), task, &interpreter);
            assert_eq!((verdict.status, verdict.score()), (Status::Failed, Some(0.0)), "{}", task.name);
        }
    }
}
