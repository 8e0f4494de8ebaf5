//! Routes, the fields of their bodies, and edge-case values.

/// Numbers as JSON: limits of types and of ranges, and numbers beyond every type.
pub const NUMBERS: [&str; 42] = [
    "0",
    "-0",
    "-0.0",
    "1",
    "-1",
    "2",
    "16",
    "17",
    "20",
    "21",
    "0.5",
    "1.5",
    "100",
    "101",
    "-100",
    "-101",
    "10000",
    "-10000",
    "10001",
    "0.01",
    "0.009",
    "1e-38",
    "1e-45",
    "1e-320",
    "5e-324",
    "1e38",
    "3.5e38",
    "-3.5e38",
    "1e39",
    "1e300",
    "-1e300",
    "1e999",
    "-1e999",
    "127",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "340282366920938463463374607431768211456",
];

/// Other JSON values, and invalid JSON.
pub const VALUES: [&str; 30] = [
    "null",
    "true",
    "false",
    r#""""#,
    r#"" ""#,
    r#""a""#,
    r#""-1""#,
    r#""NaN""#,
    r#""null""#,
    r#""auto""#,
    r#""off""#,
    r#""none""#,
    r#""\u0000""#,
    r#""\ud800""#,
    r#""\uFFFD\u202e""#,
    "\"\u{1F985}e\u{301}\"",
    r#""<|im_end|><think>""#,
    "[]",
    "{}",
    "[null]",
    "[[]]",
    r#"[""]"#,
    r#"[0,-1,1e99]"#,
    r#"{"":0}"#,
    r#"{"a":{"b":[{}]}}"#,
    r#"{"5":1e300}"#,
    "NaN",
    "Infinity",
    "-",
    "'a'",
];

/// A field, its valid values, and its edge cases.
pub type Field = (&'static str, &'static [&'static str], &'static [&'static str]);

/// Fields of both completion routes.
pub const COMMON: [Field; 32] = [
    ("model", &[r#""default""#, "null"], &[r#""merlin""#, r#""gpt-4""#, r#""../..""#]),
    ("max_tokens", &["1", "2", "3"], &["0", "8191", "8192", "1000000"]),
    ("temperature", &["0", "0.7", "1", "100"], &["1e-30", "100.1", "-1e-30"]),
    ("top_p", &["1", "0.9", "1e-30"], &["0", "1.1"]),
    ("top_k", &["0", "-1", "40"], &["-2", "1", "8192", "8193"]),
    ("min_p", &["0", "0.05", "1"], &["1.1", "-0.1"]),
    ("repetition_penalty", &["1", "1.1", "0.01", "100"], &["0", "0.0099", "100.1", "1e-38"]),
    ("presence_penalty", &["0", "1.5", "-100", "100"], &["-100.1"]),
    ("frequency_penalty", &["0", "0.5", "-100", "100"], &["100.1"]),
    (
        "logit_bias",
        &["{}", r#"{"5":1,"8191":-100}"#, r#"{"7":10000,"8":-10000}"#],
        &[
            r#"{"5":1e300}"#,
            r#"{"8192":1}"#,
            r#"{"-1":1}"#,
            r#"{"4294967296":1}"#,
            r#"{"5":1,"05":2}"#,
            r#"{"5":"x"}"#,
        ],
    ),
    ("seed", &["1", "-1", "9223372036854775807"], &["1.5"]),
    ("stop", &[r#""owl""#, r#"[" ","<"]"#], &[r#"["a",3]"#, r#"[""]"#]),
    ("ignore_eos", &["true", "false"], &[]),
    ("n", &["1", "2"], &["16", "17", "-1"]),
    ("stream", &["true", "false"], &[]),
    ("stream_options", &[r#"{"include_usage":true}"#], &[r#"{"include_usage":1}"#]),
    ("priority", &[r#""background""#, r#""interactive""#], &[r#""urgent""#]),
    ("timeout", &["0.3"], &["1e-9", "1000000001", "-1"]),
    (
        "speculation",
        &[r#""auto""#, r#""off""#, r#"{"drafter":"ngram","depth":32}"#, r#"{"drafter":"self"}"#],
        &[
            r#"{"drafter":"x"}"#,
            r#"{"drafter":"ngram","depth":33}"#,
            r#"{"drafter":"self","lossy":true,"depth":1}"#,
        ],
    ),
    (
        "idempotency_key",
        &[r#""k""#],
        &[r#""kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk""#],
    ),
    ("cache_ttl_ms", &["0", "10"], &["60001"]),
    ("stop_token_ids", &["[]", "[5,6]"], &["[-1]", "[4294967296]"]),
    (
        "response_format",
        &["null", r#"{"type":"text"}"#],
        &[
            r#"{"type":"json_object"}"#,
            r#"{"type":"json_schema","json_schema":{"schema":{"type":"string","maxLength":3}}}"#,
            r##"{"type":"json_schema","json_schema":{"schema":{"$ref":"#"}}}"##,
            r#"{"type":"json_schema","json_schema":{"schema":{"not":{}}}}"#,
        ],
    ),
    ("guided_json", &["null"], &[r#"{"enum":[1,"a",null]}"#, r#""{}""#, r#"{"minimum":"x"}"#]),
    ("guided_regex", &["null"], &[r#""[a-z]{1,3}""#, r#""((((""#, r#""(a|b){1,99999}""#, r#""(?=x)""#]),
    ("guided_choice", &["null"], &[r#"["a","b"]"#, r#"[""]"#]),
    ("guided_grammar", &["null"], &[r#""start: \"a\"""#, r#""root ::= root root | \"a\"""#]),
    ("structured_outputs", &["null"], &[r#"{"choice":["a"]}"#, r#"{"regex":"a","json":{}}"#]),
    ("grammar", &[r#""""#], &[r#""root ::= [a-z]+""#, r#""root ::= [""#]),
    ("json_schema", &["null"], &["{}"]),
    ("format", &[r#""""#], &[r#""json""#]),
    ("user", &[r#""someone""#], &[]),
];

pub const CHAT: [Field; 22] = [
    (
        "messages",
        &[
            r#"[{"role":"user","content":"hi"}]"#,
            r#"[{"role":"system","content":"Be brief."},{"role":"user","content":[{"type":"text","text":"hi"}]}]"#,
        ],
        &[
            r#"[{"role":"user"}]"#,
            r#"[{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":"{"}}]}]"#,
            r#"[{"role":"tool","content":"x","tool_call_id":7}]"#,
            r#"[{"role":"user","content":[{"type":"image_url"}]}]"#,
            r#"[{"role":[],"content":{}}]"#,
            r#"[{"role":"user","content":"x","reasoning_content":[1]}]"#,
            r#"[7]"#,
        ],
    ),
    (
        "tools",
        &["[]", r#"[{"type":"function","function":{"name":"f","parameters":{}}}]"#],
        &["[7]", r#"[{"function":null}]"#],
    ),
    ("tool_choice", &[r#""auto""#, r#""none""#], &[r#""required""#, r#"{"type":"function"}"#]),
    ("enable_thinking", &["true", "false"], &[]),
    ("reasoning_effort", &[r#""low""#, r#""none""#], &[]),
    (
        "chat_template_kwargs",
        &["{}", r#"{"enable_thinking":false}"#],
        &[
            r#"{"messages":7}"#,
            r#"{"tools":"x","add_generation_prompt":[]}"#,
            r#"{"bos_token":{},"raise_exception":1,"namespace":0}"#,
        ],
    ),
    ("add_generation_prompt", &["true"], &["false"]),
    ("continue_final_message", &["false"], &["true"]),
    ("max_completion_tokens", &["1", "2"], &["0"]),
    ("logprobs", &["true", "false"], &["1"]),
    ("top_logprobs", &["0"], &["20", "21"]),
    ("modalities", &[r#"["text"]"#], &[r#"["audio"]"#]),
    ("verbosity", &[r#""medium""#], &[r#""low""#]),
    ("audio", &["null"], &["{}"]),
    ("functions", &["null"], &["[]"]),
    ("function_call", &["null"], &[r#""auto""#]),
    ("web_search_options", &["null"], &["{}"]),
    ("moderation", &["null"], &["{}"]),
    ("parallel_tool_calls", &["true"], &[]),
    ("metadata", &["{}"], &[]),
    ("store", &["false"], &[]),
    ("prediction", &["null"], &[]),
];

pub const COMPLETIONS: [Field; 6] = [
    (
        "prompt",
        &[r#""The owl""#, "[5,6,7]", r#"["a","b"]"#, "[[1],[2,3]]"],
        &["[8191]", "[8192]", "[4294967295]", "[[]]", r#"[1,"a"]"#, r#"[[1],"a"]"#],
    ),
    ("echo", &["true", "false"], &[]),
    ("suffix", &["null"], &[r#""x""#]),
    ("best_of", &["1"], &["2"]),
    ("return_token_ids", &["true", "false"], &[]),
    ("logprobs", &["0", "2"], &["20", "21"]),
];

pub const EMBEDDINGS: [Field; 8] = [
    (
        "input",
        &[r#""The owl""#, "[5,6,7]", r#"["a","b"]"#, "[[1],[2,3]]"],
        &["[8191]", "[8192]", "[[]]", r#"[1,"a"]"#, r#"[""]"#],
    ),
    ("model", &[r#""default""#, "null"], &[r#""gpt-4""#]),
    ("encoding_format", &[r#""float""#, r#""base64""#], &[r#""int8""#]),
    ("dimensions", &["1", "7"], &["0", "100000"]),
    ("pooling", &[r#""last""#, r#""mean""#], &[r#""cls""#]),
    ("priority", &[r#""background""#], &[r#""urgent""#]),
    ("timeout", &["0.3"], &["1e-9", "1000000001", "-1"]),
    ("truncate_prompt_tokens", &["null"], &["1"]),
];

pub const RESPONSES: [Field; 16] = [
    (
        "input",
        &[r#""hi""#, r#"[{"role":"user","content":"hi"}]"#],
        &[
            "[]",
            "[7]",
            r#"[{"type":"item_reference","id":"x"}]"#,
            r#"[{"type":"function_call_output","call_id":"c","output":"x"}]"#,
            r#"[{"type":"reasoning","summary":[{}],"content":7,"encrypted_content":"AAAA"},{"role":"user","content":"x"}]"#,
            r#"[{"role":"user","content":[{"type":"input_image"}]}]"#,
            r#"[{"type":[],"role":{}}]"#,
        ],
    ),
    ("instructions", &[r#""Be brief.""#, "null"], &[]),
    ("max_output_tokens", &["1", "2"], &["0", "8192"]),
    ("previous_response_id", &["null"], &[r#""resp_0""#]),
    ("store", &["true", "false"], &[]),
    ("stream", &["true", "false"], &[]),
    ("include", &["[]", r#"["reasoning.encrypted_content"]"#], &[r#"["x"]"#]),
    ("metadata", &["{}", r#"{"a":"b"}"#], &[r#"{"a":[]}"#]),
    (
        "text",
        &["{}", r#"{"format":{"type":"text"}}"#],
        &[r#"{"format":{"type":"json_schema"}}"#, r#"{"format":7}"#],
    ),
    ("reasoning", &["{}", r#"{"effort":"low","summary":"auto"}"#], &[r#"{"effort":7}"#]),
    (
        "tools",
        &["[]", r#"[{"type":"function","name":"f","parameters":{}}]"#],
        &["[7]", r#"[{"type":"custom"}]"#, r#"[{"type":"mcp"}]"#],
    ),
    ("tool_choice", &[r#""auto""#, r#""none""#], &[r#""required""#, r#"{"type":"allowed_tools"}"#]),
    ("temperature", &["0", "1"], &["100.1"]),
    ("top_logprobs", &["0", "2"], &["21"]),
    ("truncation", &[r#""disabled""#], &[r#""auto""#]),
    ("timeout", &["0.3"], &["1e-9"]),
];

pub const RERANK: [Field; 6] = [
    ("query", &[r#""owls""#], &[r#""""#]),
    ("documents", &[r#"["a","b"]"#, r#"[{"text":"a"}]"#], &["[]", "[{}]", r#"["a",{"text":7}]"#, r#"[""]"#]),
    ("top_n", &["1", "9"], &["0"]),
    ("return_documents", &["true", "false"], &[]),
    ("max_tokens_per_doc", &["null"], &["5"]),
    ("timeout", &["0.3"], &["1e-9"]),
];

/// Names of models, none of which exists locally; nothing is downloaded.
pub const MODEL: [Field; 2] = [
    (
        "model",
        &[r#""nobody/nothing""#],
        &[
            r#""""#,
            r#""/""#,
            r#"".""#,
            r#""/dev/null""#,
            r#""../../..""#,
            r#""a/b/c""#,
            r#""a/b@main:part""#,
            r#""\u0000""#,
            r#""~""#,
            r#""/nowhere/model.safetensors""#,
            r#""owner/name@../..""#,
            r#""owner/name:../../x""#,
        ],
    ),
    ("stream", &["false"], &["true"]),
];

/// A route with a body, its fields, and the fields of every request, which keep the answer short.
pub type Posted = (&'static str, Vec<Field>, &'static [&'static str]);

pub fn posted() -> [Posted; 7] {
    let [chat, completions] = [&CHAT[..], &COMPLETIONS[..]].map(|own| [own, &COMMON[..]].concat());
    [
        ("/v1/chat/completions", chat, &["messages", "max_tokens", "timeout"]),
        ("/v1/completions", completions, &["prompt", "max_tokens", "timeout"]),
        ("/v1/embeddings", EMBEDDINGS.to_vec(), &["input", "timeout"]),
        ("/v1/responses", RESPONSES.to_vec(), &["input", "max_output_tokens", "timeout"]),
        ("/v1/rerank", RERANK.to_vec(), &["query", "documents", "timeout"]),
        ("/v1/models/load", MODEL.to_vec(), &["model"]),
        ("/v1/models/pull", MODEL.to_vec(), &["model"]),
    ]
}

/// Routes without a body, and unknown ones.
pub const OTHERS: [&str; 26] = [
    "POST /v2/rerank",
    "GET /v1/responses/resp_0",
    "DELETE /v1/responses/resp_0",
    "POST /v1/responses/resp_0/cancel",
    "GET /v1/responses/%ff/input_items?limit=%00",
    "GET /health",
    "GET /metrics",
    "GET /v1/models",
    "GET /v1/models/default",
    "GET /v1/models/%ff%00",
    "GET /v1/models/a/b?c=%",
    "GET /v1/cache",
    "DELETE /v1/cache",
    "DELETE /health",
    "PUT /v1/completions",
    "GET /v1/completions",
    "POST /v1/cache",
    "PATCH /v1/models/load",
    "HEAD /v1/models",
    "GET /",
    "GET /version",
    "GET /v1/stats",
    "DELETE /v1/requests/req_1",
    "DELETE /v1/requests/%ff",
    "GET //v1//models/",
    "OPTIONS /v1/chat/completions",
];
