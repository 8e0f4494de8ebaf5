//! `lanner serve`: listens before it loads, so that a taken port is reported first.

use std::{
    net::SocketAddr,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use engine::{Memory, ModelInfo};
use mcp::Servers;
use store::{Opening, Store, StoreError};
use tokio::{net::TcpListener, runtime::Builder};

use super::CommandError;
use crate::{
    bench::machine,
    config::{McpConfig, ModelConfig, ServeConfig, StoreConfig, is_readable_by_others},
    hub,
    image_url::ImageUrls,
    memory,
    model::Model,
    server::{self, AppState, McpAccess, Server, preparation},
    terminal::say,
};

/// How long shutdown waits for engines and a running load.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Memory use and what is left for requests, under the limit or else on the machine.
fn memory_summary(info: &ModelInfo, machine: Option<usize>) -> String {
    let memory = &info.memory;
    let human = |bytes: usize| hub::megabytes(bytes as u64);
    let parts = format!(
        "memory: weights {}, a step about {}, state {} for 1,000 tokens, prefix cache up to {}",
        human(memory.weights),
        human(memory.step),
        human(memory.state(1000)),
        human(memory.prefix_cache)
    );
    let (total, cached) = match memory.limit {
        Some(limit) => (Some((limit, "the limit")), 0),
        // Without a limit the prefix cache is not evicted for requests.
        None => (machine.map(|bytes| (bytes, "the machine")), memory.prefix_cache),
    };
    let Some((total, owner)) = total else { return parts };
    let under = Memory { limit: Some(total.saturating_sub(cached)), ..memory.clone() };
    let most = under.most_tokens(info.context_length);
    let requests = under.room().unwrap_or(0) / memory.state(most.max(1));
    let total = human(total);
    format!(
        "{parts}; {owner} has {total}: requests of up to {most} tokens fit, prompt and answer, {requests} of them at a \
         time"
    )
}

/// Serves until Ctrl-C.
///
/// # Errors
/// The address is taken, or the model does not load.
pub fn serve(model: &ModelConfig, config: ServeConfig) -> Result<(), CommandError> {
    let started = Instant::now();
    let runtime =
        Builder::new_multi_thread().max_blocking_threads(preparation::threads()).enable_all().build()?;
    let listener = runtime
        .block_on(TcpListener::bind(config.address))
        .map_err(|error| CommandError::Listen { address: config.address, error })?;
    let store = open_store(config.store.as_ref())?;
    // Before the load, which a limit of the mode may refuse.
    say(format_args!("lanner: {}", memory::summary(model.memory_mode, &model.options)));
    let server = Server::new(Model::open(model)?, config.registry.name.clone());
    let _monitor = memory::watch(model.memory_mode, &model.options);
    let mcp = config.mcp.clone().map(mcp_access);
    // Before the line with the address, after which callers may stop reading.
    say(format_args!("lanner: {}", memory_summary(server.engine().info(), machine::memory())));
    let (address, seconds) = (listener.local_addr()?, started.elapsed().as_secs_f64());
    let warnings = warning(&config, address).into_iter().chain(keys_warning(&config));
    warnings.chain(models_warnings(model)).for_each(say);
    say(format_args!("lanner: serving {} on http://{address}/v1 (ready in {seconds:.2} s)", server.name()));
    let state = AppState::new(server, model.clone(), config.registry.clone());
    store.iter().for_each(|store| state.set_store(store.clone()));
    if !config.allow_image_urls.is_empty() {
        state.set_image_urls(ImageUrls::new(config.allow_image_urls.clone()));
    }
    mcp.into_iter().for_each(|access| state.set_mcp(access));
    let result = runtime.block_on(server::serve(listener, state.clone(), &config));
    // Drops running requests; a template that is being rendered must not keep the process alive.
    runtime.shutdown_timeout(Duration::from_secs(1));
    stop(state, STOP_TIMEOUT, store.as_ref());
    Ok(result?)
}

/// The MCP servers of a file; each starts when a request first needs it.
fn mcp_access(config: McpConfig) -> McpAccess {
    config.ignored.iter().for_each(|field| {
        say(format_args!("lanner: warning: mcpServers.{field} has no effect"));
    });
    let names: Vec<&str> = config.servers.servers.iter().map(|server| &*server.name).collect();
    say(format_args!("lanner: requests may use the MCP servers {}", names.join(", ")));
    McpAccess {
        servers: Arc::new(Servers::new(config.servers, &config.options)),
        max_calls: config.max_calls,
        max_time: config.max_time,
        max_bytes: config.max_bytes,
    }
}

/// Stops loads and engines, and writes figures that are not stored yet; ends the process if a load
/// or an engine hangs.
fn stop(state: AppState, most: Duration, store: Option<&Store>) {
    let stop = move || {
        state.stop();
        drop(state);
    };
    let is_stopped = ends_within(most, stop);
    if let Some(Err(error)) = store.map(Store::flush) {
        say(format_args!("lanner: warning: {error}"));
    }
    if !is_stopped {
        say("lanner: a load or a step has not ended; exiting without it");
        // A normal exit runs MLX's destructors, which crash while MLX computes.
        engine::exit_now(0);
    }
}

/// A store that the user did not name is no reason to stop.
pub(super) fn open_store(config: Option<&StoreConfig>) -> Result<Option<Store>, StoreError> {
    let Some(StoreConfig { path, is_named }) = config else { return Ok(None) };
    match Store::open(path) {
        Ok(Opening { store, notice }) => {
            notice.into_iter().for_each(|notice| say(format_args!("lanner: warning: {notice}")));
            Ok(Some(store))
        }
        Err(error) if *is_named => Err(error),
        Err(error) => {
            say(format_args!("lanner: warning: {error}; nothing is stored"));
            Ok(None)
        }
    }
}

/// A server that listens beyond loopback without an API key is open to the network.
fn warning(config: &ServeConfig, address: SocketAddr) -> Option<String> {
    let is_open = !address.ip().is_loopback() && config.api_keys.is_empty();
    let tools = if config.mcp.is_some() { ", and call the tools of its MCP servers" } else { "" };
    let admin = if config.admin {
        ", and load and pull models; set --api-key or --no-admin"
    } else {
        "; set --api-key"
    };
    is_open.then(|| {
        format!("lanner: warning: any client that reaches {address} can use this server{tools}{admin}")
    })
}

/// Keys in a file that other users can read are no secrets.
fn keys_warning(config: &ServeConfig) -> Option<String> {
    let path = config.api_keys_file.as_deref().filter(|path| is_readable_by_others(path))?.display();
    Some(format!("lanner: warning: other users can read the API keys in {path}; run `chmod 600 {path}`"))
}

/// Settings of models that are not there may have a typing error.
fn models_warnings(config: &ModelConfig) -> impl Iterator<Item = String> {
    let unknown = config.thinking.unknown_models(&config.hub).into_iter();
    unknown.map(|(name, error)| {
        let reason = error.lines().next().unwrap_or_default().to_owned();
        format!("lanner: warning: [models.{name}] in the config file has no effect: {reason}")
    })
}

/// Runs work that may hang in a driver or on a device file; `false` if it has not ended in time.
pub fn ends_within(most: Duration, work: impl FnOnce() + Send + 'static) -> bool {
    let (ended, end) = mpsc::channel();
    thread::spawn(move || {
        work();
        let _ = ended.send(());
    });
    end.recv_timeout(most).is_ok()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::{cli::ModelArgs, config::RegistryConfig, hub::HubConfig};

    #[test]
    fn ends_within_gives_up_on_hanging_work() {
        let (release, hang) = mpsc::channel::<()>();
        assert!(!ends_within(Duration::from_millis(20), move || assert!(hang.recv().is_err())));
        assert!(ends_within(Duration::from_secs(60), || {}));
        drop(release);
    }

    /// The process of [`hanging_load_does_not_keep_the_process`].
    #[test]
    #[ignore = "ends its process"]
    fn process_with_a_hanging_load_ends() {
        let hub = HubConfig {
            cache: None,
            endpoint: String::new(),
            token: None,
            offline: true,
            proxy: None,
            uses: None,
            backoff: Duration::ZERO,
        };
        let config = ModelConfig::without_cache(ModelArgs::default(), ModelArgs::default(), hub);
        let server = Server::new(Model::open(&config).unwrap(), None);
        let state = AppState::new(server, config, RegistryConfig::default());
        state.loads().spawn(|| thread::sleep(Duration::MAX));
        stop(state, Duration::from_millis(100), None);
        unreachable!("the load has not ended");
    }

    #[test]
    fn hanging_load_does_not_keep_the_process() {
        let mut tests = Command::new(std::env::current_exe().unwrap());
        let name = "commands::serve::tests::process_with_a_hanging_load_ends";
        tests
            .args(["--exact", "--ignored", "--nocapture", name])
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut process = tests.spawn().unwrap();
        let started = Instant::now();
        while process.try_wait().unwrap().is_none() {
            if started.elapsed() > Duration::from_secs(120) {
                process.kill().unwrap();
                panic!("it does not end");
            }
            thread::sleep(Duration::from_millis(10));
        }
        let output = process.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("a load or a step has not ended"), "{said}");
        assert_eq!(output.status.code(), Some(0), "{said}");
    }
}
