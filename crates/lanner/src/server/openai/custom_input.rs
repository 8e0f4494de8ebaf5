//! The input of a custom tool out of the arguments that the model writes: those of a function with
//! one text.

/// Decodes `{"input": "..."}` piece by piece.
#[derive(Debug, Default)]
pub(super) struct CustomInput {
    section: Section,
    /// Received and not decoded.
    pending: String,
}

#[derive(Debug, Default, PartialEq)]
enum Section {
    #[default]
    Before,
    Inside,
    After,
}

impl CustomInput {
    /// Takes more of the arguments, and returns the part of the input that they complete.
    pub(super) fn push(&mut self, more: &str) -> String {
        self.pending.push_str(more);
        if self.section == Section::Before {
            let Some(begin) = text_begin(&self.pending) else { return String::new() };
            self.pending.drain(..begin);
            self.section = Section::Inside;
        }
        if self.section == Section::After {
            return String::new();
        }
        let (length, ended) = whole_characters(&self.pending);
        let text = decoded(&self.pending[..length]);
        self.pending.drain(..length);
        if ended {
            self.section = Section::After;
        }
        text
    }

    /// Arguments that are of another form, as they were written, at the end.
    pub(super) fn finish(&mut self) -> String {
        let rest = std::mem::take(&mut self.pending);
        if self.section == Section::Before { rest } else { String::new() }
    }
}

/// Where the text begins; `None` if it is not known yet.
fn text_begin(arguments: &str) -> Option<usize> {
    let mut rest = arguments;
    for part in ["{", "\"input\"", ":", "\""] {
        rest = rest.trim_start().strip_prefix(part)?;
    }
    Some(arguments.len() - rest.len())
}

/// The length of the characters and escapes that are complete, and whether the text ends there.
fn whole_characters(text: &str) -> (usize, bool) {
    let bytes = text.as_bytes();
    let (mut at, mut whole) = (0, 0);
    loop {
        // The first half of a character that JSON writes as two escapes.
        let mut is_half = false;
        at += match bytes.get(at) {
            None => return (whole, false),
            Some(b'"') => return (at, true),
            Some(b'\\') if bytes.get(at + 1) == Some(&b'u') => {
                let code = text.get(at + 2..at + 6).and_then(|code| u16::from_str_radix(code, 16).ok());
                is_half = code.is_some_and(|code| (0xD800..0xDC00).contains(&code));
                6
            }
            Some(b'\\') => 2,
            Some(_) => 1,
        };
        if at > bytes.len() {
            return (whole, false);
        }
        if !is_half {
            whole = at;
        }
    }
}

/// As it was written if it is not valid.
fn decoded(text: &str) -> String {
    serde_json::from_str(&format!("\"{text}\"")).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_is_decoded_over_any_split() {
        let text = "*** Begin \"Patch\"\n+\u{e9}\\n \u{1F989}\t\u{2028}\n";
        let mut written = vec![serde_json::json!({ "input": text }).to_string()];
        written.push(
            "{ \"input\" :\n\"*** Begin \\u0022Patch\\u0022\\n+\\u00e9\\\\n \\uD83E\\uDD89\\t\\u2028\\n\" }"
                .into(),
        );
        for arguments in written {
            for (split, _) in arguments.char_indices() {
                for second in (split..arguments.len()).filter(|at| arguments.is_char_boundary(*at)) {
                    let mut input = CustomInput::default();
                    let parts = [&arguments[..split], &arguments[split..second], &arguments[second..]];
                    let pieces: String = parts.iter().map(|part| input.push(part)).collect();
                    assert_eq!(pieces + &input.finish(), text, "{parts:?}");
                }
            }
        }
    }

    #[test]
    fn incomplete_or_other_arguments_lose_nothing_that_is_certain() {
        let all = |arguments: &str| {
            let mut input = CustomInput::default();
            input.push(arguments) + &input.finish()
        };
        assert_eq!(all("{\"input\": \"a\\nb\\"), "a\nb");
        assert_eq!(all("{\"other\": 1}"), "{\"other\": 1}");
    }
}
