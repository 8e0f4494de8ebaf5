//! Values of `env` and `headers`, which are kept out of logs and errors.

use std::fmt;

/// Shorter values, such as `1` or `true`, are no secrets, and would blot out ordinary text.
const SHORTEST: usize = 6;
const MASK: &str = "***";

/// Texts that are replaced wherever a server's own words are passed on.
#[derive(Clone, Default)]
pub(crate) struct Secrets(Vec<String>);

impl Secrets {
    pub(crate) fn new<'a>(values: impl IntoIterator<Item = &'a str>) -> Secrets {
        // The token of `Bearer TOKEN` is secret on its own too.
        let parts =
            values.into_iter().flat_map(|value| [Some(value), value.split_once(' ').map(|pair| pair.1)]);
        let long = parts.flatten().filter(|value| value.len() >= SHORTEST).map(str::to_owned);
        let mut secrets: Vec<String> = long.collect();
        // A secret that contains another one is replaced as a whole.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        Secrets(secrets)
    }

    /// The text without secrets.
    pub(crate) fn mask(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, secret| text.replace(secret, MASK))
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} secrets", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_masked_whole_and_short_values_stay() {
        let secrets = Secrets::new(["Bearer sk-12345", "sk-12345-more", "1"]);
        assert_eq!(secrets.mask("got Bearer sk-12345 and sk-12345, 1 time"), "got *** and ***, 1 time");
        assert_eq!(secrets.mask("sk-12345-more"), MASK);
        assert!(!format!("{secrets:?}").contains("sk-"));
    }
}
