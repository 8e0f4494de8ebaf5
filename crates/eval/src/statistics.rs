//! Statistics of repeated measurements.

use serde::{Deserialize, Serialize};

/// Median, minimum and maximum.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Of an even count, the mean of the two middle values.
    pub median: f64,
    /// The least value.
    pub min: f64,
    /// The greatest value.
    pub max: f64,
}

impl Spread {
    /// `None`: no values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
        Some(Spread { median: (low + high) / 2.0, min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_of_values_is_median_min_and_max() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([7.0]), Some(Spread { median: 7.0, min: 7.0, max: 7.0 }));
        assert_eq!(Spread::of([9.0, 1.0, 4.0]), Some(Spread { median: 4.0, min: 1.0, max: 9.0 }));
        assert_eq!(Spread::of([9.0, 1.0, 4.0, 2.0]), Some(Spread { median: 3.0, min: 1.0, max: 9.0 }));
    }
}
