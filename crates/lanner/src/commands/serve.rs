//! `lanner serve`: listens first, so that a taken port is known before a long load.

use std::{
    net::SocketAddr,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use engine::{Memory, ModelInfo};
use tokio::{net::TcpListener, runtime::Builder};

use super::CommandError;
use crate::{
    bench::machine,
    config::{ModelConfig, ServeConfig},
    hub,
    model::Model,
    server::{self, AppState, Server, preparation},
    terminal::say,
};

/// How long shutdown waits for engines and a running load before the process exits without them.
const STOPPING: Duration = Duration::from_secs(5);

/// Where memory goes and how much there is for requests, under the limit or else on the machine.
fn fits(info: &ModelInfo, machine: Option<usize>) -> String {
    let memory = &info.memory;
    let human = |bytes: usize| hub::megabytes(bytes as u64);
    let parts = format!(
        "memory: weights {}, a step about {}, state {} for 1,000 tokens, prefix cache up to {}",
        human(memory.weights),
        human(memory.step),
        human(memory.state(1000)),
        human(memory.prefix_cache)
    );
    let (of, kept) = match memory.limit {
        Some(limit) => (Some((limit, "the limit")), 0),
        // Without a limit nothing takes back what the cache has.
        None => (machine.map(|bytes| (bytes, "the machine")), memory.prefix_cache),
    };
    let Some((all, whose)) = of else { return parts };
    let under = Memory { limit: Some(all.saturating_sub(kept)), ..memory.clone() };
    let most = under.most_tokens(info.context_length);
    let requests = under.room().unwrap_or(0) / memory.state(most.max(1));
    let all = human(all);
    format!(
        "{parts}; {whose} has {all}: the longest request that fits has {most} tokens, prompt and answer, and {requests} of \
         them fit at a time"
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
    let server = Server::new(Model::open(model)?, config.name.clone());
    // First, because whoever waits for the line that says where it serves need not read on.
    say(format_args!("lanner: {}", fits(server.engine().info(), machine::memory())));
    let (address, seconds) = (listener.local_addr()?, started.elapsed().as_secs_f64());
    warning(&config, address).into_iter().for_each(say);
    say(format_args!("lanner: serving {} on http://{address}/v1 (ready in {seconds:.2} s)", server.name()));
    let state = AppState::new(server, model.clone(), config.name.clone());
    let result = runtime.block_on(server::serve(listener, state.clone(), &config));
    // Drops the requests that still run; one whose template is still being rendered must not keep the program alive.
    runtime.shutdown_timeout(Duration::from_secs(1));
    let stop = move || {
        state.stop();
        drop(state);
    };
    if !ends_within(STOPPING, stop) {
        say("lanner: a load or a step has not ended; leaving without it");
        // A normal exit runs MLX's destructors, which crash while it computes.
        engine::exit_now(0);
    }
    Ok(result?)
}

/// A server that listens beyond loopback without an API key is open to the network.
fn warning(config: &ServeConfig, address: SocketAddr) -> Option<String> {
    let is_open = !address.ip().is_loopback() && config.api_key.is_none();
    let admin = if config.admin {
        ", and may load and pull models: set --api-key, or --no-admin"
    } else {
        ": set --api-key"
    };
    is_open
        .then(|| format!("lanner: warning: every client that reaches {address} may use this server{admin}"))
}

/// Runs work that may hang in a driver or on a device file; false if it has not ended in time.
fn ends_within(most: Duration, work: impl FnOnce() + Send + 'static) -> bool {
    let (ended, end) = mpsc::channel();
    thread::spawn(move || {
        work();
        let _ = ended.send(());
    });
    end.recv_timeout(most).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_hangs_is_left_behind() {
        let (release, hang) = mpsc::channel::<()>();
        assert!(!ends_within(Duration::from_millis(20), move || assert!(hang.recv().is_err())));
        assert!(ends_within(Duration::from_secs(60), || {}));
        drop(release);
    }
}
