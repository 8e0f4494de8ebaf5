//! Arguments of `lanner eval`.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
};

use clap::Args;

#[derive(Debug, Args)]
pub struct EvalArgs {
    /// OpenAI base URL of the server, such as http://127.0.0.1:8080/v1.
    #[arg(value_name = "URL", required_unless_present = "compare")]
    pub url: Option<String>,
    /// Model to name in requests [default: the first that the server lists].
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// API key of the server.
    #[arg(long, env = "LANNER_EVAL_KEY", value_name = "KEY", hide_env_values = true)]
    pub key: Option<String>,
    /// OpenAI base URL of a judge, which gives the answers to quality tasks 0 to 10 points.
    #[arg(long, value_name = "URL")]
    pub judge: Option<String>,
    /// Model of the judge [default: the first that its server lists].
    #[arg(long, value_name = "MODEL", requires = "judge")]
    pub judge_model: Option<String>,
    /// API key of the judge's server.
    #[arg(long, env = "LANNER_EVAL_JUDGE_KEY", value_name = "KEY", hide_env_values = true)]
    pub judge_key: Option<String>,
    /// Tests to run: generation, tools, session, needle, qa, quality, or single quality tasks:
    /// math, code, review, design, extraction, ambiguity, sql, instructions, translation, puzzle
    /// [default: all].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub tests: Vec<String>,
    /// Rounds; each runs every test once.
    #[arg(long, value_name = "ROUNDS", default_value = "3")]
    pub repeats: NonZeroUsize,
    /// Tokens of the tool schema and of the longer needle text, at four characters each; less for
    /// models with a smaller context.
    #[arg(long, value_name = "TOKENS", default_value = "12000")]
    pub long: NonZeroUsize,
    /// Seconds for one request.
    #[arg(long, value_name = "SECONDS", default_value = "600")]
    pub timeout: NonZeroU32,
    /// Execute the code of answers with python3, in a child process with limits of time and memory.
    /// The limits stop accidents, not attacks. Without this option that part is not run, and the
    /// task not passed.
    #[arg(long)]
    pub run_code: bool,
    /// Write the report as JSON, with all answers.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the report as an HTML page with charts, which loads nothing.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Compare two reports instead of running tests; --html draws both.
    #[arg(long, value_names = ["A.json", "B.json"], num_args = 2, conflicts_with_all = [
        "url", "model", "judge", "tests", "repeats", "long", "timeout", "run_code", "json"])]
    pub compare: Vec<PathBuf>,
}
