//! The `lanner` program: reads the configuration once, opens the model, runs one command.

use std::process::ExitCode;

use clap::Parser;
use lanner::{
    cli::Cli,
    commands,
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
    match config.command {
        Command::Serve(serve) => commands::serve(&config.model, serve)?,
        Command::Chat(chat) => commands::chat(&config.model, chat)?,
        Command::Run(run) => commands::run(&config.model, run)?,
    }
    Ok(())
}
