//! Events of a streamed response, in OpenAI's order, with their sequence numbers.

use schemars::JsonSchema;
use serde::Serialize;

use super::{
    output::{ContentPart, OutputItem},
    response::ResponseObject,
};
use crate::server::openai::chat::TokenLogprob;

#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "ResponseEvent")]
pub(crate) struct StreamEvent {
    pub r#type: &'static str,
    pub sequence_number: usize,
    #[serde(flatten)]
    pub body: EventBody,
}

#[derive(Debug, JsonSchema, Serialize)]
#[serde(untagged)]
pub(crate) enum EventBody {
    Response {
        response: Box<ResponseObject>,
    },
    Item {
        output_index: usize,
        item: OutputItem,
    },
    Part {
        #[serde(flatten)]
        at: PartPosition,
        part: ContentPart,
    },
    /// A part of a text.
    TextDelta {
        #[serde(flatten)]
        at: PartPosition,
        delta: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        logprobs: Option<Vec<TokenLogprob>>,
    },
    /// A whole text.
    TextDone {
        #[serde(flatten)]
        at: PartPosition,
        text: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        logprobs: Option<Vec<TokenLogprob>>,
    },
    CallDelta {
        item_id: String,
        output_index: usize,
        delta: String,
    },
    FunctionCallDone {
        item_id: String,
        output_index: usize,
        name: String,
        arguments: String,
    },
    McpCallDone {
        item_id: String,
        output_index: usize,
        arguments: String,
    },
    /// A list of tools or a call that goes on, or has ended.
    McpProgress {
        item_id: String,
        output_index: usize,
    },
    CustomCallDone {
        item_id: String,
        output_index: usize,
        input: String,
    },
}

/// Where a part of a message or of reasoning is.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub(crate) struct PartPosition {
    pub item_id: String,
    pub output_index: usize,
    /// Always 0: items have one part.
    pub content_index: usize,
}
