//! Starts an engine: a thread that loads a model, then runs the engine loop.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
    thread,
};

use super::{
    admission::Admission,
    handle::{Engine, Message},
    heartbeat::Heartbeat,
    run::run,
};
use crate::{
    api::{
        Checkpoint, Options, Progress,
        error::{LoadError, Result},
    },
    load::{Ready, load},
    speculate::Script,
};

/// Loads a model on a thread of its own and returns when it is ready to step.
///
/// # Errors
/// One sentence that names the file, tensor or key at fault.
pub fn start(
    checkpoint: Checkpoint,
    options: Options,
    progress: impl FnMut(Progress) + Send + 'static,
) -> Result<Engine> {
    start_with(checkpoint, options, None, progress)
}

/// Like [`start`], with a drafter `scripted` that follows a script: for tests and measurements.
///
/// # Errors
/// Those of [`start`].
pub fn start_scripted(
    checkpoint: Checkpoint,
    options: Options,
    script: Script,
    progress: impl FnMut(Progress) + Send + 'static,
) -> Result<Engine> {
    start_with(checkpoint, options, Some(script), progress)
}

fn start_with(
    checkpoint: Checkpoint,
    options: Options,
    script: Option<Script>,
    progress: impl FnMut(Progress) + Send + 'static,
) -> Result<Engine> {
    let (ready, loaded) = mpsc::channel();
    let (sender, messages) = mpsc::channel();
    let (admission, metrics) =
        (Admission::new(options.max_batch, options.queue_limit), options.metrics.clone());
    let heartbeat = Arc::new(Heartbeat::new(options.stuck_after));
    let (beats, waker) = (heartbeat.clone(), sender.clone());
    let thread = thread::Builder::new().name("lanner-engine".into());
    let work = move || {
        // Returned when nothing is left that could compute on them.
        let streams = match mlx::Streams::lease() {
            Ok(streams) => streams,
            Err(error) => return drop(ready.send(Err(error.into()))),
        };
        let result = catch_unwind(AssertUnwindSafe(|| load(&checkpoint, &options, script, progress)))
            .unwrap_or_else(|panic| Err(LoadError::Panicked(mlx::panic_message(&*panic))));
        match result {
            Ok(Ready { model, info, options, disk, speculator, memory }) => {
                let account = options.metrics.account.clone();
                let _registration = account.register(move || _ = waker.send(Message::MemoryChanged));
                // The caller may have given up waiting.
                if ready.send(Ok(info.clone())).is_ok() {
                    run(model, info, options, disk, speculator, &beats, messages);
                }
                // First, so that an engine that gets this memory also gets these streams.
                drop(streams);
                drop(memory);
                account.wake_engines();
            }
            Err(error) => drop(ready.send(Err(error))),
        }
    };
    let thread =
        thread.spawn(work).map_err(|e| LoadError::Panicked(format!("no thread for the engine: {e}")))?;
    let info = loaded.recv().map_err(|_| LoadError::Panicked("the engine thread ended".into()))??;
    Ok(Engine::new(info, admission, metrics, heartbeat, sender, thread))
}
