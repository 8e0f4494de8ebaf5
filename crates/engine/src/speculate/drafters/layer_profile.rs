//! Which layers a model can do without best: a profile, measured on a short text and kept in a file. What it says decides
//! how good guesses are, never an answer.

use std::{fs, io::Write, path::Path, rc::Rc};

use mlx::{Array, Dtype};
use serde::{Deserialize, Serialize};

use crate::{
    batch::{Batch, Part},
    cache::Cache,
    models::Model,
    prefix::write_whole,
    speculate::calibration::Pieces,
};

/// Name of its file, in the folder of the model's state.
pub const FILE: &str = "layers.json";
/// Eighths of all layers that are tried to be left out.
const TRIED: [usize; 4] = [1, 2, 3, 4];
/// Cost of verifying one token more beside that of a plain step, as a guess for the choice between trials.
const VERIFIED: f64 = 0.1;
/// Most tokens of a draft that the choice reckons with.
const DEPTH: i32 = 8;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerProfile {
    /// Of each layer but the first: mean cosine similarity of the residual stream before it and behind it.
    similarity: Vec<f32>,
    /// How many of the layers that change least were left out, and how often the rest picked the whole model's token.
    trials: Vec<(usize, f64)>,
}

impl LayerProfile {
    /// What a file holds, if that is the profile of a model with so many layers.
    pub fn open(path: &Path, layers: usize) -> Option<LayerProfile> {
        let profile: LayerProfile = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        let is_sound = profile.similarity.len() + 1 == layers
            && profile.similarity.iter().all(|x| x.abs() <= 1.01)
            && !profile.trials.is_empty()
            && profile.trials.iter().all(|&(count, right)| {
                (1..=layers.saturating_sub(2)).contains(&count) && (0.0..=1.0).contains(&right)
            });
        is_sound.then_some(profile)
    }

    /// # Errors
    /// Those of the disk; nothing is left behind then.
    pub fn save(&self, path: &Path) -> std::io::Result<()> {
        let text = serde_json::to_vec(self)?;
        write_whole(path, |file| file.write_all(&text))
    }

    /// The layers without which drafts promise most, ascending.
    pub fn skipped(&self) -> Vec<usize> {
        let layers = (self.similarity.len() + 1) as f64;
        let speed = |&(count, right): &(usize, f64)| {
            let relative_cost = 1.0 - count as f64 / layers;
            let at = |depth: i32| {
                let kept: f64 = (0..=depth).map(|place| right.powi(place)).sum();
                kept / (1.0 + (relative_cost + VERIFIED) * f64::from(depth))
            };
            (1..=DEPTH).map(at).fold(0.0, f64::max)
        };
        let best = self.trials.iter().max_by(|a, b| speed(a).total_cmp(&speed(b)));
        best.map_or(vec![], |&(count, _)| self.least_changing(count))
    }

    /// Of the layers but the first and the last so many, ascending: those behind which the stream is most like before.
    fn least_changing(&self, count: usize) -> Vec<usize> {
        let layers = self.similarity.len() + 1;
        let mut inner: Vec<usize> = (1..layers - 1).collect();
        inner.sort_by(|a, b| self.similarity[b - 1].total_cmp(&self.similarity[a - 1]));
        inner.truncate(count);
        inner.sort();
        inner
    }
}

/// What to leave out of so many layers while nothing is measured.
pub fn default_skipped(layers: usize) -> Vec<usize> {
    (1..layers.saturating_sub(1)).skip(1).step_by(2).collect()
}

/// Measures the profile of a model in slices: a pass with all layers, then one without each number of layers.
pub struct LayerProfiler {
    model: Rc<dyn Model>,
    text: Vec<u32>,
    pieces: Pieces,
    caches: Vec<Cache>,
    /// Tokens picked in this pass so far; as many tokens of the text are in the caches.
    picked: Vec<u32>,
    /// Tokens picked with all layers, once that pass is done.
    whole: Option<Vec<u32>>,
    /// For each layer but the first: sum of similarities so far.
    similar: Vec<f64>,
    /// Numbers of layers still to be left out.
    counts: Vec<usize>,
    profile: LayerProfile,
}

impl LayerProfiler {
    /// For a model with at least three layers, on a text of at least two tokens.
    pub fn new(model: Rc<dyn Model>, text: Vec<u32>) -> LayerProfiler {
        let layers = model.layers();
        let mut counts = TRIED.map(|eighths| (layers * eighths / 8).clamp(1, layers - 2)).to_vec();
        counts.dedup();
        counts.reverse();
        LayerProfiler {
            caches: model.make_caches(),
            pieces: Pieces::default(),
            picked: vec![],
            whole: None,
            similar: vec![0.0; layers - 1],
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
    pub fn slice(&mut self) -> mlx::Result<Option<LayerProfile>> {
        let at = self.picked.len();
        let n = self.pieces.next(self.text.len() - at);
        let text = &self.text[at..at + n];
        let skipped = match (&self.whole, self.counts.last()) {
            (Some(_), Some(&count)) => self.profile.least_changing(count),
            _ => vec![],
        };
        let (model, caches) = (&*self.model, &mut self.caches[..]);
        let (picked, streams) = self.pieces.time(n, || run(model, caches, at, text, &skipped))?;
        self.picked.extend(picked);
        for (sum, pair) in self.similar.iter_mut().zip(streams.windows(2)) {
            *sum = add_similarities(*sum, &pair[0], &pair[1], n);
        }
        if self.picked.len() < self.text.len() {
            return Ok(None);
        }
        self.pass();
        Ok(self.counts.is_empty().then(|| self.profile.clone()))
    }

    /// Ends a pass over the text.
    fn pass(&mut self) {
        let tokens = self.text.len() as f64;
        let picked = std::mem::take(&mut self.picked);
        self.caches = self.model.make_caches();
        let Some(whole) = &self.whole else {
            self.profile.similarity = self.similar.iter().map(|sum| (sum / tokens) as f32).collect();
            return self.whole = Some(picked);
        };
        let same = picked.iter().zip(whole).filter(|(a, b)| a == b).count();
        self.profile.trials.extend(self.counts.pop().map(|count| (count, same as f64 / tokens)));
    }
}

/// The token picked after each token of `text`, which begins at position `at`; and, with all layers, the residual stream after
/// each layer, `[tokens * hidden_size]`.
#[track_caller]
fn run(
    model: &dyn Model,
    caches: &mut [Cache],
    at: usize,
    text: &[u32],
    skipped: &[usize],
) -> mlx::Result<(Vec<u32>, Vec<Vec<f32>>)> {
    let mut batch = Batch::new([Part { tokens: text.len(), ahead: 0, past: at, caches }]);
    batch.leave_out(skipped);
    if skipped.is_empty() {
        batch.watch(&(0..model.layers()).collect::<Vec<usize>>());
    }
    let hidden = model.forward(&Array::from_slice(text, &[text.len() as i32]), &mut batch);
    let picked = model.logits(&hidden).astype(Dtype::Float32).argmax(-1).to_vec()?;
    let streams = batch.seen().iter().map(|(_, x)| x.to_f32()).collect::<mlx::Result<_>>()?;
    Ok((picked, streams))
}

/// `sum` plus the cosine similarities of all rows, added in order, so that the sizes of slices do not change the bits.
fn add_similarities(sum: f64, before: &[f32], after: &[f32], rows: usize) -> f64 {
    let size = before.len() / rows;
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let cosine = |(a, b): (&[f32], &[f32])| dot(a, b) / (dot(a, a) * dot(b, b)).sqrt().max(f64::MIN_POSITIVE);
    before.chunks(size).zip(after.chunks(size)).map(cosine).fold(sum, |sum, similarity| sum + similarity)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn likeness_of_streams() {
        let check = |before: &[f32], behind: &[f32], expected: f32| {
            let mean = add_similarities(1.0, before, behind, 2) / 2.0 - 0.5;
            assert!((mean - f64::from(expected)).abs() < 1e-6, "{before:?} {behind:?}");
        };
        check(&[1.0, 2.0, 3.0, 0.5], &[2.0, 4.0, 6.0, 1.0], 1.0);
        check(&[1.0, 0.0, 1.0, 0.0], &[0.0, 1.0, 1.0, 0.0], 0.5);
        check(&[0.0; 4], &[1.0; 4], 0.0);
    }

    #[test]
    fn what_changes_least_goes_first_as_far_as_it_pays() {
        let check = |trials: &[(usize, f64)], expected: &[usize]| {
            // Layers 1 to 5; the last one changes nothing, and stays nevertheless.
            let profile = LayerProfile { similarity: vec![0.5, 0.9, 0.7, 0.8, 1.0], trials: trials.to_vec() };
            assert_eq!(profile.skipped(), expected, "{trials:?}");
        };
        check(&[(1, 0.9), (2, 0.2), (3, 0.1)], &[2]);
        check(&[(1, 0.9), (2, 0.9), (3, 0.1)], &[2, 4]);
        check(&[(1, 0.9), (2, 0.9), (3, 0.85)], &[2, 3, 4]);
    }

    #[test]
    fn a_file_that_is_not_this_models_profile_is_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(FILE);
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
