//! The two ends of a sequence as the prefix cache sees them: what an admitted one resumes from, and for whom it waits;
//! what one that ended leaves behind.

use crate::{
    fault,
    prefix::{CopiedState, PrefixCache, common},
    run::{Runner, failure, guarded},
    sequence::{End, Sequence},
};

/// Tokens that waiting for another's state must save.
const WORTH_WAITING: usize = 32;

impl Runner {
    /// Lets admitted sequences begin, except those that have more in common with what a sequence before them is just
    /// computing than with what is stored: these wait for it. So do those whose state is being read from the disk.
    ///
    /// Nobody waits long: only for a sequence that has begun itself, up to a position that it is on its way to, and once
    /// for each. If that one fails or goes, so does the reason to wait.
    pub fn begin(&mut self) {
        let mut failed = vec![];
        for i in 0..self.running.len() {
            let (before, rest) = self.running.split_at_mut(i);
            let sequence = &mut rest[0];
            if sequence.begun || sequence.speculation.waits_for_layers() {
                continue;
            }
            if !sequence.is_resuming() && waits(sequence, before, &mut self.prefix) {
                continue;
            }
            let (prefix, model) = (&mut self.prefix, &*self.model);
            let resume = || {
                fault::point("attach");
                sequence.begin(prefix)
            };
            let Err(error) = guarded(resume) else { continue };
            tracing::error!("the prefix cache failed and is emptied: {error}");
            // Without what is stored the sequence is as good as new.
            let anew = || {
                prefix.clear_after_failure();
                fault::point("attach");
                sequence.begin_cold(model, prefix);
                Ok(())
            };
            if let Err(message) = guarded(anew) {
                failed.push((sequence.id, message));
            }
        }
        for (id, message) in failed {
            if let Some(at) = self.running.iter().position(|s| s.id == id) {
                let sequence = self.running.remove(at);
                self.end(sequence, End::Failed(failure(message)));
            }
        }
    }

    /// Stores what sequences that ended leave behind, once nothing that they are part of is being computed; as much of it
    /// as the time between two steps allows.
    pub fn keep_ended(&mut self) {
        if !self.prefix.is_enabled() {
            self.ended.clear();
        }
        let in_flight = self.launched.as_ref().is_some_and(|step| {
            step.sequences().any(|id| self.ended.iter().any(|sequence| sequence.id == id))
        });
        if in_flight {
            // May fail, and drop them.
            self.collect_launched(&[]);
        }
        while let Some(sequence) = self.ended.first_mut() {
            let prefix = &mut self.prefix;
            match guarded(|| sequence.copy_all(prefix)) {
                Ok(false) => return,
                Ok(true) => {
                    let mut sequence = self.ended.remove(0);
                    let copied = sequence.take_copied();
                    copied.into_iter().for_each(|copied| self.store(&sequence.tokens, copied));
                }
                // One reuse less.
                Err(error) => {
                    tracing::warn!("the state of a sequence that ended was not copied: {error}");
                    self.ended.remove(0);
                }
            }
        }
    }

    /// Stores all of what sequences that ended leave behind.
    pub fn keep_all_ended(&mut self) {
        while !self.ended.is_empty() {
            self.prefix.reset_copy_budget();
            self.keep_ended();
        }
    }

    /// Takes in what was read from the disk, and hands over what is to be written.
    pub fn work_on_disk(&mut self) {
        let prefix = &mut self.prefix;
        if let Err(error) = guarded(|| prefix.poll_disk()) {
            tracing::warn!("the disk cache goes on without some state: {error}");
        }
    }

    /// Stores what was copied. A bug of ours in there costs what is stored, and nobody's answer.
    pub fn store(&mut self, tokens: &[u32], copied: CopiedState) {
        let store = || {
            fault::point("store");
            self.prefix.store(tokens, copied);
            Ok(())
        };
        if let Err(error) = guarded(store) {
            tracing::error!("the prefix cache failed and is emptied: {error}");
            self.prefix.clear_after_failure();
        }
    }
}

/// Whether a sequence waits for one of those before it, or for the disk.
fn waits(sequence: &mut Sequence, before: &mut [Sequence], prefix: &mut PrefixCache) -> bool {
    waits_for_another(sequence, before, prefix) || sequence.waits_for_disk(prefix)
}

/// Whether a sequence waits for one of those before it.
fn waits_for_another(sequence: &mut Sequence, before: &mut [Sequence], prefix: &PrefixCache) -> bool {
    if !prefix.is_enabled() || sequence.suspect || sequence.request.wants_prompt_logits() {
        return false;
    }
    if let Some((id, position)) = sequence.waiting {
        if before.iter().any(|other| other.id == id && other.will_keep(position)) {
            return true;
        }
        sequence.waiting = None;
    }
    let own = sequence.exact_tokens();
    let stored = prefix.resumable(own);
    let shared = |other: &Sequence| common(&own[..own.len() - 1], other.exact_tokens());
    // Not for less urgent ones, whose share of a step is small.
    let urgency = sequence.request.priority as usize;
    let others = before.iter_mut().filter(|other| {
        other.begun && !sequence.waited.contains(&other.id) && other.request.priority as usize <= urgency
    });
    let others = others.map(|other| (shared(other), other));
    let mut worth: Vec<_> = others.filter(|(shared, _)| *shared >= stored + WORTH_WAITING).collect();
    worth.sort_by_key(|(shared, _)| std::cmp::Reverse(*shared));
    let found = worth.into_iter().find_map(|(shared, other)| {
        Some((other.id, promise(other, shared, stored + WORTH_WAITING, prefix)?))
    });
    sequence.waiting = found;
    sequence.waited.extend(found.map(|(id, _)| id));
    found.is_some()
}

/// The position, `least` or later, of a snapshot that `other` will store and that a sequence with
/// the same first `shared` tokens can resume from; `None` if it will store none, or if that does
/// not fit into the cache. Asks `other` for one where that costs it little.
fn promise(other: &mut Sequence, shared: usize, least: usize, prefix: &PrefixCache) -> Option<usize> {
    let shared = shared.min(prefix.max_tokens());
    if shared < least {
        return None;
    }
    let prefilling = other.computed < other.exact_tokens().len();
    if prefilling && other.computed < shared {
        other.keep_at.insert(shared);
        return Some(shared);
    }
    let coming = other.keep_at.iter().chain(&other.keeping).copied();
    match prefix.needs_snapshots() {
        true => coming.filter(|at| (least..=shared).contains(at)).max(),
        // Its state anywhere behind holds what is shared.
        false => coming.filter(|&at| at >= shared).min().or_else(|| {
            prefilling.then(|| {
                other.keep_at.insert(other.computed + 1);
                other.computed + 1
            })
        }),
    }
}
