//! Counts the values of a JSON body while it arrives, so that a body of a million messages is
//! rejected before it is parsed. Does not detect invalid JSON.

use super::error::ApiError;

/// Values of a request without its prompt and biases: each takes almost a kilobyte while a template
/// is rendered.
pub const MAX_VALUES: usize = 100_000;
pub const MAX_MESSAGES: usize = 10_000;
const MAX_TOOLS: usize = 1_000;
/// Token ids take four bytes each.
pub const MAX_PROMPT_VALUES: usize = 2 << 20;
/// The largest vocabularies have fewer tokens.
const MAX_BIASES: usize = 300_000;
/// Longer than the name of every counted field.
const LONGEST_NAME: usize = 16;

/// Takes the bytes of a body in order, in pieces of any size.
#[derive(Debug, Default)]
pub struct Count {
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// Start of the last string in the outermost object.
    name: Vec<u8>,
    field: Field,
    /// Values of the body, without fields that have a limit of their own.
    values: usize,
    /// All values in the current field, and its direct elements.
    field_values: usize,
    items: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Field {
    Messages,
    Tools,
    Prompt,
    LogitBias,
    #[default]
    Other,
}

impl Count {
    /// # Errors
    /// 400 that names the field: it exceeds a limit.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), ApiError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            rest = if self.in_string { self.string(rest) } else { self.structure(rest)? };
        }
        Ok(())
    }

    /// Number of values so far.
    pub fn values(&self) -> usize {
        self.values
    }

    /// Skips to the end of a string.
    fn string<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        for (at, &byte) in bytes.iter().enumerate() {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => {
                    self.in_string = false;
                    return &bytes[at + 1..];
                }
                _ => {}
            }
            if self.depth == 1 && self.name.len() <= LONGEST_NAME {
                self.name.push(byte);
            }
        }
        &[]
    }

    fn structure<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], ApiError> {
        for (at, &byte) in bytes.iter().enumerate() {
            match byte {
                b'"' => {
                    self.in_string = true;
                    self.name.clear();
                    return Ok(&bytes[at + 1..]);
                }
                b'[' | b'{' => {
                    self.depth += 1;
                    if self.depth > 1 {
                        self.value()?;
                    }
                }
                b']' | b'}' => self.depth = self.depth.saturating_sub(1),
                b',' => self.value()?,
                b':' if self.depth == 1 => self.begin_field(),
                _ => {}
            }
        }
        Ok(&[])
    }

    fn begin_field(&mut self) {
        self.field = match &self.name[..] {
            b"messages" => Field::Messages,
            b"tools" => Field::Tools,
            b"prompt" | b"tokens" => Field::Prompt,
            b"logit_bias" => Field::LogitBias,
            _ => Field::Other,
        };
        (self.items, self.field_values) = (0, 0);
    }

    /// Counts one value: the first of an object or array at its bracket, the others at their
    /// commas.
    fn value(&mut self) -> Result<(), ApiError> {
        self.items += usize::from(self.depth == 2);
        self.field_values += 1;
        let over = |count: usize, limit: usize, name: &'static str| match count > limit {
            true => Err(ApiError::invalid(name, format!("{name} has more than {limit} entries"))),
            false => Ok(()),
        };
        match self.field {
            Field::Prompt => return over(self.field_values, MAX_PROMPT_VALUES, "prompt"),
            Field::LogitBias => return over(self.field_values, MAX_BIASES, "logit_bias"),
            Field::Messages => over(self.items, MAX_MESSAGES, "messages")?,
            Field::Tools => over(self.items, MAX_TOOLS, "tools")?,
            Field::Other => {}
        }
        self.values += 1;
        if self.values > MAX_VALUES {
            let message =
                format!("the body holds more than {MAX_VALUES} values beside its prompt and biases");
            return Err(ApiError::invalid_body(message));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts a body in pieces of this many bytes.
    fn count(body: &str, piece: usize) -> Result<usize, Option<String>> {
        let mut count = Count::default();
        for bytes in body.as_bytes().chunks(piece) {
            count.feed(bytes).map_err(|error| error.body.param)?;
        }
        Ok(count.values())
    }

    fn check(body: &str, expected: Result<usize, Option<&str>>) {
        for piece in [1, 7, 1 << 20] {
            let found = count(body, piece);
            let found = found.as_ref().map(|values| *values).map_err(|param| param.as_deref());
            assert_eq!(found, expected, "{:.60} in pieces of {piece}", body);
        }
    }

    #[test]
    fn count_ignores_strings_prompts_and_biases() {
        check("{}", Ok(0));
        check(r#"{"a": 1}"#, Ok(0));
        check(r#"{"a": [1, [2, {"b": 3}], "x,y[{\",,"]}"#, Ok(6));
        check(r#"{"prompt": [[1, 2], [3]], "n": 1}"#, Ok(0));
        check(r#"{"logit_bias": {"1": 2, "3": 4}}"#, Ok(0));
        check("]]]],,", Ok(2));
    }

    #[test]
    fn count_error_names_the_field() {
        let many = |field: &str, element: &str, count: usize| {
            format!("{{\"n\": 1, \"{field}\": [{}]}}", vec![element; count].join(","))
        };
        check(&many("messages", "{}", MAX_MESSAGES), Ok(2 * MAX_MESSAGES + 1));
        check(&many("messages", "{}", MAX_MESSAGES + 1), Err(Some("messages")));
        check(&many("tools", "0", MAX_TOOLS + 1), Err(Some("tools")));
        check(&many("prompt", "7", MAX_PROMPT_VALUES + 1), Err(Some("prompt")));
        check(&many("messages", &format!("[{}]", vec!["0"; 20].join(",")), 9_000), Err(None));
        // The general limit applies to an escaped name.
        check(&many("pr\\u006fmpt", "7", MAX_VALUES + 1), Err(None));
        check(&many("stop", "\"\"", MAX_VALUES + 1), Err(None));
    }
}
