//! `lanner ngram`: tables built from texts, shown, and refused by models with another tokenizer.

use std::{fs, path::Path};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    checkpoint,
    process::lanner,
    server::{TEMPLATE, tokenizer_json},
};

/// stdout of a command that must succeed.
fn stdout(args: &[&str]) -> String {
    let output = lanner(args, &[]);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn failure(args: &[&str]) -> String {
    let output = lanner(args, &[]);
    assert!(!output.status.success(), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn write(folder: &TempDir, name: &str, text: &str) -> String {
    let path = folder.path().join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().into()
}

/// A table for the built-in model, of these corpora.
fn build(folder: &TempDir, corpora: &[&str], more: &[&str]) -> (String, Value) {
    let out = folder.path().join("t.ngrams").to_str().unwrap().to_owned();
    let args = [&["ngram", "build", "--json", "--out", &out, "--corpus"], corpora, more].concat();
    (out.clone(), serde_json::from_str(&stdout(&args)).unwrap())
}

#[test]
fn ngram_show_reports_what_the_table_was_built_from() {
    let folder = tempfile::tempdir().unwrap();
    let text = write(&folder, "a.txt", &"The fox ran to the river.\n".repeat(200));
    let (table, built) = build(&folder, &[&text], &["--order", "3", "--min-count", "2"]);
    assert_eq!(
        (&built["order"], &built["min_count"], &built["model"]),
        (&json!(3), &json!(2), &json!("merlin"))
    );
    let tokens = built["tokens"].as_u64().unwrap();
    assert!((1000..3000).contains(&tokens), "{tokens}");
    assert_eq!(serde_json::from_str::<Value>(&stdout(&["ngram", "show", &table, "--json"])).unwrap(), built);
    let shown = stdout(&["ngram", "show", &table]);
    for part in ["contexts of up to 3 tokens", "2 times or more", "tokenizer of merlin"] {
        assert!(shown.contains(part), "{shown}");
    }
    // The same texts give the same bytes, whatever the size of the reads.
    let bytes = fs::read(&table).unwrap();
    build(&folder, &[&text], &["--order", "3", "--min-count", "2"]);
    assert_eq!(fs::read(&table).unwrap(), bytes);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing else is left");
}

#[test]
fn ngram_build_reads_text_and_chat_records() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = |name: &str, text: &str| {
        let corpus = write(&folder, name, text);
        build(&folder, &[&corpus], &["--min-count", "1"]).1["tokens"].as_u64().unwrap()
    };
    let plain = tokens("a.txt", "The fox ran.");
    assert_eq!(
        tokens("a.jsonl", "{\"text\": \"The fox ran.\"}\n\n{\"text\": \"The fox ran.\"}\n"),
        2 * plain
    );
    let messages = json!({ "messages": [
        { "role": "user", "content": "What did it do?" },
        { "role": "assistant", "content": "The fox ran." },
    ]});
    assert!(tokens("b.jsonl", &messages.to_string()) > plain + 8, "with the template's tokens");
}

#[test]
fn ngram_build_rejects_a_bad_corpus_with_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("t").to_str().unwrap().to_owned();
    let check = |name: &str, text: &[u8], expected: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        let stderr = failure(&["ngram", "build", "--out", &out, "--corpus", path.to_str().unwrap()]);
        assert!(stderr.contains(expected) && stderr.contains(name), "{stderr}");
        assert!(!Path::new(&out).exists());
    };
    check(
        "a.jsonl",
        b"{\"text\": \"a\"}\n{\"txt\": \"b\"}\n",
        "line 2: there is neither a text nor a list of messages",
    );
    check("b.jsonl", b"{\"text\": ", "line 1: not valid JSON");
    check("c.jsonl", b"{\"messages\": [{\"content\": \"a\"}]}", "line 1");
    check("d.txt", b"a\xff\xfe\n", "it is not UTF-8");
    let stderr = failure(&["ngram", "build", "--out", "/no/folder/t", "--corpus", "/no/text"]);
    assert!(stderr.contains("cannot write /no/folder/t"), "{stderr}");
    assert!(
        failure(&["ngram", "build", "--out", &out, "--corpus", "/no/text"]).contains("cannot read /no/text")
    );
}

#[test]
fn ngram_table_of_another_tokenizer_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let text = write(&folder, "a.txt", &"Once upon a time there was a fox.\n".repeat(20));
    let (table, _) = build(&folder, &[&text], &[]);
    let run = ["run", "Hi", "--max-tokens", "2", "--temperature", "0", "--ngram-table", &table];
    assert_eq!(stdout(&run), stdout(&run[..6]), "a table changes no answer");
    let other = checkpoint::folder("qwen3_5-hub");
    fs::write(other.path().join("tokenizer.json"), tokenizer_json()).unwrap();
    fs::write(other.path().join("chat_template.jinja"), TEMPLATE).unwrap();
    let other = other.path().to_str().unwrap();
    for args in [&["run", "Hi"] as &[&str], &["run", "--ids", "5 6"], &["bench"]] {
        let stderr = failure(&[args, &["--model", other, "--ngram-table", &table]].concat());
        assert!(stderr.contains("was made with the tokenizer of merlin"), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
    let said = failure(&["run", "Hi", "--ngram-table", &text]);
    assert!(said.contains("is not an n-gram table"), "{said}");
}
