//! Prompt lookup: drafts what followed the last time that prompt and output ended as they do now
//! (Saxena, "Prompt Lookup Decoding", 2023), or the continuation in an n-gram table if that is more
//! confident. Reads token ids alone.

use std::sync::Arc;

use super::ngram_index::NgramIndex;
use crate::api::ngram_table::NgramTable;
use crate::speculate::{
    acceptance::{AcceptanceByBin, CONFIDENCE_BINS},
    drafter::{Draft, DraftRequest, Drafter, DrafterInfo, DrafterState, PromptReplay},
};

/// Acceptance by confidence bin, measured on prose; the confidence of a table has the same bins.
const PRIOR: [f64; CONFIDENCE_BINS] = [0.3, 0.4, 0.5, 0.65, 0.85, 0.93];
/// A draft from a table ends where the probability of all of it is less than this.
const MIN_PROBABILITY: f32 = 0.3;

pub(crate) struct NgramDrafter {
    table: Option<Arc<NgramTable>>,
}

impl NgramDrafter {
    pub(crate) fn new(table: Option<Arc<NgramTable>>) -> NgramDrafter {
        NgramDrafter { table }
    }

    fn draft(&self, request: &mut DraftRequest) -> Draft {
        let DraftRequest { tokens, prompt, depth, .. } = *request;
        let index = request.state.get_or_insert_with(NgramIndex::default);
        index.extend(tokens, prompt);
        let own = index.draft(tokens, depth);
        let from_table = self.table.as_ref().map(|table| draft_from_table(table, tokens, depth));
        match from_table.filter(|draft| !draft.tokens.is_empty()) {
            Some(draft) if own.tokens.is_empty() || draft.confidence_bin > own.confidence_bin => draft,
            _ => own,
        }
    }
}

impl Drafter for NgramDrafter {
    fn info(&self) -> DrafterInfo {
        DrafterInfo { is_free: true, prior: PRIOR, ..DrafterInfo::new("ngram") }
    }

    fn propose(&mut self, requests: &mut [DraftRequest]) -> mlx::Result<Vec<Draft>> {
        Ok(requests.iter_mut().map(|request| self.draft(request)).collect())
    }

    fn prompt_replay(&self) -> Option<&dyn PromptReplay> {
        Some(self)
    }
}

impl PromptReplay for NgramDrafter {
    fn acceptance<'a>(&self, state: &'a DrafterState) -> Option<&'a AcceptanceByBin> {
        state.get().map(NgramIndex::prompt_acceptance)
    }
}

/// The confidence of the draft is that of its first token.
fn draft_from_table(table: &NgramTable, tokens: &[u32], depth: usize) -> Draft {
    let mut context = tokens[tokens.len().saturating_sub(table.info.order)..].to_vec();
    let (known, mut probability, mut confidence_bin) = (context.len(), 1.0, 0);
    while context.len() < known + depth {
        let Some((token, confidence)) = table.next(&context) else { break };
        probability *= confidence;
        if probability < MIN_PROBABILITY {
            break;
        }
        if context.len() == known {
            let bin = PRIOR.iter().rposition(|&from| f64::from(confidence) >= from);
            confidence_bin = bin.unwrap_or(0);
        }
        context.push(token);
    }
    Draft { tokens: context.split_off(known), confidence_bin }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_drafts_where_the_sequence_has_no_better_match() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("table");
        let mut builder = crate::api::ngram_table::Builder::new(&path, 2, 1).expect("begins");
        for _ in 0..50 {
            builder.add(&[1, 2, 3, 4]).expect("added");
            builder.end_text();
        }
        // The token after 7 is random.
        for next in 0..40 {
            builder.add(&[7, 50 + next]).expect("added");
            builder.end_text();
        }
        builder.finish("a tokenizer", "a model").expect("written");
        let table = NgramTable::open(&path, "a tokenizer", "a model").expect("opens");
        let mut ngram = NgramDrafter::new(Some(Arc::new(table)));
        let mut draft = |tokens: &[u32], depth: usize| {
            let (sampling, mut state) = Default::default();
            let request = DraftRequest::new(tokens, 1, depth, &sampling, &mut state);
            ngram.propose(&mut [request]).expect("drafts").remove(0)
        };
        assert_eq!(
            draft(&[9, 1], 8),
            Draft { tokens: vec![2, 3, 4], confidence_bin: 5 },
            "to the end of the context"
        );
        assert_eq!(draft(&[9, 1], 2).tokens, [2, 3]);
        assert_eq!(draft(&[9, 7], 8).tokens, [0u32; 0], "not confident enough");
        assert_eq!(draft(&[9, 9], 8).tokens, [0u32; 0], "not in the table");
        assert_eq!(
            draft(&[8, 1, 30, 8, 1], 2).tokens,
            [2, 3],
            "a match of two tokens says less than the table"
        );
        let long: Vec<u32> = (100..130).chain([1]).collect();
        let again = [&long[..], &[31, 32], &long].concat();
        assert_eq!(draft(&again, 2).tokens, [31, 32], "a long match in the sequence says more");
    }
}
