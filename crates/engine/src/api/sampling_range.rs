//! Ranges of sampling parameters: wide enough for every use, and narrow enough that no arithmetic
//! on the logits of a sound model overflows float32.

use super::{request::Sampling, request_error::RequestError};

/// The values of one parameter; both ends count, unless `above` says that the lower one does not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingRange {
    /// As in a request and in generation_config.json.
    pub name: &'static str,
    pub least: f32,
    pub most: f32,
    above: bool,
    /// The range in words.
    pub must: &'static str,
}

impl SamplingRange {
    pub const TEMPERATURE: SamplingRange = range("temperature", 0.0, 100.0, "between 0 and 100");
    pub const TOP_P: SamplingRange =
        SamplingRange { above: true, ..range("top_p", 0.0, 1.0, "above 0 and at most 1") };
    pub const MIN_P: SamplingRange = range("min_p", 0.0, 1.0, "between 0 and 1");
    pub const REPETITION_PENALTY: SamplingRange =
        range("repetition_penalty", 0.01, 100.0, "between 0.01 and 100");
    pub const PRESENCE_PENALTY: SamplingRange =
        range("presence_penalty", -100.0, 100.0, "between -100 and 100");
    pub const FREQUENCY_PENALTY: SamplingRange =
        range("frequency_penalty", -100.0, 100.0, "between -100 and 100");
    /// Of each bias.
    pub const LOGIT_BIAS: SamplingRange =
        range("logit_bias", -10_000.0, 10_000.0, "between -10000 and 10000");

    /// The value as it is computed with.
    ///
    /// # Errors
    /// [`RequestError::BadSampling`]: it is out of range, or no number.
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

/// # Errors
/// [`RequestError::BadSampling`] for the first parameter out of range.
pub(crate) fn check(s: &Sampling) -> Result<(), RequestError> {
    let single = [
        (SamplingRange::TEMPERATURE, s.temperature),
        (SamplingRange::TOP_P, s.top_p),
        (SamplingRange::MIN_P, s.min_p),
        (SamplingRange::REPETITION_PENALTY, s.repetition_penalty),
        (SamplingRange::PRESENCE_PENALTY, s.presence_penalty),
        (SamplingRange::FREQUENCY_PENALTY, s.frequency_penalty),
    ];
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
    fn ranges_end_where_they_say() {
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
    fn errors_of_float32_values_are_as_short_as_the_values() {
        let message = check(&Sampling { min_p: -0.3, ..Sampling::default() }).expect_err("out of range");
        assert_eq!(message.to_string(), "min_p is -0.3; it must be between 0 and 1");
    }
}
