//! Sandbox for untrusted templates: they run on threads with large stacks, as instructions that
//! charge a budget. Knows nothing of conversations.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use jiff::civil::DateTime;
use minijinja::machinery::{self, make_string_output};
use minijinja::{AutoEscape, Environment, ErrorKind, Value};

use crate::environment::{Refusal, environment, syntax};
use crate::{Error, Result};
use budget::{Allowance, Budget, Exhausted, IN_USE, MAX_TEXT, OUTPUT};
use compile::{Program, compile};
use memory::{RenderMemory, RenderShare};

pub(crate) mod budget;
mod compile;
pub(crate) mod costs;
pub(crate) mod memory;
pub(crate) mod operators;

/// Stack bytes for the deepest nesting that `budget` and `compile` allow; unused pages take no
/// memory.
const STACK: usize = 256 << 20;
/// Maximum idle threads kept for later renderings; any number may run at once.
const IDLE: usize = 2;

/// The compiled templates of a checkpoint.
#[derive(Debug)]
pub(crate) struct Sandbox {
    sources: Arc<BTreeMap<String, String>>,
    idle: Mutex<Vec<Worker>>,
    /// Shared by the templates of a process.
    pub(crate) memory: RenderMemory,
}

impl Sandbox {
    /// # Errors
    /// A source is too large or does not parse.
    pub(crate) fn new(sources: BTreeMap<String, String>) -> Result<Sandbox> {
        let sources = Arc::new(sources);
        let first = Worker::start(&sources)?;
        Ok(Sandbox { sources, idle: Mutex::new(vec![first]), memory: RenderMemory::default() })
    }

    /// Renders a template.
    ///
    /// # Errors
    /// The template raises an exception, fails, or exceeds a limit.
    pub(crate) fn render(
        &self,
        name: &str,
        variables: Value,
        allowance: Allowance,
        now: Option<DateTime>,
    ) -> Result<String> {
        let idle = self.idle().pop();
        let worker = idle.map_or_else(|| Worker::start(&self.sources), Ok)?;
        let (answer, result) = sync_channel(1);
        let share = RenderShare::new(self.memory.clone());
        let job = Job { name: name.to_owned(), variables, allowance, share, now, answer };
        let sent = worker.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        let Some(result) = result.recv().ok().filter(|_| sent) else {
            return Err(Error::TemplateRender("its thread has ended".to_owned()));
        };
        let mut idle = self.idle();
        if idle.len() < IDLE {
            idle.push(worker);
        }
        result
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Worker>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Job {
    name: String,
    variables: Value,
    allowance: Allowance,
    share: RenderShare,
    now: Option<DateTime>,
    answer: SyncSender<Result<String>>,
}

/// A thread with all templates compiled; it ends when this is dropped.
#[derive(Debug)]
struct Worker {
    jobs: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    fn start(sources: &Arc<BTreeMap<String, String>>) -> Result<Worker> {
        let (sender, jobs) = sync_channel(1);
        let (ready, is_ready) = sync_channel(1);
        let sources = sources.clone();
        let thread = thread::Builder::new()
            .name("template".to_owned())
            .stack_size(STACK)
            .spawn(move || work(&sources, &ready, &jobs))
            .map_err(|error| Error::TemplateRender(format!("its thread cannot be started: {error}")))?;
        let worker = Worker { jobs: Some(sender), thread: Some(thread) };
        let failed = || Error::TemplateSyntax("compiling it failed".to_owned());
        is_ready.recv().unwrap_or_else(|_| Err(failed()))?;
        Ok(worker)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.jobs.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn work(sources: &BTreeMap<String, String>, ready: &SyncSender<Result<()>>, jobs: &Receiver<Job>) {
    let budget = Arc::new(Budget::default());
    let mut environment = environment(&budget);
    let compiled = catch_unwind(|| {
        sources.iter().map(|(name, source)| Ok((&name[..], compile(name, source, syntax())?))).collect()
    });
    let programs: BTreeMap<&str, Program> = match compiled {
        Ok(Ok(programs)) => programs,
        Ok(Err(error)) => {
            let error: minijinja::Error = error;
            let _ = ready.send(Err(Error::TemplateSyntax(error.to_string())));
            return;
        }
        // The receiver sees that the channel is closed.
        Err(_) => return,
    };
    let _ = ready.send(Ok(()));
    for Job { name, variables, allowance, share, now, answer } in jobs {
        budget.reset(allowance, share, now);
        environment.set_fuel(Some(allowance.fuel));
        let program = programs.get(&name[..]);
        let result = catch_unwind(AssertUnwindSafe(|| match program {
            Some(program) => render(&environment, program, variables, allowance),
            None => Err(Error::TemplateRender(format!("there is no template {name}"))),
        }));
        environment.set_fuel(None);
        let cleared =
            catch_unwind(AssertUnwindSafe(|| clear(&environment, program, budget.take_namespaces())));
        budget.release();
        let result = result.and_then(|result| cleared.map(|()| result));
        let panicked = || Err(Error::TemplateRender("the template engine failed".to_owned()));
        let _ = answer.send(result.unwrap_or_else(|_| panicked()));
    }
}

fn render(
    environment: &Environment,
    program: &Program,
    variables: Value,
    allowance: Allowance,
) -> Result<String> {
    let mut text = String::new();
    let mut out = make_string_output(&mut text);
    let (instructions, blocks) = (&program.instructions, &program.blocks);
    let ended = machinery::eval(environment, instructions, variables, blocks, &mut out, AutoEscape::None);
    ended.map(drop).map_err(|error| explain(&error, allowance))?;
    if text.len() > MAX_TEXT {
        return Err(Error::PromptTooLong(MAX_TEXT));
    }
    Ok(text)
}

/// Clears the attributes of namespaces, which may contain themselves.
fn clear(environment: &Environment, program: Option<&Program>, namespaces: Vec<Value>) {
    let Some(program) = program else { return };
    for namespace in namespaces {
        let variables = Value::from_pairs([("ns", namespace)]);
        let (mut text, blocks) = (String::new(), BTreeMap::new());
        let mut out = make_string_output(&mut text);
        let _ = machinery::eval(environment, &program.clear, variables, &blocks, &mut out, AutoEscape::None);
    }
}

fn explain(error: &minijinja::Error, allowance: Allowance) -> Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(Refusal(message)) = current.downcast_ref() {
            return Error::Refused(message.clone());
        }
        if let Some(Exhausted(what)) = current.downcast_ref() {
            return match *what {
                OUTPUT => Error::PromptTooLong(MAX_TEXT),
                IN_USE => Error::RenderMemoryInUse,
                what => Error::TooCostly(what),
            };
        }
        if current.downcast_ref().is_some_and(|e: &minijinja::Error| e.kind() == ErrorKind::OutOfFuel) {
            return Error::OutOfFuel(allowance.fuel);
        }
        cause = current.source();
    }
    Error::TemplateRender(error.to_string())
}
