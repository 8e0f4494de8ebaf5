//! Gemma 3: Gemma 2's layers without caps, with head norms; five sliding-window layers to each full
//! one, each kind with its own RoPE. With `use_bidirectional_attention` it is a text encoder, such
//! as EmbeddingGemma.
//!
//! Reference: transformers `gemma3`.

use nn::{RopePairs, Softmax};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    Model,
    attention::{Attention, AttentionConfig},
    config::{BaseConfig, ensure_supported, parse, sliding_layers, with_defaults},
    decoder::Decoder,
    gemma2::{NORM_OFFSET, check, check_features, layer},
    names::{plain_names, text_names},
    vision,
};
use crate::{error::Result, models::rope::RopeParameters, weights::Weights};

#[derive(Deserialize)]
struct Config {
    #[serde(flatten)]
    base: BaseConfig,
    intermediate_size: i32,
    num_attention_heads: i32,
    num_key_value_heads: i32,
    head_dim: i32,
    query_pre_attn_scalar: f32,
    sliding_window: i32,
    sliding_window_pattern: usize,
}

/// transformers' defaults of absent keys; published files leave most out.
fn defaults() -> Value {
    json!({
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": true,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
    })
}

pub(super) fn sanitize(config: &Value, name: &str) -> Option<String> {
    vision::canonical(name).or_else(|| plain_names(config, &text_names(name)?))
}

pub(super) fn load(config: &Value, w: &Weights) -> Result<Box<dyn Model>> {
    let config = &with_defaults(config, defaults());
    let c: Config = parse(config)?;
    let bidirectional = config.get("use_bidirectional_attention") == Some(&true.into());
    if bidirectional { check_features(config) } else { check(config) }?;
    for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
        let capped = config.get(key).is_some_and(|cap| !cap.is_null());
        ensure_supported(!capped, format!("{key} is not supported in Gemma 3"))?;
    }
    ensure_supported(c.sliding_window_pattern > 0, "sliding_window_pattern is 0; it must be at least 1")?;
    let every = c.sliding_window_pattern;
    let slides =
        sliding_layers(config, c.base.num_hidden_layers, |layer| !(layer + 1).is_multiple_of(every))?;
    let heads = AttentionConfig {
        hidden_size: c.base.hidden_size,
        num_heads: c.num_attention_heads,
        num_kv_heads: c.num_key_value_heads,
        head_dim: c.head_dim,
        qkv_bias: false,
        o_bias: false,
    };
    let rope = |slides| rope(config, slides)?.rope(c.head_dim, RopePairs::Halves);
    let ropes = [rope(false)?, rope(true)?];
    let softmax = Softmax::scaled(c.query_pre_attn_scalar.powf(-0.5));
    // An encoder's window is half before the token and half after it.
    let sliding_window = if bidirectional { c.sliding_window / 2 + 1 } else { c.sliding_window };
    let w = &w.with_norm_offset(NORM_OFFSET);
    let tokens = config.get("mm_tokens_per_image").and_then(Value::as_i64).unwrap_or(256) as i32;
    let hidden_size = c.base.hidden_size;
    let tower =
        vision::load_tower(config, w, |vision, w| vision::load_siglip(vision, w, hidden_size, tokens))?;
    let mut decoder = Decoder::load(&c.base, w, |i, w| {
        let window = slides[i].then_some(sliding_window);
        let (attention, rope) = (w.sub("self_attn"), &ropes[usize::from(slides[i])]);
        let mixer = Attention::load(heads, rope.clone(), &attention)?
            .with_qk_norm(c.base.rms_norm_eps, &attention)?
            .with_window(window)
            .with_bidirectional(bidirectional)
            .with_images_together(tower.is_some())
            .with_softmax(softmax.clone());
        layer(&c.base, c.intermediate_size, mixer, w)
    })?;
    decoder.embedding_scale = Some((c.base.hidden_size as f32).sqrt());
    decoder.bidirectional = bidirectional;
    decoder.tower = tower;
    Ok(Box::new(decoder))
}

/// RoPE of sliding or full layers: `rope_parameters` per kind, or `rope_local_base_freq`,
/// `rope_theta` and `rope_scaling` (full layers only) in older files.
fn rope(config: &Value, slides: bool) -> Result<RopeParameters> {
    let object = |value: Option<&Value>| value.and_then(Value::as_object).cloned().unwrap_or_default();
    let (kind, base, theta, scaling) = match slides {
        true => ("sliding_attention", "rope_local_base_freq", 10_000.0, Map::new()),
        false => ("full_attention", "rope_theta", 1_000_000.0, object(config.get("rope_scaling"))),
    };
    let mut parameters = object(config.get("rope_parameters").and_then(|all| all.get(kind)));
    parameters.extend(scaling);
    let base = config.get(base).filter(|base| base.is_number()).cloned();
    parameters.entry("rope_theta").or_insert(base.unwrap_or(theta.into()));
    let positions = config.get("max_position_embeddings");
    let of_kind = json!({ "rope_parameters": parameters, "max_position_embeddings": positions });
    Ok(RopeParameters::of(&of_kind, None)?.whole_head())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_config_without_optional_keys_gets_transformers_defaults() {
        // gemma-3-4b-it.
        let published = json!({
            "hidden_size": 2560,
            "intermediate_size": 10_240,
            "num_hidden_layers": 34,
            "rope_scaling": { "factor": 8.0, "rope_type": "linear" },
            "sliding_window": 1024,
        });
        let config = with_defaults(&published, defaults());
        let c: Config = parse(&config).expect("parses");
        assert_eq!((c.base.vocab_size, c.base.context_length(), c.sliding_window), (262_208, 131_072, 1024));
        assert_eq!((c.num_attention_heads, c.num_key_value_heads, c.head_dim), (8, 4, 256));

        let check = |slides, expected: [f32; 2]| {
            let rope =
                rope(&config, slides).and_then(|rope| rope.rope(256, RopePairs::Halves)).expect("a rope");
            assert_eq!(rope.frequencies[..2], expected);
        };
        check(true, [1.0, 1.0 / 10_000f32.powf(2.0 / 256.0)]);
        check(false, [1.0 / 8.0, 1.0 / 1_000_000f32.powf(2.0 / 256.0) / 8.0]);
    }
}
