//! DeepSeek: a section of calls; V3 and R1 put the arguments into a code block, V3.1 does not.

use std::sync::Arc;

use super::{
    ToolSet,
    call_grammar::CallGrammar,
    definition::InvalidTools,
    json,
    reader::{Reader, Result},
    syntax::{OPENAI_ID, Syntax},
};

const OPEN: &str = "<｜tool▁calls▁begin｜>";
const CALL: &str = "<｜tool▁call▁begin｜>";
const SEPARATOR: &str = "<｜tool▁sep｜>";
const END: &str = "<｜tool▁call▁end｜>";
const CLOSE: &str = "<｜tool▁calls▁end｜>";
const BLOCK: &str = "\n```json\n";
const BLOCK_END: &str = "\n```";

pub(super) const V3: Syntax = Syntax {
    name: "deepseek-v3",
    models: "DeepSeek V3, R1",
    example: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": 1}\n```\
        <｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    markers: &[OPEN, CALL, SEPARATOR, END, CLOSE],
    id: OPENAI_ID,
    triggers: |_| vec![OPEN.to_owned()],
    grammar_triggers: |_| vec![OPEN.to_owned()],
    read: |reader, tools| Box::pin(read(reader, tools)),
    grammar: v3_grammar,
};

pub(super) const V31: Syntax = Syntax {
    name: "deepseek-v3.1",
    models: "DeepSeek V3.1",
    example: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}\
        <｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    grammar: v31_grammar,
    ..V3
};

async fn read(reader: Reader, tools: Arc<ToolSet>) -> Result<()> {
    reader.expect(OPEN).await?;
    loop {
        reader.spaces().await;
        if reader.accept(CLOSE).await || !reader.more().await {
            return Ok(());
        }
        reader.expect(CALL).await?;
        call(&reader, &tools).await?;
        reader.spaces().await;
        reader.expect(END).await?;
        reader.end();
    }
}

async fn call(reader: &Reader, tools: &ToolSet) -> Result<()> {
    let head = reader.until(&[SEPARATOR]).await?;
    reader.expect(SEPARATOR).await?;
    if reader.sees("{").await {
        reader.begin(tools.known(head.trim())?, None);
        return json::arguments(reader).await;
    }
    let name = reader.until(&["\n"]).await?;
    reader.expect(BLOCK).await?;
    reader.begin(tools.known(name.trim())?, None);
    json::arguments(reader).await?;
    reader.expect(BLOCK_END).await
}

fn v3_grammar(tools: &ToolSet) -> std::result::Result<CallGrammar, InvalidTools> {
    let mut grammar = section("\n");
    for tool in tools.tools() {
        let head = format!("{CALL}function{SEPARATOR}{}{BLOCK}", tool.name);
        grammar.call().text(&head).json(&tool.parameters).text(&format!("{BLOCK_END}{END}"));
    }
    Ok(grammar)
}

fn v31_grammar(tools: &ToolSet) -> std::result::Result<CallGrammar, InvalidTools> {
    let mut grammar = section("");
    for tool in tools.tools() {
        grammar.call().text(&format!("{CALL}{}{SEPARATOR}", tool.name)).json(&tool.parameters).text(END);
    }
    Ok(grammar)
}

fn section(separator: &str) -> CallGrammar {
    CallGrammar {
        open: OPEN.into(),
        separator: separator.into(),
        close: CLOSE.into(),
        ..CallGrammar::default()
    }
}
