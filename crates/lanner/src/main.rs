//! The `lanner` program: reads the configuration once, opens the model, runs one command.

use std::{io::ErrorKind, process::ExitCode};

use clap::Parser;
use lanner::{
    cli::Cli,
    commands::{self, CommandError},
    config::{Command, Config, kernel_cache_folder},
    logging,
    terminal::say,
};

// Arrays of MLX too: the symbol `malloc` is jemalloc's. The settings are in the shim of crate mlx.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            say(format_args!("lanner: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let config = Config::resolve(cli)?;
    logging::start(config.log, config.log_format);
    engine::set_kernel_options(engine::KernelOptions {
        cache: kernel_cache_folder(),
        ..engine::KernelOptions::default()
    });
    let done = |()| ExitCode::SUCCESS;
    let result = match config.command {
        Command::Launch(launch) => commands::launch(&launch),
        Command::Doctor(doctor) => commands::doctor(&doctor),
        Command::Serve(model, serve) => commands::serve(&model, serve).map(done),
        Command::Chat(model, chat) => commands::chat(&model, chat).map(done),
        Command::Run(model, run) => commands::run(&model, run).map(done),
        Command::Pull(hub, model) => commands::pull(&hub, &model).map(done),
        Command::Models(hub, models) => commands::models(&hub, &models).map(done),
        Command::Show(hub, show) => commands::show(&hub, &show).map(done),
        Command::Ps(server, json) => commands::ps(&server, json).map(done),
        Command::Top(server, top) => commands::top(&server, top).map(done),
        Command::Start(start) => commands::start(&start).map(done),
        Command::Stop(stop) => commands::stop(&stop).map(done),
        Command::Status(status) => commands::status(&status),
        Command::Logs(logs) => commands::logs(&logs).map(done),
        Command::Paths(paths) => commands::paths(&paths).map(done),
        Command::Rm(hub, rm) => commands::rm(&hub, &rm).map(done),
        Command::History(history) => commands::history(&history).map(done),
        Command::Stats(usage) => commands::stats(&usage).map(done),
        Command::Cache(cache) => commands::cache(&cache).map(done),
        Command::Bench(model, bench) => commands::bench(&model, &bench).map(done),
        Command::Tune(model, tune) => commands::tune(&model, &tune).map(done),
        Command::Eval(eval) => commands::eval(&eval).map(done),
        Command::Completions(shell) => commands::completions(shell).map(done),
        Command::Man(folder) => commands::man(&folder).map(done),
        Command::Quantize(model, quantize) => commands::quantize(&model, &quantize).map(done),
        Command::NgramBuild(model, ngram) => commands::ngram_build(&model, &ngram).map(done),
        Command::NgramShow { table, json } => commands::ngram_show(&table, json).map(done),
    };
    match result {
        // The reader of stdout has closed it.
        Err(CommandError::Io(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        result => Ok(result?),
    }
}
