//! `lanner serve`: listens first, so that a taken port is known before a long load.

use std::time::{Duration, Instant};

use engine::{Memory, ModelInfo};
use tokio::{net::TcpListener, runtime::Builder};

use super::CommandError;
use crate::{
    bench::machine,
    config::{ModelConfig, ServeConfig},
    hub,
    model::Model,
    server::{self, Host, Server},
    terminal::say,
};

/// Prompts rendered and tokenised at one time; more wait, so that hostile ones cannot take every core.
const PREPARING: usize = 4;

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
    let runtime = Builder::new_multi_thread().max_blocking_threads(PREPARING).enable_all().build()?;
    let listener = runtime
        .block_on(TcpListener::bind(config.address))
        .map_err(|error| CommandError::Listen { address: config.address, error })?;
    let server = Server::new(Model::open(model)?, config.name.clone());
    // First, because whoever waits for the line that says where it serves need not read on.
    say(format_args!("lanner: {}", fits(server.engine().info(), machine::memory())));
    let (address, seconds) = (listener.local_addr()?, started.elapsed().as_secs_f64());
    say(format_args!("lanner: serving {} on http://{address}/v1 (ready in {seconds:.2} s)", server.name()));
    let host = Host::new(server, model.clone(), config.name.clone());
    let result = runtime.block_on(server::serve(listener, server::router(host.clone(), &config)));
    // Drops the requests that still run; one whose template is still being rendered must not keep the program alive.
    runtime.shutdown_timeout(Duration::from_secs(1));
    host.stop();
    Ok(result?)
}
