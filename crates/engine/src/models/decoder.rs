//! The stack around a family's layers: embedding, layers, final norm and output head.

use std::rc::Rc;

use mlx::Array;
use nn::{Embedding, Linear, RmsNorm, softcap};

use super::{Model, Mtp, Tower, config::BaseConfig, layer::Layer};
use crate::{batch::Batch, cache::Cache, error::Result, weights::Weights};

pub(super) struct Decoder<L> {
    pub embed_tokens: Rc<Embedding>,
    pub layers: Vec<L>,
    pub norm: RmsNorm,
    pub head: Head,
    /// Embeddings are multiplied by this before the first layer.
    pub embedding_scale: Option<f32>,
    pub mtp: Option<Mtp>,
    pub tower: Option<Box<dyn Tower>>,
    /// Its layers attend in both directions.
    pub bidirectional: bool,
    vocab_size: usize,
    context_length: usize,
}

impl<L: Layer> Decoder<L> {
    /// Reads `model.embed_tokens`, `model.layers.*`, `model.norm` and `lm_head`.
    pub(super) fn load(
        c: &BaseConfig,
        w: &Weights,
        layer: impl Fn(usize, &Weights) -> Result<L>,
    ) -> Result<Decoder<L>> {
        Decoder::load_with(c, w, "norm", layer)
    }

    /// [`load`](Decoder::load) with another name of the final norm.
    pub(super) fn load_with(
        c: &BaseConfig,
        w: &Weights,
        norm: &str,
        layer: impl Fn(usize, &Weights) -> Result<L>,
    ) -> Result<Decoder<L>> {
        let m = w.sub("model");
        let layers = m.sub("layers");
        Ok(Decoder {
            embed_tokens: Rc::new(m.embedding("embed_tokens", c.vocab_size, c.hidden_size)?),
            layers: (0..c.num_hidden_layers).map(|i| layer(i, &layers.sub(i))).collect::<Result<_>>()?,
            norm: m.rms_norm(norm, c.hidden_size, c.rms_norm_eps)?,
            head: Head::load(c, w)?,
            embedding_scale: None,
            mtp: None,
            tower: None,
            bidirectional: false,
            vocab_size: c.vocab_size as usize,
            context_length: c.context_length(),
        })
    }
}

/// Runs `h` `[tokens, hidden_size]` through `layers`, with the batch's hooks: layer skipping and
/// capture of hidden states.
pub(super) fn run_layers<L>(
    layers: &[L],
    mut h: Array,
    batch: &mut Batch,
    forward: impl Fn(&L, &Array, usize, &mut Batch) -> Array,
) -> Array {
    for (i, layer) in layers.iter().enumerate() {
        if batch.runs_layer(i) {
            h = forward(layer, &h, i, batch);
            h = batch.add_deep_features(i, h);
        }
        batch.after_layer(i, &h);
    }
    h
}

impl<L: Layer> Model for Decoder<L> {
    fn forward(&self, tokens: &Array, batch: &mut Batch) -> Array {
        let mut h = self.embed_tokens.forward(tokens);
        if let Some(scale) = self.embedding_scale {
            h = h * scale;
        }
        h = batch.splice(h);
        self.norm.forward(&run_layers(&self.layers, h, batch, L::forward))
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

    fn is_bidirectional(&self) -> bool {
        self.bidirectional
    }

    fn layers(&self) -> usize {
        if self.bidirectional { 0 } else { self.layers.len() }
    }

    fn embedding(&self) -> Option<&Embedding> {
        (!self.bidirectional).then_some(&self.embed_tokens)
    }

    fn tower(&self) -> Option<&dyn Tower> {
        self.tower.as_deref()
    }

    fn mtp(&self) -> Option<&Mtp> {
        self.mtp.as_ref()
    }
}

/// The output head: a matrix of its own, or the embedding's if tied.
pub(super) struct Head {
    lm_head: Option<Linear>,
    /// Logits become `cap * tanh(logit / cap)`.
    pub softcap: Option<f32>,
}

impl Head {
    pub(super) fn load(c: &BaseConfig, w: &Weights) -> Result<Head> {
        let tied = c.tie_word_embeddings.unwrap_or(!w.has("lm_head.weight"));
        if tied {
            // Some checkpoints store the embedding a second time.
            ["weight", "scales", "biases"].iter().for_each(|part| w.skip(&format!("lm_head.{part}")));
            return Ok(Head { lm_head: None, softcap: None });
        }
        Ok(Head { lm_head: Some(w.linear("lm_head", c.vocab_size, c.hidden_size)?), softcap: None })
    }

    /// Logits `[n, vocab_size]` of `[n, hidden_size]`.
    pub(super) fn forward(&self, hidden: &Array, embed_tokens: &Embedding) -> Array {
        let logits = match &self.lm_head {
            Some(head) => head.forward(hidden),
            None => embed_tokens.as_linear(hidden),
        };
        match self.softcap {
            Some(cap) => softcap(&logits, cap),
            None => logits,
        }
    }
}
