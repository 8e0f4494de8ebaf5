//! What `lanner eval` runs or compares.

use std::{path::PathBuf, time::Duration};

use eval::{Endpoint, EvalOptions};

use super::error::ConfigError;
use crate::cli::EvalArgs;

pub enum EvalConfig {
    Run { options: EvalOptions, json: Option<PathBuf>, html: Option<PathBuf> },
    Compare { reports: [PathBuf; 2], html: Option<PathBuf> },
}

impl EvalConfig {
    /// # Errors
    /// There is no test of a name.
    pub(super) fn new(args: EvalArgs) -> Result<EvalConfig, ConfigError> {
        if let Ok(reports) = <[PathBuf; 2]>::try_from(args.compare) {
            return Ok(EvalConfig::Compare { reports, html: args.html });
        }
        let judge = args.judge.map(|url| Endpoint { url, model: args.judge_model, key: args.judge_key });
        let options = EvalOptions {
            server: Endpoint { url: args.url.unwrap_or_default(), model: args.model, key: args.key },
            judge,
            tests: eval::select(&args.tests)?,
            repeats: args.repeats.get(),
            long_tokens: args.long.get(),
            run_code: args.run_code,
            timeout: Duration::from_secs(args.timeout.get().into()),
        };
        Ok(EvalConfig::Run { options, json: args.json, html: args.html })
    }
}
