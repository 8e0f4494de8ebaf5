//! Arguments on thinking; sections `[thinking]` and `[models.NAME]` of the config file.

use clap::Args;
use serde::Deserialize;

use crate::thinking::ThinkingChoice;

/// Whether and how long answers think, where requests do not say so; `[thinking]` in the config
/// file, and `[models.NAME]` for one model, whose name is one that --model takes.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[command(next_help_heading = "Thinking")]
pub struct ThinkingArgs {
    /// Who decides whether an answer thinks if its request does not say so [default: template].
    #[arg(long, env = "LANNER_THINKING", value_name = "template|auto|on|off")]
    pub thinking: Option<ThinkingChoice>,
    /// Most tokens of thinking before it is closed and the answer begins; requests may say
    /// otherwise [default: 32768].
    #[arg(long, env = "LANNER_MAX_THINKING_TOKENS", value_name = "TOKENS")]
    pub max_thinking_tokens: Option<usize>,
    /// The sentence that thinking which is cut ends with: `on` for one that fits the task, `off`
    /// for none, or the sentence; requests may say otherwise [default: on].
    #[arg(hide_short_help = true, long, env = "LANNER_THINKING_ESCAPE", value_name = "on|off|TEXT")]
    pub thinking_escape: Option<String>,
}
