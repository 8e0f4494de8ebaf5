//! Colours of code, character by character: keywords, strings, numbers and comments. It knows words
//! and quotes of common languages, not their grammars.

use crate::{
    style::{Color, Style},
    wrap::Glyph,
};

const KEYWORD: Style = Style::PLAIN.colored(Color::Magenta);
const STRING: Style = Style::PLAIN.colored(Color::Green);
const NUMBER: Style = Style::PLAIN.colored(Color::Yellow);
const COMMENT: Style = Style::DIM;
const ADDED: Style = Style::PLAIN.colored(Color::Green);
const REMOVED: Style = Style::PLAIN.colored(Color::Red);

/// Syntax shared by some languages.
struct Language {
    names: &'static str,
    keywords: &'static str,
    /// A comment up to the end of the line begins with one of these.
    line_comments: &'static [&'static str],
    has_block_comments: bool,
    quotes: &'static str,
    has_triple_quotes: bool,
    ignores_case: bool,
}

const BASE: Language = Language {
    names: "",
    keywords: "",
    line_comments: &[],
    has_block_comments: false,
    quotes: "\"'",
    has_triple_quotes: false,
    ignores_case: false,
};
const SLASHES: Language = Language { line_comments: &["//"], has_block_comments: true, ..BASE };
const HASH: Language = Language { line_comments: &["#"], ..BASE };

static LANGUAGES: [Language; 10] = [
    Language {
        names: "rust rs",
        keywords: "as async await break const continue crate dyn else enum extern false fn for if impl in let loop \
                   match mod move mut pub ref return self Self static struct super trait true type unsafe use where while",
        // An apostrophe begins a lifetime more often than a character.
        quotes: "\"",
        ..SLASHES
    },
    Language {
        names: "python py python3",
        keywords: "False None True and as assert async await break case class continue def del elif else except finally \
                   for from global if import in is lambda match nonlocal not or pass raise return self try while with yield",
        has_triple_quotes: true,
        ..HASH
    },
    Language {
        names: "javascript js jsx mjs typescript ts tsx",
        keywords: "abstract as async await break case catch class const continue debugger default delete do else enum \
                   export extends false finally for from function if implements import in instanceof interface let new null \
                   of private protected public readonly return static super switch this throw true try type typeof \
                   undefined var void while yield",
        quotes: "\"'`",
        ..SLASHES
    },
    Language {
        names: "c h cpp c++ cc hpp java cs csharp c# kotlin kt swift go golang dart scala php zig objc",
        keywords: "abstract as auto bool boolean break byte case catch chan char class const constexpr continue data def \
                   default defer delete do double else enum extends extern false final float for fun func function go goto \
                   guard if implements import in inline int interface internal is let long map match mutable namespace new \
                   nil null nullptr object operator override package private protected public range return select short \
                   signed sizeof static string struct super switch template this throw throws true try type typedef \
                   typename union unsigned using val var virtual void volatile when where while",
        ..SLASHES
    },
    Language {
        names: "bash sh zsh shell console fish dockerfile makefile make",
        keywords: "case do done elif else esac export fi for function if in local return select then until while FROM \
                   RUN COPY CMD ENV WORKDIR ENTRYPOINT cd echo exit set source sudo",
        ..HASH
    },
    Language { names: "json jsonc json5", keywords: "true false null", quotes: "\"", ..SLASHES },
    Language {
        names: "yaml yml toml ini conf",
        keywords: "true false null yes no on off",
        has_triple_quotes: true,
        ..HASH
    },
    Language {
        names: "sql sqlite postgresql mysql",
        keywords: "add all alter and as asc between by case create cross delete desc distinct drop else end exists \
                   foreign from full group having in index inner insert into is join key left like limit not null on or \
                   order outer primary references right select set table then union unique update values view when where with",
        line_comments: &["--"],
        has_block_comments: true,
        ignores_case: true,
        ..BASE
    },
    Language {
        names: "ruby rb elixir ex r julia perl nix",
        keywords: "and begin break case class def defmodule do else elsif end ensure false for fn function if in let \
                   module next nil not or redo rescue return self super then true undef unless until use when while yield",
        ..HASH
    },
    Language {
        names: "lua haskell hs elm",
        keywords: "and break case class data do else elseif end false for function if import in instance let local \
                   module nil not of or repeat return then true type until where while",
        line_comments: &["--"],
        quotes: "\"",
        ..BASE
    },
];

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Plain,
    Word,
    /// Number of quotes at its start: two are an empty string or the start of a long one.
    Opening {
        quote: char,
        count: usize,
    },
    String {
        quote: char,
        is_escaped: bool,
    },
    /// Number of quotes at its possible end.
    Triple {
        quote: char,
        count: usize,
    },
    LineComment,
    /// Whether the last character was an asterisk.
    BlockComment {
        after_asterisk: bool,
    },
    /// A line of a diff.
    Line(Style),
}

/// Colours one block of code.
pub(crate) struct Highlighter {
    language: Option<&'static Language>,
    is_diff: bool,
    state: State,
    /// A word that has not ended, or the start of what may be a comment.
    held: String,
    /// The last character that was coloured.
    before: char,
}

impl Highlighter {
    /// `name` is the label of the block; the code of unknown languages is plain.
    pub(crate) fn new(name: &str) -> Highlighter {
        let name = name.to_ascii_lowercase();
        let language = LANGUAGES.iter().find(|one| one.names.split(' ').any(|known| known == name));
        let is_diff = matches!(&*name, "diff" | "patch");
        Highlighter { language, is_diff, state: State::Plain, held: String::new(), before: '\n' }
    }

    /// The glyphs that are certain after this character.
    pub(crate) fn push(&mut self, c: char) -> Vec<Glyph> {
        let mut out = vec![];
        match self.language {
            Some(language) => self.step(c, language, &mut out),
            None if self.is_diff => self.step_diff(c, &mut out),
            None => out.push((c, Style::PLAIN)),
        }
        out
    }

    /// The held glyphs, at the end of the code.
    pub(crate) fn finish(&mut self) -> Vec<Glyph> {
        let mut out = vec![];
        if let Some(language) = self.language {
            self.flush(language, &mut out);
        }
        out
    }

    fn emit(&mut self, c: char, style: Style, out: &mut Vec<Glyph>) {
        out.push((c, style));
        self.before = c;
    }

    fn step(&mut self, c: char, language: &'static Language, out: &mut Vec<Glyph>) {
        match self.state {
            State::Plain => self.plain(c, language, out),
            State::Word if c.is_alphanumeric() || c == '_' => self.held.push(c),
            State::Word => {
                self.flush(language, out);
                self.plain(c, language, out);
            }
            State::Opening { quote, count } => self.opening(c, quote, count, language, out),
            State::String { quote, is_escaped } => {
                self.emit(c, STRING, out);
                let ends = c == quote && !is_escaped || c == '\n' && quote != '`';
                self.state = match ends {
                    true => State::Plain,
                    false => State::String { quote, is_escaped: c == '\\' && !is_escaped },
                };
            }
            State::Triple { quote, count } => {
                self.emit(c, STRING, out);
                let count = if c == quote { count + 1 } else { 0 };
                self.state = if count == 3 { State::Plain } else { State::Triple { quote, count } };
            }
            State::LineComment => {
                self.emit(c, COMMENT, out);
                if c == '\n' {
                    self.state = State::Plain;
                }
            }
            State::BlockComment { after_asterisk } => {
                self.emit(c, COMMENT, out);
                self.state = match after_asterisk && c == '/' {
                    true => State::Plain,
                    false => State::BlockComment { after_asterisk: c == '*' },
                };
            }
            State::Line(style) => self.emit(c, style, out),
        }
    }

    fn plain(&mut self, c: char, language: &'static Language, out: &mut Vec<Glyph>) {
        if let Some(first) = self.held.pop() {
            let pair = format!("{first}{c}");
            if language.line_comments.contains(&&*pair) {
                return self.begin(&pair, COMMENT, State::LineComment, out);
            }
            if pair == "/*" && language.has_block_comments {
                return self.begin(&pair, COMMENT, State::BlockComment { after_asterisk: false }, out);
            }
            self.emit(first, Style::PLAIN, out);
        }
        if language.quotes.contains(c) {
            self.begin(&c.to_string(), STRING, State::Opening { quote: c, count: 1 }, out);
        } else if language.line_comments.contains(&"#") && c == '#' && self.before.is_whitespace() {
            self.begin("#", COMMENT, State::LineComment, out);
        } else if c.is_alphanumeric() || c == '_' {
            self.held.push(c);
            self.state = State::Word;
        } else if is_comment_start(c, language) {
            self.held.push(c);
        } else {
            self.emit(c, Style::PLAIN, out);
        }
    }

    fn begin(&mut self, text: &str, style: Style, state: State, out: &mut Vec<Glyph>) {
        text.chars().for_each(|c| self.emit(c, style, out));
        self.state = state;
    }

    fn opening(
        &mut self,
        c: char,
        quote: char,
        count: usize,
        language: &'static Language,
        out: &mut Vec<Glyph>,
    ) {
        match (c == quote, count) {
            (true, 1) => self.begin(&c.to_string(), STRING, State::Opening { quote, count: 2 }, out),
            (true, _) if language.has_triple_quotes => {
                self.begin(&c.to_string(), STRING, State::Triple { quote, count: 0 }, out);
            }
            (_, 1) => {
                self.state = State::String { quote, is_escaped: false };
                self.step(c, language, out);
            }
            // The string was empty.
            _ => {
                self.state = State::Plain;
                self.plain(c, language, out);
            }
        }
    }

    fn flush(&mut self, language: &Language, out: &mut Vec<Glyph>) {
        let word = std::mem::take(&mut self.held);
        let is_keyword = language.keywords.split(' ').any(|keyword| match language.ignores_case {
            true => keyword.eq_ignore_ascii_case(&word),
            false => keyword == word,
        });
        let style = match word.chars().next() {
            _ if is_keyword && !word.is_empty() => KEYWORD,
            Some('0'..='9') => NUMBER,
            _ => Style::PLAIN,
        };
        word.chars().for_each(|c| self.emit(c, style, out));
        self.state = State::Plain;
    }

    fn step_diff(&mut self, c: char, out: &mut Vec<Glyph>) {
        if self.before == '\n' {
            self.state = State::Line(match c {
                '+' => ADDED,
                '-' => REMOVED,
                '@' => COMMENT,
                _ => Style::PLAIN,
            });
        }
        let style = if let State::Line(style) = self.state { style } else { Style::PLAIN };
        self.emit(c, style, out);
    }
}

fn is_comment_start(c: char, language: &Language) -> bool {
    let begins = |comment: &&str| comment.len() == 2 && comment.starts_with(c);
    language.line_comments.iter().any(begins) || language.has_block_comments && c == '/'
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The code with each coloured stretch marked by a letter.
    fn check(language: &str, code: &str, expected: &str) {
        let mut highlighter = Highlighter::new(language);
        let mut glyphs: Vec<Glyph> = code.chars().flat_map(|c| highlighter.push(c)).collect();
        glyphs.extend(highlighter.finish());
        let (mut marked, mut last) = (String::new(), Style::PLAIN);
        for (c, style) in glyphs {
            if style != last {
                marked.push_str(match style {
                    KEYWORD => "<k>",
                    STRING => "<s>",
                    NUMBER => "<n>",
                    COMMENT => "<c>",
                    REMOVED => "<r>",
                    _ => "<>",
                });
                last = style;
            }
            marked.push(c);
        }
        assert_eq!(marked, expected, "{language}");
    }

    #[test]
    fn code_is_coloured_by_language() {
        check(
            "rust",
            "let a: &'a str = \"x\\\"y\"; // let",
            "<k>let<> a: &'a str = <s>\"x\\\"y\"<>; <c>// let",
        );
        check("rust", "a / b /* c\n*/ fn f1() -> 12", "a / b <c>/* c\n*/<> <k>fn<> f1() -> <n>12");
        check("python", "x = \"\"\"a\n\"b\"\"\" # if", "x = <s>\"\"\"a\n\"b\"\"\"<> <c># if");
        check("py", "return '' + a#b", "<k>return<> <s>''<> + a#b");
        check("JS", "`a\n'b'` 'c\nvar", "<s>`a\n'b'`<> <s>'c\n<k>var");
        check("sql", "Select 1 -- from", "<k>Select<> <n>1<> <c>-- from");
        check("sh", "echo $# #x", "<k>echo<> $# <c>#x");
        check("diff", "-a\n+b\n c", "<r>-a\n<s>+b\n<> c");
        check("brainfuck", "let # \"x", "let # \"x");
        check("", "if", "if");
    }

    #[test]
    fn string_streams_before_it_ends() {
        let mut highlighter = Highlighter::new("c");
        let glyphs: Vec<Glyph> = "\"ab".chars().flat_map(|c| highlighter.push(c)).collect();
        assert_eq!(glyphs, [('"', STRING), ('a', STRING), ('b', STRING)]);
    }
}
