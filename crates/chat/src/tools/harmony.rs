//! gpt-oss: a reply is a sequence of messages, each in a channel and perhaps to a tool.
//!
//! `analysis` is reasoning, `final` and `commentary` without a recipient are content, a message to
//! `functions.NAME` is a call.

use std::sync::Arc;

use serde_json::json;

use super::{
    ToolSet,
    call_grammar::{CallGrammar, Lark},
    definition::InvalidTools,
    json,
    reader::{Reader, Result},
    syntax::{OPENAI_ID, Syntax},
};
use crate::Delta;

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const CONSTRAIN: &str = "<|constrain|>";
const MESSAGE: &str = "<|message|>";
const END: &str = "<|end|>";
const CALL: &str = "<|call|>";
const RETURN: &str = "<|return|>";
/// Begins the address of a message to a tool.
const RECIPIENT: &str = " to=functions.";
const ENDS: [&str; 4] = [END, CALL, RETURN, START];

pub(super) const SYNTAX: Syntax = Syntax {
    name: "harmony",
    models: "gpt-oss",
    example: "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1}<|call|>",
    markers: &[START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN],
    id: OPENAI_ID,
    triggers: |_| vec![],
    grammar_triggers: |_| vec![RECIPIENT.to_owned()],
    read: |reader, tools| Box::pin(read(reader, tools)),
    grammar,
};

async fn read(reader: Reader, tools: Arc<ToolSet>) -> Result<()> {
    while reader.more().await {
        let mut header = String::new();
        // Text without a header is content.
        if reader.sees(CHANNEL).await || reader.sees(START).await || reader.sees(" to=").await {
            header = reader.until(&[MESSAGE]).await?;
            reader.expect(MESSAGE).await?;
        }
        let tool = header.split_once(RECIPIENT.trim_start()).map(|(_, rest)| recipient(rest));
        match tool.and_then(|name| tools.get(name)) {
            Some(tool) => {
                reader.begin(&tool.name, None);
                reader.spaces().await;
                json::arguments(&reader).await?;
                reader.spaces().await;
                reader.end();
            }
            None => text(&reader, header.contains("<|channel|>analysis")).await,
        }
        for end in [END, CALL, RETURN] {
            reader.accept(end).await;
        }
    }
    Ok(())
}

/// The tool's name in the text after `to=functions.`.
fn recipient(text: &str) -> &str {
    text.split(|c: char| c.is_whitespace() || c == '<').next().unwrap_or_default()
}

/// Passes on the text of a message.
async fn text(reader: &Reader, reasoning: bool) {
    while let Some((text, ended)) = reader.piece_until(&ENDS).await {
        reader.delta(if reasoning { Delta::Reasoning(text) } else { Delta::Content(text) });
        if ended {
            return;
        }
    }
}

/// A call from its recipient on.
fn grammar(tools: &ToolSet) -> std::result::Result<CallGrammar, InvalidTools> {
    let mut grammar = CallGrammar { single: true, ..CallGrammar::default() };
    for tool in tools.tools() {
        let head = format!("{RECIPIENT}{} {CONSTRAIN}json{MESSAGE}", tool.name);
        grammar.call().text(&head).json(&tool.parameters);
    }
    Ok(grammar)
}

/// The channel of calls, before the recipient.
pub(super) const COMMENTARY: &str = "<|channel|>commentary";
/// The channel of answers.
pub(super) const FINAL: &str = "<|channel|>final<|message|>";

/// A reply's text before a call or an answer that must come: reasoning, perhaps, and the channel.
pub(super) fn preamble(lark: &mut Lark, channel: &str) -> std::result::Result<String, InvalidTools> {
    let reasoning = lark.text(&json!({}), END)?;
    let analysis = format!("{CHANNEL}analysis{MESSAGE}");
    let [analysis, next, channel] =
        [&*analysis, &*format!("{START}assistant"), channel].map(|text| lark.literal(text));
    Ok(format!("({analysis} {reasoning} {next})? {channel}"))
}
