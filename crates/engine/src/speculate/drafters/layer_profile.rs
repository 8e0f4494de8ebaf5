//! The layer profile of a model: how little each layer changes the residual stream, measured on a
//! short text and saved in a file. It decides how good drafts are, never an answer.

use std::{io::Write, path::Path, rc::Rc};

use mlx::{Array, Dtype};
use serde::{Deserialize, Serialize};

use crate::{
    batch::{Batch, BatchRow},
    cache::Cache,
    models::Model,
    prefix::write_atomic,
    speculate::calibration::SliceSizer,
};

/// Numbers of skipped layers that are tried, in eighths of all layers.
const TRIED: [usize; 4] = [1, 2, 3, 4];
/// Assumed cost of verifying another token, relative to a plain step, when trials are compared.
const VERIFICATION_COST: f64 = 0.1;
/// Maximum tokens of a draft when trials are compared.
const DEPTH: i32 = 8;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LayerProfile {
    /// For each layer but the first: mean cosine similarity of the residual stream before and after
    /// it.
    similarity: Vec<f32>,
    /// Number of skipped layers, the least important ones first, and how often the others picked
    /// the whole model's token.
    trials: Vec<(usize, f64)>,
}

impl LayerProfile {
    /// Reads a file; `None` if it is not the profile of a model with `layers` layers.
    pub(crate) fn open(path: &Path, layers: usize) -> Option<LayerProfile> {
        let profile: LayerProfile = serde_json::from_slice(&files::read(path, files::SETTINGS).ok()?).ok()?;
        let is_valid = profile.similarity.len() + 1 == layers
            && profile.similarity.iter().all(|x| x.abs() <= 1.01)
            && !profile.trials.is_empty()
            && profile.trials.iter().all(|&(count, agreement)| {
                (1..=layers.saturating_sub(2)).contains(&count) && (0.0..=1.0).contains(&agreement)
            });
        is_valid.then_some(profile)
    }

    /// # Errors
    /// The file cannot be written; no partial file is left.
    pub(crate) fn save(&self, path: &Path) -> std::io::Result<()> {
        let text = serde_json::to_vec(self)?;
        write_atomic(path, |file| file.write_all(&text))
    }

    /// The layers without which drafts are expected to be fastest, ascending.
    pub(crate) fn skipped(&self) -> Vec<usize> {
        let layers = (self.similarity.len() + 1) as f64;
        let speed = |&(count, agreement): &(usize, f64)| {
            let relative_cost = 1.0 - count as f64 / layers;
            let at = |depth: i32| {
                let tokens: f64 = (0..=depth).map(|position| agreement.powi(position)).sum();
                tokens / (1.0 + (relative_cost + VERIFICATION_COST) * f64::from(depth))
            };
            (1..=DEPTH).map(at).fold(0.0, f64::max)
        };
        let best = self.trials.iter().max_by(|a, b| speed(a).total_cmp(&speed(b)));
        best.map_or(vec![], |&(count, _)| self.least_important(count))
    }

    /// The `count` layers that change the stream least, without the first and the last; ascending.
    fn least_important(&self, count: usize) -> Vec<usize> {
        let layers = self.similarity.len() + 1;
        let mut inner: Vec<usize> = (1..layers - 1).collect();
        inner.sort_by(|a, b| self.similarity[b - 1].total_cmp(&self.similarity[a - 1]));
        inner.truncate(count);
        inner.sort();
        inner
    }
}

/// The layers to skip before a profile is measured.
pub(crate) fn default_skipped(layers: usize) -> Vec<usize> {
    (1..layers.saturating_sub(1)).skip(1).step_by(2).collect()
}

/// Measures the profile of a model in slices: a pass with all layers, then one for each number of
/// skipped layers.
pub(crate) struct LayerProfiler {
    model: Rc<dyn Model>,
    text: Vec<u32>,
    slices: SliceSizer,
    caches: Vec<Cache>,
    /// Tokens picked in this pass so far; as many tokens of the text are in the caches.
    picked: Vec<u32>,
    /// Tokens picked with all layers, once that pass is done.
    expected: Option<Vec<u32>>,
    /// For each layer but the first: sum of similarities so far.
    similarity_sums: Vec<f64>,
    /// Numbers of skipped layers still to be tried.
    counts: Vec<usize>,
    profile: LayerProfile,
}

impl LayerProfiler {
    /// For a model with at least three layers, on a text of at least two tokens.
    pub(crate) fn new(model: Rc<dyn Model>, text: Vec<u32>) -> LayerProfiler {
        let layers = model.layers();
        let mut counts = TRIED.map(|eighths| (layers * eighths / 8).clamp(1, layers - 2)).to_vec();
        counts.dedup();
        counts.reverse();
        LayerProfiler {
            caches: model.make_caches(),
            slices: SliceSizer::default(),
            picked: vec![],
            expected: None,
            similarity_sums: vec![0.0; layers - 1],
            counts,
            profile: LayerProfile { similarity: vec![], trials: vec![] },
            model,
            text,
        }
    }

    /// Computes the next slice; returns the profile after the last one.
    ///
    /// # Errors
    /// Computing it failed.
    #[track_caller]
    pub(crate) fn slice(&mut self) -> mlx::Result<Option<LayerProfile>> {
        let at = self.picked.len();
        let n = self.slices.next(self.text.len() - at);
        let text = &self.text[at..at + n];
        let skipped = match (&self.expected, self.counts.last()) {
            (Some(_), Some(&count)) => self.profile.least_important(count),
            _ => vec![],
        };
        let (model, caches) = (&*self.model, &mut self.caches[..]);
        let (picked, streams) = self.slices.time(n, || run(model, caches, at, text, &skipped))?;
        self.picked.extend(picked);
        for (sum, pair) in self.similarity_sums.iter_mut().zip(streams.windows(2)) {
            *sum = add_similarities(*sum, &pair[0], &pair[1], n);
        }
        if self.picked.len() < self.text.len() {
            return Ok(None);
        }
        self.finish_pass();
        Ok(self.counts.is_empty().then(|| self.profile.clone()))
    }

    fn finish_pass(&mut self) {
        let tokens = self.text.len() as f64;
        let picked = std::mem::take(&mut self.picked);
        self.caches = self.model.make_caches();
        let Some(expected) = &self.expected else {
            self.profile.similarity = self.similarity_sums.iter().map(|sum| (sum / tokens) as f32).collect();
            return self.expected = Some(picked);
        };
        let same = picked.iter().zip(expected).filter(|(a, b)| a == b).count();
        self.profile.trials.extend(self.counts.pop().map(|count| (count, same as f64 / tokens)));
    }
}

/// The token picked after each token of `text`, which starts at position `at`; and, with all
/// layers, the residual stream after each layer, `[tokens * hidden_size]`.
#[track_caller]
fn run(
    model: &dyn Model,
    caches: &mut [Cache],
    at: usize,
    text: &[u32],
    skipped: &[usize],
) -> mlx::Result<(Vec<u32>, Vec<Vec<f32>>)> {
    let mut batch = Batch::new([BatchRow { num_tokens: text.len(), num_draft: 0, num_computed: at, caches }]);
    batch.skip_layers(skipped);
    if skipped.is_empty() {
        batch.capture(&(0..model.layers()).collect::<Vec<usize>>());
    }
    let hidden = model.forward(&Array::from_slice(text, &[text.len() as i32]), &mut batch);
    let picked = model.logits(&hidden).astype(Dtype::Float32).argmax(-1).to_vec()?;
    let streams = batch.take_captured().iter().map(|(_, x)| x.to_f32()).collect::<mlx::Result<_>>()?;
    Ok((picked, streams))
}

/// `sum` plus the cosine similarities of all rows, added in order, so that the sizes of slices do
/// not change the bits.
fn add_similarities(sum: f64, before: &[f32], after: &[f32], rows: usize) -> f64 {
    let size = before.len() / rows;
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let cosine = |(a, b): (&[f32], &[f32])| dot(a, b) / (dot(a, a) * dot(b, b)).sqrt().max(f64::MIN_POSITIVE);
    before.chunks(size).zip(after.chunks(size)).map(cosine).fold(sum, |sum, similarity| sum + similarity)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::prefix::LAYER_PROFILE_FILE;

    #[test]
    fn similarity_of_streams_is_the_mean_cosine_of_rows() {
        let check = |before: &[f32], after: &[f32], expected: f32| {
            let mean = add_similarities(1.0, before, after, 2) / 2.0 - 0.5;
            assert!((mean - f64::from(expected)).abs() < 1e-6, "{before:?} {after:?}");
        };
        check(&[1.0, 2.0, 3.0, 0.5], &[2.0, 4.0, 6.0, 1.0], 1.0);
        check(&[1.0, 0.0, 1.0, 0.0], &[0.0, 1.0, 1.0, 0.0], 0.5);
        check(&[0.0; 4], &[1.0; 4], 0.0);
    }

    #[test]
    fn skipped_layers_are_the_least_important_as_far_as_it_pays() {
        let check = |trials: &[(usize, f64)], expected: &[usize]| {
            // Layers 1 to 5; the last one changes nothing, and is kept nevertheless.
            let profile = LayerProfile { similarity: vec![0.5, 0.9, 0.7, 0.8, 1.0], trials: trials.to_vec() };
            assert_eq!(profile.skipped(), expected, "{trials:?}");
        };
        check(&[(1, 0.9), (2, 0.2), (3, 0.1)], &[2]);
        check(&[(1, 0.9), (2, 0.9), (3, 0.1)], &[2, 4]);
        check(&[(1, 0.9), (2, 0.9), (3, 0.85)], &[2, 3, 4]);
    }

    #[test]
    fn file_that_is_not_a_profile_of_this_model_is_ignored() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(LAYER_PROFILE_FILE);
        let profile = LayerProfile { similarity: vec![0.25, 0.5, -0.125], trials: vec![(1, 0.5)] };
        assert_eq!(LayerProfile::open(&path, 4), None);
        profile.save(&path).expect("is written");
        assert_eq!(LayerProfile::open(&path, 4), Some(profile.clone()));
        assert_eq!(LayerProfile::open(&path, 5), None);
        let whole = fs::read(&path).expect("a file");
        fs::write(&path, &whole[..whole.len() - 3]).expect("is written");
        assert_eq!(LayerProfile::open(&path, 4), None);
        for wrong in [
            LayerProfile { trials: vec![], ..profile.clone() },
            LayerProfile { trials: vec![(3, 0.5)], ..profile.clone() },
            LayerProfile { trials: vec![(1, 1.5)], ..profile.clone() },
            LayerProfile { similarity: vec![7.0, 0.5, 0.5], ..profile.clone() },
            LayerProfile { similarity: vec![f32::NAN, 0.5, 0.5], ..profile },
        ] {
            wrong.save(&path).expect("is written");
            assert_eq!(LayerProfile::open(&path, 4), None, "{wrong:?}");
        }
    }
}
