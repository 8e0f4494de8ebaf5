//! The report: what was asked, what came back, when, and on what it ran. JSON is its stored form.

use std::{fs, path::Path};

use serde::{Deserialize, Serialize};

use crate::{EvalError, Spread};

/// Of the JSON form; a reader refuses others.
pub(crate) const FORMAT: u32 = 1;

/// A whole evaluation.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// Version of this JSON form.
    pub format: u32,
    /// Where, when and by which program.
    pub origin: Origin,
    /// The server under test.
    pub server: ServerFacts,
    /// What was to be run.
    pub settings: Settings,
    /// In the order in which they first ran.
    pub cases: Vec<Case>,
}

/// Where, when and by which program a report was made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Origin {
    /// Version of Lanner.
    pub lanner: String,
    /// Start of the evaluation, in RFC 3339.
    pub date: String,
    /// The machine of the client; that of the server too if its address is local.
    pub machine: Machine,
}

/// The machine that sent the requests; `None` where the system does not report a value.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// Operating system and architecture.
    pub system: String,
    /// Name of the processor.
    pub cpu: Option<String>,
    /// Physical cores that this process may use.
    pub cores: usize,
    /// Bytes of memory.
    pub memory_bytes: Option<usize>,
    /// Processes that ran or wanted to, over the minute before the start.
    pub load_before: Option<f64>,
    /// The same at the end; an evaluation that waits for a local server adds about one to it.
    pub load_after: Option<f64>,
}

/// The server as it describes itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ServerFacts {
    /// Base URL.
    pub url: String,
    /// Model named in the requests.
    pub model: String,
    /// Header `server` of its answers.
    pub server_header: Option<String>,
    /// `system_fingerprint` of its answers: a build or a configuration.
    pub system_fingerprint: Option<String>,
    /// What `/health`, `/version` or `/props` tells of its version.
    pub version: Option<String>,
}

/// What was to be run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Names of tests.
    pub tests: Vec<String>,
    /// Rounds; each runs every test once.
    pub repeats: usize,
    /// Nominal tokens of the tool schema and of the longer needle text.
    pub long_tokens: usize,
    /// Whether code from answers was executed.
    pub run_code: bool,
    /// Address and model of the judge.
    pub judge: Option<String>,
    /// Seconds for one request.
    pub timeout_s: u64,
}

/// One prompt, or one step of a test, with all its repeats.
#[derive(Debug, Serialize, Deserialize)]
pub struct Case {
    /// Name of the test.
    pub test: String,
    /// Name within the test.
    pub name: String,
    /// One per round.
    pub runs: Vec<Run>,
}

/// One request.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Run {
    /// Why there is no answer.
    pub error: Option<String>,
    /// When its tokens came.
    pub timing: Option<Timing>,
    /// Whether the answer is right, where the test decides that.
    pub verdict: Option<Verdict>,
    /// A judge model's opinion.
    pub judge: Option<JudgeScore>,
    /// Why the judge gave none.
    pub judge_error: Option<String>,
    /// `finish_reason`.
    pub finish_reason: Option<String>,
    /// The answer's content.
    pub answer: String,
    /// Characters of reasoning, which count as no answer.
    pub reasoning_chars: usize,
}

/// Times from sending a request, in seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// To the first content, reasoning or tool-call token.
    pub ttft_s: f64,
    /// To the end of the answer.
    pub total_s: f64,
    /// Tokens after the first, by the time from the first to the last; `None` below two tokens.
    pub decode_tok_s: Option<f64>,
    /// By usage.
    pub prompt_tokens: Option<u64>,
    /// By usage: prompt tokens that the server did not compute again.
    pub cached_tokens: Option<u64>,
    /// By usage; otherwise the number of events.
    pub completion_tokens: u64,
    /// Whether the server reported usage.
    pub usage: bool,
}

/// The outcome of a rubric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Passed only if every criterion was checked and met.
    pub status: Status,
    /// Criteria met.
    pub met: usize,
    /// Criteria checked.
    pub checked: usize,
    /// Criteria not met: what was missing.
    pub missing: Vec<String>,
    /// Criteria not checked, and why.
    pub not_run: Vec<String>,
}

/// In words, as in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Every criterion is met.
    Passed,
    /// At least one criterion is not met.
    Failed,
    /// No criterion failed, but at least one was not checked.
    NotRun,
}

/// A judge model's opinion.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JudgeScore {
    /// 0 to 10.
    pub score: f64,
    /// The judge's words.
    pub reason: String,
}

impl Verdict {
    /// The share of the checked criteria that are met.
    pub fn score(&self) -> Option<f64> {
        (self.checked > 0).then(|| self.met as f64 / self.checked as f64)
    }
}

impl Case {
    /// Time to first token, in seconds.
    pub fn ttft(&self) -> Option<Spread> {
        Spread::of(self.timings().map(|timing| timing.ttft_s))
    }

    /// Time to the end of the answer, in seconds.
    pub fn total(&self) -> Option<Spread> {
        Spread::of(self.timings().map(|timing| timing.total_s))
    }

    /// Tokens per second.
    pub fn decode(&self) -> Option<Spread> {
        Spread::of(self.timings().filter_map(|timing| timing.decode_tok_s))
    }

    /// Share of met criteria.
    pub fn score(&self) -> Option<Spread> {
        Spread::of(self.verdicts().filter_map(Verdict::score))
    }

    /// The judge's scores, 0 to 10.
    pub fn judged(&self) -> Option<Spread> {
        Spread::of(self.runs.iter().filter_map(|run| run.judge.as_ref()).map(|judge| judge.score))
    }

    /// Runs that passed, that failed or had an error, and that were not run; `None` without a
    /// rubric.
    pub fn passes(&self) -> Option<[usize; 3]> {
        let with = |status| self.verdicts().filter(|verdict| verdict.status == status).count();
        let (passed, not_run) = (with(Status::Passed), with(Status::NotRun));
        let is_graded = self.verdicts().next().is_some();
        is_graded.then(|| [passed, self.runs.len() - passed - not_run, not_run])
    }

    /// Requests without an answer.
    pub fn errors(&self) -> impl Iterator<Item = &str> {
        self.runs.iter().filter_map(|run| run.error.as_deref())
    }

    /// Times of the answered requests.
    pub fn timings(&self) -> impl Iterator<Item = &Timing> {
        self.runs.iter().filter_map(|run| run.timing.as_ref())
    }

    fn verdicts(&self) -> impl Iterator<Item = &Verdict> {
        self.runs.iter().filter_map(|run| run.verdict.as_ref())
    }
}

impl Report {
    /// Reads a report from its JSON.
    ///
    /// # Errors
    /// The file cannot be read, or is no report of this format.
    pub fn read(path: &Path) -> Result<Report, EvalError> {
        let text = fs::read_to_string(path).map_err(|error| EvalError::Read { path: path.into(), error })?;
        let report: Report = serde_json::from_str(&text)
            .map_err(|error| EvalError::Parse { path: path.into(), problem: error.to_string() })?;
        match report.format {
            FORMAT => Ok(report),
            other => {
                let problem = format!("its format is {other}; this program reads {FORMAT}");
                Err(EvalError::Parse { path: path.into(), problem })
            }
        }
    }

    /// Its JSON, indented, with a final newline.
    pub fn json(&self) -> String {
        format!("{:#}\n", serde_json::json!(self))
    }

    pub(crate) fn case(&self, test: &str, name: &str) -> Option<&Case> {
        self.cases.iter().find(|case| case.test == test && case.name == name)
    }
}
