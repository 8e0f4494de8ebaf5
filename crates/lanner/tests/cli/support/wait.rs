//! Waits that end: a test that waits in vain fails and says for what, instead of hanging.

use std::{
    fs,
    io::{Error, Result},
    path::Path,
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

/// How long anything may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(240);

pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "in vain: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Ends the loops of a scope's threads, also if the test fails, as a scope waits for its threads.
#[derive(Default)]
pub(crate) struct Done(AtomicBool);

/// Sets its [`Done`] when dropped.
pub(crate) struct SetsDone<'a>(&'a Done);

impl Done {
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// To be created within the scope.
    pub(crate) fn on_drop(&self) -> SetsDone<'_> {
        SetsDone(self)
    }
}

impl Drop for SetsDone<'_> {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

/// Runs a program to its end. One that does not end is killed, which its status shows.
pub(crate) fn output(command: &mut Command) -> Result<Output> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    output_of(child)
}

/// Like [`output`], of a running program.
pub(crate) fn output_of(child: Child) -> Result<Output> {
    let (id, (ended, watched)) = (child.id(), mpsc::channel::<()>());
    let watch = thread::spawn(move || {
        if watched.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            eprintln!("process {id} does not end and is killed; its threads: {:?}", threads(id));
            let _ = Command::new("kill").args(["-KILL", &id.to_string()]).status();
        }
    });
    let output = child.wait_with_output();
    drop(ended);
    watch.join().map_err(|_| Error::other("the watch failed"))?;
    output
}

/// Name of each thread and what it waits for in the kernel, where the system reports them.
fn threads(id: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    let read = |path: &Path, name: &str| fs::read_to_string(path.join(name)).unwrap_or_default();
    tasks
        .map(|task| {
            ["comm", "wchan", "syscall"].map(|name| read(&task.path(), name).trim().to_owned()).join(" ")
        })
        .collect()
}

/// The status of a program that is about to end.
pub(crate) fn status_of(child: &mut Child) -> ExitStatus {
    let mut status = None;
    wait_until("the process ends", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap()
}
