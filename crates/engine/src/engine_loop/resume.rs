//! Sequences and the prefix cache: what an admitted one resumes from or waits for, and what an
//! ended one leaves.

use super::{delivery::End, fault, phase::Phase, recovery::failure, run::EngineLoop, sequence::Sequence};
use crate::{
    guard::guarded,
    prefix::{CopiedState, PrefixCache},
};

/// Tokens that waiting for another sequence's snapshot must save.
const WORTH_WAITING: usize = 32;

impl EngineLoop {
    /// Attaches prefixes to admitted sequences, except those that have more in common with a
    /// running sequence than with what is stored: they wait for that one's snapshot. So do those
    /// whose state is being read from the disk.
    ///
    /// A wait is short: only for a running sequence, up to a position that it will reach, and once
    /// for each. If that sequence ends, so does the wait.
    pub(crate) fn attach_prefixes(&mut self) {
        let mut failed = vec![];
        for i in 0..self.running.len() {
            let (before, rest) = self.running.split_at_mut(i);
            let sequence = &mut rest[0];
            if sequence.phase.is_running() || sequence.speculation.waits_for_layers() {
                continue;
            }
            if sequence.phase.is_waiting() && should_wait(sequence, before, &mut self.prefix) {
                continue;
            }
            let (prefix, model) = (&mut self.prefix, &*self.model);
            let attach = || {
                fault::point("attach");
                sequence.attach_prefix(prefix)
            };
            let Err(error) = guarded(attach) else { continue };
            tracing::error!("the prefix cache failed and is emptied: {error}");
            let attach_nothing = || {
                prefix.clear_after_failure();
                fault::point("attach");
                sequence.attach_nothing(model, prefix);
                Ok(())
            };
            if let Err(message) = guarded(attach_nothing) {
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

    /// Stores the state of ended sequences that no launched step computes on, as far as the time
    /// between two steps allows.
    pub(crate) fn store_finished(&mut self) {
        if !self.prefix.is_enabled() {
            self.ended.clear();
        }
        let in_flight = self.launched.as_ref().is_some_and(|step| {
            step.sequences().any(|id| self.ended.iter().any(|sequence| sequence.id == id))
        });
        if in_flight {
            // A failure drops them.
            self.collect_launched(&[]);
        }
        while let Some(sequence) = self.ended.first_mut() {
            let prefix = &mut self.prefix;
            match guarded(|| sequence.copy_all(prefix)) {
                Ok(false) => return,
                Ok(true) => {
                    let mut sequence = self.ended.remove(0);
                    let copied = sequence.take_copied();
                    copied.into_iter().for_each(|copied| self.store(sequence.keys(), copied));
                }
                Err(error) => {
                    tracing::warn!("the state of an ended sequence is not stored: {error}");
                    self.ended.remove(0);
                }
            }
        }
    }

    /// Stores the state of all ended sequences.
    pub(crate) fn store_all_finished(&mut self) {
        while !self.ended.is_empty() {
            self.prefix.reset_copy_budget();
            self.store_finished();
        }
    }

    /// Takes completed disk reads, and starts writes.
    pub(crate) fn run_disk_io(&mut self) {
        let prefix = &mut self.prefix;
        if let Err(error) = guarded(|| prefix.poll_disk()) {
            tracing::warn!("the disk cache goes on without some state: {error}");
        }
    }

    /// Stores copied state. A panic in there empties the prefix cache and fails no request.
    pub(crate) fn store(&mut self, tokens: &[u32], copied: CopiedState) {
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

/// Whether a sequence waits for a snapshot of one of those before it, or for the disk.
fn should_wait(sequence: &mut Sequence, before: &mut [Sequence], prefix: &mut PrefixCache) -> bool {
    should_wait_for_snapshot(sequence, before, prefix) || sequence.waits_for_disk(prefix)
}

fn should_wait_for_snapshot(sequence: &mut Sequence, before: &mut [Sequence], prefix: &PrefixCache) -> bool {
    if !prefix.is_enabled() || sequence.quarantined || sequence.request.computes_whole_prompt() {
        return false;
    }
    let Phase::Waiting(wait) = &mut sequence.phase else { return false };
    if let Some((id, position)) = wait.snapshot {
        if before.iter().any(|other| other.id == id && other.will_snapshot(position)) {
            return true;
        }
        wait.snapshot = None;
    }
    let found = find_snapshot(sequence, before, prefix);
    sequence.reuse.waited_for.extend(found.map(|(id, _)| id));
    if let Phase::Waiting(wait) = &mut sequence.phase {
        wait.snapshot = found;
    }
    found.is_some()
}

/// The running sequence whose coming snapshot saves most, and its position.
fn find_snapshot(sequence: &Sequence, before: &mut [Sequence], prefix: &PrefixCache) -> Option<(u64, usize)> {
    let own = sequence.prefix_key();
    let least = prefix.resumable(own) + WORTH_WAITING;
    let shared = |other: &Sequence| own.first(own.tokens.len() - 1).common(&other.prefix_key());
    // Less urgent sequences get a small share of each step.
    let urgency = sequence.request.priority as usize;
    let others = before.iter_mut().filter(|other| {
        let waited = sequence.reuse.waited_for.contains(&other.id);
        other.phase.is_running() && !waited && other.request.priority as usize <= urgency
    });
    let others = others.map(|other| (shared(other), other));
    let mut worth: Vec<_> = others.filter(|(shared, _)| *shared >= least).collect();
    worth.sort_by_key(|(shared, _)| std::cmp::Reverse(*shared));
    worth
        .into_iter()
        .find_map(|(shared, other)| Some((other.id, expected_snapshot(other, shared, least, prefix)?)))
}

/// The position, `least` or later, of a snapshot that `other` will store and that a sequence with
/// the same first `shared` tokens can resume from; `None` if there is none that fits into the
/// cache. Requests one of `other` where that costs little.
fn expected_snapshot(
    other: &mut Sequence,
    shared: usize,
    least: usize,
    prefix: &PrefixCache,
) -> Option<usize> {
    let shared = other.request.outside_images(shared.min(prefix.max_tokens()));
    if shared < least {
        return None;
    }
    let computed = other.progress.num_computed_tokens;
    let next = other.request.past_images(computed + 1);
    let prefilling = computed < other.exact_tokens().len();
    let snapshots = &mut other.snapshots;
    if prefilling && computed < shared {
        snapshots.due_at.insert(shared);
        return Some(shared);
    }
    let coming = snapshots.due_at.iter().chain(&snapshots.in_flight).copied();
    match prefix.needs_snapshots() {
        true => coming.filter(|at| (least..=shared).contains(at)).max(),
        // A snapshot anywhere after the shared tokens holds them.
        false => coming.filter(|&at| at >= shared).min().or_else(|| {
            prefilling.then(|| {
                snapshots.due_at.insert(next);
                next
            })
        }),
    }
}
