//! Drafts by the model itself with some of its layers left out ([`Profile`]), on the sequence's own keys, values and
//! states, which are as they were when the draft is done. A draft ends early where it has become unlikely.
//!
//! References: Zhang et al., "Draft & Verify" (2023); Xia et al., "SWIFT" (2024).

use std::{path::PathBuf, rc::Rc};

use mlx::{Array, Dtype};

use super::layer_profile::{LayerProfile, LayerProfiler, default_skipped};
use crate::{
    batch::{Batch, Part},
    cache::Lent,
    models::Model,
    sample::{Sampler, guess, probabilities},
    speculate::{CONFIDENCE_BINS, Draft, DraftRequest, Drafter},
};

/// How users name it.
pub const NAME: &str = "self";
/// Mean likelihood of a draft's tokens, in the model's own eyes, from which each grade begins.
const BIN_STARTS: [f64; CONFIDENCE_BINS] = [0.0, 0.3, 0.5, 0.7, 0.85, 0.95];

pub struct LayerSkip {
    model: Rc<dyn Model>,
    skipped: Vec<usize>,
    /// A draft goes on while it is at least so likely.
    least: f64,
    /// Where the profile is kept, if anywhere.
    file: Option<PathBuf>,
    /// What it is measured on.
    text: Vec<u32>,
    measured: bool,
    /// The measurement in progress.
    meter: Option<LayerProfiler>,
}

/// A sequence and its draft.
struct SkipRow<'a> {
    asked: &'a DraftRequest<'a>,
    caches: Lent<'a>,
    sampler: Sampler,
    tokens: Vec<u32>,
    /// That all of it is right, in the model's own eyes.
    likely: f64,
}

impl LayerSkip {
    /// With the profile in `file`, if there is one; `None` of a model that has no layers to spare.
    pub fn new(model: Rc<dyn Model>, file: Option<PathBuf>) -> Option<LayerSkip> {
        let layers = model.layers();
        if layers < 3 {
            return None;
        }
        let known = file.as_ref().and_then(|file| LayerProfile::open(file, layers));
        let skipped = known.as_ref().map_or_else(|| default_skipped(layers), LayerProfile::skipped);
        let mut layer_skip = LayerSkip {
            model,
            skipped,
            least: 0.0,
            file,
            text: vec![],
            measured: known.is_some(),
            meter: None,
        };
        // Another token costs so much, and brings a step's worth if all before it is right.
        layer_skip.least = layer_skip.relative_cost();
        Some(layer_skip)
    }

    /// Without these layers, in drafts at least so likely.
    #[cfg(test)]
    pub fn without(model: Rc<dyn Model>, skipped: Vec<usize>, least: f64) -> LayerSkip {
        LayerSkip { model, skipped, least, file: None, text: vec![], measured: true, meter: None }
    }

    #[cfg(test)]
    pub fn skipped(&self) -> &[usize] {
        &self.skipped
    }
}

impl Drafter for LayerSkip {
    fn name(&self) -> &'static str {
        NAME
    }

    fn prior(&self) -> [f64; CONFIDENCE_BINS] {
        [0.3, 0.4, 0.5, 0.65, 0.8, 0.9]
    }

    fn relative_cost(&self) -> f64 {
        1.0 - self.skipped.len() as f64 / self.model.layers() as f64
    }

    fn skippable_layers(&mut self) -> Option<&[usize]> {
        self.begin_measuring();
        self.meter.is_none().then_some(&*self.skipped)
    }

    fn is_measuring(&self) -> bool {
        self.meter.is_some()
    }

    fn measure(&mut self) -> mlx::Result<()> {
        let Some(mut meter) = self.meter.take() else { return Ok(()) };
        match meter.slice()? {
            None => self.meter = Some(meter),
            Some(profile) => self.know(&profile),
        }
        Ok(())
    }

    fn uses_target_cache(&self) -> bool {
        true
    }

    fn read(&mut self, text: &[u32]) {
        self.text = text.to_vec();
    }

    fn is_ready(&self) -> bool {
        self.measured && self.meter.is_none()
    }

    /// Nothing without the sequences' caches.
    fn propose(&mut self, asked: &[DraftRequest]) -> mlx::Result<Vec<Draft>> {
        Ok(vec![Draft::default(); asked.len()])
    }

    fn propose_on(&mut self, asked: &[DraftRequest], caches: Vec<Lent>) -> mlx::Result<Vec<Draft>> {
        self.begin_measuring();
        if self.is_measuring() {
            // Requests do not wait for the profile: until it is measured they decode without drafts.
            return Ok(vec![Draft::default(); asked.len()]);
        }
        let vocab_size = self.model.vocab_size();
        let row = |(asked, caches)| SkipRow::new(asked, caches, vocab_size);
        let mut rows: Vec<SkipRow> = asked.iter().zip(caches).map(row).collect();
        loop {
            let mut going: Vec<&mut SkipRow> =
                rows.iter_mut().filter(|row| row.goes_on(self.least)).collect();
            if going.is_empty() {
                return Ok(rows.into_iter().map(SkipRow::draft).collect());
            }
            let (chosen, likely) = self.step(&mut going)?;
            for (row, (token, likely)) in going.into_iter().zip(chosen.into_iter().zip(likely)) {
                row.tokens.push(token);
                row.likely *= f64::from(likely);
            }
        }
    }
}

impl LayerSkip {
    /// Starts to measure the profile if there is none and there is a text to measure it on. A failed measurement is not repeated.
    fn begin_measuring(&mut self) {
        if !self.measured && self.text.len() >= 2 {
            self.measured = true;
            self.meter = Some(LayerProfiler::new(self.model.clone(), std::mem::take(&mut self.text)));
        }
    }

    fn know(&mut self, profile: &LayerProfile) {
        self.skipped = profile.skipped();
        self.least = self.relative_cost();
        tracing::debug!("`self` drafts without layers {:?}: {profile:?}", self.skipped);
        if let Some(Err(error)) = self.file.as_ref().map(|file| profile.save(file)) {
            tracing::warn!("the profile of layers cannot be kept: {error}");
        }
    }

    /// Another token for each row, and how likely the model thinks it.
    fn step(&self, rows: &mut [&mut SkipRow]) -> mlx::Result<(Vec<u32>, Vec<f32>)> {
        let tokens: Vec<u32> = rows.iter().map(|row| row.last()).collect();
        let mut batch = Batch::new(rows.iter_mut().map(|row| {
            let past = row.position() - 1;
            Part { tokens: 1, ahead: 0, past, caches: &mut row.caches }
        }));
        batch.leave_out(&self.skipped);
        let hidden = self.model.forward(&Array::from_slice(&tokens, &[tokens.len() as i32]), &mut batch);
        drop(batch);
        let logits = self.model.logits(&hidden).astype(Dtype::Float32);
        let own = rows.iter_mut().map(|row| {
            let position = row.position();
            (&mut row.sampler, position..position + 1)
        });
        let chosen = guess(&logits, own);
        let likely = probabilities(&logits, &chosen);
        mlx::eval([&chosen, &likely])?;
        Ok((chosen.to_vec()?, likely.to_vec()?))
    }
}

impl<'a> SkipRow<'a> {
    fn new(asked: &'a DraftRequest<'a>, caches: Lent<'a>, vocab_size: usize) -> SkipRow<'a> {
        let (prompt, generated) = asked.tokens.split_at(asked.prompt);
        let sampler = Sampler::new(asked.sampling, vocab_size, prompt, generated);
        SkipRow { asked, caches, sampler, tokens: vec![], likely: 1.0 }
    }

    /// The first token of a draft is there to be verified whatever it is: it has been paid for.
    fn goes_on(&self, least: f64) -> bool {
        self.tokens.len() < self.asked.depth && (self.tokens.is_empty() || self.likely >= least)
    }

    fn last(&self) -> u32 {
        *self.tokens.last().unwrap_or(&self.asked.tokens[self.asked.tokens.len() - 1])
    }

    /// Of the token to come.
    fn position(&self) -> usize {
        self.asked.tokens.len() + self.tokens.len()
    }

    fn draft(self) -> Draft {
        let mean = self.likely.powf(1.0 / self.tokens.len().max(1) as f64);
        let grade = BIN_STARTS.iter().rposition(|&from| mean >= from).unwrap_or(0);
        Draft { tokens: self.tokens, grade }
    }
}
