//! The `lanner` program: reads the configuration once, opens the model, runs one command.

use std::{io::ErrorKind, process::ExitCode};

use clap::Parser;
use lanner::{
    cli::Cli,
    commands::{self, CommandError},
    config::{Command, Config},
    terminal::say,
};

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(format_args!("lanner: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<(), Box<dyn std::error::Error>> {
    let config = Config::resolve(cli)?;
    tracing_subscriber::fmt().with_max_level(config.log).with_writer(std::io::stderr).init();
    let result = match config.command {
        Command::Serve(serve) => commands::serve(&config.model, serve),
        Command::Chat(chat) => commands::chat(&config.model, chat),
        Command::Run(run) => commands::run(&config.model, run),
        Command::Quantize(quantize) => commands::quantize(&config.model, &quantize),
    };
    match result {
        // Whoever read stdout has seen enough.
        Err(CommandError::Io(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}
