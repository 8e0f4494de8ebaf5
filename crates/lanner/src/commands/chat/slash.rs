//! Slash commands of the chat.

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Slash {
    Help,
    /// Empty: no system message.
    System(String),
    Think(bool),
    /// The path of an image for the next message.
    Image(String),
    Clear,
    Save(String),
    Quit,
    /// An error message.
    Invalid(String),
}

pub(super) const HELP: &str = "\
/system TEXT   set the system message; without TEXT, remove it
/think on|off  ask for reasoning or for none
/image FILE    show the model an image with the next message; dropping a file does the same
/clear         start another conversation with the same system message
/save FILE     write the conversation as JSON
/quit          leave (also Ctrl-D)
A line that ends with \\ continues in the next. Ctrl-C stops an answer.";

impl Slash {
    /// `None` if the line is a message.
    pub(super) fn parse(line: &str) -> Option<Slash> {
        let (name, rest) =
            line.strip_prefix('/')?.split_once(char::is_whitespace).unwrap_or((&line[1..], ""));
        let rest = rest.trim();
        Some(match (name, rest) {
            ("help", _) => Slash::Help,
            ("system", text) => Slash::System(text.to_owned()),
            ("think", "on") => Slash::Think(true),
            ("think", "off") => Slash::Think(false),
            ("think", _) => Slash::Invalid("/think takes `on` or `off`".to_owned()),
            ("image", "") => Slash::Invalid("/image takes a file name".to_owned()),
            ("image", path) => Slash::Image(path.to_owned()),
            ("clear", _) => Slash::Clear,
            ("save", "") => Slash::Invalid("/save takes a file name".to_owned()),
            ("save", path) => Slash::Save(path.to_owned()),
            ("quit" | "exit", _) => Slash::Quit,
            (name, _) => Slash::Invalid(format!("there is no /{name}; /help lists the commands")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slash_parses_commands_and_leaves_messages() {
        for (line, expected) in [
            ("hello /quit", None),
            ("", None),
            ("/quit", Some(Slash::Quit)),
            ("/think  off ", Some(Slash::Think(false))),
            ("/system You are\nterse.", Some(Slash::System("You are\nterse.".into()))),
            ("/system", Some(Slash::System(String::new()))),
            ("/image  a b.png", Some(Slash::Image("a b.png".into()))),
            ("/save a b.json", Some(Slash::Save("a b.json".into()))),
        ] {
            assert_eq!(Slash::parse(line), expected, "{line}");
        }
        for line in ["/think maybe", "/save", "/image", "/etc/passwd is a file", "/"] {
            assert!(matches!(Slash::parse(line), Some(Slash::Invalid(_))), "{line}");
        }
    }
}
