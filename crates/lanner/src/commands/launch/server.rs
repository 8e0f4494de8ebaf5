//! The server of an agent: one that runs at the address, or one that is started and ends with the
//! agent.

use std::{
    fs::{self, File},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::process::{Signals, send};
use crate::{
    commands::{CommandError, remote},
    config::LaunchConfig,
    launch::{Backend, LaunchError, entry},
    model_files,
    source::{Purpose, Source},
    terminal::say,
};

/// Loading a large model from a slow disk takes minutes.
const LOAD: Duration = Duration::from_secs(1800);
const POLL: Duration = Duration::from_millis(100);
/// The server itself gives requests and engines this long, and then ends.
const STOP: Duration = Duration::from_secs(12);
/// Lines of the log that are shown if it ends at once.
const TAIL: usize = 8;

/// The server that runs at the address, with the model loaded; `None` if there is none.
pub(super) fn running(config: &LaunchConfig) -> Result<Option<Backend>, CommandError> {
    let Some(models) = models(config)? else { return Ok(None) };
    let model = match (find(&models, config.model.as_deref()), &config.model) {
        (Some(model), _) => model.clone(),
        (None, Some(name)) => load(config, name)?,
        (None, None) => {
            let default = models.iter().find(|model| model["default"] == true).or(models.first());
            load(config, default.and_then(|model| model["id"].as_str()).unwrap_or_default())?
        }
    };
    Ok(Some(backend(config, &model)))
}

/// As [`running`], without loading the model.
pub(super) fn running_unchanged(config: &LaunchConfig) -> Result<Option<Backend>, CommandError> {
    let Some(models) = models(config)? else { return Ok(None) };
    match find(&models, config.model.as_deref()) {
        Some(model) => Ok(Some(backend(config, model))),
        None => Ok(Some(predicted(config)?)),
    }
}

/// What a server that is started for it would serve, without loading it.
pub(super) fn predicted(config: &LaunchConfig) -> Result<Backend, CommandError> {
    let model = &config.default;
    let source = Source::locate(model.model.as_deref(), &model.hub, Purpose::Describe)
        .map_err(crate::loading::OpenError::from)?;
    let described = model_files::config(&source.location).unwrap_or_default();
    let length =
        [&described["max_position_embeddings"], &described["text_config"]["max_position_embeddings"]];
    let length = length.into_iter().find_map(Value::as_u64).map(|tokens| tokens as usize);
    let context = length.into_iter().chain(model.options.max_context).min();
    let name = config.served_name.clone().unwrap_or(source.name);
    Ok(Backend {
        url: config.server.url(),
        key: config.server.api_key.clone(),
        model: name,
        context,
        calls_tools: None,
        takes_images: described["vision_config"].is_object(),
    })
}

/// `None` if no server answers.
fn models(config: &LaunchConfig) -> Result<Option<Vec<Value>>, CommandError> {
    match remote::call(&config.server, "/v1/models", None) {
        Ok(mut answer) => match answer["data"].take() {
            Value::Array(models) => Ok(Some(models)),
            _ => Err(remote::unreadable(&config.server)),
        },
        Err(CommandError::NoServer { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The loaded model of this name, or the default one.
fn find<'a>(models: &'a [Value], name: Option<&str>) -> Option<&'a Value> {
    let is_meant = |model: &Value| match name {
        None => model["default"] == true,
        Some(name) => {
            let aliases = model["aliases"].as_array().into_iter().flatten();
            aliases.chain([&model["id"]]).any(|known| known == name)
        }
    };
    models.iter().find(|model| model["state"] == "loaded" && is_meant(model))
}

/// Has the server load a model beside its own.
fn load(config: &LaunchConfig, model: &str) -> Result<Value, CommandError> {
    say(format_args!("lanner: the server at {} loads {model}", config.server.url()));
    let body = json!({ "model": model, "replace": false });
    remote::call_within(&config.server, "/v1/models/load", Some(&body), LOAD).map_err(|error| match error {
        CommandError::Refused { url, message, .. } => {
            LaunchError::NoModel { url, model: model.into(), message }.into()
        }
        error => error,
    })
}

fn backend(config: &LaunchConfig, model: &Value) -> Backend {
    let number = |value: &Value| value.as_u64().map(|tokens| tokens as usize);
    let fits = [&model["context_length"], &model["memory"]["most_tokens"]];
    Backend {
        url: config.server.url(),
        key: config.server.api_key.clone(),
        model: model["id"].as_str().unwrap_or("default").into(),
        context: fits.into_iter().filter_map(number).min(),
        calls_tools: Some(model["tool_dialect"].is_string()),
        takes_images: model["capabilities"]["vision"] == true,
    }
}

/// A server that ends with this value.
pub(super) struct OwnServer(Child);

impl OwnServer {
    /// Starts a server and waits until it serves.
    pub(super) async fn start(
        config: &LaunchConfig,
        signals: &mut Signals,
    ) -> Result<(Backend, OwnServer), CommandError> {
        let mut own = OwnServer(spawn(config)?);
        let (url, log) = (config.server.url(), config.log.display());
        say(format_args!("lanner: starting a server at {url}, which ends with the agent; its log is {log}"));
        loop {
            if own.0.try_wait()?.is_some() {
                let text = fs::read_to_string(&config.log).unwrap_or_default();
                let lines: Vec<&str> = text.lines().collect();
                let tail = lines[lines.len().saturating_sub(TAIL)..].join("\n");
                return Err(LaunchError::ServerEnded { log: config.log.clone(), tail }.into());
            }
            // Before the model is loaded the address takes connections and answers none of them.
            if is_serving(config)
                && let Some(models) = models(config)?
            {
                let model = find(&models, None).ok_or_else(|| remote::unreadable(&config.server))?;
                return Ok((backend(config, model), own));
            }
            if signals.within(POLL).await {
                return Err(LaunchError::Stopped.into());
            }
        }
    }
}

/// Whether the log has the line that `lanner serve` prints once it is ready.
fn is_serving(config: &LaunchConfig) -> bool {
    fs::read_to_string(&config.log).is_ok_and(|log| log.contains("lanner: serving "))
}

fn spawn(config: &LaunchConfig) -> Result<Child, CommandError> {
    entry::write_private(&config.log, "")?;
    let log = File::options().append(true).open(&config.log)?;
    let address = config.server.address;
    let mut server = Command::new(std::env::current_exe()?);
    server.arg("serve").args(["--host", &address.ip().to_string(), "--port", &address.port().to_string()]);
    if let Some(model) = &config.model {
        server.args(["--model", model]);
    }
    if let Some(file) = &config.config_file {
        server.arg("--config").arg(file);
    }
    if let Some(key) = &config.server.api_key {
        server.env("LANNER_API_KEY", key);
    }
    server.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    // Ctrl-C in the terminal is for the agent.
    server.process_group(0);
    let failed = |error| LaunchError::Start { program: "lanner serve".into(), error };
    Ok(server.spawn().map_err(failed)?)
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        let (asked, started) = (send("TERM", self.0.id()), Instant::now());
        while asked && started.elapsed() < STOP {
            match self.0.try_wait() {
                Ok(None) => thread::sleep(Duration::from_millis(20)),
                _ => return,
            }
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
