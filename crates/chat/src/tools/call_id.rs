//! Ids of tool calls: random, but a function of a seed.

const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Generates ids (SplitMix64, Steele, Lea and Flood 2014).
#[derive(Debug)]
pub(super) struct CallIds(u64);

impl CallIds {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// An id of `length` alphanumerics.
    pub fn next(&mut self, length: usize) -> String {
        (0..length).map(|_| char::from(ALPHABET[(self.random() % 62) as usize])).collect()
    }

    fn random(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }
}
