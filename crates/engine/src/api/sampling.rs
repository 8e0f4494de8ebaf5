//! Sampling parameters: their defaults, their ranges, and whether generation_config.json sets them.
//! Ranges are wide enough for every use, and narrow enough that no arithmetic on the logits of a
//! sound model overflows float32.

use std::collections::BTreeMap;

use super::request_error::RequestError;

/// How a token is chosen from logits. The default is greedy, with every filter and penalty off.
/// [`SamplingRange`](crate::SamplingRange) bounds the values.
///
/// The choice is a pure function of the logits, the tokens so far and these values: random numbers
/// are keyed by `(seed, position)`, so the same request gives the same text whatever else is
/// running.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 means greedy.
    pub temperature: f32,
    /// Keep the `top_k` likeliest tokens; 0 means all.
    pub top_k: usize,
    /// Keep the smallest set of likeliest tokens whose probabilities reach `top_p`; 1 means all.
    pub top_p: f32,
    /// Drop tokens less likely than `min_p` times the likeliest; 0 means none.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or output; 1 means
    /// off.
    pub repetition_penalty: f32,
    /// Subtracted once from the logit of every token already generated.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit for each time it was generated.
    pub frequency_penalty: f32,
    /// Added to the logits of the given token ids before anything else.
    pub logit_bias: BTreeMap<u32, f32>,
    /// Keys the random numbers.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: BTreeMap::new(),
            seed: 0,
        }
    }
}

/// Builds a kernel's parameters: those that it shares with [`Sampling`] by name, and its own.
macro_rules! with_parameters {
    ($sampling:expr, $($kernel:ident)::+ { $($own:tt)* }) => {
        $($kernel)::+ {
            temperature: $sampling.temperature,
            top_k: $sampling.top_k,
            top_p: $sampling.top_p,
            min_p: $sampling.min_p,
            repetition_penalty: $sampling.repetition_penalty,
            presence_penalty: $sampling.presence_penalty,
            frequency_penalty: $sampling.frequency_penalty,
            seed: $sampling.seed,
            $($own)*
        }
    };
}
pub(crate) use with_parameters;

/// A parameter that is one number: its range, its field, and whether generation_config.json sets
/// it.
pub(crate) struct Parameter {
    pub range: SamplingRange,
    pub value: fn(&mut Sampling) -> &mut f32,
    pub in_generation_config: bool,
}

/// All parameters with a [`SamplingRange`], except `logit_bias`.
pub(crate) const PARAMETERS: [Parameter; 6] = [
    parameter(SamplingRange::TEMPERATURE, |s| &mut s.temperature, true),
    parameter(SamplingRange::TOP_P, |s| &mut s.top_p, true),
    parameter(SamplingRange::MIN_P, |s| &mut s.min_p, true),
    parameter(SamplingRange::REPETITION_PENALTY, |s| &mut s.repetition_penalty, true),
    parameter(SamplingRange::PRESENCE_PENALTY, |s| &mut s.presence_penalty, false),
    parameter(SamplingRange::FREQUENCY_PENALTY, |s| &mut s.frequency_penalty, false),
];

const fn parameter(
    range: SamplingRange,
    value: fn(&mut Sampling) -> &mut f32,
    in_generation_config: bool,
) -> Parameter {
    Parameter { range, value, in_generation_config }
}

/// The range of one parameter; inclusive, except that `above` excludes the lower end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingRange {
    /// Its name in requests and in generation_config.json.
    pub name: &'static str,
    /// The smallest value.
    pub least: f32,
    /// The largest value.
    pub most: f32,
    /// Whether the smallest value itself is out of range.
    pub above: bool,
    /// The range in words.
    pub must: &'static str,
}

impl SamplingRange {
    /// Range of [`Sampling::temperature`].
    pub const TEMPERATURE: SamplingRange = range("temperature", 0.0, 100.0, "between 0 and 100");
    /// Range of [`Sampling::top_p`].
    pub const TOP_P: SamplingRange =
        SamplingRange { above: true, ..range("top_p", 0.0, 1.0, "above 0 and at most 1") };
    /// Range of [`Sampling::min_p`].
    pub const MIN_P: SamplingRange = range("min_p", 0.0, 1.0, "between 0 and 1");
    /// Range of [`Sampling::repetition_penalty`].
    pub const REPETITION_PENALTY: SamplingRange =
        range("repetition_penalty", 0.01, 100.0, "between 0.01 and 100");
    /// Range of [`Sampling::presence_penalty`].
    pub const PRESENCE_PENALTY: SamplingRange =
        range("presence_penalty", -100.0, 100.0, "between -100 and 100");
    /// Range of [`Sampling::frequency_penalty`].
    pub const FREQUENCY_PENALTY: SamplingRange =
        range("frequency_penalty", -100.0, 100.0, "between -100 and 100");
    /// Range of each value of [`Sampling::logit_bias`].
    pub const LOGIT_BIAS: SamplingRange =
        range("logit_bias", -10_000.0, 10_000.0, "between -10000 and 10000");

    /// Checks a value and converts it to float32.
    ///
    /// # Errors
    /// [`RequestError::BadSampling`]: it is out of range, or NaN.
    pub fn check(&self, value: f64) -> Result<f32, RequestError> {
        let narrow = value as f32;
        let inside = (self.least..=self.most).contains(&narrow) && !(self.above && narrow == self.least);
        match inside {
            true => Ok(narrow),
            false => Err(RequestError::BadSampling { name: self.name, value, must: self.must }),
        }
    }
}

const fn range(name: &'static str, least: f32, most: f32, must: &'static str) -> SamplingRange {
    SamplingRange { name, least, most, above: false, must }
}

/// Checks every parameter.
///
/// # Errors
/// [`RequestError::BadSampling`] for the first parameter out of range.
pub(crate) fn check(s: &Sampling) -> Result<(), RequestError> {
    let mut single = Sampling { logit_bias: BTreeMap::new(), ..*s };
    let single = PARAMETERS.map(|parameter| (parameter.range, *(parameter.value)(&mut single)));
    let biases = s.logit_bias.values().map(|&bias| (SamplingRange::LOGIT_BIAS, bias));
    // Written as float32 and read again, so that an error says 0.3 where 0.3 was asked for.
    let wide = |value: f32| value.to_string().parse().unwrap_or(f64::from(value));
    single.into_iter().chain(biases).try_for_each(|(range, value)| match range.check(value.into()) {
        Ok(_) => Ok(()),
        Err(_) => range.check(wide(value)).map(drop),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampling_range_accepts_its_ends_and_nothing_beyond() {
        let check = |range: SamplingRange, inside: &[f64], outside: &[f64]| {
            inside
                .iter()
                .for_each(|&value| assert_eq!(range.check(value), Ok(value as f32), "{}", range.name));
            let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300, -1e300, f64::MAX];
            for value in outside.iter().chain(&odd) {
                let message = range.check(*value).expect_err("out of range").to_string();
                assert!(message.starts_with(&format!("{} is ", range.name)), "{message}");
                assert!(message.ends_with(&format!("; it must be {}", range.must)), "{message}");
            }
        };
        check(SamplingRange::TEMPERATURE, &[0.0, -0.0, 1e-300, 100.0], &[-1e-30, 100.1]);
        check(SamplingRange::TOP_P, &[1e-30, 1.0], &[0.0, -0.0, -0.1, 1.1]);
        check(SamplingRange::MIN_P, &[0.0, 1.0], &[-0.1, 1.1]);
        check(SamplingRange::REPETITION_PENALTY, &[0.01, 100.0], &[0.0, 1e-38, -1.0, 101.0]);
        check(SamplingRange::PRESENCE_PENALTY, &[-100.0, 100.0], &[-101.0, 101.0]);
        check(SamplingRange::LOGIT_BIAS, &[-10_000.0, 10_000.0], &[-10_001.0, 10_001.0, 1e39]);
    }

    #[test]
    fn range_error_of_a_float32_shows_its_shortest_decimal() {
        let message = check(&Sampling { min_p: -0.3, ..Sampling::default() }).expect_err("out of range");
        assert_eq!(message.to_string(), "min_p is -0.3; it must be between 0 and 1");
    }
}
