//! Speed of the engine on this machine, measured with small random models: bytes of weights per
//! second in each stored format, operations per second in prompts, and the time of a layer.

use engine::{
    Checkpoint, Options, Speculate,
    quantize::{Mode, Quantization, quantization},
};
use serde_json::{Value, json};

use super::{Effort, TuneError};
use crate::{
    bench::{self, SamplingKind, Workload, machine::Machine},
    loading::OpenError,
    terminal::say,
};

/// Tokens of a measured prompt, and of the answer to it.
pub(super) const PROMPT: usize = 512;

/// Layers of the model that measures the time of a layer, which computes next to nothing.
const TINY_LAYERS: usize = 16;
const PROBE_LAYERS: usize = 4;

/// The machine, as far as the engine is concerned.
pub(crate) struct Calibration {
    /// Read bandwidth of the CPU's threads, in gigabytes per second.
    pub read_gb_s: f64,
    /// Milliseconds of a layer beside reading its weights.
    pub layer_ms: f64,
    pub probes: Vec<Probe>,
}

/// One stored format.
#[derive(Clone, Debug)]
pub(crate) struct Probe {
    /// Format, by the engine's name.
    pub format: String,
    /// Weights read while decoding, in gigabytes per second.
    pub weight_gb_s: f64,
    /// Operations in a prompt of [`PROMPT`] tokens, in billions per second.
    pub prefill_gflop_s: f64,
}

/// # Errors
/// A probe does not load or fails.
pub(crate) fn calibrate(
    options: &Options,
    machine: &mut Machine,
    effort: Effort,
) -> Result<Calibration, TuneError> {
    machine.measure_reading();
    let tiny = run(options, tiny_shape(), None, effort)?;
    let layer_ms = tiny.decode_ms / TINY_LAYERS as f64;
    let mut probes = vec![];
    for format in formats() {
        let found = run(options, probe_shape(effort), format, effort)?;
        let reading_ms = (found.decode_ms - layer_ms * PROBE_LAYERS as f64).max(found.decode_ms / 10.0);
        let probe = Probe {
            weight_gb_s: found.read_bytes as f64 / reading_ms / 1e6,
            prefill_gflop_s: 2.0 * found.parameters as f64 * PROMPT as f64 / found.prefill_ms / 1e6,
            format: found.format,
        };
        say(format_args!(
            "lanner: {}: reads {:.1} GB/s of weights, computes {:.0} Gflop/s in prompts",
            probe.format, probe.weight_gb_s, probe.prefill_gflop_s
        ));
        probes.push(probe);
    }
    machine.measure_reading();
    Ok(Calibration { read_gb_s: machine.read_gb_s.unwrap_or(0.0), layer_ms, probes })
}

/// Formats of the table; the first is bfloat16.
fn formats() -> impl Iterator<Item = Option<Quantization>> {
    let affine = [8, 6, 4].into_iter().filter_map(|bits| quantization(Mode::Affine, Some(bits), None).ok());
    let mxfp4 = quantization(Mode::Mxfp4, None, None).ok();
    [None].into_iter().chain(affine.chain(mxfp4).map(Some))
}

/// Times of a random model, of the fastest round.
struct ProbeTimes {
    format: String,
    read_bytes: usize,
    parameters: usize,
    decode_ms: f64,
    prefill_ms: f64,
}

fn run(
    options: &Options,
    config: Value,
    quantization: Option<Quantization>,
    effort: Effort,
) -> Result<ProbeTimes, TuneError> {
    let options =
        Options { speculate: Speculate::Off, memory_limit: None, max_context: None, ..options.clone() };
    let checkpoint = Checkpoint::Random { config, quantization };
    let engine = engine::start(checkpoint, options, |_| {})
        .map_err(|error| OpenError::Load { name: "a random model".into(), error })?;
    let info = engine.info();
    let workload =
        Workload { prompt: PROMPT, generate: effort.generate(), batch: 1, sampling: SamplingKind::Greedy };
    let mut found = ProbeTimes {
        format: info.weights.format.clone(),
        read_bytes: info.weights.reads.map_or(0, |reads| reads.every_step + reads.per_token),
        parameters: info.weights.active_parameters.unwrap_or(0),
        decode_ms: f64::MAX,
        prefill_ms: f64::MAX,
    };
    // The first round touches memory for the first time.
    for round in 0..=effort.repeats() {
        let sample = bench::measure(&engine, workload, round as u64)?;
        if round > 0 {
            found.prefill_ms = found.prefill_ms.min(PROMPT as f64 / sample.prefill * 1e3);
            found.decode_ms = sample.decode.map_or(found.decode_ms, |speed| found.decode_ms.min(1e3 / speed));
        }
    }
    engine.stop();
    Ok(found)
}

/// Large enough not to fit into most caches, as a whole model is; if time is short, small enough to
/// fit into some, which then look faster than memory.
fn probe_shape(effort: Effort) -> Value {
    match effort {
        Effort::Quick => shape(512, 1536, PROBE_LAYERS, 4),
        Effort::Full => shape(2048, 6144, PROBE_LAYERS, 16),
    }
}

fn tiny_shape() -> Value {
    shape(64, 64, TINY_LAYERS, 1)
}

/// A Llama.
fn shape(hidden: usize, intermediate: usize, layers: usize, heads: usize) -> Value {
    json!({
        "model_type": "llama",
        "vocab_size": 8192,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads.div_ceil(4),
        "head_dim": hidden / heads,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
        "tie_word_embeddings": true,
    })
}
