//! Drafts by the model itself without its least important layers ([`LayerProfile`]), on the
//! sequence's own caches, which are restored afterwards. A draft ends early where it becomes
//! unlikely.
//!
//! References: Zhang et al., "Draft & Verify" (2023); Xia et al., "SWIFT" (2024).

use std::{path::PathBuf, rc::Rc};

use mlx::{Array, Dtype};

use super::{
    layer_profile::{LayerProfile, LayerProfiler, default_skipped},
    rows::sampler,
};
use crate::{
    batch::{Batch, BatchRow},
    models::Model,
    sample::{Sampler, guess, probabilities},
    speculate::{
        acceptance::CONFIDENCE_BINS,
        drafter::{Calibrated, Draft, DraftRequest, Drafter, DrafterInfo, LayerSelection},
    },
};

/// Name of the drafter.
pub(crate) const LAYER_SKIP: &str = "self";
/// Minimum mean probability of a draft's tokens, by the skipping model, for each confidence bin.
const BIN_STARTS: [f64; CONFIDENCE_BINS] = [0.0, 0.3, 0.5, 0.7, 0.85, 0.95];
const PRIOR: [f64; CONFIDENCE_BINS] = [0.3, 0.4, 0.5, 0.65, 0.8, 0.9];

pub(crate) struct LayerSkip {
    model: Rc<dyn Model>,
    skipped: Vec<usize>,
    /// A draft grows while its probability is at least this.
    min_probability: f64,
    /// Where the profile is saved, if anywhere.
    file: Option<PathBuf>,
    calibration_text: Vec<u32>,
    /// Whether the profile is known or was measured once.
    is_profiled: bool,
    /// The measurement in progress.
    profiler: Option<LayerProfiler>,
}

/// A sequence and its draft.
struct SkipRow<'a, 'b> {
    request: &'a mut DraftRequest<'b>,
    sampler: Sampler,
    tokens: Vec<u32>,
    /// Probability of the whole draft, by the skipping model.
    probability: f64,
}

impl LayerSkip {
    /// With the profile in `file`, if there is one; `None` for a model without layers to skip.
    pub(crate) fn new(model: Rc<dyn Model>, file: Option<PathBuf>) -> Option<LayerSkip> {
        let layers = model.layers();
        if layers < 3 {
            return None;
        }
        let known = file.as_ref().and_then(|file| LayerProfile::open(file, layers));
        let mut layer_skip = LayerSkip {
            model,
            skipped: known.as_ref().map_or_else(|| default_skipped(layers), LayerProfile::skipped),
            min_probability: 0.0,
            file,
            calibration_text: vec![],
            is_profiled: known.is_some(),
            profiler: None,
        };
        layer_skip.min_probability = layer_skip.relative_cost();
        Some(layer_skip)
    }

    /// Skips these layers; drafts end below this probability.
    #[cfg(test)]
    pub(crate) fn without(model: Rc<dyn Model>, skipped: Vec<usize>, min_probability: f64) -> LayerSkip {
        LayerSkip {
            model,
            skipped,
            min_probability,
            file: None,
            calibration_text: vec![],
            is_profiled: true,
            profiler: None,
        }
    }

    #[cfg(test)]
    pub(crate) fn skipped(&self) -> &[usize] {
        &self.skipped
    }

    /// Cost of a drafted token relative to a plain step. Another token costs this much and saves a
    /// step if all before it are accepted, so this is also the minimum probability at which it
    /// pays.
    fn relative_cost(&self) -> f64 {
        1.0 - self.skipped.len() as f64 / self.model.layers() as f64
    }

    /// Starts to measure the profile if there is none and there is a text to measure it on. A
    /// failed measurement is not repeated.
    fn start_profiling(&mut self) {
        if !self.is_profiled && self.calibration_text.len() >= 2 {
            self.is_profiled = true;
            let text = std::mem::take(&mut self.calibration_text);
            self.profiler = Some(LayerProfiler::new(self.model.clone(), text));
        }
    }

    fn set_profile(&mut self, profile: &LayerProfile) {
        self.skipped = profile.skipped();
        self.min_probability = self.relative_cost();
        tracing::debug!("`self` drafts without layers {:?}: {profile:?}", self.skipped);
        if let Some(Err(error)) = self.file.as_ref().map(|file| profile.save(file)) {
            tracing::warn!("the layer profile cannot be saved: {error}");
        }
    }

    /// Another token for each row, and its probability.
    fn step(&self, rows: &mut [&mut SkipRow]) -> mlx::Result<(Vec<u32>, Vec<f32>)> {
        let tokens: Vec<u32> = rows.iter().map(|row| row.last()).collect();
        let parts = rows.iter_mut().filter_map(|row| {
            let past = row.position() - 1;
            Some(BatchRow {
                num_tokens: 1,
                num_draft: 0,
                num_computed: past,
                caches: row.request.target_cache.as_deref_mut()?,
            })
        });
        let mut batch = Batch::new(parts);
        batch.skip_layers(&self.skipped);
        let hidden = self.model.forward(&Array::from_slice(&tokens, &[tokens.len() as i32]), &mut batch);
        drop(batch);
        let logits = self.model.logits(&hidden).astype(Dtype::Float32);
        let own = rows.iter_mut().map(|row| {
            let position = row.position();
            (&mut row.sampler, position..position + 1)
        });
        let chosen = guess(&logits, own);
        let probabilities = probabilities(&logits, &chosen);
        mlx::eval([&chosen, &probabilities])?;
        Ok((chosen.to_vec()?, probabilities.to_vec()?))
    }
}

impl Drafter for LayerSkip {
    fn info(&self) -> DrafterInfo {
        DrafterInfo {
            prior: PRIOR,
            relative_cost: self.relative_cost(),
            uses_target_cache: true,
            ..DrafterInfo::new(LAYER_SKIP)
        }
    }

    fn propose(&mut self, requests: &mut [DraftRequest]) -> mlx::Result<Vec<Draft>> {
        self.start_profiling();
        let has_caches = requests.iter().all(|request| request.target_cache.is_some());
        if self.is_measuring() || !has_caches {
            // Requests do not wait for the profile: until it is measured they decode without
            // drafts.
            return Ok(vec![Draft::default(); requests.len()]);
        }
        let vocab_size = self.model.vocab_size();
        let mut rows: Vec<SkipRow> =
            requests.iter_mut().map(|request| SkipRow::new(request, vocab_size)).collect();
        loop {
            let mut growing: Vec<&mut SkipRow> =
                rows.iter_mut().filter(|row| row.grows(self.min_probability)).collect();
            if growing.is_empty() {
                return Ok(rows.into_iter().map(SkipRow::into_draft).collect());
            }
            let (chosen, probabilities) = self.step(&mut growing)?;
            for (row, (token, probability)) in growing.into_iter().zip(chosen.into_iter().zip(probabilities))
            {
                row.tokens.push(token);
                row.probability *= f64::from(probability);
            }
        }
    }

    fn calibrated(&mut self) -> Option<&mut dyn Calibrated> {
        Some(self)
    }

    fn layer_selection(&mut self) -> Option<&mut dyn LayerSelection> {
        Some(self)
    }
}

impl Calibrated for LayerSkip {
    fn is_measuring(&self) -> bool {
        self.profiler.is_some()
    }

    fn measure(&mut self) -> mlx::Result<()> {
        let Some(mut profiler) = self.profiler.take() else { return Ok(()) };
        match profiler.slice()? {
            None => self.profiler = Some(profiler),
            Some(profile) => self.set_profile(&profile),
        }
        Ok(())
    }

    fn is_ready(&self) -> bool {
        self.is_profiled && self.profiler.is_none()
    }
}

impl LayerSelection for LayerSkip {
    fn set_calibration_text(&mut self, text: &[u32]) {
        self.calibration_text = text.to_vec();
    }

    fn skippable_layers(&mut self) -> Option<&[usize]> {
        self.start_profiling();
        self.profiler.is_none().then_some(&*self.skipped)
    }
}

impl<'a, 'b> SkipRow<'a, 'b> {
    fn new(request: &'a mut DraftRequest<'b>, vocab_size: usize) -> SkipRow<'a, 'b> {
        let sampler = sampler(request, vocab_size);
        SkipRow { request, sampler, tokens: vec![], probability: 1.0 }
    }

    /// Whether the draft gets another token. The first one is always drafted: its verification is
    /// already paid for.
    fn grows(&self, min_probability: f64) -> bool {
        self.tokens.len() < self.request.depth
            && (self.tokens.is_empty() || self.probability >= min_probability)
    }

    fn last(&self) -> u32 {
        *self.tokens.last().unwrap_or(&self.request.tokens[self.request.tokens.len() - 1])
    }

    /// Position of the next token.
    fn position(&self) -> usize {
        self.request.tokens.len() + self.tokens.len()
    }

    fn into_draft(self) -> Draft {
        let mean = self.probability.powf(1.0 / self.tokens.len().max(1) as f64);
        let confidence_bin = BIN_STARTS.iter().rposition(|&start| mean >= start).unwrap_or(0);
        Draft { tokens: self.tokens, confidence_bin }
    }
}
