//! Runs the tests in rounds, one request at a time, and records every answer.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::{
    Case, Endpoint, EvalError, Origin, Report, Run, ServerFacts, Settings, TestName, Verdict,
    child::Interpreter,
    client::{ChatRequest, Client},
    judge::Judge,
    report::FORMAT,
    stream::Reply,
    suite::Answer,
};

/// What to run, and against which server.
#[derive(Debug)]
pub struct EvalOptions {
    /// The server under test.
    pub server: Endpoint,
    /// Reads the answers to quality tasks too.
    pub judge: Option<Endpoint>,
    /// Tests of one round.
    pub tests: Vec<TestName>,
    /// Number of rounds.
    pub repeats: usize,
    /// Nominal tokens of the tool schema and of the longer needle text.
    pub long_tokens: usize,
    /// Whether to execute code of answers.
    pub run_code: bool,
    /// For one request.
    pub timeout: Duration,
}

/// Runs all tests; `progress` gets a line for each request.
///
/// # Errors
/// The server or the judge cannot be reached or names no model, or no request was answered.
pub fn run(
    options: &EvalOptions,
    origin: Origin,
    progress: &mut dyn FnMut(&str),
) -> Result<Report, EvalError> {
    let (client, facts) = Client::connect(&options.server, options.timeout)?;
    let judge = options.judge.as_ref().map(|judge| Judge::connect(judge, options.timeout)).transpose()?;
    let settings = settings(options, judge.as_ref());
    let interpreter = Interpreter { program: "python3".into(), run_code: options.run_code };
    let (cases, nonces) = (vec![], 0);
    let mut bench = Bench {
        client,
        judge,
        interpreter,
        long_tokens: options.long_tokens,
        facts,
        cases,
        nonces,
        progress,
    };
    for round in 0..options.repeats {
        (bench.progress)(&format!("round {} of {}", round + 1, options.repeats));
        for test in &options.tests {
            test.run(&mut bench, round);
        }
    }
    bench.report(origin, settings)
}

fn settings(options: &EvalOptions, judge: Option<&Judge>) -> Settings {
    Settings {
        tests: options.tests.iter().map(|test| test.name().to_owned()).collect(),
        repeats: options.repeats,
        long_tokens: options.long_tokens,
        run_code: options.run_code,
        judge: judge.map(Judge::name),
        timeout_s: options.timeout.as_secs(),
    }
}

/// A running evaluation.
pub(crate) struct Bench<'a> {
    client: Client,
    judge: Option<Judge>,
    interpreter: Interpreter,
    long_tokens: usize,
    facts: ServerFacts,
    cases: Vec<Case>,
    nonces: u64,
    progress: &'a mut dyn FnMut(&str),
}

impl Bench<'_> {
    pub(crate) fn long_tokens(&self) -> usize {
        self.long_tokens
    }

    pub(crate) fn interpreter(&self) -> &Interpreter {
        &self.interpreter
    }

    /// A text that no earlier request had, so that no stored prefix begins with it.
    pub(crate) fn nonce(&mut self) -> String {
        self.nonces += 1;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        format!("{:08x}-{}", now.as_micros() & 0xffff_ffff, self.nonces)
    }

    /// Sends a request and records its answer; returns the content.
    pub(crate) fn ask(
        &mut self,
        test: &str,
        name: &str,
        request: &ChatRequest,
        grade: impl FnOnce(&Answer<'_>) -> Option<Verdict>,
    ) -> Option<String> {
        let run = match self.client.chat(request) {
            Err(error) => Run { error: Some(error.to_string()), ..Run::default() },
            Ok((reply, timing)) => {
                if reply.system_fingerprint.is_some() {
                    self.facts.system_fingerprint.clone_from(&reply.system_fingerprint);
                }
                let mut run = answered(reply);
                run.timing = Some(timing);
                run.verdict = grade(&Answer {
                    content: &run.answer,
                    reasoning_chars: run.reasoning_chars,
                    finish_reason: run.finish_reason.as_deref().unwrap_or_default(),
                });
                run
            }
        };
        (self.progress)(&format!("{test}, {name}: {}", line(&run)));
        let answer = run.error.is_none().then(|| run.answer.clone());
        self.record(test, name, run);
        answer
    }

    fn record(&mut self, test: &str, name: &str, run: Run) {
        let found = self.cases.iter().position(|case| case.test == test && case.name == name);
        // The last case is the one of the last request.
        let mut case = match found {
            Some(index) => self.cases.remove(index),
            None => Case { test: test.into(), name: name.into(), runs: vec![] },
        };
        case.runs.push(run);
        self.cases.push(case);
    }

    pub(crate) fn judge_and_last_run(&mut self) -> Option<(&Judge, &mut Run)> {
        Some((self.judge.as_ref()?, self.cases.last_mut()?.runs.last_mut()?))
    }

    fn report(self, origin: Origin, settings: Settings) -> Result<Report, EvalError> {
        let requests: usize = self.cases.iter().map(|case| case.runs.len()).sum();
        let errors: Vec<&str> = self.cases.iter().flat_map(Case::errors).collect();
        if let Some(first) = errors.first().filter(|_| errors.len() == requests) {
            let error = (*first).to_owned();
            return Err(EvalError::NothingAnswered { url: self.facts.url, requests, error });
        }
        Ok(Report { format: FORMAT, origin, server: self.facts, settings, cases: self.cases })
    }
}

/// The answer as clients read it. Reasoning that a server leaves in the content, between tags at
/// its start, counts as reasoning.
fn answered(reply: Reply) -> Run {
    let (inline, answer) = split_inline_reasoning(&reply.content);
    Run {
        reasoning_chars: reply.reasoning.chars().count() + inline.chars().count(),
        answer: answer.to_owned(),
        finish_reason: reply.finish_reason,
        ..Run::default()
    }
}

fn split_inline_reasoning(content: &str) -> (&str, &str) {
    let text = content.trim_start();
    let rest = text.strip_prefix("<think>");
    match (rest.unwrap_or(text).split_once("</think>"), rest) {
        (Some((reasoning, answer)), _) => (reasoning, answer.trim_start()),
        // Cut before its end: there is no answer.
        (None, Some(reasoning)) => (reasoning, ""),
        (None, None) => ("", content),
    }
}

/// A request's outcome in a few words.
fn line(run: &Run) -> String {
    if let Some(error) = &run.error {
        return error.clone();
    }
    let mut line = String::new();
    if let Some(timing) = &run.timing {
        line += &format!(
            "TTFT {:.3} s, {:.3} s in all, {} tokens",
            timing.ttft_s, timing.total_s, timing.completion_tokens
        );
        if let Some(speed) = timing.decode_tok_s {
            line += &format!(", {speed:.1} tok/s");
        }
    }
    if let Some(verdict) = &run.verdict {
        line += &format!(", {} of {} criteria", verdict.met, verdict.checked);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_reasoning_is_no_part_of_the_answer() {
        let check = |content: &str, expected: (&str, &str)| {
            assert_eq!(split_inline_reasoning(content), expected, "{content}");
        };
        check("42", ("", "42"));
        check("<think>\nhm</think>\n\n42", ("\nhm", "42"));
        // Templates open the block themselves.
        check("hm</think>42", ("hm", "42"));
        check("<think>hm", ("hm", ""));
    }
}
