//! An index of one sequence's n-grams: the earlier place that matches its end best, and what
//! followed there.

use std::collections::HashMap;

use crate::speculate::{
    acceptance::{ANY_BIN, AcceptanceByBin, CONFIDENCE_BINS, POSITIONS, SEQUENCE_DECAY},
    drafter::Draft,
};

/// Shortest match.
const MIN_MATCH: usize = 2;
/// Matches of this length are looked for among all earlier places, of which at most [`MAX_TRIED`]
/// are compared, latest first.
const ANCHOR: usize = 4;
const MAX_TRIED: usize = 64;
/// A longer match is no better.
const MAX_MATCH: usize = 128;
/// A match of this length is a copy in progress. Where it ends something was changed: the same
/// tokens are replaced from then on, and the copy is expected to go on within [`MAX_CHANGE`]
/// tokens.
const COPY: usize = 8;
const MAX_CHANGE: usize = 8;
/// Shortest match for each confidence bin.
const BIN_STARTS: [usize; CONFIDENCE_BINS] = [2, 3, 4, 6, 12, 24];

/// A token costs a few lookups, whatever the length of the sequence.
#[derive(Default)]
pub(super) struct NgramIndex {
    /// Indexed tokens.
    length: usize,
    /// Position after the latest occurrence of a pair, other than the one at the end.
    pairs: HashMap<[u32; MIN_MATCH], u32>,
    anchors: HashMap<[u32; ANCHOR], u32>,
    /// For each position after an anchor: the position after its previous occurrence; 0 if there is
    /// none.
    previous: Vec<u32>,
    best: Option<Match>,
    /// Where a copy ended, and the number of tokens since then.
    interrupted: Option<(usize, usize)>,
    /// Position in the source that the last token replaces, if it differs there.
    replacing: Option<usize>,
    /// Tokens of a source, and what replaces them in the copy.
    replaced: HashMap<u32, u32>,
    /// Acceptance that drafts would have had in the prompt.
    prompt_acceptance: AcceptanceByBin,
    /// The draft being replayed: its confidence bin, and how many of its tokens have matched.
    replaying: Option<(usize, usize)>,
}

/// An earlier place that matches the end of the sequence.
#[derive(Clone, Copy)]
struct Match {
    /// Position after the match.
    position: usize,
    /// Tokens in common.
    length: usize,
}

impl NgramIndex {
    /// Acceptance that drafts would have had in the prompt.
    pub(super) fn prompt_acceptance(&self) -> &AcceptanceByBin {
        &self.prompt_acceptance
    }

    /// Indexes new tokens, and replays drafts for the first `prompt` tokens. The work per token is
    /// bounded.
    pub(super) fn extend(&mut self, tokens: &[u32], prompt: usize) {
        for end in self.length + 1..=tokens.len() {
            let tokens = &tokens[..end];
            // While the best match continues, no other can be longer by more than a token.
            self.best = self.best.and_then(|best| self.continued(best, tokens));
            self.replay(self.best.is_some());
            if self.best.is_none_or(|best| best.length < ANCHOR) {
                let found = self.find(tokens).or(self.best);
                let after_change = self.after_change(tokens);
                let is_short = found.is_none_or(|found| found.length < ANCHOR);
                self.best = after_change.filter(|_| is_short).or(found);
            }
            self.insert(tokens);
            if end < prompt && self.replaying.is_none() {
                let length = self.best.map_or(0, |best| best.length);
                self.replaying = (length >= MIN_MATCH).then(|| (confidence_bin(length), 0));
            }
        }
        self.length = tokens.len();
    }

    /// The tokens that followed the best match, repeated from there if they reach the end of the
    /// sequence.
    pub(super) fn draft(&self, tokens: &[u32], depth: usize) -> Draft {
        let Some(best) = self.best.filter(|best| best.length >= MIN_MATCH) else {
            return Draft::default();
        };
        let period = tokens.len() - best.position;
        // A short match soon ends.
        let depth = if best.length < ANCHOR { depth.min(ANCHOR) } else { depth };
        let replaced = |token: u32| self.replaced.get(&token).copied().unwrap_or(token);
        let tokens = (0..depth).map(|i| replaced(tokens[best.position + i % period])).collect();
        Draft { tokens, confidence_bin: confidence_bin(best.length) }
    }

    /// Records whether the next token of the replayed draft matched.
    fn replay(&mut self, is_right: bool) {
        let Some((bin, matched)) = self.replaying.take() else { return };
        let accepted = matched + usize::from(is_right);
        if is_right && accepted < POSITIONS {
            return self.replaying = Some((bin, accepted));
        }
        for bin in [bin, ANY_BIN] {
            self.prompt_acceptance[bin].record(matched + 1, accepted, SEQUENCE_DECAY);
        }
    }

    /// The match one token longer, if its next token is the last one or was replaced by it before.
    fn continued(&mut self, Match { position, length }: Match, tokens: &[u32]) -> Option<Match> {
        let (next, last) = (tokens[position], tokens[tokens.len() - 1]);
        let (is_replaced, replacing) = (self.replaced.get(&next) == Some(&last), self.replacing.take());
        if !is_replaced {
            self.replaced.remove(&next);
        }
        if next != last && !is_replaced {
            if length >= COPY {
                (self.interrupted, self.replacing) = (Some((position, 0)), Some(position));
            }
            return None;
        }
        if let Some(other) = replacing.filter(|other| other + 1 == position) {
            self.replaced.insert(tokens[other], tokens[tokens.len() - 2]);
        }
        Some(Match { position: position + 1, length: (length + 1).min(MAX_MATCH) })
    }

    /// Where a copy may continue after a change: after the next occurrence of the last token if
    /// that is near, else as if tokens had been replaced by equally many others. The match gets
    /// the confidence of a short match, or of one that is just long enough.
    fn after_change(&mut self, tokens: &[u32]) -> Option<Match> {
        let (position, since) = self.interrupted.take().filter(|(_, since)| *since < MAX_CHANGE)?;
        let (last, before) = tokens.split_last()?;
        if let Some(gap) = before[position..].iter().take(MAX_CHANGE).position(|token| token == last) {
            return Some(Match { position: position + gap + 1, length: ANCHOR });
        }
        self.interrupted = Some((position, since + 1));
        let assumed = Match { position: position + since + 1, length: MIN_MATCH };
        Some(assumed).filter(|assumed| assumed.position < tokens.len())
    }

    /// The longest match before the end; the latest of equals.
    fn find(&self, tokens: &[u32]) -> Option<Match> {
        let matching = |position: usize| Match { position, length: common(tokens, position) };
        let mut best =
            tokens.last_chunk().and_then(|pair| self.pairs.get(pair)).map(|&at| matching(at as usize));
        let anchor = tokens.last_chunk().and_then(|anchor| self.anchors.get(anchor));
        let mut position = anchor.copied().unwrap_or(0) as usize;
        for _ in 0..MAX_TRIED {
            if position == 0 {
                break;
            }
            let found = matching(position);
            if best.is_none_or(|best| found.length > best.length) {
                best = Some(found);
            }
            position = self.previous[position] as usize;
        }
        best
    }

    /// Adds the n-grams at the end.
    fn insert(&mut self, tokens: &[u32]) {
        let end = tokens.len() as u32;
        self.previous.resize(tokens.len() + 1, 0);
        if let Some(pair) = tokens.last_chunk() {
            self.pairs.insert(*pair, end);
        }
        if let Some(anchor) = tokens.last_chunk() {
            self.previous[tokens.len()] = self.anchors.insert(*anchor, end).unwrap_or(0);
        }
    }
}

/// Confidence in a draft after a match of `length` tokens.
fn confidence_bin(length: usize) -> usize {
    BIN_STARTS.iter().rposition(|&start| length >= start).unwrap_or(0)
}

/// Number of tokens before `position` that match the tokens at the end.
fn common(tokens: &[u32], position: usize) -> usize {
    let backwards = tokens[..position].iter().rev().zip(tokens.iter().rev());
    backwards.take(MAX_MATCH).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(tokens: &[u32], depth: usize) -> Vec<u32> {
        let mut index = NgramIndex::default();
        // In parts, like a growing sequence.
        let piece = |end: usize| &tokens[..end.min(tokens.len())];
        (0..tokens.len() + 3).step_by(3).for_each(|end| index.extend(piece(end), 0));
        index.draft(tokens, depth).tokens
    }

    #[test]
    fn copy_continues_after_a_change() {
        let source: Vec<u32> = (10..40).collect();
        let copied = |change: &[u32]| [&source, &source[..10], change].concat();
        assert_eq!(draft(&copied(&[]), 3), [20, 21, 22]);
        assert_eq!(draft(&copied(&[90]), 3), [21, 22, 23], "one for one");
        assert_eq!(draft(&copied(&[90, 91]), 3), [22, 23, 24], "two for two");
        assert_eq!(draft(&copied(&[90, 91, 21]), 3), [22, 23, 24], "two for one");
        assert_eq!(draft(&copied(&[90, 20]), 3), [21, 22, 23], "one more");
        assert_eq!(draft(&copied(&[23]), 3), [24, 25, 26], "some are skipped");
        assert_eq!(draft(&copied(&[90; MAX_CHANGE + 1]), 2), [90, 90], "something else starts");
        // A short match is no copy.
        assert_eq!(draft(&[&source, &source[..COPY - 1], &[90]].concat(), 3), [0u32; 0]);
    }

    #[test]
    fn token_replaced_in_a_copy_is_replaced_again() {
        // A name, 7, that comes three times.
        let source: Vec<u32> =
            (10..20).chain([7, 21, 22, 7, 23, 24, 25, 26, 27, 28, 29, 30, 7, 31, 32]).collect();
        let copied = |rest: &[u32]| [&source, &source[..10], rest].concat();
        assert_eq!(draft(&copied(&[90]), 3), [21, 22, 7], "not replaced before");
        assert_eq!(draft(&copied(&[90, 21]), 3), [22, 90, 23]);
        assert_eq!(draft(&copied(&[90, 21, 22, 90, 23, 24, 25, 26, 27, 28, 29]), 3), [30, 90, 31]);
        // Unless the copy keeps it.
        assert_eq!(draft(&copied(&[90, 21, 22, 7, 23, 24, 25, 26, 27, 28, 29]), 3), [30, 7, 31]);
    }

    #[test]
    fn draft_is_what_followed_the_longest_match() {
        assert_eq!(draft(&[], 3), [0u32; 0]);
        assert_eq!(draft(&[1, 2, 3, 4], 3), [0u32; 0], "nothing occurred before");
        assert_eq!(draft(&[7, 8, 9, 1, 2, 7, 8], 2), [9, 1]);
        // The later match has two tokens, the earlier one three.
        assert_eq!(draft(&[5, 7, 8, 1, 1, 6, 7, 8, 2, 2, 5, 7, 8], 2), [2, 2], "short ones: the latest");
        let long = [3, 4, 5, 7, 8, 1, 1, 6, 7, 8, 2, 2, 3, 4, 5, 7, 8];
        assert_eq!(draft(&long, 2), [1, 1], "long ones: the longest");
        let twice = [3, 4, 5, 7, 1, 1, 3, 4, 5, 7, 2, 2, 3, 4, 5, 7];
        assert_eq!(draft(&twice, 2), [2, 2], "of equals the latest");
    }

    #[test]
    fn draft_of_a_loop_repeats_it() {
        assert_eq!(draft(&[9, 1, 2, 3, 1, 2, 3, 1, 2, 3], 7), [1, 2, 3, 1, 2, 3, 1]);
        assert_eq!(draft(&[4, 4, 4, 4], 3), [4, 4, 4]);
    }

    #[test]
    fn prompt_replay_counts_drafts_and_matches() {
        // Replayed first tokens, and those that matched.
        let replayed = |tokens: &[u32], prompt: usize| {
            let mut index = NgramIndex::default();
            index.extend(tokens, prompt);
            index.prompt_acceptance[ANY_BIN].first()
        };
        let part: Vec<u32> = (10..40).collect();
        let thrice = [&part[..], &part, &part].concat();
        assert_eq!(replayed(&part, 30), (0.0, 0.0), "nothing is repeated");
        let (drafts, right) = replayed(&thrice, 90);
        assert!(drafts > 4.0 && right == drafts, "{right} of {drafts}");
        assert_eq!(replayed(&thrice, 0), (0.0, 0.0), "generated tokens are not replayed");
        // The same pair is followed by another token each time.
        let pairs: Vec<u32> = (0..20).flat_map(|i| [1, 2, 100 + i]).collect();
        let (drafts, right) = replayed(&pairs, 60);
        assert!(drafts > 4.0 && right == 0.0, "{right} of {drafts}");
    }

    #[test]
    fn confidence_bin_rises_with_the_length_of_the_match() {
        let text: Vec<u32> = (0..100).collect();
        let bin = |length: usize| {
            let tokens = [&text[..], &[200], &text[40..40 + length]].concat();
            let mut index = NgramIndex::default();
            index.extend(&tokens, 0);
            let draft = index.draft(&tokens, 1);
            assert_eq!(draft.tokens, [40 + length as u32]);
            draft.confidence_bin
        };
        assert_eq!([2, 3, 5, 6, 13, 40].map(bin), [0, 1, 2, 3, 4, 5]);
    }
}
