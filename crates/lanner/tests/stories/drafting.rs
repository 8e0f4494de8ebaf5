//! `--draft-model`: answers that do not change, and models that are refused.

use std::fs;

use super::{
    checkpoint,
    cli::lanner,
    server::{TEMPLATE, tokenizer_json},
};

/// stdout, stderr, and whether it succeeded.
fn told(args: &[&str]) -> (String, String, bool) {
    let output = lanner(args, &[]);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr), output.status.success())
}

const RUN: [&str; 6] = ["run", "Once upon a time", "--max-tokens", "12", "--temperature", "0"];

#[test]
fn a_draft_model_changes_no_answer() {
    let (plain, ..) = told(&[&RUN[..], &["--speculate", "off"]].concat());
    for speculate in ["draft_model:3", "draft_model", "auto"] {
        let drafting = ["--draft-model", "merlin", "--speculate", speculate];
        let (answer, said, succeeded) = told(&[&RUN[..], &drafting].concat());
        assert!(succeeded, "{said}");
        assert_eq!(answer, plain, "{speculate}");
    }
}

#[test]
fn a_model_with_other_tokens_is_refused() {
    let other = checkpoint::folder("qwen3_5-hub");
    fs::write(other.path().join("tokenizer.json"), tokenizer_json()).unwrap();
    fs::write(other.path().join("chat_template.jinja"), TEMPLATE).unwrap();
    let other = other.path().to_str().unwrap();
    for args in [&["run", "Hi"] as &[&str], &["serve", "--port", "0"], &["bench"]] {
        let (_, said, succeeded) = told(&[args, &["--draft-model", other]].concat());
        assert!(
            !succeeded && said.contains("cannot draft for merlin, whose tokens are not the same: token"),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let (_, said, succeeded) = told(&["run", "Hi", "--draft-model", "no-such-model"]);
    assert!(!succeeded && said.contains("the draft model: there is no model `no-such-model`"), "{said}");
    let empty = tempfile::tempdir().unwrap();
    let (_, said, succeeded) = told(&["run", "Hi", "--draft-model", empty.path().to_str().unwrap()]);
    assert!(
        !succeeded && said.contains("the draft model: cannot read") && said.contains("tokenizer.json"),
        "{said}"
    );
    let (_, said, succeeded) = told(&[&RUN[..], &["--speculate", "draft_model"]].concat());
    assert!(!succeeded && said.contains("there is no drafter `draft_model`"), "{said}");
}
