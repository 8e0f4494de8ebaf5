//! Routes, the fields of their bodies, and edge-case values.

use super::more_fields::{
    CONVERSATION, DETOKENIZE, Field, HISTORY, LOAD, MODEL, OLLAMA, OLLAMA_CHAT, OLLAMA_EMBED,
    OLLAMA_EMBEDDINGS, OLLAMA_GENERATE, PULL, RERANK, SHOW, TOKENIZE,
};

/// Numbers as JSON: limits of types and of ranges, and numbers beyond every type.
pub(super) const NUMBERS: [&str; 42] = [
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
pub(super) const VALUES: [&str; 30] = [
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

/// Fields of both completion routes.
pub(super) const COMMON: [Field; 46] = [
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
    ("cache_salt", &[r#""s""#, "null"], &[]),
    ("ttl", &["null", "300", "-1"], &["0", "1e300"]),
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
    ("guided_whitespace_pattern", &["null"], &[r#""[ ]*""#]),
    ("min_tokens", &["0", "null"], &["1"]),
    ("allowed_token_ids", &["null"], &["[]", "[5]"]),
    ("bad_words", &["[]"], &[r#"["a"]"#]),
    ("use_beam_search", &["false"], &["true"]),
    ("include_stop_str_in_output", &["false"], &["true"]),
    ("truncate_prompt_tokens", &["null"], &["5"]),
    ("return_progress", &["true", "false"], &[]),
    ("user", &[r#""someone""#], &[]),
    ("safety_identifier", &[r#""someone""#], &[]),
    ("service_tier", &[r#""auto""#, r#""default""#], &[r#""flex""#]),
    ("prompt_cache_key", &[r#""k""#], &[]),
    ("prompt_cache_retention", &[r#""24h""#], &[r#""1y""#]),
];

pub(super) const CHAT: [Field; 28] = [
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
        &[
            "[]",
            r#"[{"type":"function","function":{"name":"f","parameters":{}}}]"#,
            r#"[{"type":"custom","custom":{"name":"f"}}]"#,
            r#"[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g","parameters":{"type":"object","properties":{"a":{"type":["integer","null"],"minimum":0}},"required":["a"]}}}]"#,
        ],
        &[
            "[7]",
            r#"[{"function":null}]"#,
            r#"[{"type":"custom","custom":{"name":"f","format":{"type":"grammar","grammar":{"syntax":"regex","definition":"("}}}}]"#,
            r#"[{"type":"function","function":{"name":"a b"}}]"#,
            r#"[{"type":"function","function":{"name":"f","parameters":{"not":{}}}}]"#,
            r##"[{"type":"function","function":{"name":"f","parameters":{"properties":{"a":{"$ref":"#"}}}}}]"##,
            r#"[{"type":"function","function":{"name":"f","parameters":{"properties":{"a":{"minimum":1e300}}}}}]"#,
        ],
    ),
    (
        "tool_choice",
        &[r#""auto""#, r#""none""#],
        &[
            r#""required""#,
            r#"{"type":"function"}"#,
            r#"{"type":"function","function":{"name":"f"}}"#,
            r#"{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{"name":"f"}}]}}"#,
            r#"{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[]}}"#,
            r#"{"type":"custom","custom":{"name":"f"}}"#,
            r#"{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"custom"},7]}}"#,
        ],
    ),
    ("enable_thinking", &["true", "false", r#""auto""#], &[r#""owl""#]),
    (
        "thinking",
        &[r#"{"type":"enabled","budget_tokens":9}"#, r#"{"type":"auto"}"#],
        &[r#"{"type":"owl"}"#, r#"{"budget_tokens":1}"#],
    ),
    ("reasoning_effort", &[r#""low""#, r#""none""#], &[]),
    ("max_thinking_tokens", &["9", "0"], &["-1", "1.5"]),
    ("thinking_budget", &["9"], &["-1"]),
    ("thinking_token_budget", &["9"], &["-1"]),
    ("thinking_escape", &[r#""on""#, r#""off""#, r#""So be it.""#], &[r#""""#]),
    ("repetition", &[r#""stop""#, r#""ignore""#], &[r#""owl""#]),
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
    ("verbosity", &[r#""low""#, r#""medium""#, r#""high""#], &[r#""terse""#, "1"]),
    ("audio", &["null"], &["{}"]),
    ("functions", &["null"], &["[]", r#"[{"name":"f","parameters":{}}]"#, r#"[{"name":""}]"#, r#"[null]"#]),
    ("function_call", &["null"], &[r#""auto""#, r#""none""#, r#"{"name":"f"}"#, r#"{"name":7}"#]),
    ("web_search_options", &["null"], &["{}"]),
    ("moderation", &["null"], &["{}"]),
    ("parallel_tool_calls", &["true", "false"], &[]),
    ("metadata", &["{}", r#"{"a":"b"}"#], &[r#"{"a":1}"#]),
    ("store", &["false", "true"], &[]),
    ("prediction", &["null", r#"{"type":"content","content":"a"}"#], &[r#"{"type":"content"}"#]),
];

pub(super) const COMPLETIONS: [Field; 6] = [
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

pub(super) const EMBEDDINGS: [Field; 10] = [
    ("ttl", &["null", "300", "-1"], &["0", "1e300"]),
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
    ("cache_salt", &[r#""s""#, "null"], &[]),
];

pub(super) const RESPONSES: [Field; 24] = [
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
    ("parallel_tool_calls", &["true", "false"], &[]),
    ("max_tool_calls", &["1", "null"], &["0", "-1"]),
    ("background", &["false", "null"], &["true"]),
    ("enable_thinking", &["true", "false"], &[]),
    ("chat_template_kwargs", &["{}"], &[r#"{"messages":7}"#]),
    ("conversation", &["null"], &[r#""conv_1""#]),
    ("prompt", &["null"], &[r#"{"id":"p"}"#]),
    ("context_management", &["null"], &["{}"]),
];

pub(super) const MESSAGES: [Field; 22] = [
    (
        "messages",
        &[
            r#"[{"role":"user","content":"hi"}]"#,
            r#"[{"role":"user","content":[{"type":"text","text":"hi","cache_control":{"type":"ephemeral"}}]}]"#,
            r#"[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"thinking","thinking":"b","signature":"c"},{"type":"tool_use","id":"t","name":"f","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"d","is_error":true}]},{"role":"system","content":"e"}]"#,
        ],
        &[
            "[]",
            "[7]",
            r#"[{"role":"user"}]"#,
            r#"[{"role":"assistant","content":""}]"#,
            r#"[{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{}}]}]"#,
            r#"[{"role":"assistant","content":[{"type":"thinking","thinking":"","signature":"AAAA"}]}]"#,
            r#"[{"role":"user","content":[{"type":"tool_result","tool_use_id":"x","content":[{"type":"image"}]}]}]"#,
            r#"[{"role":[],"content":{}}]"#,
        ],
    ),
    ("max_tokens", &["1", "2", "3"], &["0", "8191", "8192", "64000"]),
    ("model", &[r#""default""#, "null"], &[r#""claude-haiku""#]),
    (
        "system",
        &[r#""Be brief.""#, r#"[{"type":"text","text":"x"}]"#, "[]"],
        &[r#"[{"type":"image"}]"#, "[7]"],
    ),
    ("stream", &["true", "false"], &[]),
    ("stop_sequences", &["[]", r#"["owl"," "]"#], &[r#"[""]"#]),
    ("temperature", &["0", "1"], &["100.1"]),
    ("top_p", &["1", "0.9"], &["0", "1.1"]),
    ("top_k", &["0", "40"], &["-2"]),
    (
        "tools",
        &["[]", r#"[{"name":"f","input_schema":{"type":"object"}}]"#],
        &["[7]", r#"[{"name":"f"}]"#, r#"[{"type":"web_search_20250305","name":"web_search"}]"#],
    ),
    (
        "tool_choice",
        &[r#"{"type":"auto"}"#, r#"{"type":"none","disable_parallel_tool_use":true}"#],
        &[r#"{"type":"any"}"#, r#"{"type":"tool"}"#, r#"{"type":"tool","name":"f"}"#],
    ),
    (
        "thinking",
        &[r#"{"type":"disabled"}"#, r#"{"type":"adaptive","display":"omitted"}"#],
        &[r#"{"type":"enabled"}"#, r#"{"type":"enabled","budget_tokens":1024}"#],
    ),
    (
        "output_config",
        &["{}", r#"{"effort":"max"}"#],
        &[r#"{"format":{"type":"json_schema"}}"#, r#"{"format":7}"#, r#"{"effort":7}"#],
    ),
    ("output_format", &["null"], &[r#"{"type":"json_schema","schema":{"enum":[1]}}"#]),
    ("cache_control", &[r#"{"type":"ephemeral"}"#], &[]),
    ("context_management", &[r#"{"edits":[]}"#], &[]),
    ("metadata", &[r#"{"user_id":"u"}"#], &[]),
    ("container", &["null"], &[r#""c""#]),
    ("mcp_servers", &["[]"], &["[{}]"]),
    ("seed", &["1", "-1"], &["1.5"]),
    ("idempotency_key", &[r#""m""#], &[r#""""#]),
    ("timeout", &["0.3"], &["1e-9", "-1"]),
];

/// Fields, and those of chat completions that they lack and `only` selects.
fn with_common(own: &[Field], only: impl Fn(&str) -> bool) -> Vec<Field> {
    let is_new = |name: &str| own.iter().all(|(known, ..)| *known != name);
    let more = CHAT.iter().chain(&COMMON).filter(|(name, ..)| is_new(name) && only(name));
    own.iter().chain(more).copied().collect()
}

fn is_field_of_responses(name: &str) -> bool {
    let is_common = COMMON.iter().any(|(common, ..)| *common == name);
    name == "moderation" || is_common && !["max_tokens", "n"].contains(&name)
}

/// Fields of messages that chat completions have too.
const OF_MESSAGES: [&str; 10] = [
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "chat_template_kwargs",
    "priority",
    "speculation",
    "cache_ttl_ms",
    "cache_salt",
];

/// A route with a body, its fields, and the fields of every request, which keep the answer short.
pub(super) type Posted = (&'static str, Vec<Field>, &'static [&'static str]);

pub(super) fn posted() -> [Posted; 21] {
    let [chat, completions] = [&CHAT[..], &COMPLETIONS[..]].map(|own| [own, &COMMON[..]].concat());
    let [ollama_chat, ollama_generate] =
        [&OLLAMA_CHAT[..], &OLLAMA_GENERATE[..]].map(|own| [own, &OLLAMA[..]].concat());
    let messages = with_common(&MESSAGES, |name| OF_MESSAGES.contains(&name));
    [
        ("/v1/chat/completions", chat, &["messages", "max_tokens", "timeout"]),
        ("/v1/completions", completions, &["prompt", "max_tokens", "timeout"]),
        ("/v1/embeddings", EMBEDDINGS.to_vec(), &["input", "timeout"]),
        (
            "/v1/responses",
            with_common(&RESPONSES, is_field_of_responses),
            &["input", "max_output_tokens", "timeout"],
        ),
        ("/v1/rerank", RERANK.to_vec(), &["query", "documents", "timeout"]),
        ("/v1/models/load", [&MODEL[..], &LOAD[..]].concat(), &["model"]),
        ("/v1/models/unload", MODEL.to_vec(), &["model"]),
        ("/v1/models/pull", MODEL.to_vec(), &["model"]),
        ("/v1/messages", messages.clone(), &["messages", "max_tokens", "timeout"]),
        ("/v1/messages/count_tokens", messages, &["messages"]),
        ("/api/chat", ollama_chat, &["messages", "options", "timeout"]),
        ("/api/generate", ollama_generate, &["prompt", "options", "timeout"]),
        ("/api/embed", OLLAMA_EMBED.to_vec(), &["input", "timeout"]),
        ("/api/embeddings", OLLAMA_EMBEDDINGS.to_vec(), &["prompt", "timeout"]),
        ("/api/pull", [&MODEL[..], &PULL[..]].concat(), &["model"]),
        ("/tokenize", TOKENIZE.to_vec(), &["content"]),
        ("/detokenize", DETOKENIZE.to_vec(), &["tokens"]),
        ("/apply-template", with_common(&CHAT, |_| true), &["messages"]),
        ("/v2/rerank", RERANK.to_vec(), &["query", "documents", "timeout"]),
        ("/api/show", SHOW.to_vec(), &["model"]),
        (CONVERSATION, HISTORY.to_vec(), &["messages"]),
    ]
}
