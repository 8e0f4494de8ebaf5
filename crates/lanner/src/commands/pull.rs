//! `lanner pull`: downloads a model; its folder on stdout, progress on stderr.

use std::{
    collections::HashMap,
    io::{IsTerminal, Write},
    sync::{Mutex, PoisonError, atomic::AtomicBool},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::CommandError;
use crate::{
    hub::{self, HubConfig, HubError, PullEvent, PullJob, megabytes},
    source,
    terminal::say,
};

/// # Errors
/// The name is not valid, the hub refuses or fails, or the model cannot be written.
pub fn pull(config: &HubConfig, model: &str) -> Result<(), CommandError> {
    let repo = source::repo(model).ok_or_else(|| HubError::BadName(model.into()))?;
    let progress = PullProgress::new(&repo.to_string());
    let job = PullJob { report: &|event| progress.show(event), cancelled: &AtomicBool::new(false) };
    let pulled = hub::pull(config, &repo, &job);
    progress.bar.finish_and_clear();
    writeln!(std::io::stdout(), "{}", pulled?.path.display())?;
    Ok(())
}

/// One bar for all files; without a terminal, a line at the start.
struct PullProgress {
    model: String,
    bar: ProgressBar,
    /// Completed bytes by file.
    files: Mutex<HashMap<String, u64>>,
}

impl PullProgress {
    fn new(model: &str) -> PullProgress {
        let style = ProgressStyle::with_template(
            "{msg} {bar:30} {bytes} of {total_bytes} ({bytes_per_sec}, {eta} left)",
        );
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden())
            .with_message(model.to_owned())
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        PullProgress { model: model.into(), bar, files: Mutex::default() }
    }

    fn show(&self, event: PullEvent) {
        match event {
            PullEvent::Start { files, present, total } => self.start(files, present, total),
            PullEvent::File { path, completed, .. } => {
                let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
                files.insert(path, completed);
                self.bar.set_position(files.values().sum());
            }
            PullEvent::Waiting { seconds, reason } => {
                let line = format!("lanner: {reason}; trying again in {seconds:.1} s");
                self.bar.suspend(|| say(line));
            }
        }
    }

    fn start(&self, files: usize, present: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(present);
        // Bytes that were in the cache do not count as speed.
        self.bar.reset_eta();
        if std::io::stderr().is_terminal() {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        } else if present < total {
            let (rest, all) = (megabytes(total - present), megabytes(total));
            say(format_args!(
                "lanner: downloading {} ({files} files, {rest} of {all} to download)",
                self.model
            ));
        }
    }
}
