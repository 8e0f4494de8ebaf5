//! Statistics of repeated measurements.

use serde_json::{Value, json};

/// Median, minimum and maximum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// `None`: no values.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let values = sorted(values);
        let (min, max) = (*values.first()?, *values.last()?);
        let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
        Some(Spread { median: (low + high) / 2.0, min, max })
    }

    pub(crate) fn json(&self) -> Value {
        json!({ "median": self.median, "min": self.min, "max": self.max })
    }
}

/// Percentiles of all measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Percentiles {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub max: f64,
}

impl Percentiles {
    /// `None`: no values. Nearest rank: each percentile is one of the values.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Percentiles> {
        let values = sorted(values);
        let max = *values.last()?;
        let rank = |percent: usize| values[(values.len() * percent).div_ceil(100) - 1];
        Some(Percentiles { p50: rank(50), p90: rank(90), p99: rank(99), max })
    }

    pub(crate) fn json(&self) -> Value {
        json!({ "p50": self.p50, "p90": self.p90, "p99": self.p99, "max": self.max })
    }
}

fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_median_of_an_even_count_is_the_mean_of_two() {
        assert_eq!(Spread::of([3.0, 1.0, 10.0, 2.0]), Some(Spread { median: 2.5, min: 1.0, max: 10.0 }));
        assert_eq!(Spread::of([7.0]), Some(Spread { median: 7.0, min: 7.0, max: 7.0 }));
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn percentiles_are_nearest_rank() {
        let found = Percentiles::of((1..=200).rev().map(f64::from));
        assert_eq!(found, Some(Percentiles { p50: 100.0, p90: 180.0, p99: 198.0, max: 200.0 }));
        assert_eq!(Percentiles::of([4.0, 2.0]), Some(Percentiles { p50: 2.0, p90: 4.0, p99: 4.0, max: 4.0 }));
        assert_eq!(Percentiles::of([]), None);
    }
}
