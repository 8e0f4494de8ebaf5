//! Gemma 4: `call:NAME{key:value}` with strings in quotes of their own.

use std::sync::Arc;

use super::{
    ToolSet,
    call_grammar::CallGrammar,
    definition::InvalidTools,
    literal,
    parameters::{self, Members},
    reader::{Malformed, Reader, Result},
    syntax::{OPENAI_ID, Syntax},
};

const OPEN: &str = "<|tool_call>";
const CLOSE: &str = "<tool_call|>";

pub(super) const SYNTAX: Syntax = Syntax {
    name: "gemma4",
    models: "Gemma 4",
    example: "<|tool_call>call:f{a:1}<tool_call|>",
    markers: &[OPEN, CLOSE, literal::QUOTE],
    id: OPENAI_ID,
    triggers: |_| vec![OPEN.to_owned()],
    grammar_triggers: |_| vec![OPEN.to_owned()],
    read: |reader, tools| Box::pin(read(reader, tools)),
    grammar,
};

async fn read(reader: Reader, tools: Arc<ToolSet>) -> Result<()> {
    reader.expect(OPEN).await?;
    reader.expect("call:").await?;
    let name = reader.until(&["{"]).await?;
    reader.begin(tools.known(name.trim())?, None);
    reader.expect("{").await?;
    let mut members = Members::new(&reader);
    loop {
        reader.spaces().await;
        if reader.accept("}").await {
            break;
        }
        let key = literal::key(&reader).await?;
        reader.expect(":").await?;
        reader.spaces().await;
        members.value(&key, &literal::value(&reader, 0).await?);
        reader.spaces().await;
        if !reader.accept(",").await && !reader.sees("}").await {
            return Err(Malformed);
        }
    }
    members.end();
    if reader.more().await {
        reader.expect(CLOSE).await?;
    }
    reader.end();
    Ok(())
}

fn grammar(tools: &ToolSet) -> std::result::Result<CallGrammar, InvalidTools> {
    let mut grammar = CallGrammar::default();
    for tool in tools.tools() {
        let call = grammar.call().text(&format!("{OPEN}call:{}{{", tool.name));
        let parameters = parameters::of(tool)?;
        call.listed(&parameters, ",", |parameter| (format!("{}:", parameter.name), parameter.gemma()));
        call.text(&format!("}}{CLOSE}"));
    }
    Ok(grammar)
}
