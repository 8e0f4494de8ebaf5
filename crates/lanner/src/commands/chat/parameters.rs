//! Sampling parameters that `/set` changes.

use engine::{Sampling, SamplingRange};

use crate::{sampling::Overrides, terminal::table};

/// Names of the parameters, as requests have them.
pub(super) const NAMES: [&str; 9] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "max_tokens",
];

/// Sets a parameter, or takes the model's own value.
///
/// # Errors
/// The value is not one of this parameter: a sentence.
pub(super) fn set(overrides: &mut Overrides, name: &str, value: Option<&str>) -> Result<(), String> {
    let whole = |least: usize| value.map(|value| natural(name, value, least)).transpose();
    match name {
        "top_k" => overrides.top_k = whole(0)?,
        "max_tokens" => overrides.max_tokens = whole(1)?,
        "seed" => {
            let seed = value.map(|value| value.parse().map_err(|_| not(name, value, "a natural number")));
            overrides.seed = seed.transpose()?;
        }
        _ => {
            let Some((range, field)) = number(overrides, name) else {
                return Err(format!("there is no parameter `{name}`"));
            };
            let check = |value: &str| {
                let number: f64 = value.parse().map_err(|_| not(name, value, "a number"))?;
                range.check(number).map_err(|error| error.to_string())
            };
            *field = value.map(check).transpose()?;
        }
    }
    Ok(())
}

fn natural(name: &str, value: &str, least: usize) -> Result<usize, String> {
    let number = value.parse().ok().filter(|number| *number >= least);
    number.ok_or_else(|| not(name, value, &format!("a whole number, {least} or more")))
}

fn not(name: &str, value: &str, must: &str) -> String {
    format!("{name} must be {must}, not `{value}`")
}

/// A parameter with a range, and its value.
fn number<'a>(overrides: &'a mut Overrides, name: &str) -> Option<(SamplingRange, &'a mut Option<f32>)> {
    Some(match name {
        "temperature" => (SamplingRange::TEMPERATURE, &mut overrides.temperature),
        "top_p" => (SamplingRange::TOP_P, &mut overrides.top_p),
        "min_p" => (SamplingRange::MIN_P, &mut overrides.min_p),
        "repetition_penalty" => (SamplingRange::REPETITION_PENALTY, &mut overrides.repetition_penalty),
        "presence_penalty" => (SamplingRange::PRESENCE_PENALTY, &mut overrides.presence_penalty),
        "frequency_penalty" => (SamplingRange::FREQUENCY_PENALTY, &mut overrides.frequency_penalty),
        _ => return None,
    })
}

/// All parameters with their values, and whether they were set.
pub(super) fn show(overrides: &Overrides, defaults: &Sampling) -> String {
    let own = overrides.sampling(defaults);
    let row = |name: &'static str| {
        let number = |value: f32, set: Option<f32>| (value.to_string(), set.is_some());
        let (value, is_set) = match name {
            "temperature" => number(own.temperature, overrides.temperature),
            "top_p" => number(own.top_p, overrides.top_p),
            "top_k" => (own.top_k.to_string(), overrides.top_k.is_some()),
            "min_p" => number(own.min_p, overrides.min_p),
            "repetition_penalty" => number(own.repetition_penalty, overrides.repetition_penalty),
            "presence_penalty" => number(own.presence_penalty, overrides.presence_penalty),
            "frequency_penalty" => number(own.frequency_penalty, overrides.frequency_penalty),
            "seed" => {
                (overrides.seed.map_or("random".into(), |seed| seed.to_string()), overrides.seed.is_some())
            }
            _ => {
                let most = overrides.max_tokens.map_or("rest of the context".into(), |most| most.to_string());
                (most, overrides.max_tokens.is_some())
            }
        };
        [name.to_owned(), value, if is_set { "set" } else { "default" }.to_owned()]
    };
    table(&NAMES.map(row)).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_changes_and_resets_each_parameter() {
        let mut overrides = Overrides::default();
        for name in NAMES {
            set(&mut overrides, name, Some("1")).unwrap();
        }
        assert_eq!((overrides.temperature, overrides.top_k, overrides.seed), (Some(1.0), Some(1), Some(1)));
        let shown = show(&overrides, &Sampling::default());
        assert!(shown.lines().count() == NAMES.len() && !shown.contains("default"), "{shown}");
        for name in NAMES {
            set(&mut overrides, name, None).unwrap();
        }
        assert_eq!(overrides, Overrides::default());
        assert!(!show(&overrides, &Sampling::default()).contains(" set"));
    }

    #[test]
    fn set_refuses_values_out_of_range() {
        let mut overrides = Overrides::default();
        for (name, value, part) in [
            ("temperature", "-1", "between 0 and 100"),
            ("temperature", "warm", "must be a number, not `warm`"),
            ("top_p", "0", "above 0 and at most 1"),
            ("top_k", "1.5", "a whole number, 0 or more"),
            ("max_tokens", "0", "a whole number, 1 or more"),
            ("seed", "-1", "a natural number"),
        ] {
            let error = set(&mut overrides, name, Some(value)).unwrap_err();
            assert!(error.contains(part) && error.contains(name), "{error}");
        }
        assert_eq!(overrides, Overrides::default());
    }
}
