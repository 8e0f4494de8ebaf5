//! Calls as Python writes them: `[f(a=1), g(b="x")]`.

use std::sync::Arc;

use super::{
    ToolSet,
    call_grammar::CallGrammar,
    definition::InvalidTools,
    json, literal,
    parameters::{self, Members},
    reader::{Malformed, Reader, Result},
    syntax::{OPENAI_ID, Syntax},
};

const START: &str = "<|tool_call_start|>";
const END: &str = "<|tool_call_end|>";

pub(super) const LLAMA: Syntax = Syntax {
    name: "llama-pythonic",
    models: "Llama 4",
    example: "[f(a=1)]",
    markers: &[],
    id: OPENAI_ID,
    triggers: names,
    grammar_triggers: names,
    read: |reader, tools| Box::pin(read(reader, tools)),
    grammar: |tools| grammar(tools, "[", "]"),
};

pub(super) const LFM2: Syntax = Syntax {
    name: "lfm2",
    models: "LFM2, LFM2.5",
    example: "<|tool_call_start|>[f(a=1)]<|tool_call_end|>",
    markers: &[START, END],
    triggers: |_| vec![START.to_owned()],
    grammar_triggers: |_| vec![START.to_owned()],
    grammar: |tools| grammar(tools, "<|tool_call_start|>[", "]<|tool_call_end|>"),
    ..LLAMA
};

fn names(tools: &ToolSet) -> Vec<String> {
    tools.tools().iter().map(|tool| format!("[{}(", tool.name)).collect()
}

async fn read(reader: Reader, tools: Arc<ToolSet>) -> Result<()> {
    let tagged = reader.accept(START).await;
    reader.spaces().await;
    reader.expect("[").await?;
    loop {
        reader.spaces().await;
        match reader.sees("{").await {
            true => json::call(&reader, &tools).await?,
            false => call(&reader, &tools).await?,
        }
        reader.end();
        reader.spaces().await;
        if !reader.accept(",").await {
            break;
        }
    }
    reader.expect("]").await?;
    if tagged && reader.more().await {
        reader.expect(END).await?;
    }
    Ok(())
}

async fn call(reader: &Reader, tools: &ToolSet) -> Result<()> {
    let name = reader.until(&["("]).await?;
    reader.begin(tools.known(name.trim())?, None);
    reader.expect("(").await?;
    let mut members = Members::new(reader);
    loop {
        reader.spaces().await;
        if reader.accept(")").await {
            break;
        }
        let key = reader.until(&["=", ")"]).await?;
        reader.expect("=").await?;
        reader.spaces().await;
        members.value(key.trim(), &literal::value(reader, 0).await?);
        reader.spaces().await;
        if !reader.accept(",").await && !reader.sees(")").await {
            return Err(Malformed);
        }
    }
    members.end();
    Ok(())
}

fn grammar(tools: &ToolSet, open: &str, close: &str) -> std::result::Result<CallGrammar, InvalidTools> {
    let mut grammar = CallGrammar {
        open: open.into(),
        separator: ", ".into(),
        close: close.into(),
        ..CallGrammar::default()
    };
    for tool in tools.tools() {
        let call = grammar.call().text(&format!("{}(", tool.name));
        let parameters = parameters::of(tool)?;
        call.listed(&parameters, ", ", |parameter| (format!("{}=", parameter.name), parameter.python()));
        call.text(")");
    }
    Ok(grammar)
}
