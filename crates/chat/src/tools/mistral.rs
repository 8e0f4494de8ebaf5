//! Mistral: `[TOOL_CALLS]`, then `NAME[ARGS]{..}` or, in models before 2025, a JSON list.

use std::sync::Arc;

use super::{
    ToolSet,
    call_grammar::CallGrammar,
    definition::InvalidTools,
    json,
    reader::{Malformed, Reader, Result},
    syntax::Syntax,
};

const OPEN: &str = "[TOOL_CALLS]";
const ARGS: &str = "[ARGS]";
const CALL_ID: &str = "[CALL_ID]";
/// Prefix and length of ids; templates refuse any other form.
const ID: (&str, usize) = ("", 9);

pub(super) const SYNTAX: Syntax = Syntax {
    name: "mistral",
    models: "Mistral Small 3.2, Devstral, Magistral, Ministral 3",
    example: "[TOOL_CALLS]f[ARGS]{\"a\": 1}",
    markers: &[OPEN, ARGS, CALL_ID],
    id: ID,
    triggers: |_| vec![OPEN.to_owned()],
    grammar_triggers: |_| vec![OPEN.to_owned()],
    read: |reader, tools| Box::pin(read(reader, tools)),
    grammar,
};

pub(super) const LIST: Syntax = Syntax {
    name: "mistral-list",
    models: "Mistral 7B v0.3, Nemo, Small and Large before 2025",
    example: "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}}]",
    grammar: list_grammar,
    ..SYNTAX
};

async fn read(reader: Reader, tools: Arc<ToolSet>) -> Result<()> {
    reader.expect(OPEN).await?;
    reader.spaces().await;
    if reader.accept("[").await {
        return list(&reader, &tools).await;
    }
    let name = reader.until(&[ARGS, CALL_ID, "{"]).await?;
    let mut id = None;
    if reader.accept(CALL_ID).await {
        id = Some(reader.until(&[ARGS]).await?);
    }
    reader.accept(ARGS).await;
    reader.begin(tools.known(name.trim())?, id);
    reader.spaces().await;
    json::arguments(&reader).await?;
    reader.end();
    Ok(())
}

async fn list(reader: &Reader, tools: &ToolSet) -> Result<()> {
    loop {
        reader.spaces().await;
        json::call(reader, tools).await?;
        reader.end();
        reader.spaces().await;
        if reader.accept(",").await {
            continue;
        }
        // A model may end its turn instead of writing the bracket.
        return match reader.accept("]").await || !reader.more().await {
            true => Ok(()),
            false => Err(Malformed),
        };
    }
}

fn grammar(tools: &ToolSet) -> std::result::Result<CallGrammar, InvalidTools> {
    let mut grammar = CallGrammar::default();
    for tool in tools.tools() {
        grammar.call().text(&format!("{OPEN}{}{ARGS}", tool.name)).json(&tool.parameters);
    }
    Ok(grammar)
}

fn list_grammar(tools: &ToolSet) -> std::result::Result<CallGrammar, InvalidTools> {
    let mut grammar = CallGrammar {
        open: format!("{OPEN}["),
        separator: ", ".into(),
        close: "]".into(),
        ..CallGrammar::default()
    };
    for tool in tools.tools() {
        let head = format!("{{\"name\": \"{}\", \"arguments\": ", tool.name);
        grammar.call().text(&head).json(&tool.parameters).text("}");
    }
    Ok(grammar)
}
