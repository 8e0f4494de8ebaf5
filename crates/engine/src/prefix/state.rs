//! What is stored of a sequence: plain arrays, their kinds and lengths, so that they can be written down.

use mlx::Array;

use super::tree::{Span, Weight};
use crate::cache::{Cache, Kept};

/// Keys and values (or latents) of a run of tokens, of every layer that attends to everything before it, in the order of
/// the model's caches: `[kv_heads, tokens, dim]` each.
pub struct Run {
    pub layers: Vec<[Option<Array>; 2]>,
    /// Not what the model computes: it was compressed, or computed behind what was.
    pub lossy: bool,
}

/// The state of all other layers behind one position, in the order of the model's caches.
pub struct Checkpoint {
    pub layers: Vec<Kept>,
    /// As of a run.
    pub lossy: bool,
}

impl Run {
    /// Copies of tokens `from..to`.
    #[track_caller]
    pub fn copy(caches: &[Cache], from: usize, to: usize, lossy: bool) -> Run {
        let growing = caches.iter().filter_map(Cache::as_growing);
        Run { layers: growing.map(|kv| kv.copy(from as i32, to as i32)).collect(), lossy }
    }

    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.layers.iter().flatten().flatten()
    }

    /// Bytes of so many of its tokens.
    pub fn bytes_of(&self, tokens: usize) -> usize {
        let per_token = |array: &Array| array.nbytes() / array.dim(1).max(1) as usize;
        tokens * self.arrays().map(per_token).sum::<usize>()
    }

    /// Tokens `from..to` of each of `runs`, one behind the other.
    #[track_caller]
    pub fn joined(runs: &[(&Run, [usize; 2])]) -> Run {
        let side = |layer: usize, side: usize| {
            let part = |(run, [from, to]): &(&Run, [usize; 2])| {
                let array = run.layers[layer][side].as_ref()?;
                let whole = *from == 0 && *to as i32 == array.dim(1);
                Some(if whole { array.clone() } else { mlx::cut(array, *from as i32, *to as i32) })
            };
            let parts: Vec<Array> = runs.iter().filter_map(part).collect();
            match &parts[..] {
                [] => None,
                [only] => Some(only.clone()),
                parts => Some(Array::concatenate(parts, 1)),
            }
        };
        let layers = runs.first().map_or(0, |(run, _)| run.layers.len());
        Run {
            layers: (0..layers).map(|layer| [side(layer, 0), side(layer, 1)]).collect(),
            lossy: runs.iter().any(|(run, _)| run.lossy),
        }
    }

    /// Puts into growing caches what `runs` hold of their first so many tokens, one run behind the other.
    #[track_caller]
    pub fn resume(runs: &[(&Run, usize)], caches: &mut [Cache], room: usize) {
        let length: usize = runs.iter().map(|(_, tokens)| tokens).sum();
        let growing = caches.iter_mut().filter(|cache| cache.as_growing().is_some());
        for (layer, cache) in growing.enumerate() {
            let parts = [0, 1].map(|side| -> Vec<Array> {
                let part = |(run, tokens): &(&Run, usize)| {
                    let array = run.layers[layer][side].as_ref()?;
                    Some(array.slice(1, 0, *tokens as i32))
                };
                runs.iter().filter_map(part).collect()
            });
            cache.as_kv().resume(parts.each_ref().map(Vec::as_slice), 0, length as i32, room as i32);
        }
    }
}

impl Span for Run {
    fn bytes(&self) -> usize {
        self.arrays().map(Array::nbytes).sum()
    }

    fn split(self, at: usize) -> [Run; 2] {
        let half = |from: Option<i32>, to: Option<i32>| {
            let cut = |array: &Array| mlx::cut(array, from.unwrap_or(0), to.unwrap_or(array.dim(1)));
            let layers = self.layers.iter().map(|sides| sides.each_ref().map(|side| side.as_ref().map(cut)));
            Run { layers: layers.collect(), lossy: self.lossy }
        };
        let at = Some(at as i32);
        let halves = [half(None, at), half(at, None)];
        // If this fails, so does whatever uses the halves later.
        let _ = mlx::async_eval(halves.iter().flat_map(Run::arrays));
        halves
    }
}

impl Checkpoint {
    #[track_caller]
    pub fn keep(caches: &[Cache], lossy: bool) -> Checkpoint {
        Checkpoint { layers: caches.iter().filter_map(Cache::keep).collect(), lossy }
    }

    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.layers.iter().flat_map(Kept::arrays)
    }

    /// Puts it into the caches that are not growing.
    #[track_caller]
    pub fn resume(&self, caches: &mut [Cache], room: usize) {
        let others = caches.iter_mut().filter(|cache| cache.as_growing().is_none());
        others.zip(&self.layers).for_each(|(cache, kept)| cache.resume(kept, room as i32));
    }
}

impl Weight for Checkpoint {
    fn bytes(&self) -> usize {
        self.arrays().map(Array::nbytes).sum()
    }
}
