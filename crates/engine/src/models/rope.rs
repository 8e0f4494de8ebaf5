//! Rotary frequencies as config.json describes them: plain, or scaled for longer contexts.

use std::f32::consts::PI;

use nn::{Rope, RopePairs};
use serde::Deserialize;
use serde_json::Value;

use crate::error::{LoadError, Result};

/// `rope_parameters` of config.json, or `rope_theta` and `rope_scaling` of older files.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct RopeParameters {
    rope_type: Option<String>,
    /// Older files' name of `rope_type`; some have both.
    #[serde(rename = "type")]
    old_type: Option<String>,
    rope_theta: Option<f32>,
    partial_rotary_factor: Option<f32>,
    factor: Option<f32>,
    low_freq_factor: Option<f32>,
    high_freq_factor: Option<f32>,
    pub original_max_position_embeddings: Option<f32>,
    beta_fast: Option<f32>,
    beta_slow: Option<f32>,
    mscale: Option<f32>,
    mscale_all_dim: Option<f32>,
    attention_factor: Option<f32>,
    truncate: Option<bool>,
    pub llama_4_scaling_beta: Option<f32>,
    mrope_interleaved: Option<bool>,
    mrope_section: Option<Vec<usize>>,
    /// Whether pairs turn by the positions of three axes.
    #[serde(skip)]
    has_sections: bool,
}

impl RopeParameters {
    /// Parameters of all layers, or of those of one type where config.json distinguishes types.
    ///
    /// # Errors
    /// A key is of the wrong type.
    pub(super) fn of(config: &Value, layer_type: Option<&str>) -> Result<RopeParameters> {
        let dict = |key: &str| config.get(key).filter(|value| value.is_object());
        let found = dict("rope_parameters").or_else(|| dict("rope_scaling"));
        let found = found.map(|all| layer_type.and_then(|kind| all.get(kind)).unwrap_or(all));
        let empty = Value::Object(Default::default());
        let mut rope: RopeParameters = serde_json::from_value(found.unwrap_or(&empty).clone())
            .map_err(|e| LoadError::Config(format!("rope_parameters: {e}")))?;
        let number = |key: &str| config.get(key).and_then(Value::as_f64).map(|n| n as f32);
        rope.rope_theta = rope.rope_theta.or(number("rope_theta"));
        rope.partial_rotary_factor = rope.partial_rotary_factor.or(number("partial_rotary_factor"));
        let positions = || number("max_position_embeddings");
        rope.original_max_position_embeddings = rope.original_max_position_embeddings.or_else(positions);
        rope.check()?;
        Ok(rope)
    }

    fn check(&self) -> Result<()> {
        let numbers = [
            ("rope_theta", self.rope_theta),
            ("factor", self.factor),
            ("original_max_position_embeddings", self.original_max_position_embeddings),
            ("attention_factor", self.attention_factor),
        ];
        let wrong = |(key, value): (&str, Option<f32>)| {
            let value = value.filter(|&value| !(value > 0.0 && value.is_finite()))?;
            Some(LoadError::Config(format!("{key} is {value}; it must be above 0")))
        };
        numbers.into_iter().find_map(wrong).map_or(Ok(()), Err)
    }

    /// Uses these values for keys that config.json leaves out.
    pub(super) fn or(self, theta: f32, partial_rotary_factor: f32) -> RopeParameters {
        RopeParameters {
            rope_theta: self.rope_theta.or(Some(theta)),
            partial_rotary_factor: self.partial_rotary_factor.or(Some(partial_rotary_factor)),
            ..self
        }
    }

    /// Has pairs of a model with vision turn by time, height and width as `mrope_section` says, or
    /// `default`. For text that is the same.
    pub(super) fn with_sections(self, config: &Value, default: [usize; 3]) -> RopeParameters {
        let has_sections = config.get("vision_config").is_some_and(Value::is_object);
        let mrope_section = self.mrope_section.or(Some(default.to_vec()));
        RopeParameters { has_sections, mrope_section, ..self }
    }

    /// Rotates whole heads, ignoring `partial_rotary_factor`.
    pub(super) fn whole_head(self) -> RopeParameters {
        RopeParameters { partial_rotary_factor: Some(1.0), ..self }
    }

    /// The embedding of heads of `head_dim` values.
    ///
    /// # Errors
    /// The scaling is not supported, or lacks a number.
    pub(super) fn rope(&self, head_dim: i32, pairs: RopePairs) -> Result<Rope> {
        let partial = self.partial_rotary_factor.unwrap_or(1.0);
        if !(0.0..=1.0).contains(&partial) {
            return Err(LoadError::Config(format!(
                "partial_rotary_factor is {partial}; it must be between 0 and 1"
            )));
        }
        let theta = self.rope_theta.unwrap_or(10_000.0);
        let dims = (head_dim as f32 * partial) as i32;
        let mut scale = 1.0;
        let frequencies = match self.kind() {
            // `dynamic` scaling starts beyond max_position_embeddings, which sequences never
            // exceed.
            "default" | "dynamic" => frequencies(dims, dims, theta),
            "linear" => {
                let factor = self.need("factor", self.factor)?;
                frequencies(dims, dims, theta).iter().map(|f| f / factor).collect()
            }
            "llama3" => self.llama3(frequencies(dims, dims, theta))?,
            "yarn" => {
                scale = self.yarn_attention_factor()?;
                self.yarn(dims, theta)?
            }
            "proportional" => {
                // Only part of the pairs rotate, at their frequencies in a whole head; the others
                // have frequency 0.
                let mut turning = frequencies((partial * head_dim as f32 / 2.0) as i32 * 2, head_dim, theta);
                turning.iter_mut().for_each(|f| *f /= self.factor.unwrap_or(1.0));
                turning.resize(head_dim as usize / 2, 0.0);
                turning
            }
            other => {
                return Err(LoadError::Config(format!(
                    "rope_type `{other}` is not supported; supported: default, dynamic, linear, llama3, yarn, proportional"
                )));
            }
        };
        let axes = self.axes(frequencies.len())?;
        Ok(Rope { frequencies, axes, pairs, scale })
    }

    /// The axis of each of `pairs` pairs: time, but every third pair height, and the ones after
    /// these width, as many of them as their sections have.
    fn axes(&self, pairs: usize) -> Result<Vec<u8>> {
        let Some(sections) = self.mrope_section.as_ref().filter(|_| self.has_sections) else {
            return Ok(vec![]);
        };
        let &[_, height, width] = &sections[..] else {
            return Err(LoadError::Config(format!(
                "mrope_section is {sections:?}; it must be three numbers"
            )));
        };
        if self.mrope_interleaved == Some(false) {
            return Err(LoadError::Config("mrope_interleaved must be true".into()));
        }
        let axis = |i: usize| match i % 3 {
            1 if i < 3 * height => 1,
            2 if i < 3 * width => 2,
            _ => 0,
        };
        Ok((0..pairs).map(axis).collect())
    }

    /// Factor of the softmax scale for YaRN with `mscale_all_dim`; 1 otherwise.
    pub(super) fn softmax_factor(&self) -> f32 {
        match (self.kind(), self.mscale_all_dim, self.factor) {
            ("yarn", Some(mscale), Some(factor)) if mscale != 0.0 => mscale_of(factor, mscale).powi(2),
            _ => 1.0,
        }
    }

    fn kind(&self) -> &str {
        self.rope_type.as_deref().or(self.old_type.as_deref()).unwrap_or("default")
    }

    fn need(&self, key: &str, value: Option<f32>) -> Result<f32> {
        let kind = self.kind();
        value.ok_or_else(|| LoadError::Config(format!("there is no {key} for rope_type `{kind}`")))
    }

    /// Low frequencies slowed down, high ones kept, a ramp between (Llama 3.1).
    fn llama3(&self, frequencies: Vec<f32>) -> Result<Vec<f32>> {
        let factor = self.need("factor", self.factor)?;
        let low = self.need("low_freq_factor", self.low_freq_factor)?;
        let high = self.need("high_freq_factor", self.high_freq_factor)?;
        let trained = self.need("original_max_position_embeddings", self.original_max_position_embeddings)?;
        let scaled = |f: f32| {
            let turns = trained * f / (2.0 * PI);
            let ramp = ((turns - low) / (high - low)).clamp(0.0, 1.0);
            (1.0 - ramp) * f / factor + ramp * f
        };
        Ok(frequencies.into_iter().map(scaled).collect())
    }

    /// Slow pairs interpolated, fast ones kept (Peng et al., "YaRN", 2023).
    fn yarn(&self, dims: i32, theta: f32) -> Result<Vec<f32>> {
        let factor = self.need("factor", self.factor)?;
        let trained = self.need("original_max_position_embeddings", self.original_max_position_embeddings)?;
        // The pair that makes this number of turns over the trained context.
        let pair = |turns: f32| dims as f32 * (trained / (turns * 2.0 * PI)).ln() / (2.0 * theta.ln());
        let (mut low, mut high) = (pair(self.beta_fast.unwrap_or(32.0)), pair(self.beta_slow.unwrap_or(1.0)));
        if self.truncate.unwrap_or(true) {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, high) = (low.max(0.0), high.min((dims - 1) as f32));
        let width = if high == low { 0.001 } else { high - low };
        let scaled = |(i, f): (usize, f32)| {
            let ramp = ((i as f32 - low) / width).clamp(0.0, 1.0);
            f / factor * ramp + f * (1.0 - ramp)
        };
        Ok(frequencies(dims, dims, theta).into_iter().enumerate().map(scaled).collect())
    }

    fn yarn_attention_factor(&self) -> Result<f32> {
        let factor = self.need("factor", self.factor)?;
        Ok(match (self.attention_factor, self.mscale, self.mscale_all_dim) {
            (Some(given), ..) => given,
            (None, Some(mscale), Some(all)) if mscale != 0.0 && all != 0.0 => {
                mscale_of(factor, mscale) / mscale_of(factor, all)
            }
            _ => mscale_of(factor, 1.0),
        })
    }
}

fn mscale_of(factor: f32, mscale: f32) -> f32 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
}

/// `theta^(-2i / of)` for `dims / 2` pairs (Su et al., 2021).
fn frequencies(dims: i32, of: i32, theta: f32) -> Vec<f32> {
    (0..dims / 2).map(|i| 1.0 / theta.powf((2 * i) as f32 / of as f32)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rope_type_under_its_older_name_or_both_is_read() {
        let check = |names: Value| {
            let mut scaling = json!({ "factor": 4.0 });
            scaling.as_object_mut().expect("an object").extend(names.as_object().expect("an object").clone());
            let rope = RopeParameters::of(&json!({ "rope_scaling": scaling }), None).expect("parses");
            assert_eq!(rope.rope(8, RopePairs::Halves).expect("a rope").frequencies[0], 0.25);
        };
        check(json!({ "rope_type": "linear" }));
        check(json!({ "type": "linear" }));
        check(json!({ "type": "linear", "rope_type": "linear" }));
    }
}
