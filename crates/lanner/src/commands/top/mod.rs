//! `lanner top`: watches a running server through its /metrics.

mod frame;
mod reading;

use std::{
    io::{self, IsTerminal, Write},
    thread,
    time::Duration,
};

use tokio::{
    runtime::Builder,
    signal::unix::{SignalKind, signal},
    time::sleep,
};

use self::{frame::frame, reading::Reading};
use super::CommandError;
use crate::config::{ServerAddress, TopConfig};

/// Redraws the terminal until a signal, or prints one reading.
///
/// # Errors
/// No server answers, it refuses, or stdout is closed. A server that stops answering later is
/// waited for.
pub fn top(server: &ServerAddress, config: TopConfig) -> Result<(), CommandError> {
    let first = Reading::take(server)?;
    if config.once || !io::stdout().is_terminal() {
        thread::sleep(config.interval);
        let text = frame(&server.url(), &first, &Reading::take(server)?);
        return Ok(io::stdout().write_all(text.as_bytes())?);
    }
    Builder::new_current_thread().enable_all().build()?.block_on(watch(server, config.interval, first))
}

async fn watch(server: &ServerAddress, interval: Duration, first: Reading) -> Result<(), CommandError> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let screen = Screen::open()?;
    let (url, mut before) = (server.url(), first);
    let mut shown = frame(&url, &before, &before);
    let mut trouble = None;
    loop {
        let trouble_line = trouble.as_ref().map_or(String::new(), |error| format!("\n{error}\n"));
        screen.show(&format!("{shown}{trouble_line}"))?;
        tokio::select! {
            _ = interrupt.recv() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
            _ = hang_up.recv() => return Ok(()),
            () = sleep(interval) => {}
        }
        trouble = match Reading::take(server) {
            Ok(now) => {
                shown = frame(&url, &before, &now);
                before = now;
                None
            }
            Err(error) => Some(error),
        };
    }
}

/// The terminal's alternate screen, without a cursor and without line wrapping. The former screen
/// comes back when it is dropped.
struct Screen;

impl Screen {
    fn open() -> io::Result<Screen> {
        let screen = Screen;
        io::stdout().write_all(b"\x1b[?1049h\x1b[?25l\x1b[?7l")?;
        Ok(screen)
    }

    fn show(&self, text: &str) -> io::Result<()> {
        let lines = text.lines().map(|line| format!("{line}\x1b[K\r\n")).collect::<String>();
        let mut stdout = io::stdout().lock();
        stdout.write_all(format!("\x1b[H{lines}\x1b[J").as_bytes())?;
        stdout.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let mut stdout = io::stdout().lock();
        // Nothing can be done for a terminal that is gone.
        let _ = stdout.write_all(b"\x1b[?7h\x1b[?25h\x1b[?1049l");
        let _ = stdout.flush();
    }
}
