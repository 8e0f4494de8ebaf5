//! Which layers a model can do without best: a profile, measured on a short text and kept in a file. What it says decides
//! how good guesses are, never an answer.

use std::{fs, io::Write, path::Path};

use mlx::{Array, Dtype};
use serde::{Deserialize, Serialize};

use crate::{
    batch::{Batch, Part},
    models::Model,
    prefix::write_whole,
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
pub struct Profile {
    /// Of each layer but the first: mean cosine similarity of the residual stream before it and behind it.
    similarity: Vec<f32>,
    /// How many of the layers that change least were left out, and how often the rest picked the whole model's token.
    trials: Vec<(usize, f64)>,
}

impl Profile {
    /// Of a model with at least three layers, on the tokens of a text: two at least.
    ///
    /// # Errors
    /// Computing it failed.
    #[track_caller]
    pub fn measure(model: &dyn Model, text: &[u32]) -> mlx::Result<Profile> {
        let layers = model.layers();
        let (whole, streams) = run(model, text, &[])?;
        let similarity = streams.windows(2).map(|pair| similarity(&pair[0], &pair[1], text.len())).collect();
        let mut profile = Profile { similarity, trials: vec![] };
        let mut counts = TRIED.map(|eighths| (layers * eighths / 8).clamp(1, layers - 2)).to_vec();
        counts.dedup();
        for count in counts {
            let (picked, _) = run(model, text, &profile.least_changing(count))?;
            let same = picked.iter().zip(&whole).filter(|(a, b)| a == b).count();
            profile.trials.push((count, same as f64 / text.len() as f64));
        }
        Ok(profile)
    }

    /// What a file holds, if that is the profile of a model with so many layers.
    pub fn open(path: &Path, layers: usize) -> Option<Profile> {
        let profile: Profile = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
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
    pub fn left_out(&self) -> Vec<usize> {
        let layers = (self.similarity.len() + 1) as f64;
        let speed = |&(count, right): &(usize, f64)| {
            let share = 1.0 - count as f64 / layers;
            let at = |depth: i32| {
                let kept: f64 = (0..=depth).map(|place| right.powi(place)).sum();
                kept / (1.0 + (share + VERIFIED) * f64::from(depth))
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
pub fn unmeasured(layers: usize) -> Vec<usize> {
    (1..layers.saturating_sub(1)).skip(1).step_by(2).collect()
}

/// The token picked behind each of a text, and the residual stream behind each layer, `[tokens * hidden_size]`.
#[track_caller]
fn run(model: &dyn Model, text: &[u32], left_out: &[usize]) -> mlx::Result<(Vec<u32>, Vec<Vec<f32>>)> {
    let mut caches = model.make_caches();
    let mut batch = Batch::new([Part { tokens: text.len(), ahead: 0, past: 0, caches: &mut caches }]);
    batch.leave_out(left_out);
    if left_out.is_empty() {
        batch.watch(&(0..model.layers()).collect::<Vec<usize>>());
    }
    let hidden = model.forward(&Array::from_slice(text, &[text.len() as i32]), &mut batch);
    let picked = model.logits(&hidden).astype(Dtype::Float32).argmax(-1).to_vec()?;
    let streams = batch.seen().iter().map(|(_, x)| x.to_f32()).collect::<mlx::Result<_>>()?;
    Ok((picked, streams))
}

/// Mean cosine similarity of so many rows.
fn similarity(before: &[f32], behind: &[f32], rows: usize) -> f32 {
    let size = before.len() / rows;
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let cosine = |(a, b): (&[f32], &[f32])| dot(a, b) / (dot(a, a) * dot(b, b)).sqrt().max(f64::MIN_POSITIVE);
    let sum: f64 = before.chunks(size).zip(behind.chunks(size)).map(cosine).sum();
    (sum / rows as f64) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn likeness_of_streams() {
        let check = |before: &[f32], behind: &[f32], expected: f32| {
            assert!((similarity(before, behind, 2) - expected).abs() < 1e-6, "{before:?} {behind:?}");
        };
        check(&[1.0, 2.0, 3.0, 0.5], &[2.0, 4.0, 6.0, 1.0], 1.0);
        check(&[1.0, 0.0, 1.0, 0.0], &[0.0, 1.0, 1.0, 0.0], 0.5);
        check(&[0.0; 4], &[1.0; 4], 0.0);
    }

    #[test]
    fn what_changes_least_goes_first_as_far_as_it_pays() {
        let check = |trials: &[(usize, f64)], expected: &[usize]| {
            // Layers 1 to 5; the last one changes nothing, and stays nevertheless.
            let profile = Profile { similarity: vec![0.5, 0.9, 0.7, 0.8, 1.0], trials: trials.to_vec() };
            assert_eq!(profile.left_out(), expected, "{trials:?}");
        };
        check(&[(1, 0.9), (2, 0.2), (3, 0.1)], &[2]);
        check(&[(1, 0.9), (2, 0.9), (3, 0.1)], &[2, 4]);
        check(&[(1, 0.9), (2, 0.9), (3, 0.85)], &[2, 3, 4]);
    }

    #[test]
    fn a_file_that_is_not_this_models_profile_is_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(FILE);
        let profile = Profile { similarity: vec![0.25, 0.5, -0.125], trials: vec![(1, 0.5)] };
        assert_eq!(Profile::open(&path, 4), None);
        profile.save(&path).expect("is written");
        assert_eq!(Profile::open(&path, 4), Some(profile.clone()));
        assert_eq!(Profile::open(&path, 5), None);
        let whole = fs::read(&path).expect("a file");
        fs::write(&path, &whole[..whole.len() - 3]).expect("is written");
        assert_eq!(Profile::open(&path, 4), None);
        for wrong in [
            Profile { trials: vec![], ..profile.clone() },
            Profile { trials: vec![(3, 0.5)], ..profile.clone() },
            Profile { trials: vec![(1, 1.5)], ..profile.clone() },
            Profile { similarity: vec![7.0, 0.5, 0.5], ..profile.clone() },
            Profile { similarity: vec![f32::NAN, 0.5, 0.5], ..profile },
        ] {
            wrong.save(&path).expect("is written");
            assert_eq!(Profile::open(&path, 4), None, "{wrong:?}");
        }
    }
}
