//! Pixel values to normalised floats, by a table per channel.

/// Maps each byte of a pixel to the float that the tower reads, per channel.
///
/// Computed in f32 in the order that transformers uses, so that values agree to the bit: with a
/// mean, `(x - mean / factor) / (std / factor)`, else `x * factor`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Normalization {
    tables: Box<[[f32; 256]; 3]>,
}

impl Normalization {
    /// With a mean and a standard deviation of each channel, both of values scaled by
    /// `rescale_factor`.
    pub(crate) fn mean_and_std(mean: [f64; 3], std: [f64; 3], rescale_factor: f64) -> Normalization {
        let per_step = (1.0 / rescale_factor) as f32;
        Normalization::per_channel(|channel, value| {
            let mean = mean[channel] as f32 * per_step;
            let std = std[channel] as f32 * per_step;
            (value - mean) / std
        })
    }

    /// Only scaled.
    pub(crate) fn rescale(rescale_factor: f64) -> Normalization {
        Normalization::per_channel(|_, value| value * rescale_factor as f32)
    }

    fn per_channel(value: impl Fn(usize, f32) -> f32) -> Normalization {
        let table = |channel| std::array::from_fn(|byte| value(channel, byte as f32));
        Normalization { tables: Box::new([table(0), table(1), table(2)]) }
    }

    /// Appends the values of whole pixels, channels last.
    pub(crate) fn append_interleaved(&self, bytes: &[u8], values: &mut Vec<f32>) {
        let [red, green, blue] = &*self.tables;
        let start = values.len();
        values.resize(start + bytes.len(), 0.0);
        let targets = values[start..].as_chunks_mut::<3>().0;
        for (target, &[r, g, b]) in targets.iter_mut().zip(bytes.as_chunks::<3>().0) {
            *target = [red[usize::from(r)], green[usize::from(g)], blue[usize::from(b)]];
        }
    }

    /// Appends one channel of whole pixels.
    pub(crate) fn append_channel(&self, channel: usize, bytes: &[u8], values: &mut Vec<f32>) {
        let table = &self.tables[channel];
        let pixels = bytes.as_chunks::<3>().0;
        values.extend(pixels.iter().map(|pixel| table[usize::from(pixel[channel])]));
    }

    /// All constants as bytes, for digests.
    pub(crate) fn constants(&self) -> impl Iterator<Item = [u8; 4]> + '_ {
        // Two points determine an affine map.
        self.tables.iter().flat_map(|table| [table[0].to_le_bytes(), table[255].to_le_bytes()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_std_map_the_range_to_plus_minus_one() {
        let half = Normalization::mean_and_std([0.5; 3], [0.5; 3], 1.0 / 255.0);
        let mut values = vec![];
        half.append_interleaved(&[0, 255, 51], &mut values);
        assert_eq!(values, [-1.0, 1.0, (51.0 - 127.5) / 127.5]);
    }

    #[test]
    fn rescaling_multiplies_in_single_precision() {
        let mut values = vec![];
        Normalization::rescale(0.00392156862745098).append_channel(2, &[1, 2, 3], &mut values);
        assert_eq!(values, [3.0 * 0.003_921_569_f32]);
    }
}
