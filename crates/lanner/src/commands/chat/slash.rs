//! Slash commands of the chat.

use super::parameters::NAMES;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Slash {
    Help,
    /// `None`: show which one answers.
    Model(Option<String>),
    /// The start of a conversation's id or title.
    Load(String),
    Regenerate,
    /// `None`: in the line editor.
    Edit(Option<String>),
    Stats,
    /// Empty: no system message.
    System(String),
    Think(bool),
    /// Show all parameters.
    Parameters,
    /// `None`: as the model has it.
    Set {
        name: &'static str,
        value: Option<String>,
    },
    Image(String),
    /// `None`: say where the conversation is.
    Save(Option<String>),
    /// Words of saved conversations.
    History(String),
    Clear,
    Quit,
    /// An error message.
    Invalid(String),
}

/// Names of the commands, what follows them, and what they do.
pub(super) const COMMANDS: [(&str, &str, &str); 15] = [
    ("/help", "", "list the commands and keys"),
    ("/model", "[NAME]", "show which model answers, or go on with another one; the conversation stays"),
    ("/load", "START", "go on with a saved conversation, by the start of its id or title"),
    ("/history", "[WORDS]", "list saved conversations, or those that have all words"),
    ("/regenerate", "", "answer the last message again; the store keeps both answers"),
    ("/edit", "[TEXT]", "change the last message and answer it; the store keeps both messages"),
    ("/system", "[TEXT]", "set the system message; without TEXT, remove it"),
    ("/think", "on|off", "ask for reasoning or for none"),
    ("/set", "[NAME [VALUE]]", "show or set a sampling parameter; without VALUE, the model's own"),
    ("/stats", "", "show tokens, speed, cache and speculation of the last answer"),
    ("/image", "PATH", "add an image, for models that see"),
    ("/save", "[FILE]", "write the conversation as JSON; without FILE, say where it is saved"),
    ("/clear", "", "start another conversation with the same system message"),
    ("/quit", "", "leave (also /exit, Ctrl-D)"),
    ("/exit", "", ""),
];

const KEYS: &str = "\
A message of several lines: Alt+Enter or Ctrl+J begins a new line, a line that ends with \\
continues in the next, \"\"\" before and after encloses lines, and pasted lines stay together.
A space before / makes a message of it. Tab completes commands. Ctrl-C stops an answer.";

/// Text of `/help`.
pub(super) fn help() -> String {
    let shown = COMMANDS.iter().filter(|(.., does)| !does.is_empty());
    let line =
        |(name, follows, does): &(&str, &str, &str)| format!("{:22}{does}\n", format!("{name} {follows}"));
    shown.map(line).collect::<String>() + KEYS
}

impl Slash {
    /// `None` if the line is a message.
    pub(super) fn parse(line: &str) -> Option<Slash> {
        let (name, rest) =
            line.strip_prefix('/')?.split_once(char::is_whitespace).unwrap_or((&line[1..], ""));
        let rest = rest.trim();
        let given = (!rest.is_empty()).then(|| rest.to_owned());
        let needs = |what: &str| Slash::Invalid(format!("/{name} takes {what}"));
        Some(match (name, given) {
            ("help" | "?", _) => Slash::Help,
            ("model", name) => Slash::Model(name),
            ("load", Some(start)) => Slash::Load(start),
            ("load", None) => needs("the start of a conversation's id or title; /history lists them"),
            ("regenerate", _) => Slash::Regenerate,
            ("edit", text) => Slash::Edit(text),
            ("stats", _) => Slash::Stats,
            ("system", text) => Slash::System(text.unwrap_or_default()),
            ("think", _) if rest == "on" => Slash::Think(true),
            ("think", _) if rest == "off" => Slash::Think(false),
            ("think", _) => needs("`on` or `off`"),
            ("set", None) => Slash::Parameters,
            ("set", Some(rest)) => set(&rest),
            ("image", Some(path)) => Slash::Image(path),
            ("image", None) => needs("the path of an image"),
            ("save", path) => Slash::Save(path),
            ("history", words) => Slash::History(words.unwrap_or_default()),
            ("clear", _) => Slash::Clear,
            ("quit" | "exit" | "bye", _) => Slash::Quit,
            (name, _) => Slash::Invalid(unknown(name)),
        })
    }
}

/// `NAME`, `NAME VALUE` or `NAME=VALUE`.
fn set(text: &str) -> Slash {
    let (name, value) = text.split_once(|c: char| c == '=' || c.is_whitespace()).unwrap_or((text, ""));
    let name = name.replace('-', "_");
    let value = Some(value.trim()).filter(|value| !value.is_empty() && *value != "default");
    match NAMES.iter().find(|known| **known == name) {
        Some(name) => Slash::Set { name, value: value.map(str::to_owned) },
        None => Slash::Invalid(format!("there is no parameter `{name}`; there are {}", NAMES.join(", "))),
    }
}

fn unknown(name: &str) -> String {
    let names: Vec<&str> = COMMANDS.iter().map(|(name, ..)| *name).collect();
    format!(
        "there is no /{name}; there are {}\nhint: a space before / makes a message of it",
        names.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slash_parses_commands_and_leaves_messages() {
        let text = |text: &str| Some(text.to_owned());
        for (line, expected) in [
            ("hello /quit", None),
            ("", None),
            (" /quit", None),
            ("/quit", Some(Slash::Quit)),
            ("/think  off ", Some(Slash::Think(false))),
            ("/system You are\nterse.", Some(Slash::System("You are\nterse.".into()))),
            ("/system", Some(Slash::System(String::new()))),
            ("/save a b.json", Some(Slash::Save(text("a b.json")))),
            ("/save", Some(Slash::Save(None))),
            ("/model", Some(Slash::Model(None))),
            ("/model qwen3.5-9b", Some(Slash::Model(text("qwen3.5-9b")))),
            ("/edit", Some(Slash::Edit(None))),
            ("/edit a\nb", Some(Slash::Edit(text("a\nb")))),
            ("/set top-p 0.5", Some(Slash::Set { name: "top_p", value: text("0.5") })),
            ("/set seed=7", Some(Slash::Set { name: "seed", value: text("7") })),
            ("/set seed default", Some(Slash::Set { name: "seed", value: None })),
            ("/set seed", Some(Slash::Set { name: "seed", value: None })),
            ("/set", Some(Slash::Parameters)),
        ] {
            assert_eq!(Slash::parse(line), expected, "{line}");
        }
        for line in ["/think maybe", "/load", "/image", "/set speed 1", "/etc/passwd is a file", "/"] {
            assert!(matches!(Slash::parse(line), Some(Slash::Invalid(_))), "{line}");
        }
    }

    #[test]
    fn every_command_in_help_is_known() {
        for (name, ..) in COMMANDS {
            let found = Slash::parse(name);
            assert!(!matches!(&found, Some(Slash::Invalid(why)) if why.contains("there is no")), "{name}");
            assert!(help().contains(name) || name == "/exit", "{name}");
        }
    }
}
