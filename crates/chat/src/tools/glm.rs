//! GLM-4.5 and later: the name, then `<arg_key>` and `<arg_value>` tags.

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
const KEY: &str = "<arg_key>";
const KEY_END: &str = "</arg_key>";
const VALUE: &str = "<arg_value>";
const VALUE_END: &str = "</arg_value>";

pub(super) const SYNTAX: Syntax = Syntax {
    name: "glm",
    models: "GLM-4.5, 4.6, 4.7",
    example: "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
    markers: &[OPEN, CLOSE, KEY, KEY_END, VALUE, VALUE_END],
    id: OPENAI_ID,
    triggers: |_| vec![OPEN.to_owned()],
    grammar_triggers: |_| vec![OPEN.to_owned()],
    read: |reader, tools| Box::pin(read(reader, tools)),
    grammar,
};

async fn read(reader: Reader, tools: Arc<ToolSet>) -> Result<()> {
    reader.expect(OPEN).await?;
    let name = reader.until(&[KEY, CLOSE]).await?;
    let tool = tools.known_tool(name.trim())?;
    reader.begin(&tool.name, None);
    let mut members = Members::new(&reader);
    while reader.accept(KEY).await {
        let key = reader.until(&[KEY_END]).await?;
        reader.expect(KEY_END).await?;
        reader.spaces().await;
        reader.expect(VALUE).await?;
        members.text_value(key.trim(), tool, &[VALUE_END]).await?;
        reader.expect(VALUE_END).await?;
        reader.spaces().await;
    }
    reader.expect(CLOSE).await?;
    members.end();
    reader.end();
    Ok(())
}

fn grammar(tools: &ToolSet) -> std::result::Result<CallGrammar, InvalidTools> {
    let mut grammar = CallGrammar { separator: "\n".into(), ..CallGrammar::default() };
    for tool in tools.tools() {
        // GLM-4.7 writes no line feeds.
        let call = grammar.call().text(&format!("{OPEN}{}", tool.name)).optional("\n");
        for parameter in parameters::of(tool)? {
            let head = format!("{KEY}{}{KEY_END}", parameter.name);
            call.spaced_parameter(&parameter, &head, VALUE, VALUE_END);
        }
        call.text(CLOSE);
    }
    Ok(grammar)
}
