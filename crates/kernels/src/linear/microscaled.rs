//! Weight formats of 4- and 8-bit floats with one scale per group: OCP microscaling and NVFP4.

/// A matrix `[out, in]` of 4- or 8-bit floats with one scale per group and no bias, as MLX packs
/// it.
#[derive(Clone, Copy, Debug)]
pub struct Microscaled<'a> {
    /// Each row one little-endian bit stream of codes.
    pub codes: &'a [u32],
    /// `[out, in / group]`
    pub scales: &'a [u8],
    pub format: FloatFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatFormat {
    /// e2m1 codes in groups of 32, each with a power of two.
    Mxfp4,
    /// e4m3 codes in groups of 32, each with a power of two.
    Mxfp8,
    /// e2m1 codes in groups of 16, each with an e4m3 scale.
    Nvfp4,
}

impl FloatFormat {
    /// Bits of a code.
    pub(crate) fn bits(self) -> usize {
        if self == FloatFormat::Mxfp8 { 8 } else { 4 }
    }

    /// Values that share a scale.
    pub(crate) fn group(self) -> usize {
        if self == FloatFormat::Nvfp4 { 16 } else { 32 }
    }
}

impl Microscaled<'_> {
    /// Panics unless the parts are those of `rows` rows of `k`.
    pub(super) fn check(&self, rows: usize, k: usize) {
        let Microscaled { codes, scales, format } = self;
        let (bits, group) = (format.bits(), format.group());
        assert!(k.is_multiple_of(group), "{format:?} has groups of {group}, not in {k}");
        assert_eq!(
            (codes.len(), scales.len()),
            (rows * k * bits / 32, rows * k / group),
            "{format:?} codes and scales of {rows} rows of {k}"
        );
    }
}
