//! Residual layers: a token mixer and a feed-forward block, with pre-norms or sandwich norms.

use mlx::Array;
use nn::{MixtureOfExperts, Mlp, Residual, RmsNorm};

use super::config::BaseConfig;
use crate::{batch::Batch, cache::Cache, error::Result, weights::Weights};

/// One layer of a [`Decoder`](super::decoder::Decoder).
pub(super) trait Layer {
    /// The residual stream `[tokens, hidden_size]` through layer `i`.
    fn forward(&self, x: &Array, i: usize, batch: &mut Batch) -> Array;

    /// An empty cache for this layer.
    fn make_cache(&self) -> Cache;
}

/// A token mixer: attention or a recurrence.
pub(crate) trait Mixer {
    /// The residual stream `[tokens, hidden_size]` through the mixer of layer `layer`.
    fn forward(&self, x: &Residual, layer: usize, batch: &mut Batch) -> Array;

    /// Only updates the cache, for tokens whose output is not needed.
    fn observe(&self, x: &Residual, layer: usize, batch: &mut Batch) {
        self.forward(x, layer, batch);
    }

    /// An empty cache for it.
    fn make_cache(&self) -> Cache;
}

/// A feed-forward block: dense or experts.
pub(crate) trait FeedForward {
    /// The residual stream `[tokens, hidden_size]` through the block.
    fn forward(&self, x: &Residual) -> Array;
}

impl FeedForward for Mlp {
    fn forward(&self, x: &Residual) -> Array {
        self.add_to(x)
    }
}

impl FeedForward for MixtureOfExperts {
    fn forward(&self, x: &Residual) -> Array {
        self.add_to(x)
    }
}

/// `h = x + mixer(norm(x))`, then `h + mlp(norm(h))`.
pub(crate) struct PreNorm {
    input_layernorm: RmsNorm,
    mixer: Box<dyn Mixer>,
    post_attention_layernorm: RmsNorm,
    mlp: Box<dyn FeedForward>,
}

impl PreNorm {
    pub(crate) fn load(
        c: &BaseConfig,
        w: &Weights,
        mixer: Box<dyn Mixer>,
        mlp: Box<dyn FeedForward>,
    ) -> Result<PreNorm> {
        let norm = |name| w.rms_norm(name, c.hidden_size, c.rms_norm_eps);
        Ok(PreNorm {
            input_layernorm: norm("input_layernorm")?,
            mixer,
            post_attention_layernorm: norm("post_attention_layernorm")?,
            mlp,
        })
    }
}

impl PreNorm {
    /// Only updates the cache, for tokens whose output is not needed.
    pub(crate) fn observe(&self, x: &Array, i: usize, batch: &mut Batch) {
        self.mixer.observe(&Residual::new(x, &self.input_layernorm), i, batch);
    }
}

impl Layer for PreNorm {
    fn forward(&self, x: &Array, i: usize, batch: &mut Batch) -> Array {
        let h = self.mixer.forward(&Residual::new(x, &self.input_layernorm), i, batch);
        self.mlp.forward(&Residual::new(&h, &self.post_attention_layernorm))
    }

    fn make_cache(&self) -> Cache {
        self.mixer.make_cache()
    }
}

/// Norms on both sides: `h = x + norm(mixer(norm(x)))`, then `h + norm(mlp(norm(h)))`.
pub(super) struct SandwichNorm {
    /// Before and after the mixer, before and after the feed-forward block.
    norms: [RmsNorm; 4],
    mixer: Box<dyn Mixer>,
    mlp: Box<dyn FeedForward>,
}

impl SandwichNorm {
    /// `names` are those of the norms, in the order of the computation.
    pub(super) fn load(
        c: &BaseConfig,
        w: &Weights,
        names: [&str; 4],
        mixer: Box<dyn Mixer>,
        mlp: Box<dyn FeedForward>,
    ) -> Result<SandwichNorm> {
        let [a, b, c, d] = names.map(|name| w.rms_norm(name, c.hidden_size, c.rms_norm_eps));
        Ok(SandwichNorm { norms: [a?, b?, c?, d?], mixer, mlp })
    }
}

impl Layer for SandwichNorm {
    fn forward(&self, x: &Array, i: usize, batch: &mut Batch) -> Array {
        let [before_mixer, behind_mixer, before_mlp, behind_mlp] = &self.norms;
        let x = Residual::new(x, before_mixer).with_post_norm(behind_mixer);
        let h = self.mixer.forward(&x, i, batch);
        self.mlp.forward(&Residual::new(&h, before_mlp).with_post_norm(behind_mlp))
    }

    fn make_cache(&self) -> Cache {
        self.mixer.make_cache()
    }
}
