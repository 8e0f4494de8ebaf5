//! How long an unused model stays loaded, as flags and requests write it.

use std::{str::FromStr, time::Duration};

use serde::Deserialize;

/// Longer times are for ever: about thirty years, in seconds.
const LONGEST: f64 = 1e9;

/// How long a model stays loaded after its last request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "SecondsOrText")]
pub enum KeepAlive {
    #[default]
    Forever,
    For(Duration),
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a number of seconds, or a duration such as `5m`")]
enum SecondsOrText {
    Seconds(f64),
    Text(String),
}

impl KeepAlive {
    /// A negative number is for ever; `None` if it is no number.
    pub fn from_seconds(seconds: f64) -> Option<KeepAlive> {
        if seconds.is_nan() {
            return None;
        }
        let is_time = (0.0..=LONGEST).contains(&seconds);
        Some(if is_time { KeepAlive::For(Duration::from_secs_f64(seconds)) } else { KeepAlive::Forever })
    }

    /// The number that [`from_seconds`](KeepAlive::from_seconds) takes.
    pub fn seconds(self) -> f64 {
        self.duration().map_or(-1.0, |time| time.as_secs_f64())
    }

    pub fn is_zero(self) -> bool {
        self == KeepAlive::For(Duration::ZERO)
    }

    pub fn duration(self) -> Option<Duration> {
        match self {
            KeepAlive::Forever => None,
            KeepAlive::For(time) => Some(time),
        }
    }
}

impl TryFrom<SecondsOrText> for KeepAlive {
    type Error = String;

    fn try_from(given: SecondsOrText) -> Result<KeepAlive, String> {
        match given {
            SecondsOrText::Seconds(seconds) => {
                KeepAlive::from_seconds(seconds).ok_or_else(|| format!("{seconds} is no time"))
            }
            SecondsOrText::Text(text) => text.parse(),
        }
    }
}

impl FromStr for KeepAlive {
    type Err = String;

    /// A number of seconds, one of Go's durations such as `1h30m`, or `forever`.
    fn from_str(text: &str) -> Result<KeepAlive, String> {
        if text == "forever" {
            return Ok(KeepAlive::Forever);
        }
        let seconds = seconds(text).and_then(KeepAlive::from_seconds);
        seconds.ok_or_else(|| {
            format!("`{text}` is not a number of seconds, a duration such as `5m`, or forever")
        })
    }
}

fn seconds(text: &str) -> Option<f64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    let is_plain = |number: &str| number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if is_plain(rest) {
        return rest.parse().ok().map(|seconds: f64| sign * seconds);
    }
    let mut sum = 0.0;
    while !rest.is_empty() {
        let unit = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let next = unit.trim_start_matches(|c: char| c.is_alphabetic());
        let number: f64 = rest[..rest.len() - unit.len()].parse().ok()?;
        sum += number
            * match &unit[..unit.len() - next.len()] {
                "ns" => 1e-9,
                "us" | "µs" => 1e-6,
                "ms" => 1e-3,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                _ => return None,
            };
        rest = next;
    }
    Some(sign * sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keep_alive_is_a_number_or_a_duration() {
        let check = |text: &str, milliseconds: u64| {
            let expected = KeepAlive::For(Duration::from_millis(milliseconds));
            assert_eq!(text.parse(), Ok(expected), "{text}");
        };
        for (text, milliseconds) in [
            ("0", 0),
            ("5", 5_000),
            ("0.5", 500),
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            ("1.5h", 5_400_000),
            ("250ms", 250),
            ("+2s", 2_000),
        ] {
            check(text, milliseconds);
        }
        for text in ["-1", "-1m", "forever", "1000000h"] {
            assert_eq!(text.parse(), Ok(KeepAlive::Forever), "{text}");
        }
        for text in ["", "m", "5 m", "5x", "1h30", "-", "inf", "NaN", "1.2.3", "1e3"] {
            assert!(text.parse::<KeepAlive>().is_err(), "{text}");
        }
    }
}
