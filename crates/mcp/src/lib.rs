//! A client of the Model Context Protocol: starts the servers of an `mcpServers` file or connects
//! to them, lists their tools and calls them, within limits. Knows nothing of models, prompts or
//! the program's own HTTP server.
//!
//! ```
//! use lanner_mcp::ServerList;
//!
//! let text = r#"{"mcpServers": {"files": {"command": "mcp-files", "args": ["/projects"]}}}"#;
//! let list = ServerList::parse(text, |_| None)?;
//! assert_eq!(list.servers[0].name, "files");
//! # Ok::<(), lanner_mcp::ConfigError>(())
//! ```

#![warn(missing_docs)]

mod cancel;
mod config;
mod error;
mod http;
mod limits;
mod lines;
mod names;
mod peer;
mod process;
mod result;
mod secrets;
mod server;
mod servers;
mod session;
mod sse;
mod stdio;
mod tools;

pub use cancel::Cancel;
pub use config::{ConfigError, Endpoint, Program, ServerConfig, ServerList, TransportConfig};
pub use error::McpError;
pub use limits::Limits;
pub use names::offered_name;
pub use result::CallResult;
pub use server::{CallParams, Server};
pub use servers::{Options, Servers};
pub use tools::{SkippedTool, ToolInfo, ToolList};
