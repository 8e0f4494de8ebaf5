//! Arguments of the store; section `[store]` of the config file.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum, builder::FalseyValueParser};
use serde::Deserialize;

/// Where conversations and figures of requests are kept; `[store]` in the config file.
#[derive(Debug, Default, Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[command(next_help_heading = "Store")]
pub struct StoreArgs {
    /// File of conversations of the web page and of figures of requests, never of their texts
    /// [default: lanner/store.db in $XDG_DATA_HOME or ~/.local/share].
    #[arg(long, env = "LANNER_STORE", value_name = "FILE")]
    pub store: Option<PathBuf>,
    /// Store neither; the web page then keeps conversations in the browser.
    #[arg(long, env = "LANNER_NO_STORE", value_parser = FalseyValueParser::new())]
    pub no_store: bool,
}

/// The store of commands that need one.
#[derive(Debug, Args)]
pub struct StoreFileArgs {
    /// File of the store [default: that of lanner serve].
    #[arg(long, env = "LANNER_STORE", value_name = "FILE")]
    pub store: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum HistoryCommand {
    /// List conversations, latest first, or those that have all of some words.
    List(HistoryListArgs),
    /// Show a conversation: its selected branch.
    Show(HistoryShowArgs),
    /// Write conversations to stdout or a file: all of them if none is named.
    Export(HistoryExportArgs),
    /// Add the conversations of a file that `export` or the web page wrote.
    Import(HistoryImportArgs),
    /// Give a conversation another title.
    Rename(HistoryRenameArgs),
    /// Remove conversations.
    Rm(HistoryRmArgs),
}

#[derive(Debug, Args)]
pub struct HistoryListArgs {
    /// Words that a conversation has.
    pub words: Vec<String>,
    /// Most conversations to list.
    #[arg(long, short = 'n', value_name = "CONVERSATIONS", default_value = "50")]
    pub limit: usize,
    /// Print a JSON array instead of a table.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub store: StoreFileArgs,
}

#[derive(Debug, Args)]
pub struct HistoryShowArgs {
    /// Its id, or the start of it [default: the latest conversation].
    pub id: Option<String>,
    /// Print a JSON object with all branches instead of Markdown.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub store: StoreFileArgs,
}

#[derive(Debug, Args)]
pub struct HistoryExportArgs {
    /// Ids of conversations, or the starts of them.
    #[arg(value_name = "ID")]
    pub ids: Vec<String>,
    /// `json` can be imported again; `markdown` has the selected branches.
    #[arg(long, value_name = "FORMAT", default_value = "json")]
    pub format: ExportFormat,
    /// File to write.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub store: StoreFileArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    Json,
    Markdown,
}

#[derive(Debug, Args)]
pub struct HistoryImportArgs {
    /// The file.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    #[command(flatten)]
    pub store: StoreFileArgs,
}

#[derive(Debug, Args)]
pub struct HistoryRenameArgs {
    /// Its id, or the start of it.
    pub id: String,
    pub title: String,
    #[command(flatten)]
    pub store: StoreFileArgs,
}

#[derive(Debug, Args)]
pub struct HistoryRmArgs {
    /// Ids of conversations, or the starts of them.
    #[arg(value_name = "ID", required_unless_present = "all")]
    pub ids: Vec<String>,
    /// Remove all conversations.
    #[arg(long, conflicts_with = "ids")]
    pub all: bool,
    /// With --all: do not ask for confirmation.
    #[arg(long, short)]
    pub yes: bool,
    #[command(flatten)]
    pub store: StoreFileArgs,
}

#[derive(Debug, Args)]
pub struct UsageArgs {
    /// Days to show, today included.
    #[arg(long, value_name = "DAYS", default_value = "7", value_parser = clap::value_parser!(u32).range(1..=731))]
    pub days: u32,
    /// List this many of the latest requests instead.
    #[arg(long, value_name = "REQUESTS")]
    pub requests: Option<usize>,
    /// Print a JSON array instead of a table.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub store: StoreFileArgs,
}
