//! Values of `env` and `headers` and of a URL's query, which are kept out of logs and errors.

use std::fmt;

/// Shorter values, such as `1` or `true`, are no secrets, and would blot out ordinary text.
const SHORTEST: usize = 6;
const MASK: &str = "***";

/// Texts that are replaced wherever a server's own words are passed on.
#[derive(Clone, Default)]
pub(crate) struct Secrets(Vec<String>);

impl Secrets {
    pub(crate) fn new<'a>(values: impl IntoIterator<Item = &'a str>) -> Secrets {
        let mut secrets: Vec<String> = values.into_iter().flat_map(parts).flat_map(forms).collect();
        secrets.retain(|secret| secret.len() >= SHORTEST);
        // A secret that contains another one is replaced as a whole.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        secrets.dedup();
        Secrets(secrets)
    }

    /// The text without secrets.
    pub(crate) fn mask(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, secret| text.replace(secret, MASK))
    }

    /// The first `most` characters of the text without secrets; `…` follows if there are more.
    pub(crate) fn shortened(&self, text: &str, most: usize) -> String {
        // Masked first: a secret that is cut is not found any more.
        let mut masked = self.mask(text);
        if let Some((end, _)) = masked.char_indices().nth(most) {
            masked.truncate(end);
            masked.push('…');
        }
        masked
    }

    /// The start of a text whose rest was not read, without secrets and without the start of one.
    pub(crate) fn mask_start(&self, text: &str) -> String {
        let mut masked = self.mask(text);
        let begun = |secret: &String| {
            let starts = (1..secret.len()).rev().filter(|at| secret.is_char_boundary(*at));
            starts.map(|at| &secret[..at]).find(|start| masked.ends_with(start)).map_or(0, str::len)
        };
        let begun = self.0.iter().map(begun).max().unwrap_or(0);
        masked.truncate(masked.len() - begun);
        masked
    }
}

/// A value, and what of it is secret on its own: the token of `Bearer TOKEN`, lines of a key.
fn parts(value: &str) -> impl Iterator<Item = &str> {
    let token = value.split_once(' ').map(|pair| pair.1);
    [value].into_iter().chain(token).chain(value.lines().map(str::trim))
}

/// A text, and the same text inside a JSON string.
fn forms(text: &str) -> [String; 3] {
    let json = serde_json::Value::from(text).to_string();
    let escaped = json[1..json.len() - 1].to_owned();
    // Many programs write JSON in ASCII.
    let mut ascii = String::new();
    for c in escaped.chars() {
        match c.is_ascii() {
            true => ascii.push(c),
            false => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| ascii += &format!("\\u{unit:04x}")),
        }
    }
    [text.to_owned(), escaped, ascii]
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

    #[test]
    fn lines_and_json_forms_of_a_secret_are_masked() {
        let secrets = Secrets::new(["-----BEGIN-----\nMIIEline1\r\nMIIEline2\n", "pa\"ss\\wörd"]);
        assert_eq!(secrets.mask("MIIEline2, MIIEline1"), "***, ***");
        for text in ["pa\"ss\\wörd", r#"pa\"ss\\wörd"#, r#"pa\"ss\\w\u00f6rd"#] {
            assert_eq!(secrets.mask(text), MASK, "{text}");
        }
    }

    #[test]
    fn cut_text_holds_no_part_of_a_secret() {
        let secrets = Secrets::new(["sk-1234567890"]);
        assert_eq!(secrets.shortened("at sk-1234567890, and more", 8), "at ***, …");
        assert_eq!(secrets.shortened("at sk-1234567890", 8), "at ***");
        assert_eq!(secrets.mask_start("at sk-1234567890, sk-12345678"), "at ***, ");
        assert_eq!(secrets.mask_start("at rest"), "at rest");
    }
}
