//! `lanner serve`: listens first, so that a taken port is known before a long load.

use std::time::{Duration, Instant};

use tokio::{net::TcpListener, runtime::Builder};

use super::CommandError;
use crate::{
    config::{ModelConfig, ServeConfig},
    model::Model,
    server::{self, Host, Server},
    terminal::say,
};

/// Prompts rendered and tokenised at one time; more wait, so that hostile ones cannot take every core.
const PREPARING: usize = 4;

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
    let (address, seconds) = (listener.local_addr()?, started.elapsed().as_secs_f64());
    say(format_args!("lanner: serving {} on http://{address}/v1 (ready in {seconds:.2} s)", server.name()));
    let host = Host::new(server, model.clone(), config.name.clone());
    let result = runtime.block_on(server::serve(listener, server::router(host.clone(), &config)));
    // Drops the requests that still run; one whose template is still being rendered must not keep the program alive.
    runtime.shutdown_timeout(Duration::from_secs(1));
    host.stop();
    Ok(result?)
}
