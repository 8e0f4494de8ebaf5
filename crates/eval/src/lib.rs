//! Measures the speed and the answers of any server with OpenAI's chat completions: the tests of
//! `lanner eval`. Knows nothing of the engine, and prints nothing.

#![warn(missing_docs)]

mod child;
mod client;
mod compare;
mod error;
mod html;
mod judge;
mod prompts;
mod report;
mod rubric;
mod run;
mod statistics;
mod stream;
mod suite;
mod table;

pub use self::{
    client::Endpoint,
    compare::compare,
    error::EvalError,
    html::page,
    report::{
        Case, JudgeScore, Machine, Origin, Report, Run, ServerFacts, Settings, Status, Timing, Verdict,
    },
    run::{EvalOptions, run},
    statistics::Spread,
    suite::{TestName, select},
    table::summary,
};
