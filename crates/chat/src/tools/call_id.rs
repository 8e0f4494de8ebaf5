//! Ids of tool calls: random, but a function of a seed.

const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Generates ids (SplitMix64, Steele, Lea and Flood 2014).
#[derive(Debug)]
pub(super) struct CallIds {
    state: u64,
    prefix: &'static str,
    length: usize,
}

impl CallIds {
    /// Ids of a prefix and this many alphanumerics.
    pub(super) fn new(state: u64, (prefix, length): (&'static str, usize)) -> Self {
        Self { state, prefix, length }
    }

    /// The next id.
    pub(super) fn next(&mut self) -> String {
        let mut id = self.prefix.to_owned();
        id.extend((0..self.length).map(|_| char::from(ALPHABET[(self.random() % 62) as usize])));
        id
    }

    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }
}
