//! The `lanner` program: reads the configuration once, opens the model, runs one command.

use std::{io::ErrorKind, process::ExitCode};

use clap::Parser;
use lanner::{
    cli::Cli,
    commands::{self, CommandError},
    config::{Command, Config, kernel_cache_folder},
    terminal::say,
};

fn main() -> ExitCode {
    engine::limit_heaps();
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
    engine::set_kernel_options(engine::KernelOptions {
        cache: kernel_cache_folder(),
        ..engine::KernelOptions::default()
    });
    let result = match config.command {
        Command::Serve(model, serve) => commands::serve(&model, serve),
        Command::Chat(model, chat) => commands::chat(&model, chat),
        Command::Run(model, run) => commands::run(&model, run),
        Command::Pull(hub, model) => commands::pull(&hub, &model),
        Command::Models(hub, models) => commands::models(&hub, &models),
        Command::Show(hub, show) => commands::show(&hub, &show),
        Command::Ps(server, json) => commands::ps(&server, json),
        Command::Stop(server, model) => commands::stop(&server, &model),
        Command::Paths(paths) => commands::paths(&paths),
        Command::Rm(hub, rm) => commands::rm(&hub, &rm),
        Command::Cache(cache) => commands::cache(&cache),
        Command::Bench(model, bench) => commands::bench(&model, &bench),
        Command::Eval(eval) => commands::eval(&eval),
        Command::Quantize(model, quantize) => commands::quantize(&model, &quantize),
        Command::NgramBuild(model, ngram) => commands::ngram_build(&model, &ngram),
        Command::NgramShow { table, json } => commands::ngram_show(&table, json),
    };
    match result {
        // The reader of stdout has closed it.
        Err(CommandError::Io(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}
