//! Separates requests that must not learn of each other's prompts.

/// Only requests with the same salt share stored prefixes. A request learns nothing from timing or
/// usage about prefixes stored under another salt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CacheSalt([u8; 32]);

impl CacheSalt {
    /// A salt that differs for any other list of parts.
    pub fn new<'a>(parts: impl IntoIterator<Item = Option<&'a str>>) -> CacheSalt {
        let mut hash = blake3::Hasher::new();
        for part in parts {
            // The length keeps parts apart from each other.
            let length = part.map_or(u64::MAX, |part| part.len() as u64);
            hash.update(&length.to_le_bytes()).update(part.unwrap_or_default().as_bytes());
        }
        CacheSalt(*hash.finalize().as_bytes())
    }

    /// Its bytes, for hashes of what it separates.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Its digits in a file.
    pub fn to_hex(self) -> String {
        blake3::Hash::from_bytes(self.0).to_hex().to_string()
    }

    /// The salt with these digits; `None` if they are not 64 hexadecimal ones.
    pub fn from_hex(digits: &str) -> Option<CacheSalt> {
        blake3::Hash::from_hex(digits).ok().map(|hash| CacheSalt(*hash.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn salt_differs_for_other_parts() {
        let salts: Vec<CacheSalt> = [
            vec![Some("ab"), Some("c")],
            vec![Some("a"), Some("bc")],
            vec![Some("abc"), None],
            vec![None, Some("abc")],
            vec![Some("abc"), Some("")],
            vec![Some("abc")],
        ]
        .map(CacheSalt::new)
        .to_vec();
        for (i, salt) in salts.iter().enumerate() {
            assert_eq!(salts.iter().position(|other| other == salt), Some(i));
            assert_eq!(CacheSalt::from_hex(&salt.to_hex()), Some(*salt));
        }
        assert_eq!(CacheSalt::from_hex("ab"), None);
    }
}
