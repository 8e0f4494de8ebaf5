//! The agent's process. Ctrl-C is the agent's: the terminal sends it to both, and only the agent
//! acts on it.

use std::{
    io,
    os::unix::process::ExitStatusExt,
    process::{Command, ExitCode, ExitStatus},
    time::Duration,
};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::timeout,
};

use crate::{commands::CommandError, launch::LaunchError};

/// From its creation on these signals do not end the process.
pub(in crate::commands) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    pub(in crate::commands) fn new() -> io::Result<Signals> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Whether one comes in this time.
    pub(in crate::commands) async fn within(&mut self, time: Duration) -> bool {
        let any = async {
            tokio::select! {
                _ = self.interrupt.recv() => {}
                _ = self.terminate.recv() => {}
                _ = self.hang_up.recv() => {}
            }
        };
        timeout(time, any).await.is_ok()
    }
}

/// Runs the agent to its end.
pub(super) async fn run(
    mut command: Command,
    name: &str,
    signals: &mut Signals,
) -> Result<ExitCode, CommandError> {
    let failed = |error| LaunchError::Start { program: name.into(), error };
    let mut agent = command.spawn().map_err(failed)?;
    let id = agent.id();
    let mut ended = tokio::task::spawn_blocking(move || agent.wait());
    loop {
        tokio::select! {
            status = &mut ended => {
                let status = status.map_err(io::Error::other)??;
                return Ok(exit_code(status));
            }
            _ = signals.interrupt.recv() => {}
            _ = signals.terminate.recv() => {
                send("TERM", id);
            }
            _ = signals.hang_up.recv() => {
                send("HUP", id);
            }
        }
    }
}

/// As a shell reports it.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

/// Sends a signal; whether it was sent.
pub(in crate::commands) fn send(signal: &str, id: u32) -> bool {
    let sent = Command::new("kill").arg(format!("-{signal}")).arg(id.to_string()).output();
    sent.is_ok_and(|output| output.status.success())
}
