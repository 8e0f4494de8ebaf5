//! Kimi K2: a section of calls, each with an id that the model counts up: `functions.NAME:3`.

use std::sync::Arc;

use super::{
    ToolSet,
    call_grammar::CallGrammar,
    definition::InvalidTools,
    json,
    reader::{Malformed, Reader, Result},
    syntax::{OPENAI_ID, Syntax},
};

const OPEN: &str = "<|tool_calls_section_begin|>";
const CALL: &str = "<|tool_call_begin|>";
const ARGUMENTS: &str = "<|tool_call_argument_begin|>";
const END: &str = "<|tool_call_end|>";
const CLOSE: &str = "<|tool_calls_section_end|>";

pub(super) const SYNTAX: Syntax = Syntax {
    name: "kimi",
    models: "Kimi K2",
    example: "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>\
        {\"a\": 1}<|tool_call_end|><|tool_calls_section_end|>",
    markers: &[OPEN, CALL, ARGUMENTS, END, CLOSE],
    id: OPENAI_ID,
    triggers: |_| vec![OPEN.to_owned()],
    grammar_triggers: |_| vec![OPEN.to_owned()],
    read: |reader, tools| Box::pin(read(reader, tools)),
    grammar,
};

async fn read(reader: Reader, tools: Arc<ToolSet>) -> Result<()> {
    reader.expect(OPEN).await?;
    loop {
        reader.spaces().await;
        if reader.accept(CLOSE).await || !reader.more().await {
            return Ok(());
        }
        reader.expect(CALL).await?;
        let id = reader.until(&[ARGUMENTS]).await?.trim().to_owned();
        reader.expect(ARGUMENTS).await?;
        let name = id.rsplit_once(':').ok_or(Malformed)?.0;
        let name = tools.known(name.strip_prefix("functions.").unwrap_or(name))?.to_owned();
        reader.begin(&name, Some(id));
        reader.spaces().await;
        json::arguments(&reader).await?;
        reader.spaces().await;
        reader.expect(END).await?;
        reader.end();
    }
}

fn grammar(tools: &ToolSet) -> std::result::Result<CallGrammar, InvalidTools> {
    let mut grammar = CallGrammar { open: OPEN.into(), close: CLOSE.into(), ..CallGrammar::default() };
    for tool in tools.tools() {
        let call = grammar.call().text(&format!("{CALL}functions.{}:", tool.name));
        call.regex("[0-9]{1,4}").text(ARGUMENTS).json(&tool.parameters).text(END);
    }
    Ok(grammar)
}
