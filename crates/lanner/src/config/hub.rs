//! Settings of the Hugging Face hub, from the environment variables that huggingface_hub reads too.

use std::{env, fs, path::PathBuf, time::Duration};

use super::{
    dirs::{base_folder, user_folder},
    error::ConfigError,
};
use crate::hub::HubConfig;

/// # Errors
/// HF_ENDPOINT is not a URL, or the token holds characters that no token has.
pub(super) fn resolve() -> Result<HubConfig, ConfigError> {
    let home = path("HF_HOME").or_else(|| Some(base_folder("XDG_CACHE_HOME", ".cache")?.join("huggingface")));
    let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into());
    if !endpoint.starts_with("https://") && !endpoint.starts_with("http://") {
        return Err(ConfigError::Endpoint(endpoint));
    }
    let truthy = |text: String| matches!(text.to_ascii_lowercase().as_str(), "1" | "on" | "yes" | "true");
    Ok(HubConfig {
        endpoint: endpoint.trim_end_matches('/').into(),
        token: token(home.as_ref().map(|home| home.join("token")))?,
        cache: path("HF_HUB_CACHE").or_else(|| home.map(|home| home.join("hub"))),
        offline: text("HF_HUB_OFFLINE").is_some_and(truthy),
        proxy: ureq::Proxy::try_from_env(),
        uses: user_folder("XDG_STATE_HOME", ".local/state").map(|folder| folder.join("uses")),
        backoff: Duration::from_millis(500),
    })
}

/// HF_TOKEN, else the content of `file`.
fn token(file: Option<PathBuf>) -> Result<Option<String>, ConfigError> {
    let (token, origin) = match (text("HF_TOKEN"), file) {
        (Some(token), _) => (token, "HF_TOKEN".to_owned()),
        (None, Some(file)) => (fs::read_to_string(&file).unwrap_or_default(), file.display().to_string()),
        (None, None) => return Ok(None),
    };
    match token.trim() {
        "" => Ok(None),
        token if token.chars().all(|c| c.is_ascii_graphic()) => Ok(Some(token.to_owned())),
        _ => Err(ConfigError::Token(origin)),
    }
}

/// The value of a variable, unless it is empty.
fn text(name: &str) -> Option<String> {
    env::var(name).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
}

fn path(name: &str) -> Option<PathBuf> {
    env::var_os(name).map(PathBuf::from).filter(|path| !path.as_os_str().is_empty())
}
