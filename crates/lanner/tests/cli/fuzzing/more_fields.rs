//! Fields of Ollama's routes and of those that tokenise.

/// A field, its valid values, and its edge cases.
pub(super) type Field = (&'static str, &'static [&'static str], &'static [&'static str]);

/// Fields of both routes of Ollama that generate.
pub(super) const OLLAMA: [Field; 10] = [
    ("model", &[r#""default""#, r#""merlin:latest""#, "null"], &[r#""gpt-4""#, r#""/""#, r#"":latest""#]),
    (
        "options",
        &[r#"{"num_predict":1}"#, r#"{"num_predict":2,"temperature":0,"seed":1,"num_ctx":99}"#],
        &[
            r#"{"num_predict":-2}"#,
            r#"{"num_predict":1,"temperature":100.1}"#,
            r#"{"num_predict":1,"stop":["",7]}"#,
            r#"{"num_predict":1,"repeat_penalty":1.1,"repeat_last_n":64}"#,
            r#"{"num_predict":1,"top_k":-9223372036854775808,"seed":18446744073709551615}"#,
            r#"{"mirostat":2}"#,
            r#"{"x":1}"#,
            r#"{"num_predict":1e300}"#,
        ],
    ),
    ("format", &[r#""""#, "null"], &[r#""json""#, r#"{"enum":[1,"a"]}"#, r#"{"not":{}}"#]),
    ("think", &["true", "false", r#""low""#], &[r#""deeply""#]),
    ("stream", &["true", "false"], &[]),
    ("keep_alive", &["300", r#""5m""#, r#""-1""#], &["0", r#""soon""#, r#""9999999999h""#]),
    ("logprobs", &["true", "false"], &[]),
    ("top_logprobs", &["0"], &["20", "21"]),
    ("timeout", &["0.3"], &["1e-9", "1000000001", "-1"]),
    ("cache_salt", &[r#""s""#, "null"], &[]),
];

pub(super) const OLLAMA_CHAT: [Field; 2] = [
    (
        "messages",
        &[r#"[{"role":"user","content":"hi"}]"#],
        &[
            "[]",
            "[7]",
            r#"[{"role":"user","content":"x","images":["eA=="]}]"#,
            r#"[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{"a":1}}},7]},{"role":"tool","tool_name":[],"content":"x"}]"#,
            r#"[{"role":"tool","content":"x","tool_call_id":7}]"#,
        ],
    ),
    (
        "tools",
        &["[]", r#"[{"type":"function","function":{"name":"f","parameters":{}}}]"#],
        &["[7]", r#"[{"function":null}]"#],
    ),
];

pub(super) const OLLAMA_GENERATE: [Field; 9] = [
    ("prompt", &[r#""hi""#], &[r#""""#]),
    ("suffix", &["null"], &[r#""x""#]),
    ("system", &[r#""Be brief.""#], &[]),
    ("template", &["null"], &[r#""x""#]),
    ("raw", &["true", "false"], &[]),
    ("context", &["[]"], &["[1]"]),
    ("images", &["[]"], &[r#"["eA=="]"#]),
    ("width", &["null"], &["7"]),
    ("priority", &[r#""background""#], &[r#""urgent""#]),
];

pub(super) const OLLAMA_EMBED: [Field; 6] = [
    ("input", &[r#""The owl""#, r#"["a","b"]"#], &["[]", "[7]", r#"[""]"#, "[[5]]"]),
    ("dimensions", &["1", "7"], &["0", "100000"]),
    ("options", &["{}", r#"{"num_ctx":99}"#], &[r#"{"x":1}"#]),
    ("truncate", &["true", "false"], &[]),
    ("keep_alive", &["300"], &["[]"]),
    ("timeout", &["0.3"], &["1e-9"]),
];

pub(super) const TOKENIZE: [Field; 6] = [
    ("content", &[r#""The owl""#], &[r#""<|im_end|>\u0000""#]),
    ("prompt", &["null"], &[r#""x""#]),
    ("messages", &["null"], &["[]", r#"[{"role":"user","content":"hi"}]"#]),
    ("add_special", &["true", "false"], &[]),
    ("with_pieces", &["true", "false"], &[]),
    ("return_token_strs", &["true", "false"], &[]),
];

pub(super) const DETOKENIZE: [Field; 1] =
    [("tokens", &["[]", "[5,6,7]"], &["[8191]", "[8192]", "[4294967296]", "[-1]", r#"["a"]"#])];
