//! Who is admitted and stepped next, and with how many tokens: pure bookkeeping, no arrays.

use std::collections::VecDeque;

/// Requests that wait to be admitted. Those of one group stand in one line; lines take turns, in the order in which
/// they formed, so that a hundred requests of one client hold up another's first by one turn.
pub struct Queue<T> {
    lines: VecDeque<(Option<u64>, VecDeque<T>)>,
}

impl<T> Queue<T> {
    pub fn new() -> Queue<T> {
        Queue { lines: VecDeque::new() }
    }

    /// Without a group, a line of its own.
    pub fn push(&mut self, group: Option<u64>, request: T) {
        match self.lines.iter_mut().find(|(line, _)| group.is_some() && *line == group) {
            Some((_, line)) => line.push_back(request),
            None => self.lines.push_back((group, VecDeque::from([request]))),
        }
    }

    pub fn pop(&mut self) -> Option<T> {
        let (group, mut line) = self.lines.pop_front()?;
        let request = line.pop_front();
        if !line.is_empty() {
            self.lines.push_back((group, line));
        }
        request
    }

    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.lines.iter().flat_map(|(_, line)| line)
    }

    /// Takes out the requests that `leaves` names.
    pub fn extract(&mut self, leaves: impl Fn(&T) -> bool) -> Vec<T> {
        let mut left = vec![];
        for (_, line) in &mut self.lines {
            let (leaving, staying) = std::mem::take(line).into_iter().partition(&leaves);
            *line = staying;
            left.extend::<VecDeque<T>>(leaving);
        }
        self.lines.retain(|(_, line)| !line.is_empty());
        left
    }
}

/// What one running sequence could do in the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Compute this many known tokens (a prompt, or one being replayed).
    Prefill(usize),
    /// Compute the token just sampled.
    Decode,
    /// Nothing: its last token is on the way.
    Nothing,
}

/// Chooses `(sequence, tokens)` for the next step from what each running sequence wants.
///
/// Everyone who decodes gets a token. Those who prefill share `chunk` tokens equally, so that a short prompt is
/// not held up by a long one in front of it.
pub fn plan(wants: &[Want], chunk: usize) -> Vec<(usize, usize)> {
    let mut waiting: Vec<(usize, usize)> = wants
        .iter()
        .enumerate()
        .filter_map(|(i, want)| match want {
            Want::Prefill(tokens) => Some((i, *tokens)),
            _ => None,
        })
        .collect();
    // Smallest first: what it leaves of its share goes to the others.
    waiting.sort_by_key(|&(_, tokens)| tokens);
    let (mut left, mut sharers) = (chunk, waiting.len());
    let mut chosen: Vec<(usize, usize)> = vec![];
    for (i, tokens) in waiting {
        let share = tokens.min(left.div_ceil(sharers));
        (left, sharers) = (left - share, sharers - 1);
        if share > 0 {
            chosen.push((i, share));
        }
    }
    chosen.extend(wants.iter().enumerate().filter(|(_, want)| **want == Want::Decode).map(|(i, _)| (i, 1)));
    chosen.sort();
    chosen
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Want::*, *};

    fn check(wants: &[Want], chunk: usize, expected: &[(usize, usize)]) {
        assert_eq!(plan(wants, chunk), expected, "{wants:?} in {chunk}");
    }

    #[test]
    fn decoders_always_go_and_prefills_share() {
        check(&[], 256, &[]);
        check(&[Decode, Nothing, Decode], 256, &[(0, 1), (2, 1)]);
        check(&[Prefill(1000)], 256, &[(0, 256)]);
        check(&[Prefill(1000), Decode, Prefill(10)], 256, &[(0, 246), (1, 1), (2, 10)]);
        check(&[Prefill(1000), Prefill(1000), Prefill(5)], 105, &[(0, 50), (1, 50), (2, 5)]);
    }

    #[test]
    fn lines_take_turns() {
        let mut queue = Queue::new();
        for name in ["a1", "a2", "a3"] {
            queue.push(Some(1), name);
        }
        queue.push(None, "x");
        queue.push(None, "y");
        queue.push(Some(2), "b1");
        queue.push(Some(1), "a4");
        assert_eq!(queue.extract(|name| *name == "a2" || *name == "y"), ["a2", "y"]);
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, ["a1", "x", "b1", "a3", "a4"]);
        assert!(queue.is_empty());
    }

    fn want() -> impl Strategy<Value = Want> {
        prop_oneof![(1usize..5000).prop_map(Prefill), Just(Decode), Just(Nothing)]
    }

    proptest! {
        #[test]
        fn nobody_is_overdrawn_and_the_budget_is_spent(wants in prop::collection::vec(want(), 0..12), chunk in 1usize..600) {
            let chosen = plan(&wants, chunk);
            let mut spent = 0;
            for &(i, tokens) in &chosen {
                match wants[i] {
                    Prefill(wanted) => {
                        prop_assert!(tokens >= 1 && tokens <= wanted);
                        spent += tokens;
                    }
                    Decode => prop_assert_eq!(tokens, 1),
                    Nothing => prop_assert!(false, "{} wants nothing", i),
                }
            }
            let asked: usize = wants.iter().map(|w| if let Prefill(n) = w { *n } else { 0 }).sum();
            prop_assert_eq!(spent, asked.min(chunk));
            let decoders = wants.iter().filter(|w| **w == Decode).count();
            prop_assert_eq!(chosen.iter().filter(|(i, _)| wants[*i] == Decode).count(), decoders);
        }

        #[test]
        fn a_prompt_no_longer_than_its_fair_share_is_done_at_once(
            others in prop::collection::vec(1usize..5000, 0..7), chunk in 8usize..600,
        ) {
            let fair = chunk / (others.len() + 1);
            let mut wants: Vec<Want> = others.into_iter().map(Prefill).collect();
            wants.push(Prefill(fair));
            prop_assert!(plan(&wants, chunk).contains(&(wants.len() - 1, fair)));
        }
    }
}
