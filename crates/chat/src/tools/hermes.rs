//! Hermes: `<tool_call>{"name": .., "arguments": {..}}</tool_call>`, as Qwen 2.5, Qwen3 and merlin
//! write it.

use std::sync::Arc;

use super::{
    ToolSet, json,
    reader::{Reader, Result},
};

pub(super) const OPEN: &str = "<tool_call>";
pub(super) const CLOSE: &str = "</tool_call>";

/// Reads one call.
pub(super) async fn read(reader: Reader, tools: Arc<ToolSet>) -> Result<()> {
    reader.expect(OPEN).await?;
    reader.spaces().await;
    json::call(&reader, |name| tools.get(name).is_some()).await?;
    reader.spaces().await;
    // A model may end its turn in place of the closing tag.
    if reader.more().await {
        reader.expect(CLOSE).await?;
    }
    reader.end();
    Ok(())
}
