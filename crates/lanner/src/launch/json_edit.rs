//! Edits of one member of a JSON text that leave every other byte as it is. Comments and trailing
//! commas, which some agents allow in their files, are kept.

use std::ops::Range;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    #[error("line {line} is not JSON: {expected} is missing")]
    Syntax { line: usize, expected: &'static str },
    #[error("`{0}` is no object")]
    NotObject(String),
}

/// The text of the value at `keys`, from the outermost object inwards.
pub(super) fn get<'a>(text: &'a str, keys: &[&str]) -> Result<Option<&'a str>, JsonError> {
    let Some((last, outer)) = keys.split_last() else { return Ok(None) };
    let Some(object) = innermost(text, outer)? else { return Ok(None) };
    Ok(object.find(last).map(|i| &text[object.members[i].value.clone()]))
}

/// The text with `value`, which is JSON, at `keys`; objects that are missing on the way are added.
pub(super) fn set(text: &str, keys: &[&str], value: &str) -> Result<String, JsonError> {
    let text = if text.trim().is_empty() { "{}\n" } else { text };
    let mut object = Scanner { text, at: 0 }.root()?;
    for (depth, key) in keys.iter().enumerate() {
        let inner = &keys[depth + 1..];
        match object.find(key).map(|i| &object.members[i]) {
            None => return Ok(object.insert(text, depth, key, &nested(inner, value))),
            Some(member) if inner.is_empty() => {
                let indent = line_indent(text, member.start).unwrap_or_default();
                let value = value.replace('\n', &format!("\n{indent}"));
                return Ok(replaced(text, member.value.clone(), &value));
            }
            Some(member) => object = member.object(text)?,
        }
    }
    Ok(text.to_owned())
}

/// The text with the value at `keys` replaced by `value`, byte by byte.
pub(super) fn put_back(text: &str, keys: &[&str], value: &str) -> Result<String, JsonError> {
    let Some((last, outer)) = keys.split_last() else { return Ok(text.to_owned()) };
    match innermost(text, outer)?.and_then(|object| Some(object.members[object.find(last)?].value.clone())) {
        Some(range) => Ok(replaced(text, range, value)),
        None => set(text, keys, value),
    }
}

/// The text without the member at `keys`.
pub(super) fn remove(text: &str, keys: &[&str]) -> Result<String, JsonError> {
    let Some((last, outer)) = keys.split_last() else { return Ok(text.to_owned()) };
    let Some(object) = innermost(text, outer)? else { return Ok(text.to_owned()) };
    let Some(i) = object.find(last) else { return Ok(text.to_owned()) };
    let (members, member) = (&object.members, &object.members[i]);
    let cut = match (members.get(i + 1), i.checked_sub(1).map(|before| &members[before])) {
        (Some(next), _) => member.start..next.start,
        (None, Some(before)) => before.value.end..member.value.end,
        (None, None) => object.inside.clone(),
    };
    Ok(replaced(text, cut, ""))
}

/// The object at `keys`; `None` if there is none.
fn innermost(text: &str, keys: &[&str]) -> Result<Option<Object>, JsonError> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    let mut object = Scanner { text, at: 0 }.root()?;
    for key in keys {
        let Some(i) = object.find(key) else { return Ok(None) };
        object = object.members[i].object(text)?;
    }
    Ok(Some(object))
}

/// `value` in objects with these keys.
fn nested(keys: &[&str], value: &str) -> String {
    keys.iter().rev().fold(value.to_owned(), |value, key| {
        format!("{{\n  {}: {}\n}}", quoted(key), value.replace('\n', "\n  "))
    })
}

fn quoted(key: &str) -> String {
    serde_json::Value::from(key).to_string()
}

fn replaced(text: &str, range: Range<usize>, by: &str) -> String {
    format!("{}{by}{}", &text[..range.start], &text[range.end..])
}

/// The white space before `at` if nothing else is before it on its line.
fn line_indent(text: &str, at: usize) -> Option<&str> {
    let line = &text[text[..at].rfind('\n').map_or(0, |end| end + 1)..at];
    line.chars().all(char::is_whitespace).then_some(line)
}

struct Object {
    members: Vec<Member>,
    /// Between the braces.
    inside: Range<usize>,
}

struct Member {
    key: String,
    start: usize,
    value: Range<usize>,
}

impl Object {
    /// The last one counts, as for most parsers.
    fn find(&self, key: &str) -> Option<usize> {
        self.members.iter().rposition(|member| member.key == key)
    }

    /// Adds a member at the end; the object is `depth` objects deep.
    fn insert(&self, text: &str, depth: usize, key: &str, value: &str) -> String {
        let own = self.members.first().and_then(|member| line_indent(text, member.start));
        let indent = own.map_or_else(|| "  ".repeat(depth + 1), str::to_owned);
        let member = format!("{}: {}", quoted(key), value.replace('\n', &format!("\n{indent}")));
        match self.members.last() {
            Some(last) => replaced(text, last.value.end..last.value.end, &format!(",\n{indent}{member}")),
            None => {
                let comments = text[self.inside.clone()].trim_end();
                let inside = format!("{comments}\n{indent}{member}\n{}", "  ".repeat(depth));
                replaced(text, self.inside.clone(), &inside)
            }
        }
    }
}

impl Member {
    fn object(&self, text: &str) -> Result<Object, JsonError> {
        match text[self.value.clone()].starts_with('{') {
            true => Scanner { text, at: self.value.start }.object(),
            false => Err(JsonError::NotObject(self.key.clone())),
        }
    }
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl Scanner<'_> {
    fn root(&mut self) -> Result<Object, JsonError> {
        self.skip_space()?;
        let object = self.object()?;
        self.skip_space()?;
        if self.at < self.text.len() { Err(self.missing("the end of the file")) } else { Ok(object) }
    }

    fn object(&mut self) -> Result<Object, JsonError> {
        self.expect('{', "an object")?;
        let (open, mut members) = (self.at, vec![]);
        loop {
            self.skip_space()?;
            if self.peek() == Some('}') {
                self.at += 1;
                return Ok(Object { members, inside: open..self.at - 1 });
            }
            let start = self.at;
            self.string()?;
            let key = serde_json::from_str(&self.text[start..self.at]).map_err(|_| self.missing("a key"))?;
            self.skip_space()?;
            self.expect(':', "`:`")?;
            self.skip_space()?;
            let value = self.at;
            self.value()?;
            members.push(Member { key, start, value: value..self.at });
            self.comma('}')?;
        }
    }

    fn value(&mut self) -> Result<(), JsonError> {
        match self.peek() {
            Some('{') => self.object().map(drop),
            Some('"') => self.string(),
            Some('[') => {
                self.at += 1;
                loop {
                    self.skip_space()?;
                    if self.peek() == Some(']') {
                        self.at += 1;
                        return Ok(());
                    }
                    self.value()?;
                    self.comma(']')?;
                }
            }
            _ => {
                let rest = &self.text[self.at..];
                let is_part = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
                let length = rest.find(|c: char| !is_part(c)).unwrap_or(rest.len());
                self.at += length;
                if length == 0 { Err(self.missing("a value")) } else { Ok(()) }
            }
        }
    }

    fn string(&mut self) -> Result<(), JsonError> {
        self.expect('"', "a string in quotes")?;
        let mut escaped = false;
        for (i, c) in self.text[self.at..].char_indices() {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '"' => {
                    self.at += i + 1;
                    return Ok(());
                }
                _ => {}
            }
        }
        Err(self.missing("the end of a string"))
    }

    /// A comma, unless the list ends here.
    fn comma(&mut self, end: char) -> Result<(), JsonError> {
        self.skip_space()?;
        match self.peek() {
            Some(',') => {
                self.at += 1;
                Ok(())
            }
            Some(c) if c == end => Ok(()),
            _ => Err(self.missing("a comma")),
        }
    }

    /// White space and comments.
    fn skip_space(&mut self) -> Result<(), JsonError> {
        loop {
            let rest = &self.text[self.at..];
            let space = rest.len() - rest.trim_start().len();
            let comment = match &rest[space..] {
                line if line.starts_with("//") => Some(line.find('\n').unwrap_or(line.len())),
                block if block.starts_with("/*") => {
                    let end = block.find("*/").ok_or_else(|| self.missing("the end of a comment"))?;
                    Some(end + 2)
                }
                _ => None,
            };
            self.at += space + comment.unwrap_or(0);
            if comment.is_none() {
                return Ok(());
            }
        }
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn expect(&mut self, c: char, name: &'static str) -> Result<(), JsonError> {
        if self.peek() != Some(c) {
            return Err(self.missing(name));
        }
        self.at += c.len_utf8();
        Ok(())
    }

    fn missing(&self, expected: &'static str) -> JsonError {
        JsonError::Syntax { line: self.text[..self.at].matches('\n').count() + 1, expected }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: [&str; 2] = ["providers", "lanner"];

    fn check_set(text: &str, expected: &str) {
        assert_eq!(set(text, &PATH, "{\n  \"a\": 1\n}").unwrap(), expected);
    }

    #[test]
    fn set_adds_the_member_and_keeps_all_other_bytes() {
        let entry = "\"lanner\": {\n      \"a\": 1\n    }";
        check_set("", &format!("{{\n  \"providers\": {{\n    {entry}\n  }}\n}}\n"));
        check_set(
            "{\n    // mine\n    \"x\":  [1,2, {\"y\": \"}\\\"\"}] /* kept */\n}\n",
            "{\n    // mine\n    \"x\":  [1,2, {\"y\": \"}\\\"\"}],\n    \"providers\": {\n      \"lanner\": {\n        \
             \"a\": 1\n      }\n    } /* kept */\n}\n",
        );
        check_set(
            "{\n  \"providers\": {\n    \"z\": {}\n  },\n  \"t\": true\n}",
            &format!("{{\n  \"providers\": {{\n    \"z\": {{}},\n    {entry}\n  }},\n  \"t\": true\n}}"),
        );
        check_set("{ \"providers\": {} }", &format!("{{ \"providers\": {{\n    {entry}\n  }} }}"));
    }

    #[test]
    fn set_replaces_only_the_value() {
        check_set(
            "{\n  \"providers\": {\n    \"lanner\": [1, 2], // old\n    \"z\": 1,\n  }\n}",
            "{\n  \"providers\": {\n    \"lanner\": {\n      \"a\": 1\n    }, // old\n    \"z\": 1,\n  }\n}",
        );
    }

    #[test]
    fn remove_undoes_set() {
        let texts = [
            "{\n  \"providers\": {\n    \"z\": {}\n  },\n  \"t\": true\n}",
            "{\n  \"providers\": {\"z\": 1,},\n}\n",
            "{ \"providers\": {} }",
        ];
        for text in texts {
            let with = set(text, &PATH, "{}").unwrap();
            assert_eq!(get(&with, &PATH).unwrap(), Some("{}"));
            assert_eq!(remove(&with, &PATH).unwrap(), text);
            assert_eq!(remove(text, &PATH).unwrap(), text);
        }
        let first = "{\"providers\": {\"lanner\": 1, \"z\": 2}}";
        assert_eq!(remove(first, &PATH).unwrap(), "{\"providers\": {\"z\": 2}}");
        assert_eq!(remove("", &PATH).unwrap(), "");
    }

    #[test]
    fn text_that_is_no_object_is_refused() {
        let check = |text: &str, expected: &str| {
            assert_eq!(set(text, &PATH, "1").unwrap_err().to_string(), expected);
            assert!(get(text, &PATH).is_err(), "{text}");
        };
        check("[1]", "line 1 is not JSON: an object is missing");
        check("{\n\"a\": }", "line 2 is not JSON: a value is missing");
        check("{\"a\": 1 \"b\": 2}", "line 1 is not JSON: a comma is missing");
        check("{\"a\": \"b", "line 1 is not JSON: the end of a string is missing");
        check("{} x", "line 1 is not JSON: the end of the file is missing");
        check("{\"providers\": 1}", "`providers` is no object");
        check("{ /* ", "line 1 is not JSON: the end of a comment is missing");
    }
}
