//! Published chat templates, compared byte for byte with transformers.
//!
//! The templates are not in this repository: set `LANNER_SHARED` to a folder with `templates/`, or
//! the test is skipped.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use lanner_chat::{RenderInput, Template};

use crate::skipped;
use serde_json::Value;

fn shared() -> Option<PathBuf> {
    let shared = std::env::var_os("LANNER_SHARED").map(PathBuf::from);
    if shared.is_none() {
        skipped::skipped("published templates: LANNER_SHARED is not set");
    }
    shared
}

fn template(path: &Path, token_vars: &Value) -> lanner_chat::Result<Template> {
    let source = std::fs::read_to_string(path).unwrap();
    let source = match path.extension().is_some_and(|e| e == "json") {
        true => serde_json::from_str::<Value>(&source).unwrap()["chat_template"].as_str().unwrap().to_owned(),
        false => source,
    };
    let now = "2026-01-15T12:00:00".parse().unwrap();
    Ok(Template::new(&source, token_vars.as_object().unwrap().clone())?.at(now))
}

fn render(template: &Template, case: &Value) -> lanner_chat::Result<String> {
    let mut kwargs = case.as_object().unwrap().clone();
    for fixed in ["messages", "tools", "documents", "add_generation_prompt"] {
        kwargs.remove(fixed);
    }
    template.render(&RenderInput {
        messages: case["messages"].as_array().unwrap(),
        tools: case["tools"].as_array().map(Vec::as_slice),
        documents: case["documents"].as_array().map(Vec::as_slice),
        add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap_or(false),
        continue_final_message: false,
        kwargs,
    })
}

/// How a rendering compares with the reference.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Same,
    /// Python raises an error, such as for a loop over `None`; minijinja continues.
    Lenient,
    /// `safe` makes Jinja2 escape HTML in strings joined to it, a mistake of the template;
    /// minijinja does not.
    Markup,
    Different(String),
}

impl Outcome {
    fn reason(&self) -> &'static str {
        match self {
            Outcome::Same => "same",
            Outcome::Lenient => "lenient",
            Outcome::Markup => "markup",
            Outcome::Different(_) => "different",
        }
    }
}

fn compare(golden: &Value, actual: &lanner_chat::Result<String>) -> Outcome {
    let refusal = golden["error"].as_str().and_then(|e| e.strip_prefix("TemplateError: "));
    match (golden["expected"].as_str(), actual) {
        (Some(text), Ok(actual)) if text == actual => Outcome::Same,
        (Some(text), Ok(actual)) if text.replace("&#34;", "\"") == *actual => Outcome::Markup,
        (None, Err(lanner_chat::Error::Refused(message))) if refusal == Some(message) => Outcome::Same,
        (None, Err(_)) if refusal.is_none() => Outcome::Same,
        (None, Ok(_)) if refusal.is_none() => Outcome::Lenient,
        _ => Outcome::Different(format!("want {golden}\n got {actual:?}")),
    }
}

#[test]
fn published_templates_render_as_in_transformers() {
    let Some(folder) = shared().map(|s| s.join("templates")) else { return };
    let read = |name: &str| std::fs::read_to_string(folder.join("expected").join(name)).unwrap();
    let cases: Value = serde_json::from_str(&read("cases.json")).unwrap();
    let goldens = read("jinja2_goldens.jsonl");
    let mut templates: BTreeMap<String, lanner_chat::Result<Template>> = BTreeMap::new();
    let mut outcomes: BTreeMap<Outcome, usize> = BTreeMap::new();
    let mut exceptions: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for line in goldens.lines() {
        let golden: Value = serde_json::from_str(line).unwrap();
        let name = golden["template"].as_str().unwrap();
        let loaded = templates
            .entry(name.to_owned())
            .or_insert_with(|| template(&folder.join(name), &cases["token_vars"]));
        let case = &cases["cases"][golden["case"].as_str().unwrap()];
        let actual = match loaded {
            Ok(template) => render(template, case),
            Err(error) => Err(lanner_chat::Error::TemplateSyntax(error.to_string())),
        };
        let outcome = compare(&golden, &actual);
        if let Outcome::Lenient | Outcome::Markup = outcome {
            exceptions.entry(name.to_owned()).or_default().insert(outcome.reason());
        }
        *outcomes.entry(outcome).or_default() += 1;
    }
    let different: Vec<_> = outcomes.keys().filter(|o| matches!(o, Outcome::Different(_))).collect();
    for outcome in &different {
        println!("{outcome:?}");
    }
    println!("{} templates: {outcomes:?}", templates.len());
    assert!(different.is_empty(), "{} renderings differ", different.len());
    check_document(&document(&outcomes, &exceptions));
}

/// docs/templates.md: the counts of outcomes, and the templates that differ.
fn document(outcomes: &BTreeMap<Outcome, usize>, exceptions: &BTreeMap<String, BTreeSet<&str>>) -> String {
    let count = |outcome| outcomes.get(&outcome).copied().unwrap_or(0);
    let mut text = format!(
        "# Chat templates\n\n\
         Lanner and Python's Jinja2, with transformers' settings, rendered published templates over the\n\
         same conversations: {} renderings are identical (or refuse the conversation with the same words).\n\
         The others differ for one of two reasons:\n\n\
         - **lenient** ({}): Python fails, for example when looping over `None`; Lanner continues.\n\
         - **markup** ({}): the template joins a string marked `safe` with another, which makes Jinja2\n  \
           escape quotes as HTML: a fault of the template that Lanner does not repeat.\n\n\
         | template | difference |\n|---|---|\n",
        count(Outcome::Same),
        count(Outcome::Lenient),
        count(Outcome::Markup)
    );
    for (name, reasons) in exceptions {
        let reasons: Vec<&str> = reasons.iter().copied().collect();
        text += &format!("| {name} | {} |\n", reasons.join(", "));
    }
    text
}

fn check_document(expected: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/templates.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, expected).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == expected, "docs/templates.md is stale: run this test with UPDATE_DOCS=1");
}
