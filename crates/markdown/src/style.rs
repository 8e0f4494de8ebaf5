//! Styles of characters, and the escape sequences that set them.

/// How a character looks; the default is plain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Style {
    pub(crate) bold: bool,
    pub(crate) dim: bool,
    pub(crate) italic: bool,
    pub(crate) underline: bool,
    pub(crate) strike: bool,
    pub(crate) color: Option<Color>,
}

/// Color of the terminal's palette, which fits light and dark backgrounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Color {
    Red = 31,
    Green = 32,
    Yellow = 33,
    Magenta = 35,
    Cyan = 36,
}

/// Makes everything plain.
pub(crate) const RESET: &str = "\x1b[0m";

impl Style {
    pub(crate) const DIM: Style = Style::PLAIN.dim();
    pub(crate) const PLAIN: Style =
        Style { bold: false, dim: false, italic: false, underline: false, strike: false, color: None };

    pub(crate) const fn bold(self) -> Style {
        Style { bold: true, ..self }
    }

    pub(crate) const fn dim(self) -> Style {
        Style { dim: true, ..self }
    }

    pub(crate) const fn italic(self) -> Style {
        Style { italic: true, ..self }
    }

    pub(crate) const fn underline(self) -> Style {
        Style { underline: true, ..self }
    }

    pub(crate) const fn strike(self) -> Style {
        Style { strike: true, ..self }
    }

    pub(crate) const fn colored(self, color: Color) -> Style {
        Style { color: Some(color), ..self }
    }

    /// The sequence that sets this style after a plain one; empty for the plain one.
    pub(crate) fn sequence(self) -> String {
        let flags = [(self.bold, 1), (self.dim, 2), (self.italic, 3), (self.underline, 4), (self.strike, 9)];
        let flags = flags.into_iter().filter(|(is_on, _)| *is_on).map(|(_, code)| code);
        let codes: Vec<String> =
            flags.chain(self.color.map(|color| color as u8)).map(|code| code.to_string()).collect();
        if codes.is_empty() { String::new() } else { format!("\x1b[{}m", codes.join(";")) }
    }
}
