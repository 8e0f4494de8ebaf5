//! Mean of hidden states, independent of how steps split them.

/// Summed token by token in float64, so that the result does not depend on the steps' sizes.
#[derive(Default)]
pub(super) struct PooledStates {
    sum: Vec<f64>,
    num_tokens: usize,
}

impl PooledStates {
    /// Adds hidden states of `num_tokens` tokens, one after the other.
    pub(super) fn add(&mut self, num_tokens: usize, values: &[f32]) {
        let size = values.len() / num_tokens;
        self.sum.resize(size, 0.0);
        for state in values.chunks(size) {
            self.sum.iter_mut().zip(state).for_each(|(sum, value)| *sum += f64::from(*value));
        }
        self.num_tokens += num_tokens;
    }

    /// The mean; `None` if a number is not finite.
    pub(super) fn mean(&self) -> Option<Vec<f32>> {
        let count = self.num_tokens as f64;
        let mean: Vec<f32> = self.sum.iter().map(|sum| (sum / count) as f32).collect();
        mean.iter().all(|value| value.is_finite()).then_some(mean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_does_not_depend_on_the_steps() {
        let values: Vec<f32> = (0..3 * 7).map(|i| (i as f32).sin() * 1e3_f32.powi(i % 5)).collect();
        let mean = |steps: &[usize]| {
            let (mut pooled, mut rest) = (PooledStates::default(), &values[..]);
            for &step in steps {
                let (own, after) = rest.split_at(3 * step);
                pooled.add(step, own);
                rest = after;
            }
            pooled.mean().unwrap()
        };
        let whole = mean(&[7]);
        assert_eq!(mean(&[1, 1, 1, 1, 1, 1, 1]), whole);
        assert_eq!(mean(&[2, 4, 1]), whole);
        let expected = (0..7).map(|i| f64::from(values[3 * i])).sum::<f64>() / 7.0;
        assert_eq!(whole[0], expected as f32);
        let mut broken = PooledStates::default();
        broken.add(1, &[1.0, f32::NAN]);
        assert_eq!(broken.mean(), None);
    }
}
