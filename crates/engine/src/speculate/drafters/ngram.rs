//! Prompt lookup: what followed the last time that prompt and output ended as they do now (Saxena, "Prompt Lookup
//! Decoding", 2023); and where they hold no such place, what a table of n-grams knows. Looks at token ids alone.

use std::{collections::HashMap, sync::Arc};

use super::ngram_table::NgramTable;
use crate::speculate::{
    CONFIDENCE_BINS, Draft, DraftRequest, Drafter,
    controller::{ANY_BIN, AcceptanceByBin, OWN_MEMORY, POSITIONS},
};

/// Fewer tokens in common say nothing.
const SHORTEST: usize = 2;
/// So many tokens in common are looked for among all earlier places, of which [`LOOKED_AT`] are tried, latest first.
const ANCHOR: usize = 4;
const LOOKED_AT: usize = 64;
/// Tokens in common beyond this do not make a place better.
const LONGEST: usize = 128;
/// A place with so many tokens in common is being copied. Where it no longer matches something was changed, is so wherever it
/// comes, and the copy goes on behind the change. So far from there it is looked for.
const COPIED: usize = 8;
const NEAR: usize = 8;
/// Tokens in common from which each grade begins.
const BIN_STARTS: [usize; CONFIDENCE_BINS] = [2, 3, 4, 6, 12, 24];

/// How often drafts of a grade are right, by experience with prose; what a table is sure of is graded by the same.
const BELIEVED: [f64; CONFIDENCE_BINS] = [0.3, 0.4, 0.5, 0.65, 0.85, 0.93];
/// A draft out of a table ends where all of it is right less often than this.
const LEAST: f32 = 0.3;

pub struct NgramDrafter {
    sequences: HashMap<u64, Index>,
    table: Option<Arc<NgramTable>>,
}

impl NgramDrafter {
    pub fn new(table: Option<Arc<NgramTable>>) -> NgramDrafter {
        NgramDrafter { sequences: HashMap::new(), table }
    }
}

impl Drafter for NgramDrafter {
    fn name(&self) -> &'static str {
        "ngram"
    }

    fn is_free(&self) -> bool {
        true
    }

    fn prior(&self) -> [f64; CONFIDENCE_BINS] {
        BELIEVED
    }

    fn propose(&mut self, asked: &[DraftRequest]) -> mlx::Result<Vec<Draft>> {
        let draft = |asked: &DraftRequest| {
            let index = self.sequences.entry(asked.sequence).or_default();
            index.extend(asked.tokens, asked.prompt);
            let own = index.draft(asked.tokens, asked.depth);
            let known = self.table.as_ref().map(|table| from_table(table, asked.tokens, asked.depth));
            match known.filter(|known| !known.tokens.is_empty()) {
                Some(known) if own.tokens.is_empty() || known.grade > own.grade => known,
                _ => own,
            }
        };
        Ok(asked.iter().map(draft).collect())
    }

    fn prompt_acceptance(&self, sequence: u64) -> Option<&AcceptanceByBin> {
        self.sequences.get(&sequence).map(|index| &index.prompt_acceptance)
    }

    fn forget(&mut self, sequence: u64) {
        self.sequences.remove(&sequence);
    }
}

/// What a table knows to follow, graded by how sure it is of the first token.
fn from_table(table: &NgramTable, tokens: &[u32], depth: usize) -> Draft {
    let mut context = tokens[tokens.len().saturating_sub(table.info.order)..].to_vec();
    let (known, mut sure, mut grade) = (context.len(), 1.0, 0);
    while context.len() < known + depth {
        let Some((token, confidence)) = table.next(&context) else { break };
        sure *= confidence;
        if sure < LEAST {
            break;
        }
        if context.len() == known {
            grade = BELIEVED.iter().rposition(|&from| f64::from(confidence) >= from).unwrap_or(0);
        }
        context.push(token);
    }
    Draft { tokens: context.split_off(known), grade }
}

/// Where tokens of a sequence occurred before. A token costs a few lookups, however long the sequence is.
#[derive(Default)]
struct Index {
    /// Tokens taken in.
    length: usize,
    /// The position behind the latest occurrence, but for the one at the end.
    pairs: HashMap<[u32; SHORTEST], u32>,
    anchors: HashMap<[u32; ANCHOR], u32>,
    /// For each position the one behind the occurrence before that of the anchor that ends there; 0: none.
    before: Vec<u32>,
    /// The place that has most in common with the end: the position behind it, and how many tokens.
    best: Option<(usize, usize)>,
    /// Where what was being copied ceased to match, and tokens since then.
    left: Option<(usize, usize)>,
    /// The last token, if it stands for that of a copy at this position.
    replacing: Option<usize>,
    /// Tokens of copies, and what stands for them.
    replaced: HashMap<u32, u32>,
    /// Acceptance that drafts would have had in the prompt, by grade.
    prompt_acceptance: AcceptanceByBin,
    /// The draft being replayed: its grade, and how many of its tokens have matched.
    trying: Option<(usize, usize)>,
}

impl Index {
    /// Takes in new tokens, and replays drafts for the first `prompt` tokens. The work per token is bounded.
    fn extend(&mut self, tokens: &[u32], prompt: usize) {
        for end in self.length + 1..=tokens.len() {
            // The place that matched goes on as the sequence does: nothing can match better by more than a token.
            self.best = self.best.and_then(|best| self.go_on(best, &tokens[..end]));
            self.replay(self.best.is_some());
            if self.best.is_none_or(|(_, common)| common < ANCHOR) {
                let found = self.find(&tokens[..end]).or(self.best);
                let behind = self.behind_change(&tokens[..end]);
                self.best = behind.filter(|_| found.is_none_or(|(_, common)| common < ANCHOR)).or(found);
            }
            self.enter(&tokens[..end]);
            if end < prompt && self.trying.is_none() {
                let common = self.best.map_or(0, |(_, common)| common);
                self.trying = (common >= SHORTEST).then(|| (grade(common), 0));
            }
        }
        self.length = tokens.len();
    }

    /// The next token of the replayed draft matched, or did not.
    fn replay(&mut self, is_right: bool) {
        let Some((grade, right)) = self.trying.take() else { return };
        let accepted = right + usize::from(is_right);
        if is_right && accepted < POSITIONS {
            return self.trying = Some((grade, accepted));
        }
        for grade in [grade, ANY_BIN] {
            self.prompt_acceptance[grade].saw(right + 1, accepted, OWN_MEMORY);
        }
    }

    /// The place behind the last token, if that is what stands there or stood for it before.
    fn go_on(&mut self, (at, common): (usize, usize), tokens: &[u32]) -> Option<(usize, usize)> {
        let (there, last) = (tokens[at], tokens[tokens.len() - 1]);
        let (known, replacing) = (self.replaced.get(&there) == Some(&last), self.replacing.take());
        if !known {
            self.replaced.remove(&there);
        }
        if there != last && !known {
            if common >= COPIED {
                (self.left, self.replacing) = (Some((at, 0)), Some(at));
            }
            return None;
        }
        if let Some(other) = replacing.filter(|other| other + 1 == at) {
            self.replaced.insert(tokens[other], tokens[tokens.len() - 2]);
        }
        Some((at + 1, (common + 1).min(LONGEST)))
    }

    /// Where a copy may go on behind a change: as if so many tokens had been replaced by as many, unless the last token stands
    /// near, because fewer or more were. It counts as a place that has little in common, or just enough.
    fn behind_change(&mut self, tokens: &[u32]) -> Option<(usize, usize)> {
        let (at, since) = self.left.take().filter(|(_, since)| *since < NEAR)?;
        let (last, before) = tokens.split_last()?;
        if let Some(gap) = before[at..].iter().take(NEAR).position(|token| token == last) {
            return Some((at + gap + 1, ANCHOR));
        }
        self.left = Some((at, since + 1));
        Some((at + since + 1, SHORTEST)).filter(|(at, _)| *at < tokens.len())
    }

    /// The place before the end that has most in common with it; the latest of equals.
    fn find(&self, tokens: &[u32]) -> Option<(usize, usize)> {
        let mut best = tokens.last_chunk().and_then(|pair| self.pairs.get(pair)).map(|&at| (at as usize, 0));
        best = best.map(|(at, _)| (at, common(tokens, at)));
        let anchor = tokens.last_chunk().and_then(|anchor| self.anchors.get(anchor));
        let mut at = anchor.copied().unwrap_or(0) as usize;
        for _ in 0..LOOKED_AT {
            if at == 0 {
                break;
            }
            let common = common(tokens, at);
            if best.is_none_or(|(_, most)| common > most) {
                best = Some((at, common));
            }
            at = self.before[at] as usize;
        }
        best
    }

    /// Remembers the end as a place.
    fn enter(&mut self, tokens: &[u32]) {
        let end = tokens.len() as u32;
        self.before.resize(tokens.len() + 1, 0);
        if let Some(pair) = tokens.last_chunk() {
            self.pairs.insert(*pair, end);
        }
        if let Some(anchor) = tokens.last_chunk() {
            self.before[tokens.len()] = self.anchors.insert(*anchor, end).unwrap_or(0);
        }
    }

    /// What followed the best place: where that runs into the end, over and over.
    fn draft(&self, tokens: &[u32], depth: usize) -> Draft {
        let Some((at, common)) = self.best.filter(|(_, common)| *common >= SHORTEST) else {
            return Draft::default();
        };
        let period = tokens.len() - at;
        // Who has little in common soon goes another way.
        let depth = if common < ANCHOR { depth.min(ANCHOR) } else { depth };
        let stands = |token: u32| self.replaced.get(&token).copied().unwrap_or(token);
        let tokens = (0..depth).map(|i| stands(tokens[at + i % period])).collect();
        Draft { tokens, grade: grade(common) }
    }
}

/// Grade of a draft from a place with `common` tokens in common.
fn grade(common: usize) -> usize {
    BIN_STARTS.iter().rposition(|&from| common >= from).unwrap_or(0)
}

/// How many tokens before position `at` are those at the end.
fn common(tokens: &[u32], at: usize) -> usize {
    let backwards = tokens[..at].iter().rev().zip(tokens.iter().rev());
    backwards.take(LONGEST).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(tokens: &[u32], depth: usize) -> Vec<u32> {
        let mut index = Index::default();
        // In pieces, as a sequence grows.
        let piece = |end: usize| &tokens[..end.min(tokens.len())];
        (0..tokens.len() + 3).step_by(3).for_each(|end| index.extend(piece(end), 0));
        index.draft(tokens, depth).tokens
    }

    #[test]
    fn a_copy_goes_on_behind_a_change() {
        let source: Vec<u32> = (10..40).collect();
        let copied = |change: &[u32]| [&source, &source[..10], change].concat();
        assert_eq!(draft(&copied(&[]), 3), [20, 21, 22]);
        assert_eq!(draft(&copied(&[90]), 3), [21, 22, 23], "one for one");
        assert_eq!(draft(&copied(&[90, 91]), 3), [22, 23, 24], "two for two");
        assert_eq!(draft(&copied(&[90, 91, 21]), 3), [22, 23, 24], "two for one");
        assert_eq!(draft(&copied(&[90, 20]), 3), [21, 22, 23], "one more");
        assert_eq!(draft(&copied(&[23]), 3), [24, 25, 26], "some are left out");
        assert_eq!(draft(&copied(&[90; NEAR + 1]), 2), [90, 90], "something else begins");
        // Few tokens in common are no copy.
        assert_eq!(draft(&[&source, &source[..COPIED - 1], &[90]].concat(), 3), [0u32; 0]);
    }

    #[test]
    fn what_was_changed_in_a_copy_is_changed_again() {
        // A name, 7, that comes three times.
        let source: Vec<u32> =
            (10..20).chain([7, 21, 22, 7, 23, 24, 25, 26, 27, 28, 29, 30, 7, 31, 32]).collect();
        let copied = |rest: &[u32]| [&source, &source[..10], rest].concat();
        assert_eq!(draft(&copied(&[90]), 3), [21, 22, 7], "not known yet");
        assert_eq!(draft(&copied(&[90, 21]), 3), [22, 90, 23]);
        assert_eq!(draft(&copied(&[90, 21, 22, 90, 23, 24, 25, 26, 27, 28, 29]), 3), [30, 90, 31]);
        // Unless it was left as it is.
        assert_eq!(draft(&copied(&[90, 21, 22, 7, 23, 24, 25, 26, 27, 28, 29]), 3), [30, 7, 31]);
    }

    #[test]
    fn what_followed_the_longest_match_is_proposed() {
        assert_eq!(draft(&[], 3), [0u32; 0]);
        assert_eq!(draft(&[1, 2, 3, 4], 3), [0u32; 0], "nothing occurred before");
        assert_eq!(draft(&[7, 8, 9, 1, 2, 7, 8], 2), [9, 1]);
        // The later place has two tokens in common, the earlier one three.
        assert_eq!(draft(&[5, 7, 8, 1, 1, 6, 7, 8, 2, 2, 5, 7, 8], 2), [2, 2], "short ones: the latest");
        let long = [3, 4, 5, 7, 8, 1, 1, 6, 7, 8, 2, 2, 3, 4, 5, 7, 8];
        assert_eq!(draft(&long, 2), [1, 1], "long ones: the longest");
        let twice = [3, 4, 5, 7, 1, 1, 3, 4, 5, 7, 2, 2, 3, 4, 5, 7];
        assert_eq!(draft(&twice, 2), [2, 2], "of equals the latest");
    }

    #[test]
    fn a_loop_goes_on() {
        assert_eq!(draft(&[9, 1, 2, 3, 1, 2, 3, 1, 2, 3], 7), [1, 2, 3, 1, 2, 3, 1]);
        assert_eq!(draft(&[4, 4, 4, 4], 3), [4, 4, 4]);
    }

    #[test]
    fn prompt_replay_counts_drafts_and_matches() {
        // Replayed first tokens, and those that matched.
        let judged = |tokens: &[u32], prompt: usize| {
            let mut index = Index::default();
            index.extend(tokens, prompt);
            index.prompt_acceptance[ANY_BIN].first()
        };
        let part: Vec<u32> = (10..40).collect();
        let thrice = [&part[..], &part, &part].concat();
        assert_eq!(judged(&part, 30), (0.0, 0.0), "nothing is repeated");
        let (drafts, right) = judged(&thrice, 90);
        assert!(drafts > 4.0 && right == drafts, "{right} of {drafts}");
        assert_eq!(judged(&thrice, 0), (0.0, 0.0), "generated tokens are not replayed");
        // The same pair is followed by another token each time.
        let pairs: Vec<u32> = (0..20).flat_map(|i| [1, 2, 100 + i]).collect();
        let (drafts, right) = judged(&pairs, 60);
        assert!(drafts > 4.0 && right == 0.0, "{right} of {drafts}");
    }

    #[test]
    fn a_long_match_has_a_better_grade() {
        let text: Vec<u32> = (0..100).collect();
        let grade = |common: usize| {
            let tokens = [&text[..], &[200], &text[40..40 + common]].concat();
            let mut index = Index::default();
            index.extend(&tokens, 0);
            let draft = index.draft(&tokens, 1);
            assert_eq!(draft.tokens, [40 + common as u32]);
            draft.grade
        };
        assert_eq!([2, 3, 5, 6, 13, 40].map(grade), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn what_a_table_knows_comes_where_the_sequence_knows_less() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("table");
        let mut builder = super::super::ngram_table::Builder::new(&path, 2, 1).expect("begins");
        for _ in 0..50 {
            builder.add(&[1, 2, 3, 4]).expect("added");
            builder.end_text();
        }
        // What follows 7 is a matter of chance.
        for next in 0..40 {
            builder.add(&[7, 50 + next]).expect("added");
            builder.end_text();
        }
        builder.finish("a tokenizer", "a model").expect("written");
        let table = NgramTable::open(&path, "a tokenizer", "a model").expect("opens");
        let mut ngram = NgramDrafter::new(Some(Arc::new(table)));
        let mut next = 0;
        let mut draft = |tokens: &[u32], depth: usize| {
            next += 1;
            let sampling = Default::default();
            let asked = DraftRequest {
                sequence: next,
                tokens,
                prompt: 1,
                depth,
                sampling: &sampling,
                constraint: None,
            };
            ngram.propose(&[asked]).expect("drafts").remove(0)
        };
        assert_eq!(draft(&[9, 1], 8), Draft { tokens: vec![2, 3, 4], grade: 5 }, "as far as it knows");
        assert_eq!(draft(&[9, 1], 2).tokens, [2, 3]);
        assert_eq!(draft(&[9, 7], 8).tokens, [0u32; 0], "not sure enough");
        assert_eq!(draft(&[9, 9], 8).tokens, [0u32; 0], "never seen");
        assert_eq!(
            draft(&[8, 1, 30, 8, 1], 2).tokens,
            [2, 3],
            "two tokens in common say less than the table"
        );
        let long: Vec<u32> = (100..130).chain([1]).collect();
        let again = [&long[..], &[31, 32], &long].concat();
        assert_eq!(draft(&again, 2).tokens, [31, 32], "a long place in the sequence itself says more");
    }
}
