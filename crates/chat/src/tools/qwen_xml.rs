//! Qwen3-Coder and Qwen3.5: `<function=NAME>` with one `<parameter=KEY>` per argument.

use std::sync::Arc;

use super::{
    ToolSet,
    call_grammar::CallGrammar,
    definition::InvalidTools,
    parameters::{self, Members},
    reader::{Reader, Result},
    syntax::{OPENAI_ID, Syntax},
};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";

pub(super) const SYNTAX: Syntax = Syntax {
    name: "qwen-xml",
    models: "Qwen3-Coder, Qwen3.5, Qwen3.6, Nemotron 3",
    example: "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
    markers: &[OPEN, CLOSE],
    id: OPENAI_ID,
    triggers: |_| vec![OPEN.to_owned(), FUNCTION.to_owned()],
    grammar_triggers: |_| vec![OPEN.to_owned()],
    read: |reader, tools| Box::pin(read(reader, tools)),
    grammar,
};

async fn read(reader: Reader, tools: Arc<ToolSet>) -> Result<()> {
    let tagged = reader.accept(OPEN).await;
    reader.spaces().await;
    reader.expect(FUNCTION).await?;
    let name = reader.until(&[">"]).await?;
    reader.expect(">").await?;
    let tool = tools.known_tool(name.trim())?;
    reader.begin(&tool.name, None);
    let mut members = Members::new(&reader);
    loop {
        reader.spaces().await;
        if !reader.accept(PARAMETER).await {
            break;
        }
        let key = reader.until(&[">"]).await?;
        reader.expect(">").await?;
        reader.accept("\n").await;
        let ends = [&["\n", PARAMETER_END].concat(), PARAMETER_END];
        members.text_value(key.trim(), tool, &ends).await?;
        reader.accept("\n").await;
        reader.expect(PARAMETER_END).await?;
    }
    reader.expect(FUNCTION_END).await?;
    members.end();
    reader.spaces().await;
    if tagged && reader.more().await {
        reader.expect(CLOSE).await?;
    }
    reader.end();
    Ok(())
}

fn grammar(tools: &ToolSet) -> std::result::Result<CallGrammar, InvalidTools> {
    let mut grammar = CallGrammar { separator: "\n".into(), ..CallGrammar::default() };
    for tool in tools.tools() {
        let call = grammar.call().text(&format!("{OPEN}\n{FUNCTION}{}>\n", tool.name));
        for parameter in parameters::of(tool)? {
            let head = format!("{PARAMETER}{}>\n", parameter.name);
            call.parameter(&parameter, &head, &format!("\n{PARAMETER_END}"), "\n");
        }
        call.text(&format!("{FUNCTION_END}\n{CLOSE}"));
    }
    Ok(grammar)
}
