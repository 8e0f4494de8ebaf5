//! Tokenizers that try to exhaust memory fail to load or to encode, without ending the process.

use lanner_chat::{Error, Tokenizer};
use serde_json::{Value, json};

fn load(edit: impl FnOnce(&mut Value)) -> lanner_chat::Result<Tokenizer> {
    let mut json: Value =
        serde_json::from_slice(include_bytes!("../data/byte_level/tokenizer.json")).unwrap();
    edit(&mut json);
    Tokenizer::from_bytes(json.to_string().as_bytes(), None)
}

fn check_fails(part: &str, value: Value, expected: &str) {
    let error = load(|json| json[part] = value).unwrap_err();
    assert!(matches!(error, Error::Tokenizer(_)), "{error}");
    assert!(error.to_string().contains(expected), "{error}");
}

fn replace(pattern: Value, content: &str) -> Value {
    json!({ "type": "Replace", "pattern": pattern, "content": content })
}

fn sequence(rules: &[Value]) -> Value {
    json!({ "type": "Sequence", "normalizers": rules, "decoders": rules })
}

#[test]
fn rules_that_repeatedly_double_text_fail() {
    let double = vec![replace(json!({ "String": "a" }), "aa"); 30];
    check_fails("normalizer", sequence(&double), "normalizer");
    check_fails("decoder", sequence(&double), "decoder");
    let by_pattern = vec![replace(json!({ "Regex": "." }), "aa"); 30];
    check_fails("normalizer", sequence(&by_pattern), "normalizer");
    check_fails("normalizer", sequence(&vec![sequence(&double[..4]); 3]), "normalizer");
    check_fails("normalizer", replace(json!({ "String": "a" }), &"b".repeat(5000)), "normalizer");
}

#[test]
fn huge_affixes_and_tokens_fail() {
    let huge = "x".repeat(50 << 20);
    check_fails("normalizer", json!({ "type": "Prepend", "prepend": huge }), "normalizer");
    let token = json!([{ "id": 5, "content": "x".repeat(10 << 20), "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": true }]);
    check_fails("added_tokens", token, "token of 10485760 bytes");
    let error =
        load(|json| json["model"]["continuing_subword_prefix"] = json!("x".repeat(1 << 20))).unwrap_err();
    assert!(error.to_string().contains("token of 1048576 bytes"), "{error}");
}

#[test]
fn invalid_charsmap_fails() {
    // A missing table of 4 GB; an entry of 1 MB.
    let claims = base64(&[0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4]);
    check_fails("normalizer", json!({ "type": "Precompiled", "precompiled_charsmap": claims }), "charsmap");
    let expands = base64(&[&[4, 0, 0, 0, 0, 0, 0, 0][..], &vec![b'x'; 1 << 20]].concat());
    check_fails(
        "normalizer",
        json!({ "type": "Precompiled", "precompiled_charsmap": expands }),
        "normalizer",
    );
    check_fails("normalizer", json!({ "type": "Precompiled", "precompiled_charsmap": "" }), "charsmap");
}

fn base64(bytes: &[u8]) -> String {
    ::base64::encode(bytes)
}

#[test]
fn post_processor_that_repeats_text_fails() {
    let text = json!({ "Sequence": { "id": "A", "type_id": 0 } });
    let template = |single: Vec<Value>, ids: usize| {
        json!({ "type": "TemplateProcessing", "single": single, "pair": [],
            "special_tokens": { "<s>": { "id": "<s>", "ids": vec![0; ids], "tokens": vec!["<s>"; ids] } } })
    };
    check_fails("post_processor", template(vec![text.clone(); 2], 1), "post_processor");
    check_fails("post_processor", template(vec![text.clone()], 1_000_000), "post_processor");
    let special = json!({ "SpecialToken": { "id": "<s>", "type_id": 0 } });
    check_fails("post_processor", template(vec![special; 100_000], 1), "post_processor");
}

#[test]
fn unusual_expansion_limits_text_length() {
    let tokenizer =
        load(|json| json["normalizer"] = replace(json!({ "String": "a" }), &"b".repeat(500))).unwrap();
    assert!(tokenizer.encode(&"a".repeat(100), false).unwrap().len() > 100);
    let error = tokenizer.encode(&"a".repeat(1 << 20), false).unwrap_err();
    assert!(matches!(error, Error::Encode(_)) && error.is_request_error(), "{error}");
}

#[test]
fn ordinary_rules_do_not_limit_text_length() {
    let llama = sequence(&[
        json!({ "type": "Prepend", "prepend": "▁" }),
        replace(json!({ "String": " " }), "▁"),
        json!({ "type": "NFKC" }),
    ]);
    let tokenizer = load(|json| json["normalizer"] = llama).unwrap();
    assert!(tokenizer.encode(&"a b".repeat(1 << 16), false).is_ok());
}

#[cfg(unix)]
#[test]
fn load_pipe_fails_at_once() {
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(
            folder.path().join("tokenizer.json"),
            include_bytes!("../data/byte_level/tokenizer.json"),
        )
        .unwrap();
        let path = folder.path().join(name);
        let _ = std::fs::remove_file(&path);
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let error = Tokenizer::from_dir(folder.path()).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("not a regular file"), "{error}");
    }
}
