//! What most families are around their layers: an embedding before, a norm and a head behind; and the residual
//! layers that most of them have.

use std::rc::Rc;

use mlx::Array;
use serde::Deserialize;

use super::{Model, Mtp};
use crate::{
    batch::Batch,
    cache::Cache,
    error::Result,
    nn::{Embedding, Linear, Mlp, Residual, RmsNorm},
    weights::Weights,
};

/// One layer of a [`Decoder`].
pub trait Layer {
    /// The residual stream `[tokens, hidden_size]` through layer `i`.
    fn forward(&self, x: &Array, i: usize, batch: &mut Batch) -> Array;

    /// An empty cache for this layer.
    fn make_cache(&self) -> Cache;
}

/// What mixes tokens in a layer: attention or a recurrence.
pub trait Mixer {
    /// The residual stream `[tokens, hidden_size]` through the mixer of layer `layer`.
    fn forward(&self, x: &Residual, layer: usize, batch: &mut Batch) -> Array;

    /// Like [`forward`](Mixer::forward) for tokens whose output is not needed: only updates the cache.
    fn observe(&self, x: &Residual, layer: usize, batch: &mut Batch) {
        self.forward(x, layer, batch);
    }

    /// An empty cache for it.
    fn make_cache(&self) -> Cache;
}

/// What a layer does to each token by itself.
pub trait FeedForward {
    /// The residual stream `[tokens, hidden_size]` through the block.
    fn forward(&self, x: &Residual) -> Array;
}

impl FeedForward for Mlp {
    fn forward(&self, x: &Residual) -> Array {
        self.add_to(x)
    }
}

/// `h = x + mixer(norm(x))`, then `h + mlp(norm(h))`.
pub struct PreNorm {
    input_layernorm: RmsNorm,
    mixer: Box<dyn Mixer>,
    post_attention_layernorm: RmsNorm,
    mlp: Box<dyn FeedForward>,
}

impl PreNorm {
    /// Reads the norms; `offset` is what their stored weights lack.
    pub fn load(
        c: &BaseConfig,
        w: &Weights,
        offset: f32,
        mixer: Box<dyn Mixer>,
        mlp: Box<dyn FeedForward>,
    ) -> Result<PreNorm> {
        let norm = |name| w.rms_norm(name, c.hidden_size, c.rms_norm_eps, offset);
        Ok(PreNorm {
            input_layernorm: norm("input_layernorm")?,
            mixer,
            post_attention_layernorm: norm("post_attention_layernorm")?,
            mlp,
        })
    }
}

impl PreNorm {
    /// Like [`forward`](Layer::forward) for tokens whose output is not needed: only updates the cache.
    pub fn observe(&self, x: &Array, i: usize, batch: &mut Batch) {
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
pub struct SandwichNorm {
    /// Before and behind the mixer, before and behind the feed-forward block.
    norms: [RmsNorm; 4],
    mixer: Box<dyn Mixer>,
    mlp: Box<dyn FeedForward>,
}

impl SandwichNorm {
    /// Reads the norms by their names, in the order of the computation; `offset` is what their stored weights lack.
    pub fn load(
        c: &BaseConfig,
        w: &Weights,
        names: [&str; 4],
        offset: f32,
        mixer: Box<dyn Mixer>,
        mlp: Box<dyn FeedForward>,
    ) -> Result<SandwichNorm> {
        let [a, b, c, d] = names.map(|name| w.rms_norm(name, c.hidden_size, c.rms_norm_eps, offset));
        Ok(SandwichNorm { norms: [a?, b?, c?, d?], mixer, mlp })
    }
}

impl Layer for SandwichNorm {
    fn forward(&self, x: &Array, i: usize, batch: &mut Batch) -> Array {
        let [before_mixer, behind_mixer, before_mlp, behind_mlp] = &self.norms;
        let x = Residual::new(x, before_mixer).with_norm_behind(behind_mixer);
        let h = self.mixer.forward(&x, i, batch);
        self.mlp.forward(&Residual::new(&h, before_mlp).with_norm_behind(behind_mlp))
    }

    fn make_cache(&self) -> Cache {
        self.mixer.make_cache()
    }
}

/// The part of config.json that every family has, to be flattened into its struct.
#[derive(Clone, Debug, Deserialize)]
pub struct BaseConfig {
    pub vocab_size: i32,
    pub hidden_size: i32,
    pub num_hidden_layers: usize,
    pub rms_norm_eps: f32,
    /// Left out, the head is tied if the checkpoint has none.
    pub tie_word_embeddings: Option<bool>,
    pub max_position_embeddings: Option<usize>,
}

impl BaseConfig {
    /// Tokens of context that the model was trained on.
    pub fn context_length(&self) -> usize {
        self.max_position_embeddings.unwrap_or(4096)
    }
}

pub struct Decoder<L> {
    pub embed_tokens: Rc<Embedding>,
    pub layers: Vec<L>,
    pub norm: RmsNorm,
    pub head: Head,
    /// Embeddings are multiplied with this before the first layer.
    pub embedding_scale: Option<f32>,
    pub mtp: Option<Mtp>,
    vocab_size: usize,
    context_length: usize,
}

impl<L: Layer> Decoder<L> {
    /// Reads `model.embed_tokens`, `model.layers.*`, `model.norm` and `lm_head`.
    pub fn load(
        c: &BaseConfig,
        w: &Weights,
        layer: impl Fn(usize, &Weights) -> Result<L>,
    ) -> Result<Decoder<L>> {
        Decoder::load_with(c, w, "norm", 0.0, layer)
    }

    /// As [`load`](Decoder::load), with another name of the final norm and an offset that its weight lacks.
    pub fn load_with(
        c: &BaseConfig,
        w: &Weights,
        norm: &str,
        norm_offset: f32,
        layer: impl Fn(usize, &Weights) -> Result<L>,
    ) -> Result<Decoder<L>> {
        let m = w.sub("model");
        let layers = m.sub("layers");
        Ok(Decoder {
            embed_tokens: Rc::new(m.embedding("embed_tokens", c.vocab_size, c.hidden_size)?),
            layers: (0..c.num_hidden_layers).map(|i| layer(i, &layers.sub(i))).collect::<Result<_>>()?,
            norm: m.rms_norm(norm, c.hidden_size, c.rms_norm_eps, norm_offset)?,
            head: Head::load(c, w)?,
            embedding_scale: None,
            mtp: None,
            vocab_size: c.vocab_size as usize,
            context_length: c.context_length(),
        })
    }
}

impl<L: Layer> Model for Decoder<L> {
    fn forward(&self, tokens: &Array, batch: &mut Batch) -> Array {
        let mut h = self.embed_tokens.forward(tokens);
        if let Some(scale) = self.embedding_scale {
            h = h * scale;
        }
        for (i, layer) in self.layers.iter().enumerate() {
            if batch.computes(i) {
                h = layer.forward(&h, i, batch);
            }
            batch.passed(i, &h);
        }
        self.norm.forward(&h)
    }

    fn logits(&self, hidden: &Array) -> Array {
        self.head.forward(hidden, &self.embed_tokens)
    }

    fn make_caches(&self) -> Vec<Cache> {
        self.layers.iter().map(Layer::make_cache).collect()
    }

    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn context_length(&self) -> usize {
        self.context_length
    }

    fn layers(&self) -> usize {
        self.layers.len()
    }

    fn embedding(&self) -> Option<&Embedding> {
        Some(&self.embed_tokens)
    }

    fn mtp(&self) -> Option<&Mtp> {
        self.mtp.as_ref()
    }
}

/// The output head: a matrix of its own, or the embedding's.
pub struct Head {
    lm_head: Option<Linear>,
    /// Logits become `cap * tanh(logit / cap)`.
    pub softcap: Option<f32>,
}

impl Head {
    pub fn load(c: &BaseConfig, w: &Weights) -> Result<Head> {
        let tied = c.tie_word_embeddings.unwrap_or(!w.has("lm_head.weight"));
        if tied {
            // Some checkpoints store the embedding a second time.
            ["weight", "scales", "biases"].iter().for_each(|part| w.skip(&format!("lm_head.{part}")));
            return Ok(Head { lm_head: None, softcap: None });
        }
        Ok(Head { lm_head: Some(w.linear("lm_head", c.vocab_size, c.hidden_size)?), softcap: None })
    }

    /// Logits `[n, vocab_size]` of `[n, hidden_size]`.
    pub fn forward(&self, hidden: &Array, embed_tokens: &Embedding) -> Array {
        let logits = match &self.lm_head {
            Some(head) => head.forward(hidden),
            None => embed_tokens.as_linear(hidden),
        };
        match self.softcap {
            Some(cap) => (logits / cap).tanh() * cap,
            None => logits,
        }
    }
}
