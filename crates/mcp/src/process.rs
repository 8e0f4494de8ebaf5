//! A server's process and all that it starts: one process group, which ends with the client.

use std::{
    io,
    os::unix::process::CommandExt,
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::Pid,
};

const POLL: Duration = Duration::from_millis(5);
/// For a process to end after SIGKILL. One that the kernel holds longer is left to it.
const KILLED: Duration = Duration::from_secs(2);

/// A running process, the leader of its group.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    has_ended: bool,
    /// Its id may then be another process's.
    is_stopped: bool,
}

impl Process {
    /// # Errors
    /// The program is not there, or cannot be run.
    pub(crate) fn spawn(mut command: Command) -> io::Result<Process> {
        let child = command.process_group(0).spawn()?;
        Ok(Process { child, has_ended: false, is_stopped: false })
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// How it ended, if it has within this time.
    pub(crate) fn ended_within(&mut self, most: Duration) -> Option<String> {
        let started = Instant::now();
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                self.has_ended = true;
                return Some(status.to_string());
            }
            if started.elapsed() >= most {
                return None;
            }
            thread::sleep(POLL);
        }
    }

    /// Ends the process and its group: what does not end within `patience` after SIGTERM gets
    /// SIGKILL. Returns after `patience` and 2 s at the latest.
    pub(crate) fn stop(&mut self, patience: Duration) {
        if std::mem::replace(&mut self.is_stopped, true) {
            return;
        }
        if !self.has_ended && self.ended_within(Duration::ZERO).is_none() {
            self.signal(Signal::SIGTERM);
            self.ended_within(patience);
        }
        // Also after the leader ended: what it started may still run.
        self.signal(Signal::SIGKILL);
        if !self.has_ended && self.ended_within(KILLED).is_none() {
            tracing::warn!("the process {} of an MCP server has not ended after SIGKILL", self.child.id());
        }
    }

    fn signal(&self, signal: Signal) {
        let Ok(id) = i32::try_from(self.child.id()).map(Pid::from_raw) else { return };
        // Fails if no process of the group is left.
        let _ = killpg(id, signal);
        // The process may have moved to another group. Once it was waited for, its id may be
        // another's.
        if !self.has_ended {
            let _ = kill(id, signal);
        }
    }
}
