//! Fields of Ollama's routes, of reranking, and of the routes that tokenise or load models; routes
//! without a body.

/// A field, its valid values, and its edge cases.
pub(super) type Field = (&'static str, &'static [&'static str], &'static [&'static str]);

/// Fields of both routes of Ollama that generate.
pub(super) const OLLAMA: [Field; 11] = [
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
    ("priority", &[r#""background""#], &[r#""urgent""#]),
];

/// Options of Ollama that are numbers.
pub(super) const OLLAMA_NUMBERS: [&str; 15] = [
    "num_predict",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repeat_penalty",
    "repeat_last_n",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "tfs_z",
    "typical_p",
    "mirostat",
    "num_ctx",
    "num_gpu",
];

pub(super) const OLLAMA_CHAT: [Field; 2] = [
    (
        "messages",
        &[r#"[{"role":"user","content":"hi"}]"#],
        &[
            "[]",
            "[7]",
            r#"[{"role":"user","content":"x","images":["eA=="]}]"#,
            r#"[{"role":"user","content":"x","images":["iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mP4z8AAAAMBAQD3A0FDAAAAAElFTkSuQmCC"]}]"#,
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

pub(super) const OLLAMA_GENERATE: [Field; 10] = [
    ("prompt", &[r#""hi""#], &[r#""""#]),
    ("suffix", &["null"], &[r#""x""#]),
    ("system", &[r#""Be brief.""#], &[]),
    ("template", &["null"], &[r#""x""#]),
    ("raw", &["true", "false"], &[]),
    ("context", &["[]"], &["[1]"]),
    (
        "images",
        &["[]"],
        &[
            r#"["eA=="]"#,
            "7",
            r#"["iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mP4z8AAAAMBAQD3A0FDAAAAAElFTkSuQmCC"]"#,
        ],
    ),
    ("width", &["null"], &["7"]),
    ("height", &["null"], &["7"]),
    ("steps", &["null"], &["7"]),
];

pub(super) const OLLAMA_EMBED: [Field; 9] = [
    ("input", &[r#""The owl""#, r#"["a","b"]"#], &["[]", "[7]", r#"[""]"#, "[[5]]"]),
    ("dimensions", &["1", "7"], &["0", "100000"]),
    ("options", &["{}", r#"{"num_ctx":99}"#], &[r#"{"x":1}"#]),
    ("truncate", &["true", "false"], &[]),
    ("keep_alive", &["300"], &["[]"]),
    ("timeout", &["0.3"], &["1e-9"]),
    ("model", &[r#""default""#, "null"], &[r#""gpt-4""#]),
    ("priority", &[r#""background""#], &[r#""urgent""#]),
    ("cache_salt", &[r#""s""#, "null"], &[]),
];

pub(super) const OLLAMA_EMBEDDINGS: [Field; 7] = [
    OLLAMA_GENERATE[0],
    OLLAMA_EMBED[2],
    OLLAMA_EMBED[4],
    OLLAMA_EMBED[5],
    OLLAMA_EMBED[6],
    OLLAMA_EMBED[7],
    OLLAMA_EMBED[8],
];

/// Of Ollama's pull, besides those of every pull.
pub(super) const PULL: [Field; 2] =
    [("name", &["null"], &[r#""nobody/nothing""#]), ("insecure", &["false", "null"], &["true"])];

pub(super) const SHOW: [Field; 2] = [
    ("model", &[r#""default""#], &[r#""nobody/nothing""#, r#""../..""#]),
    ("name", &["null"], &[r#""merlin""#]),
];

pub(super) const RERANK: [Field; 13] = [
    ("ttl", &["null", "300", "-1"], &["0", "1e300"]),
    ("query", &[r#""owls""#], &[r#""""#]),
    ("documents", &[r#"["a","b"]"#, r#"[{"text":"a"}]"#], &["[]", "[{}]", r#"["a",{"text":7}]"#, r#"[""]"#]),
    ("top_n", &["1", "9"], &["0"]),
    ("return_documents", &["true", "false"], &[]),
    ("max_tokens_per_doc", &["null"], &["5"]),
    ("timeout", &["0.3"], &["1e-9"]),
    ("model", &[r#""default""#, "null"], &[r#""gpt-4""#]),
    ("max_chunks_per_doc", &["null"], &["5"]),
    ("rank_fields", &["null"], &[r#"["a"]"#]),
    ("pooling", &[r#""last""#, r#""mean""#], &[r#""cls""#]),
    ("priority", &[r#""background""#], &[r#""urgent""#]),
    ("cache_salt", &[r#""s""#, "null"], &[]),
];

pub(super) const TOKENIZE: [Field; 9] = [
    ("content", &[r#""The owl""#], &[r#""<|im_end|>\u0000""#]),
    ("prompt", &["null"], &[r#""x""#]),
    ("messages", &["null"], &["[]", r#"[{"role":"user","content":"hi"}]"#]),
    ("add_special", &["true", "false"], &[]),
    ("with_pieces", &["true", "false"], &[]),
    ("return_token_strs", &["true", "false"], &[]),
    ("model", &[r#""default""#, "null"], &[r#""gpt-4""#]),
    ("add_special_tokens", &["true", "false"], &[]),
    ("parse_special", &["true", "null"], &["false"]),
];

pub(super) const DETOKENIZE: [Field; 2] = [
    ("tokens", &["[]", "[5,6,7]"], &["[8191]", "[8192]", "[4294967296]", "[-1]", r#"["a"]"#]),
    ("model", &[r#""default""#, "null"], &[r#""gpt-4""#]),
];

/// The path of a conversation, whose body is put and not posted.
pub(super) const CONVERSATION: &str = "/v1/history/c1";

/// The request line of a route with a body.
pub(super) fn line(path: &str) -> String {
    format!("{} {path}", if path == CONVERSATION { "PUT" } else { "POST" })
}

/// A conversation of the store.
pub(super) const HISTORY: [Field; 6] = [
    (
        "messages",
        &[
            r#"{"m1":{"id":"m1","parent":null,"role":"user","text":"hi","created":1}}"#,
            r#"{"m1":{"id":"m1","parent":null,"role":"user","text":"ho","created":1},"m2":{"id":"m2","parent":"m1","role":"assistant","text":"\u0000","created":2,"toolCalls":[7],"x":{}}}"#,
            "{}",
        ],
        &[
            "[]",
            r#"{"m1":{}}"#,
            r#"{"a":{"id":"b","parent":null,"role":"user","text":"","created":1}}"#,
            r#"{"a":{"id":"a","parent":"a","role":"tool","text":"","created":1}}"#,
            r#"{"/":{"id":"/","parent":null,"role":"user","text":"","created":1}}"#,
            r#"{"m1":{"id":"m1","parent":"m2","role":"user","text":"","created":1e99}}"#,
        ],
    ),
    ("title", &[r#""Owls""#, "null"], &[r#""""#, r#"" ""#]),
    ("created", &["1", "null"], &["-9223372036854775808"]),
    ("updated", &["2", "null"], &["9223372036854775807", "1.5"]),
    ("leaf", &[r#""m1""#, "null"], &[r#""none""#, r#""""#]),
    ("settings", &["{}", r#"{"system":"Be terse."}"#, "null"], &["[]", r#"{"a":[[{}]]}"#]),
];

/// How a model is loaded.
pub(super) const LOAD: [Field; 3] = [
    ("replace", &["true", "false", "null"], &[]),
    ("keep_alive", &["300", r#""5m""#, r#""forever""#], &["0", r#""soon""#]),
    ("pin", &["true", "false"], &[]),
];

/// Names of models, none of which exists locally; nothing is downloaded.
pub(super) const MODEL: [Field; 2] = [
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

/// Routes without a body, and unknown ones.
pub(super) const OTHERS: [&str; 49] = [
    "POST /api/create",
    "POST /api/copy",
    "POST /api/push",
    "GET /api/tags",
    "GET /api/ps",
    "GET /api/version",
    "DELETE /api/delete",
    "POST /api/show",
    "HEAD /api/blobs/sha256:00",
    "GET /tokenizer_info",
    "GET /api/nothing",
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
    "GET /docs",
    "GET /page/app.js",
    "GET /page/%ff%00..",
    "GET /openapi.json",
    "POST /api/blobs/sha256:00",
    "GET /version",
    "GET /v1/mcp",
    "GET /v1/stats",
    "GET /v1/stats/history?by=day&days=3",
    "GET /v1/stats/history?days=%00&by=",
    "GET /v1/history?search=%E5%A4%A9+a%&limit=2",
    "GET /v1/history?after=9-&limit=-1",
    "GET /v1/history/c1",
    "DELETE /v1/history/c1",
    "DELETE /v1/requests/req_1",
    "DELETE /v1/requests/%ff",
    "GET //v1//models/",
    "OPTIONS /v1/chat/completions",
];
