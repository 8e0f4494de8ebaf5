//! `lanner quantize`: writes a quantised copy of a model. Progress and summary on stderr, results
//! on stdout.

use std::{
    io::{IsTerminal, Write},
    ops::ControlFlow,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use engine::{
    Checkpoint, Progress,
    quantize::{Action, Deviation, Mode, Plan, Quantization, QuantizeReport, SHARD_BYTES},
};
use indicatif::{DecimalBytes, ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use super::{
    CommandError,
    perplexity::{self, perplexity},
};
use crate::{
    config::{ModelConfig, QuantizeConfig},
    loading::OpenError,
    model_files,
    source::Source,
    terminal::say,
};

/// Tensors with the largest error that are printed.
const WORST: usize = 10;

/// # Errors
/// The source cannot be read or is quantised already, the result cannot be written, or the user
/// interrupts.
pub fn quantize(model: &ModelConfig, config: &QuantizeConfig) -> Result<(), CommandError> {
    let mut plan = Plan::new(&find(model, &config.source)?, config.quantization)?;
    let Some(out) = &config.out else { return Ok(print_plan(&plan, config.json)?) };
    // Read first: an error is better known before hours of work than after.
    let text = config.text.as_deref().map(|path| read_text(model, &config.source, path)).transpose()?;
    let stopped = stop_on_ctrl_c()?;
    let started = Instant::now();
    let report = plan.write(out, SHARD_BYTES, &mut Bar::new("quantising", &stopped).progress())?;
    say(summary(&report, config.quantization, out, started));
    let mut verified = Verified::default();
    if config.verify {
        verified.deviations = plan.verify(out, &mut Bar::new("verifying", &stopped).progress())?;
        match text {
            Some(text) => {
                verified.perplexities =
                    Some(perplexities(model, [&config.source, &out.to_string_lossy()], &text, &stopped)?)
            }
            None => say("lanner: no perplexity without --text FILE"),
        }
    }
    match (config.json, config.verify) {
        (true, _) => println(json!({
            "out": out,
            "quantization": format(config.quantization),
            "tensors": counts(&report),
            "verify": config.verify.then(|| verified.json()),
        }))?,
        (false, true) => verified.print()?,
        (false, false) => {}
    }
    Ok(())
}

/// The text to verify with.
fn read_text(model: &ModelConfig, source: &str, path: &Path) -> Result<String, CommandError> {
    let location = Source::find(Some(source), &model.hub).map_err(OpenError::from)?.location;
    perplexity::read_text(&location, path)
}

/// The checkpoint that `source` names.
fn find(model: &ModelConfig, source: &str) -> Result<Checkpoint, OpenError> {
    Ok(model_files::checkpoint(Source::find(Some(source), &model.hub)?.location))
}

/// A flag that Ctrl-C sets.
fn stop_on_ctrl_c() -> std::io::Result<Arc<AtomicBool>> {
    let stopped = Arc::new(AtomicBool::new(false));
    let (runtime, set) =
        (tokio::runtime::Builder::new_current_thread().enable_io().build()?, stopped.clone());
    // Here and not on the thread, which may start after the first Ctrl-C.
    let mut interrupts = {
        let _inside = runtime.enter();
        signal(SignalKind::interrupt())?
    };
    std::thread::spawn(move || {
        if runtime.block_on(interrupts.recv()).is_some() {
            set.store(true, Ordering::Relaxed);
        }
    });
    Ok(stopped)
}

fn perplexities(
    model: &ModelConfig,
    names: [&str; 2],
    text: &str,
    stopped: &Arc<AtomicBool>,
) -> Result<[f64; 2], CommandError> {
    let measure = |name: &str| {
        let model = ModelConfig { model: Some(name.into()), ..model.clone() };
        perplexity(&model, text, stopped).map(|found| found.value)
    };
    Ok([measure(names[0])?, measure(names[1])?])
}

/// Progress on stderr: a bar, or a line every few seconds without a terminal.
struct Bar {
    verb: &'static str,
    bar: ProgressBar,
    stopped: Arc<AtomicBool>,
    last_line: Instant,
}

impl Bar {
    fn new(verb: &'static str, stopped: &Arc<AtomicBool>) -> Bar {
        let style = ProgressStyle::with_template("{msg} {bar:30} {bytes} of {total_bytes}, {eta} left");
        let bar = ProgressBar::new(0).with_message(verb);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Bar { verb, bar, stopped: stopped.clone(), last_line: Instant::now() }
    }

    fn progress(mut self) -> impl FnMut(Progress) -> ControlFlow<()> {
        move |Progress { loaded_bytes, total_bytes }| {
            self.bar.set_length(total_bytes as u64);
            self.bar.set_position(loaded_bytes as u64);
            let done = loaded_bytes == total_bytes;
            let due = done || self.last_line.elapsed() > Duration::from_secs(5);
            if due && !std::io::stderr().is_terminal() {
                self.last_line = Instant::now();
                let percent = loaded_bytes as f64 / total_bytes as f64 * 100.0;
                say(format_args!(
                    "lanner: {} {percent:.0} % of {:.2} GB",
                    self.verb,
                    total_bytes as f64 / 1e9
                ));
            }
            if done {
                self.bar.finish_and_clear();
            }
            if self.stopped.load(Ordering::Relaxed) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        }
    }
}

fn summary(report: &QuantizeReport, q: Quantization, out: &Path, started: Instant) -> String {
    let QuantizeReport { quantized, skipped, source_bytes, bytes, files } = report;
    format!(
        "lanner: {} holds {quantized} tensors as {} and {skipped} as they were: {} became {} in {files} file{}, in {:.1} s",
        out.display(),
        format(q),
        DecimalBytes(*source_bytes as u64),
        DecimalBytes(*bytes as u64),
        if *files == 1 { "" } else { "s" },
        started.elapsed().as_secs_f64()
    )
}

fn format(q: Quantization) -> String {
    match q.mode {
        Mode::Affine => format!("affine {}-bit/{}", q.bits, q.group_size),
        mode => mode.name().into(),
    }
}

fn counts(report: &QuantizeReport) -> Value {
    let QuantizeReport { quantized, skipped, source_bytes, bytes, files } = report;
    json!({ "quantized": quantized, "kept": skipped, "source_bytes": source_bytes, "bytes": bytes, "files": files })
}

/// Prints what happens to each tensor.
fn print_plan(plan: &Plan, json: bool) -> std::io::Result<()> {
    let format = format(plan.quantization);
    let rows = plan.tensors.iter().map(|tensor| {
        let (to, why) = match tensor.action {
            Action::Quantize => (&*format, ""),
            Action::Skip(reason) => (tensor.dtype.name(), reason),
        };
        (&tensor.name, &tensor.shape, tensor.dtype.name(), to, why)
    });
    let dropped = plan.dropped.iter().map(|(name, shape, why)| (name, shape, "", "left out", *why));
    let rows: Vec<_> = rows.chain(dropped).collect();
    if json {
        let row = |(name, shape, from, to, why): &(_, _, _, _, _)| json!({ "name": name, "shape": shape, "from": from, "to": to, "why": why });
        return println(Value::from(rows.iter().map(row).collect::<Vec<_>>()));
    }
    let widest = rows.iter().map(|(name, ..)| name.len()).max().unwrap_or(0);
    for (name, shape, from, to, why) in rows {
        let shape = format!("{shape:?}");
        println(format!("{name:widest$}  {shape:20} {from:9} {to:18} {why}").trim_end())?;
    }
    Ok(())
}

/// Results of --verify.
#[derive(Default)]
struct Verified {
    deviations: Vec<Deviation>,
    /// Of the source and the result.
    perplexities: Option<[f64; 2]>,
}

impl Verified {
    /// Prints the tensors with the largest error, and the mean of all.
    fn print(&self) -> std::io::Result<()> {
        let (mut quantized, kept): (Vec<&Deviation>, Vec<_>) =
            self.deviations.iter().partition(|deviation| deviation.quantized);
        quantized.sort_by(|a, b| a.cosine.total_cmp(&b.cosine));
        let worst = &quantized[..quantized.len().min(WORST)];
        let width = worst.iter().map(|deviation| deviation.name.len()).max().unwrap_or(0);
        println(format_args!("{:width$}  cosine    largest error", "furthest from the source"))?;
        for Deviation { name, cosine, max_error, .. } in worst {
            println(format_args!("{name:width$}  {cosine:.6}  {max_error:.4e}"))?;
        }
        let mean =
            quantized.iter().map(|deviation| deviation.cosine).sum::<f64>() / quantized.len().max(1) as f64;
        println(format_args!("mean cosine of {} quantised tensors {mean:.6}", quantized.len()))?;
        let same = kept.iter().filter(|deviation| deviation.max_error == 0.0).count();
        println(format_args!("{same} of {} kept tensors are the same", kept.len()))?;
        if let Some([before, after]) = self.perplexities {
            let percent = (after / before - 1.0) * 100.0;
            println(format_args!("perplexity {before:.4} before, {after:.4} after ({percent:+.2} %)"))?;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let tensor = |deviation: &Deviation| {
            let Deviation { name, cosine, max_error, quantized } = deviation;
            json!({ "name": name, "quantized": quantized, "cosine": cosine, "max_error": max_error })
        };
        let perplexity = self
            .perplexities
            .map(|[before, after]| json!({ "source": before, "result": after, "ratio": after / before }));
        json!({ "tensors": self.deviations.iter().map(tensor).collect::<Vec<_>>(), "perplexity": perplexity })
    }
}

fn println(text: impl std::fmt::Display) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "{text}")
}
