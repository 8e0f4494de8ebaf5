//! The operations of every route.

use serde_json::json;

use super::{
    answers::{
        CacheAnswer, CancelAnswer, CountAnswer, DeleteAnswer, DetokenizeAnswer, HealthAnswer,
        InputItemsAnswer, LoadAnswer, McpServersAnswer, ModelAnswer, ModelListAnswer, OllamaEmbedAnswer,
        OllamaEmbeddingAnswer, OllamaModelsAnswer, OllamaPullLine, OllamaShowAnswer, PullAnswer,
        PullProgressLine, StatsAnswer, TemplateAnswer, TokenizeAnswer, TokenizerAnswer, UnloadAnswer,
        VersionAnswer,
    },
    operation::{NDJSON, Operation, SSE},
    statuses::{ADMIN, ENGINE, LOAD, MODEL, NOT_FOUND, PAGE, PULL, STORE, UNHEALTHY},
    store_answers::{
        ConversationAnswer, ConversationDeleteAnswer, ConversationListAnswer, ConversationSummary,
        StatsHistoryAnswer,
    },
};
use crate::server::{
    admin::{LoadRequest, PullRequest, UnloadRequest},
    anthropic::{self, MessagesRequest},
    history::ConversationUpdate,
    ollama::{ChatBody, EmbedBody, EmbeddingsBody, GenerateBody, Line, PullBody, ShowBody},
    openai::{
        Envelope,
        chat::{ChatChoice, ChatDelta, ChatRequest},
        completions::{CompletionChoice, CompletionRequest},
        embeddings::{EmbeddingRequest, EmbeddingResponse},
        rerank::{RerankRequest, RerankResponse},
        responses::{ResponseObject, ResponsesRequest, StreamEvent},
    },
    tokens::{DetokenizeRequest, TokenizeRequest},
};

/// The type of the body of `/v1/messages/count_tokens`: that of an answer, without `max_tokens`.
pub(crate) const COUNT_TOKENS: &str = "/v1/messages/count_tokens";

/// In the order of the document.
pub(crate) fn operations() -> Vec<Operation> {
    let tagged = |tag, all: Vec<Operation>| all.into_iter().map(move |one| one.tagged(tag));
    let all = [
        tagged("OpenAI", openai()),
        tagged("Responses", responses()),
        tagged("Anthropic", anthropic()),
        tagged("Ollama", ollama()),
        tagged("Tokens", tokens()),
        tagged("Models", models()),
        tagged("Store", store()),
        tagged("Server", server()),
    ];
    all.into_iter().flatten().collect()
}

fn openai() -> Vec<Operation> {
    let user = json!([{ "role": "user", "content": "Name a bird of prey." }]);
    let rerank = |path, summary| {
        Operation::json::<RerankResponse>("post", path, summary)
            .takes::<RerankRequest>(
                json!({ "query": "birds of prey", "documents": ["An owl hunts.", "A boat sails."] }),
            )
            .fails(MODEL)
            .fails(ENGINE)
    };
    vec![
        Operation::json::<Envelope<ChatChoice>>("post", "/v1/chat/completions", "Answers a conversation.")
            .takes::<ChatRequest>(json!({ "messages": user, "max_tokens": 64, "stream": true }))
            .streams::<Envelope<ChatDelta>>(SSE)
            .fails(MODEL)
            .fails(ENGINE),
        Operation::json::<Envelope<CompletionChoice>>(
            "post",
            "/v1/completions",
            "Continues texts or token ids.",
        )
        .takes::<CompletionRequest>(json!({ "prompt": "The owl", "max_tokens": 16 }))
        .streams::<Envelope<CompletionChoice>>(SSE)
        .fails(MODEL)
        .fails(ENGINE),
        Operation::json::<EmbeddingResponse>("post", "/v1/embeddings", "Embeds texts.")
            .takes::<EmbeddingRequest>(json!({ "input": "The owl" }))
            .fails(MODEL)
            .fails(ENGINE),
        rerank("/v1/rerank", "Orders documents by relevance."),
        rerank("/v2/rerank", "The same as `/v1/rerank`."),
    ]
}

fn responses() -> Vec<Operation> {
    let (one, cancel, items) =
        ("/v1/responses/{id}", "/v1/responses/{id}/cancel", "/v1/responses/{id}/input_items");
    vec![
        Operation::json::<ResponseObject>("post", "/v1/responses", "Answers items.")
            .takes::<ResponsesRequest>(json!({ "input": "Name a bird of prey.", "max_output_tokens": 64 }))
            .streams::<StreamEvent>(SSE)
            .fails(MODEL)
            .fails(ENGINE),
        Operation::json::<ResponseObject>("get", one, "Reads a stored response.").fails(NOT_FOUND),
        Operation::json::<DeleteAnswer>("delete", one, "Forgets a stored response.").fails(NOT_FOUND),
        Operation::json::<ResponseObject>("post", cancel, "Cancels a response in progress.").fails(NOT_FOUND),
        Operation::json::<InputItemsAnswer>("get", items, "Reads the input of a stored response, in pages.")
            .query(
                "limit",
                "Items of a page.",
                json!({ "type": "integer", "minimum": 1, "maximum": 100, "default": 20 }),
            )
            .query(
                "order",
                "Latest or first ones first.",
                json!({ "enum": ["asc", "desc"], "default": "desc" }),
            )
            .query("after", "The item before the page.", json!({ "type": "string" }))
            .fails(NOT_FOUND),
    ]
}

fn anthropic() -> Vec<Operation> {
    let user = json!([{ "role": "user", "content": "Name a bird of prey." }]);
    vec![
        Operation::json::<anthropic::Message>("post", "/v1/messages", "Answers a conversation.")
            .takes::<MessagesRequest>(json!({ "messages": user, "max_tokens": 64 }))
            .streams::<anthropic::StreamEvent>(SSE)
            .fails(MODEL)
            .fails(ENGINE),
        Operation::json::<CountAnswer>("post", COUNT_TOKENS, "Counts the tokens of a prompt.")
            .takes::<MessagesRequest>(json!({ "messages": user }))
            .fails(MODEL),
    ]
}

fn ollama() -> Vec<Operation> {
    let user = json!([{ "role": "user", "content": "Name a bird of prey." }]);
    vec![
        Operation::json::<Line>("post", "/api/chat", "Answers a conversation.")
            .takes::<ChatBody>(json!({ "messages": user, "options": { "num_predict": 64 } }))
            .streams::<Line>(NDJSON)
            .fails(MODEL)
            .fails(ENGINE),
        Operation::json::<Line>("post", "/api/generate", "Answers a prompt, or continues it.")
            .takes::<GenerateBody>(json!({ "prompt": "The owl", "options": { "num_predict": 16 } }))
            .streams::<Line>(NDJSON)
            .fails(MODEL)
            .fails(ENGINE),
        Operation::json::<OllamaEmbedAnswer>("post", "/api/embed", "Embeds texts.")
            .takes::<EmbedBody>(json!({ "input": "The owl" }))
            .fails(MODEL)
            .fails(ENGINE),
        Operation::json::<OllamaEmbeddingAnswer>("post", "/api/embeddings", "Embeds a text.")
            .takes::<EmbeddingsBody>(json!({ "prompt": "The owl" }))
            .fails(MODEL)
            .fails(ENGINE),
        Operation::json::<OllamaModelsAnswer>("get", "/api/tags", "Lists the models that requests can name."),
        Operation::json::<OllamaModelsAnswer>("get", "/api/ps", "Lists the models in memory."),
        Operation::json::<OllamaShowAnswer>("post", "/api/show", "Describes the served model.")
            .takes::<ShowBody>(json!({ "model": "default" }))
            .fails(MODEL),
        Operation::json::<McpServersAnswer>(
            "get",
            "/v1/mcp",
            "The MCP servers whose tools requests may use.",
        ),
        Operation::json::<VersionAnswer>("get", "/api/version", "The version of Ollama's API."),
        Operation::json::<OllamaPullLine>("post", "/api/pull", "Downloads a model.")
            .takes::<PullBody>(json!({ "model": "ORG/NAME", "stream": false }))
            .streams::<OllamaPullLine>(NDJSON)
            .fails(ADMIN)
            .fails(PULL),
        Operation::refused("delete", "/api/delete", "Refused: models are not deleted over HTTP."),
        Operation::refused("post", "/api/create", "Refused: models are not created over HTTP."),
        Operation::refused("post", "/api/copy", "Refused: models are not copied."),
        Operation::refused("post", "/api/push", "Refused: models are not pushed."),
        Operation::refused("post", "/api/blobs/{digest}", "Refused: models are not created over HTTP."),
        Operation::refused("head", "/api/blobs/{digest}", "Refused: models are not created over HTTP."),
    ]
}

fn tokens() -> Vec<Operation> {
    let user = json!([{ "role": "user", "content": "Name a bird of prey." }]);
    vec![
        Operation::json::<TokenizeAnswer>("post", "/tokenize", "Tokenises a text or a conversation.")
            .takes::<TokenizeRequest>(json!({ "content": "The owl" }))
            .fails(MODEL),
        Operation::json::<DetokenizeAnswer>("post", "/detokenize", "The text of tokens.")
            .takes::<DetokenizeRequest>(json!({ "tokens": [5, 6, 7] }))
            .fails(MODEL),
        Operation::json::<TemplateAnswer>("post", "/apply-template", "The text of a conversation.")
            .takes::<ChatRequest>(json!({ "messages": user }))
            .fails(MODEL),
        Operation::json::<TokenizerAnswer>("get", "/tokenizer_info", "Describes the tokenizer."),
    ]
}

fn models() -> Vec<Operation> {
    vec![
        Operation::json::<ModelListAnswer>("get", "/v1/models", "Lists the models that requests can name."),
        Operation::json::<ModelAnswer>(
            "get",
            "/v1/models/{id}",
            "Describes a model; its name may have slashes.",
        )
        .fails(MODEL),
        Operation::json::<LoadAnswer>("post", "/v1/models/load", "Loads a model that is on this machine.")
            .takes::<LoadRequest>(json!({ "model": "ORG/NAME" }))
            .fails(ADMIN)
            .fails(LOAD),
        Operation::json::<UnloadAnswer>("post", "/v1/models/unload", "Unloads a model; its requests finish.")
            .takes::<UnloadRequest>(json!({ "model": "ORG/NAME" }))
            .fails(ADMIN)
            .fails(MODEL),
        Operation::json::<PullAnswer>("post", "/v1/models/pull", "Downloads a model.")
            .takes::<PullRequest>(json!({ "model": "ORG/NAME" }))
            .streams::<PullProgressLine>(NDJSON)
            .fails(ADMIN)
            .fails(PULL),
    ]
}

fn store() -> Vec<Operation> {
    let (all, one) = ("/v1/history", "/v1/history/{id}");
    let message = json!({ "id": "m1", "parent": null, "role": "user", "text": "Name a bird.", "created": 0 });
    vec![
        Operation::json::<ConversationListAnswer>(
            "get",
            all,
            "Lists or searches conversations, latest first.",
        )
        .query("search", "Words that a conversation has.", json!({ "type": "string" }))
        .query(
            "limit",
            "Conversations of a page.",
            json!({ "type": "integer", "minimum": 1, "maximum": 100, "default": 50 }),
        )
        .query("after", "The `next` of the page before.", json!({ "type": "string" }))
        .fails(ADMIN)
        .fails(STORE),
        Operation::json::<ConversationAnswer>("get", one, "Reads a conversation.")
            .fails(ADMIN)
            .fails(NOT_FOUND)
            .fails(STORE),
        Operation::json::<ConversationSummary>("put", one, "Makes a conversation, or adds to it.")
            .takes::<ConversationUpdate>(json!({ "leaf": "m1", "messages": { "m1": message } }))
            .fails(ADMIN)
            .fails(STORE),
        Operation::json::<ConversationDeleteAnswer>("delete", one, "Removes a conversation.")
            .fails(ADMIN)
            .fails(NOT_FOUND)
            .fails(STORE),
        Operation::json::<StatsHistoryAnswer>(
            "get",
            "/v1/stats/history",
            "Requests by hour or day and by model, earliest first.",
        )
        .query("by", "Length of a period.", json!({ "enum": ["hour", "day"], "default": "hour" }))
        .query(
            "days",
            "How far back.",
            json!({ "type": "integer", "minimum": 1, "maximum": 731, "default": 1 }),
        )
        .fails(STORE),
    ]
}

fn server() -> Vec<Operation> {
    vec![
        Operation::json::<HealthAnswer>("get", "/health", "The state of the server.")
            .public()
            .fails(UNHEALTHY)
            .answers_alike(503),
        Operation::text("get", "/metrics", "Counters for Prometheus.", &["text/plain"]),
        Operation::json::<StatsAnswer>("get", "/v1/stats", "The main counters."),
        Operation::json::<VersionAnswer>("get", "/version", "The version of the program."),
        Operation::json::<CacheAnswer>("get", "/v1/cache", "Contents and counters of the prefix cache.")
            .fails(ADMIN),
        Operation::json::<CacheAnswer>(
            "delete",
            "/v1/cache",
            "Empties the prefix cache; answers with its former contents.",
        )
        .fails(ADMIN),
        Operation::json::<CancelAnswer>(
            "delete",
            "/v1/requests/{id}",
            "Cancels a request by the id of its header or of its answer.",
        )
        .fails(NOT_FOUND),
        Operation::text(
            "get",
            "/",
            "The web page for browsers; a line for others.",
            &["text/html", "text/plain"],
        )
        .public()
        .fails(PAGE),
        Operation::text(
            "get",
            "/page/{file}",
            "A file of the web page.",
            &["text/javascript", "text/css", "image/svg+xml"],
        )
        .public()
        .fails(PAGE)
        .fails(NOT_FOUND),
        Operation::json::<super::document::Document>("get", "/openapi.json", "This document.").public(),
        Operation::text("get", "/docs", "This document as a page.", &["text/html"]).public(),
    ]
}
