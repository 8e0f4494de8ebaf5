//! The commands of one sequence, run in order by any worker, and their answers.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{Masks, follower::Follower};
use crate::api::Constraint;

pub(crate) enum Command {
    /// These tokens were generated; they replace the draft.
    Follow(Vec<u32>),
    Forced(usize),
    Draft(Vec<u32>),
    Masks,
    /// The masks of the step after the one that samples the next token.
    MasksAhead,
}

pub(crate) struct Strand {
    inbox: Mutex<Inbox>,
    follower: Mutex<Follower>,
    answers: Mutex<Answers>,
    answered: Condvar,
}

#[derive(Default)]
struct Inbox {
    commands: VecDeque<(usize, Command)>,
    /// Whether a worker runs the strand or will.
    queued: bool,
    /// Answers to commands of earlier rounds are dropped.
    round: usize,
}

/// Answers of the current round.
#[derive(Default)]
pub(crate) struct Answers {
    round: usize,
    pub forced: Option<Vec<u32>>,
    pub drafted: Option<usize>,
    /// Whether the masks are known ahead.
    pub known_ahead: Option<bool>,
    /// With the time that they took.
    pub masks: Option<(Masks, Duration)>,
}

impl Strand {
    pub(crate) fn new(constraint: Arc<dyn Constraint>) -> Strand {
        Strand {
            inbox: Mutex::default(),
            follower: Mutex::new(Follower::new(constraint)),
            answers: Mutex::default(),
            answered: Condvar::new(),
        }
    }

    /// Drops the answers so far.
    pub(crate) fn begin_round(&self) {
        let mut inbox = lock(&self.inbox);
        inbox.round += 1;
        *lock(&self.answers) = Answers { round: inbox.round, ..Answers::default() };
    }

    /// Queues a command; `true` if the strand has to be handed to a worker.
    pub(crate) fn push(&self, command: Command) -> bool {
        let mut inbox = lock(&self.inbox);
        let round = inbox.round;
        inbox.commands.push_back((round, command));
        !std::mem::replace(&mut inbox.queued, true)
    }

    /// Runs all queued commands.
    pub(crate) fn run(&self) {
        let mut follower = lock(&self.follower);
        loop {
            let next = {
                let mut inbox = lock(&self.inbox);
                let next = inbox.commands.pop_front();
                inbox.queued = next.is_some();
                next
            };
            let Some((round, command)) = next else { return };
            let answer = |follower: &mut Follower| self.answer(follower, round, &command);
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| answer(&mut follower))) {
                follower.fail(mlx::panic_message(&*panic));
                // The second time, a command only reports the failure.
                if !matches!(command, Command::Follow(_)) {
                    answer(&mut follower);
                }
            }
        }
    }

    fn answer(&self, follower: &mut Follower, round: usize, command: &Command) {
        match command {
            Command::Follow(tokens) => follower.follow(tokens),
            Command::Forced(max) => {
                let forced = follower.forced(*max);
                self.put(round, |answers| answers.forced = Some(forced));
            }
            Command::Draft(tokens) => {
                let drafted = follower.draft(tokens);
                self.put(round, |answers| answers.drafted = Some(drafted));
            }
            Command::Masks => {
                let started = Instant::now();
                let masks = follower.masks();
                self.put(round, |answers| answers.masks = Some((masks, started.elapsed())));
            }
            Command::MasksAhead => {
                let set = follower.after_next();
                self.put(round, |answers| {
                    answers.known_ahead = Some(set.is_some());
                    let masks = set.map(|set| Masks { sets: vec![set], error: None });
                    answers.masks = masks.map(|masks| (masks, Duration::ZERO));
                });
            }
        }
    }

    fn put(&self, round: usize, put: impl FnOnce(&mut Answers)) {
        let mut answers = lock(&self.answers);
        if answers.round == round {
            put(&mut answers);
            self.answered.notify_all();
        }
    }

    pub(crate) fn has_masks(&self) -> bool {
        lock(&self.answers).masks.is_some()
    }

    /// Waits until `take` finds its answer.
    pub(crate) fn wait<T>(&self, mut take: impl FnMut(&mut Answers) -> Option<T>) -> T {
        let mut answers = lock(&self.answers);
        loop {
            match take(&mut answers) {
                Some(answer) => return answer,
                None => answers = self.answered.wait(answers).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
