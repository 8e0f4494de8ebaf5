//! Images of running sequences: their features, computed once for each picture, and the places of
//! their tokens.

use std::{ops::Range, sync::Arc};

use mlx::Array;

use crate::{
    api::{CacheSalt, Image, MemoryAccount, MemoryClass, Request, RequestError, Reservation},
    models::{ImagePositions, Model},
    prefix::prompt_keys,
};

/// Maximum bytes of features that are kept for later requests.
const KEPT_FEATURES: usize = 256 << 20;

/// The images of a sequence; without any, nothing.
#[derive(Default)]
pub(crate) struct SequenceImages {
    /// [Keys](prompt_keys) of prompt and output; empty without images.
    keys: Vec<u32>,
    /// Features `[tokens, hidden_size]` of each image, from their computation to the step that
    /// takes them.
    features: Vec<Option<Array>>,
    positions: Option<ImagePositions>,
}

impl SequenceImages {
    /// # Errors
    /// An image does not fit the model.
    pub(crate) fn new(request: &Request, model: &dyn Model) -> Result<SequenceImages, RequestError> {
        if request.images.is_empty() {
            return Ok(SequenceImages::default());
        }
        let tower = model.tower().ok_or(RequestError::NoVision)?;
        for (index, image) in request.images.iter().enumerate() {
            tower.check(image).map_err(|message| RequestError::BadImage { index, message })?;
        }
        let placed = request.images.iter().map(|image| Some((image.span(), tower.grid(image)?)));
        Ok(SequenceImages {
            keys: prompt_keys(request),
            features: vec![None; request.images.len()],
            positions: placed.collect::<Option<Vec<_>>>().map(ImagePositions::new),
        })
    }

    /// Prefix-cache keys of `tokens`.
    pub(crate) fn keys<'a>(&'a self, tokens: &'a [u32]) -> &'a [u32] {
        if self.keys.is_empty() { tokens } else { &self.keys[..tokens.len()] }
    }

    /// Follows a generated token.
    pub(crate) fn push(&mut self, id: u32) {
        if !self.keys.is_empty() {
            self.keys.push(id);
        }
    }

    /// Time, height and width of the tokens `range`; `None` if a token's position is its index.
    pub(crate) fn positions(&self, range: Range<usize>) -> Option<Vec<[i32; 3]>> {
        let positions = self.positions.as_ref()?;
        Some(range.map(|index| positions.at(index)).collect())
    }

    /// Features of images in tokens `range`, which cuts no image, and the first token of each run
    /// of positions that they belong to.
    pub(crate) fn features(&self, images: &[Image], range: Range<usize>) -> Vec<(usize, Array)> {
        let mut placed = vec![];
        for (image, features) in images.iter().zip(&self.features) {
            let span = image.span();
            if span.start < range.start || span.end > range.end {
                continue;
            }
            let features = features.as_ref().unwrap_or_else(|| panic!("features of an image at {span:?}"));
            let mut taken = 0;
            for run in &image.positions {
                let tokens = run.len() as i32;
                placed.push((run.start, features.slice(0, taken, taken + tokens)));
                taken += tokens;
            }
        }
        placed
    }

    /// The first image past `computed` tokens whose features are missing.
    pub(crate) fn next_missing(&self, images: &[Image], computed: usize) -> Option<usize> {
        let missing = |(image, features): (&Image, &Option<Array>)| {
            features.is_none() && image.span().start >= computed
        };
        images.iter().zip(&self.features).position(missing)
    }

    pub(crate) fn set_features(&mut self, index: usize, features: Array) {
        self.features[index] = Some(features);
    }

    /// Drops features of images before `computed`.
    pub(crate) fn release(&mut self, images: &[Image], computed: usize) {
        let past = images.iter().zip(&mut self.features).filter(|(image, _)| image.span().end <= computed);
        past.for_each(|(_, features)| *features = None);
    }

    /// Forgets features, for a sequence that starts over.
    pub(crate) fn reset(&mut self) {
        self.features.fill(None);
    }
}

/// Which features an image has, and who may have them: like the state of the prefix cache, features
/// stored under one salt are not found under another, so that a client does not learn from its
/// latency which images others have sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FeatureKey {
    salt: Option<CacheSalt>,
    digest: [u8; 32],
}

impl FeatureKey {
    /// The key of an image of `request`.
    pub(crate) fn of(request: &Request, image: &Image) -> FeatureKey {
        FeatureKey { salt: request.cache_salt, digest: image.digest }
    }
}

/// Features of the images used last. They are counted as memory of the prefix cache, which makes
/// room for everything else.
pub(crate) struct FeatureCache {
    /// The image used last is the last one.
    entries: Vec<(FeatureKey, Array)>,
    budget: usize,
    memory: Option<Reservation>,
}

impl FeatureCache {
    pub(crate) fn new(account: &Arc<MemoryAccount>) -> FeatureCache {
        let memory = account.reserve(MemoryClass::PrefixCache, 0, None).ok();
        FeatureCache { entries: vec![], budget: KEPT_FEATURES, memory }
    }

    pub(crate) fn get(&mut self, key: FeatureKey) -> Option<Array> {
        let at = self.entries.iter().position(|(own, _)| *own == key)?;
        let entry = self.entries.remove(at);
        self.entries.push(entry);
        self.entries.last().map(|(_, features)| features.clone())
    }

    pub(crate) fn insert(&mut self, key: FeatureKey, features: Array) {
        self.entries.retain(|(own, _)| *own != key);
        self.entries.push((key, features));
        self.shrink();
    }

    /// Bytes of all features.
    pub(crate) fn bytes(&self) -> usize {
        self.entries.iter().map(|(_, features)| features.nbytes()).sum()
    }

    /// Limits it to `bytes`, at most its original budget.
    pub(crate) fn set_budget(&mut self, bytes: usize) {
        self.budget = bytes.min(KEPT_FEATURES);
        self.shrink();
    }

    fn shrink(&mut self) {
        while self.bytes() > self.budget && !self.entries.is_empty() {
            self.entries.remove(0);
        }
        let bytes = self.bytes();
        // Without a limit: it shrinks for the other classes.
        self.memory.iter_mut().for_each(|memory| _ = memory.resize(bytes, None));
    }
}
