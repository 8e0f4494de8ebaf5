//! Why an evaluation could not start or finish. Failures of single requests are in the report.

use std::path::PathBuf;

/// One sentence for the user.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    /// The address is not one of HTTP.
    #[error("`{0}` is no address of a server; write http://HOST:PORT/v1")]
    Url(String),
    /// A name that no test has.
    #[error("--tests: there is no test `{name}`; there are {known}")]
    UnknownTest {
        /// As typed.
        name: String,
        /// All names, separated by commas.
        known: String,
    },
    /// No connection, or no HTTP answer.
    #[error("no server answers at {url}: {error}")]
    NoServer {
        /// The address tried.
        url: String,
        /// The client's words.
        error: String,
    },
    /// The server names no model, and the caller did not either.
    #[error("{url} lists no model ({problem}); name one with --model")]
    NoModel {
        /// The address of the list.
        url: String,
        /// What came instead.
        problem: String,
    },
    /// Not one request of the whole run was answered.
    #[error("{url} answered none of {requests} requests; the first failed with: {error}")]
    NothingAnswered {
        /// The server.
        url: String,
        /// How many were sent.
        requests: usize,
        /// The first failure.
        error: String,
    },
    /// A report could not be read.
    #[error("cannot read the report {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's words.
        error: std::io::Error,
    },
    /// A file is no report of this program.
    #[error("{} is no report of lanner eval: {problem}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}
