//! `lanner serve`: listens first, so that a taken port is known before a long load.

use std::time::Instant;

use tokio::{net::TcpListener, runtime::Builder};

use super::CommandError;
use crate::{
    config::{ModelConfig, ServeConfig},
    model::Model,
    server::{self, Server},
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
    eprintln!(
        "lanner: serving {} on http://{}/v1 (ready in {:.2} s)",
        server.name(),
        listener.local_addr()?,
        started.elapsed().as_secs_f64()
    );
    let result = runtime.block_on(server::serve(listener, server::router(server, &config)));
    // A template that is still being rendered must not keep the program alive.
    runtime.shutdown_background();
    Ok(result?)
}
