//! Drafts by the model itself with some of its layers left out ([`Profile`]), on the sequence's own keys, values and
//! states, which are as they were when the draft is done. A draft ends early where it has become unlikely.
//!
//! References: Zhang et al., "Draft & Verify" (2023); Xia et al., "SWIFT" (2024).

use std::{path::PathBuf, rc::Rc};

use mlx::{Array, Dtype};

use super::layer_profile::{Profile, ProfileMeter, unmeasured};
use crate::{
    batch::{Batch, Part},
    cache::Lent,
    models::Model,
    sample::{Sampler, guess, probabilities},
    speculate::{Asked, Draft, Drafter, GRADES},
};

/// How users name it.
pub const NAME: &str = "self";
/// Mean likelihood of a draft's tokens, in the model's own eyes, from which each grade begins.
const GRADE_FROM: [f64; GRADES] = [0.0, 0.3, 0.5, 0.7, 0.85, 0.95];

pub struct Itself {
    model: Rc<dyn Model>,
    left_out: Vec<usize>,
    /// A draft goes on while it is at least so likely.
    least: f64,
    /// Where the profile is kept, if anywhere.
    file: Option<PathBuf>,
    /// What it is measured on.
    text: Vec<u32>,
    measured: bool,
    /// The measurement in progress.
    meter: Option<ProfileMeter>,
}

/// A sequence and its draft.
struct Row<'a> {
    asked: &'a Asked<'a>,
    caches: Lent<'a>,
    sampler: Sampler,
    tokens: Vec<u32>,
    /// That all of it is right, in the model's own eyes.
    likely: f64,
}

impl Itself {
    /// With the profile in `file`, if there is one; `None` of a model that has no layers to spare.
    pub fn new(model: Rc<dyn Model>, file: Option<PathBuf>) -> Option<Itself> {
        let layers = model.layers();
        if layers < 3 {
            return None;
        }
        let known = file.as_ref().and_then(|file| Profile::open(file, layers));
        let left_out = known.as_ref().map_or_else(|| unmeasured(layers), Profile::left_out);
        let mut itself = Itself {
            model,
            left_out,
            least: 0.0,
            file,
            text: vec![],
            measured: known.is_some(),
            meter: None,
        };
        // Another token costs so much, and brings a step's worth if all before it is right.
        itself.least = itself.share();
        Some(itself)
    }

    /// Without these layers, in drafts at least so likely.
    #[cfg(test)]
    pub fn without(model: Rc<dyn Model>, left_out: Vec<usize>, least: f64) -> Itself {
        Itself { model, left_out, least, file: None, text: vec![], measured: true, meter: None }
    }

    #[cfg(test)]
    pub fn left_out(&self) -> &[usize] {
        &self.left_out
    }
}

impl Drafter for Itself {
    fn name(&self) -> &'static str {
        NAME
    }

    fn believed(&self) -> [f64; GRADES] {
        [0.3, 0.4, 0.5, 0.65, 0.8, 0.9]
    }

    fn share(&self) -> f64 {
        1.0 - self.left_out.len() as f64 / self.model.layers() as f64
    }

    fn spared(&mut self) -> Option<&[usize]> {
        self.begin_measuring();
        self.meter.is_none().then_some(&*self.left_out)
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

    fn borrows(&self) -> bool {
        true
    }

    fn read(&mut self, text: &[u32]) {
        self.text = text.to_vec();
    }

    fn is_ready(&self) -> bool {
        self.measured && self.meter.is_none()
    }

    /// Nothing without the sequences' caches.
    fn propose(&mut self, asked: &[Asked]) -> mlx::Result<Vec<Draft>> {
        Ok(vec![Draft::default(); asked.len()])
    }

    fn propose_on(&mut self, asked: &[Asked], caches: Vec<Lent>) -> mlx::Result<Vec<Draft>> {
        self.begin_measuring();
        if self.is_measuring() {
            // Requests do not wait for the profile: until it is measured they decode without drafts.
            return Ok(vec![Draft::default(); asked.len()]);
        }
        let vocab_size = self.model.vocab_size();
        let row = |(asked, caches)| Row::new(asked, caches, vocab_size);
        let mut rows: Vec<Row> = asked.iter().zip(caches).map(row).collect();
        loop {
            let mut going: Vec<&mut Row> = rows.iter_mut().filter(|row| row.goes_on(self.least)).collect();
            if going.is_empty() {
                return Ok(rows.into_iter().map(Row::draft).collect());
            }
            let (chosen, likely) = self.step(&mut going)?;
            for (row, (token, likely)) in going.into_iter().zip(chosen.into_iter().zip(likely)) {
                row.tokens.push(token);
                row.likely *= f64::from(likely);
            }
        }
    }
}

impl Itself {
    /// Starts to measure the profile if there is none and there is a text to measure it on. A failed measurement is not repeated.
    fn begin_measuring(&mut self) {
        if !self.measured && self.text.len() >= 2 {
            self.measured = true;
            self.meter = Some(ProfileMeter::new(self.model.clone(), std::mem::take(&mut self.text)));
        }
    }

    fn know(&mut self, profile: &Profile) {
        self.left_out = profile.left_out();
        self.least = self.share();
        tracing::debug!("`self` drafts without layers {:?}: {profile:?}", self.left_out);
        if let Some(Err(error)) = self.file.as_ref().map(|file| profile.save(file)) {
            tracing::warn!("the profile of layers cannot be kept: {error}");
        }
    }

    /// Another token for each row, and how likely the model thinks it.
    fn step(&self, rows: &mut [&mut Row]) -> mlx::Result<(Vec<u32>, Vec<f32>)> {
        let tokens: Vec<u32> = rows.iter().map(|row| row.last()).collect();
        let mut batch = Batch::new(rows.iter_mut().map(|row| {
            let past = row.position() - 1;
            Part { tokens: 1, ahead: 0, past, caches: &mut row.caches }
        }));
        batch.leave_out(&self.left_out);
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

impl<'a> Row<'a> {
    fn new(asked: &'a Asked<'a>, caches: Lent<'a>, vocab_size: usize) -> Row<'a> {
        let (prompt, generated) = asked.tokens.split_at(asked.prompt);
        let sampler = Sampler::new(asked.sampling, vocab_size, prompt, generated);
        Row { asked, caches, sampler, tokens: vec![], likely: 1.0 }
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
        let grade = GRADE_FROM.iter().rposition(|&from| mean >= from).unwrap_or(0);
        Draft { tokens: self.tokens, grade }
    }
}
