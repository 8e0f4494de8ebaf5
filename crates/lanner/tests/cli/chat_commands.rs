//! Commands of `lanner chat`, in a pipe.

use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command, Output, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{scripted_model::scripted_model, wait::output_of};

const ANSWERS: [(char, &str); 3] =
    [('a', "Answer **alpha**."), ('b', "Answer _beta_!"), ('c', "# Gamma\n\x1b[2J")];

struct Chat {
    model: TempDir,
    folder: TempDir,
}

impl Chat {
    fn new() -> Chat {
        Chat { model: scripted_model(&ANSWERS), folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// Sends lines; returns the output.
    fn run(&self, lines: &str, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lanner"));
        let model = self.model.path().to_str().unwrap();
        command.env_clear().env("HOME", self.folder.path()).env("LANNER_STORE", self.path("store.db"));
        command.args(["chat", "--device", "cpu", "--temperature", "0", "--model", model]).args(args);
        let mut chat =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        chat.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        output_of(chat).unwrap()
    }

    /// Sends lines to a chat that must succeed; returns stdout and stderr.
    fn says(&self, lines: &str, args: &[&str]) -> (String, String) {
        let output = self.run(lines, args);
        let [stdout, stderr] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert!(output.status.success(), "{stderr}");
        (stdout, stderr)
    }

    /// The stored conversations, with their messages.
    fn stored(&self) -> Vec<Value> {
        let store = ::store::Store::open(Path::new(&self.path("store.db"))).unwrap().store;
        let scope = ::store::Scope::All;
        let page = store.list(&scope, None, 100).unwrap();
        page.items.iter().map(|one| json!(store.conversation(&scope, &one.id).unwrap())).collect()
    }
}

/// Messages of a stored conversation: each one's text and that of its parent.
fn tree(conversation: &Value) -> Vec<(&str, Option<&str>)> {
    let messages = conversation["messages"].as_object().unwrap();
    let mut found: Vec<(&str, Option<&str>)> = vec![];
    for message in messages.values() {
        let parent = message["parent"].as_str().map(|id| messages[id]["text"].as_str().unwrap());
        found.push((message["text"].as_str().unwrap(), parent));
    }
    found
}

fn leaf(conversation: &Value) -> &str {
    conversation["messages"][conversation["leaf"].as_str().unwrap()]["text"].as_str().unwrap()
}

#[test]
fn answers_in_a_pipe_are_the_models_bytes() {
    let (stdout, _) = Chat::new().says("say a\nand c\n", &[]);
    assert_eq!(stdout, "Answer **alpha**.\n# Gamma\n\x1b[2J\n");
}

#[test]
fn regenerate_and_edit_make_branches() {
    let chat = Chat::new();
    let (stdout, _) = chat.says("first a\n/regenerate\nthen a\n/edit other b\n", &[]);
    assert_eq!(stdout, "Answer **alpha**.\nAnswer **alpha**.\nAnswer **alpha**.\nAnswer _beta_!\n");
    let stored = chat.stored();
    let [conversation] = &stored[..] else { panic!("{stored:?}") };
    let alpha = "Answer **alpha**.";
    assert_eq!(
        tree(conversation),
        [
            ("first a", None),
            (alpha, Some("first a")),
            (alpha, Some("first a")),
            ("then a", Some(alpha)),
            (alpha, Some("then a")),
            ("other b", Some(alpha)),
            ("Answer _beta_!", Some("other b")),
        ]
    );
    assert_eq!(leaf(conversation), "Answer _beta_!");
    let usage = conversation["messages"].as_object().unwrap().values().next_back().unwrap();
    assert!(
        usage["usage"]["lanner"]["cache"].is_object() && usage["timings"]["prompt_n"].is_u64(),
        "{usage}"
    );
    // A stored conversation goes on with its branches.
    chat.says("/edit new b\n", &["--continue"]);
    chat.says("/edit newest a\n/edit newest c\n", &["--continue"]);
    let stored = chat.stored();
    assert_eq!(stored.len(), 1);
    assert_eq!(leaf(&stored[0]), "# Gamma\n\x1b[2J");
}

#[test]
fn load_goes_on_with_a_conversation_by_its_title() {
    let chat = Chat::new();
    chat.says("Owls at night a\n/clear\nOwls at day b\n/clear\nHerons a\n", &[]);
    let (_, said) = chat.says("/load HER\n/history\nmore b\n", &[]);
    assert!(said.contains("(continuing \"Herons a\" after 2 messages)"), "{said}");
    assert!(said.contains("Owls at night a") && said.contains("/load with the start"), "{said}");
    let herons = chat.stored().into_iter().find(|one| one["title"] == "Herons a").unwrap();
    assert_eq!(herons["messages"].as_object().unwrap().len(), 4);
    let output = chat.run("/load owls\n", &[]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("2 conversations begin with `owls`"), "{said}");
    let said = String::from_utf8(chat.run("/load storks\n", &[]).stderr).unwrap();
    assert!(
        said.contains("begins with `storks`") && said.contains("/model NAME loads another model"),
        "{said}"
    );
}

#[test]
fn model_is_switched_and_the_conversation_stays() {
    let chat = Chat::new();
    let other = scripted_model(&[('a', "Other alpha."), ('b', "Other beta.")]);
    let (path, saved) = (other.path().to_str().unwrap(), chat.path("saved.json"));
    let lines = format!("first a\n/model {path}\nthen b\n/model\n/save {saved}\n");
    let (stdout, said) = chat.says(&lines, &[]);
    assert_eq!(stdout, "Answer **alpha**.\nOther beta.\n");
    let name = other.path().file_name().unwrap().to_str().unwrap();
    assert!(said.contains(&format!("({name} answers from now on; the conversation stays)")), "{said}");
    assert!(said.contains(&format!("{name}: llama, context of 4096 tokens")), "{said}");
    let saved: Value = serde_json::from_str(&fs::read_to_string(saved).unwrap()).unwrap();
    assert_eq!((&saved["model"], saved["messages"].as_array().unwrap().len()), (&json!(name), 4));
    // One that is not there leaves the former one.
    let broken = chat.folder.path().join("broken");
    fs::create_dir(&broken).unwrap();
    fs::write(broken.join("config.json"), "{").unwrap();
    for wrong in ["/nowhere", broken.to_str().unwrap()] {
        let output = chat.run(&format!("/model {wrong}\n"), &[]);
        assert!(!output.status.success(), "{wrong}");
    }
}

#[test]
fn set_stats_and_other_commands_tell_what_they_do() {
    let chat = Chat::new();
    let lines = "/stats\n/set max_tokens 1\nsay a\n/set max-tokens default\n/stats\n/set\n/system Be brief.\n\
                 /save\n/help\n";
    let (stdout, said) = chat.says(lines, &[]);
    assert_eq!(stdout, "Ans\n");
    for part in [
        "there is no answer yet",
        "(max_tokens: 1)",
        "(max_tokens: the model's own)",
        "1 generated",
        "first token after ",
        "cache: 0 of ",
        "speculation: nothing was drafted",
        "this chat: 1 answer, ",
        "temperature         0 ",
        "/load ",
        "go on with a saved conversation",
    ] {
        assert!(said.contains(part), "{part:?} is missing in\n{said}");
    }
    assert!(said.contains("saved as ") && said.contains("lanner chat --continue "), "{said}");
}

#[test]
fn first_error_in_a_pipe_ends_the_chat() {
    for (line, part) in [
        ("/set top_p 7", "top_p is 7; it must be above 0 and at most 1"),
        ("/nonsense", "there is no /nonsense; there are /help, /model, "),
        ("/think maybe", "/think"),
    ] {
        let output = Chat::new().run(&format!("{line}\nsay a\n"), &[]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && output.stdout.is_empty(), "{line}: {said}");
        assert!(said.contains(part), "{part:?} is missing in\n{said}");
    }
}

#[test]
fn save_writes_over_no_file_but_its_own() {
    let chat = Chat::new();
    let (own, other) = (chat.path("own.json"), chat.path("other.json"));
    fs::write(&other, "mine").unwrap();
    let (_, said) = chat.says(&format!("say a\n/save {own}\nsay b\n/save {own}\n"), &[]);
    assert_eq!(said.matches(&format!("(written to {own})")).count(), 2, "{said}");
    let saved: Value = serde_json::from_str(&fs::read_to_string(&own).unwrap()).unwrap();
    assert_eq!(saved["messages"].as_array().unwrap().len(), 4);
    let output = chat.run(&format!("say a\n/save {other}\n"), &[]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("is there already; name another file"), "{said}");
    assert_eq!(fs::read_to_string(&other).unwrap(), "mine");
}

#[test]
fn image_for_a_model_without_vision_fails_in_a_pipe() {
    let output = Chat::new().run("/image owl.png\nsay a\n", &[]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && output.stdout.is_empty(), "{said}");
    assert!(said.contains("takes no images; send text, or load a model with vision"), "{said}");
}

#[test]
fn quotes_enclose_several_lines_in_a_pipe() {
    let chat = Chat::new();
    let saved = chat.path("saved.json");
    let (stdout, _) = chat.says(&format!("\"\"\"\n/help\none b\n\"\"\"\n/save {saved}\n"), &[]);
    assert_eq!(stdout, "Answer _beta_!\n");
    let saved: Value = serde_json::from_str(&fs::read_to_string(saved).unwrap()).unwrap();
    assert_eq!(saved["messages"][0]["content"], "/help\none b");
}
