//! Hermes: `<tool_call>{"name": .., "arguments": {..}}</tool_call>`.

use std::sync::Arc;

use super::{
    ToolSet,
    call_grammar::CallGrammar,
    definition::InvalidTools,
    json,
    reader::{Reader, Result},
    syntax::{OPENAI_ID, Syntax},
};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

pub(super) const SYNTAX: Syntax = Syntax {
    name: "hermes",
    models: "Qwen 2.5, Qwen3, QwQ, Hermes, SmolLM3, merlin",
    example: "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>",
    markers: &[OPEN, CLOSE],
    id: OPENAI_ID,
    triggers: |_| vec![OPEN.to_owned()],
    grammar_triggers: |_| vec![OPEN.to_owned()],
    read: |reader, tools| Box::pin(read(reader, tools)),
    grammar,
};

async fn read(reader: Reader, tools: Arc<ToolSet>) -> Result<()> {
    reader.expect(OPEN).await?;
    reader.spaces().await;
    json::call(&reader, &tools).await?;
    reader.spaces().await;
    // A model may end its turn instead of writing the closing tag.
    if reader.more().await {
        reader.expect(CLOSE).await?;
    }
    reader.end();
    Ok(())
}

fn grammar(tools: &ToolSet) -> std::result::Result<CallGrammar, InvalidTools> {
    let mut grammar = CallGrammar { separator: "\n".into(), ..CallGrammar::default() };
    for tool in tools.tools() {
        let head = format!("{OPEN}\n{{\"name\": \"{}\", \"arguments\": ", tool.name);
        grammar.call().text(&head).json(&tool.parameters).text(&format!("}}\n{CLOSE}"));
    }
    Ok(grammar)
}
