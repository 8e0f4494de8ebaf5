//! Llama 3: the reply is an object with `name` and `parameters`.

use std::sync::Arc;

use super::{
    ToolSet,
    call_grammar::CallGrammar,
    definition::InvalidTools,
    json,
    reader::{Reader, Result},
    syntax::{OPENAI_ID, Syntax},
};

const PYTHON_TAG: &str = "<|python_tag|>";
const OPEN: &str = "{\"name\": \"";

pub(super) const SYNTAX: Syntax = Syntax {
    name: "llama-json",
    models: "Llama 3.1, 3.2, 3.3",
    example: "{\"name\": \"f\", \"parameters\": {\"a\": 1}}",
    markers: &[PYTHON_TAG],
    id: OPENAI_ID,
    triggers: |_| vec![OPEN.to_owned(), PYTHON_TAG.to_owned()],
    grammar_triggers: |_| vec![OPEN.to_owned(), PYTHON_TAG.to_owned()],
    read: |reader, tools| Box::pin(read(reader, tools)),
    grammar,
};

async fn read(reader: Reader, tools: Arc<ToolSet>) -> Result<()> {
    reader.accept(PYTHON_TAG).await;
    json::call(&reader, &tools).await?;
    reader.end();
    loop {
        reader.spaces().await;
        if !reader.accept(";").await {
            return Ok(());
        }
        reader.spaces().await;
        json::call(&reader, &tools).await?;
        reader.end();
    }
}

fn grammar(tools: &ToolSet) -> std::result::Result<CallGrammar, InvalidTools> {
    let mut grammar = CallGrammar { separator: "; ".into(), ..CallGrammar::default() };
    grammar.optional_start = Some(PYTHON_TAG.into());
    for tool in tools.tools() {
        let head = format!("{OPEN}{}\", \"parameters\": ", tool.name);
        grammar.call().text(&head).json(&tool.parameters).text("}");
    }
    Ok(grammar)
}
