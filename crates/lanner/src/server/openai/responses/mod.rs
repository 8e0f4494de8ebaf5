//! `POST /v1/responses`: items instead of messages, with a history that the server stores.

mod events;
mod format;
mod input;
mod item_fields;
mod mcp_approvals;
mod mcp_items;
mod output;
mod request;
mod response;
pub mod store;
pub mod stored_item;
mod tools;

pub(crate) use self::{events::StreamEvent, response::ResponseObject};
pub use self::{
    format::ResponsesFormat,
    input::{decode_reasoning, encode_reasoning},
    request::{ResponsesPrompt, ResponsesRequest},
};
