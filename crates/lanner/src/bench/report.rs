//! The report of a benchmark, as JSON, table and picture.

use engine::{Gpu, ModelInfo, Precision, WeightReads};
use serde_json::{Value, json};

use super::{
    chart::{Panel, Picture},
    machine::Machine,
    measure::{Kernel, PerToken, Sample, SamplingKind, Workload},
    statistics::{Percentiles, Spread},
};
use crate::terminal::table;

pub(crate) struct BenchReport {
    pub machine: Machine,
    pub model: ModelReport,
    pub runs: Vec<Run>,
}

pub(crate) struct ModelReport {
    pub name: String,
    /// Set if the weights are random.
    pub shape: Option<String>,
    pub parameters: usize,
    pub weight_bytes: usize,
    /// Format of most weights.
    pub format: String,
    /// Precision of matrix products; `None` on a GPU where MLX decides it.
    pub precision: Option<Precision>,
    pub reads: Option<WeightReads>,
    /// Parameters that compute a prompt token.
    pub active_parameters: Option<usize>,
    /// The GPU that runs the model.
    pub gpu: Option<Gpu>,
}

/// All repeats of one workload.
pub(crate) struct Run {
    pub workload: Workload,
    pub repeats: usize,
    /// Seconds.
    pub ttft: Spread,
    /// Tokens per second.
    pub prefill: Spread,
    pub decode: Option<Spread>,
    /// Milliseconds.
    pub token: Option<Percentiles>,
    /// Costs in the repeat with the median speed.
    pub per_token: Option<PerToken>,
    /// Kernels of the same repeat, the slowest first.
    pub kernels: Vec<Kernel>,
    /// Bytes, of the process and of MLX's arrays alone.
    pub peak_memory: Option<usize>,
    pub mlx_peak_memory: usize,
}

impl ModelReport {
    pub(crate) fn new(name: String, shape: Option<String>, info: &ModelInfo) -> ModelReport {
        ModelReport {
            name,
            shape,
            parameters: info.weights.parameters,
            weight_bytes: info.weight_bytes,
            format: info.weights.format.clone(),
            precision: info.weights.precision,
            reads: info.weights.reads,
            active_parameters: info.weights.active_parameters,
            gpu: info.weights.gpu.clone(),
        }
    }

    /// Gigabytes per second of the memory that holds the weights: a GPU's by its clock and width,
    /// the host's as measured.
    fn read_gb_s(&self, machine: &Machine) -> Option<f64> {
        match &self.gpu {
            Some(gpu) => memory_gb_s(gpu),
            None => machine.read_gb_s,
        }
    }

    /// Bytes of weights that one step reads; `None` if that depends on the experts of its tokens.
    fn step_bytes(&self, batch: usize) -> Option<usize> {
        let WeightReads { every_step, per_token } = self.reads?;
        (batch == 1 || per_token == 0).then_some(every_step + per_token)
    }
}

impl Run {
    /// `None`: no samples.
    pub(crate) fn new(
        workload: Workload,
        samples: &[Sample],
        peak_memory: Option<usize>,
        mlx_peak_memory: usize,
    ) -> Option<Run> {
        let mut by_speed: Vec<&Sample> = samples.iter().collect();
        by_speed.sort_by(|a, b| a.decode.unwrap_or(0.0).total_cmp(&b.decode.unwrap_or(0.0)));
        let middle = *by_speed.get(samples.len().checked_sub(1)? / 2)?;
        let mut kernels = middle.kernels.clone();
        let time = |kernel: &Kernel| kernel.generated.unwrap_or(kernel.prompt);
        kernels.sort_by(|a, b| time(b).total_cmp(&time(a)));
        Some(Run {
            workload,
            repeats: samples.len(),
            ttft: Spread::of(samples.iter().flat_map(|sample| sample.ttft.iter().copied()))?,
            prefill: Spread::of(samples.iter().map(|sample| sample.prefill))?,
            decode: Spread::of(samples.iter().filter_map(|sample| sample.decode)),
            token: Percentiles::of(samples.iter().flat_map(|sample| sample.gaps.iter().copied())),
            per_token: middle.per_token,
            kernels,
            peak_memory,
            mlx_peak_memory,
        })
    }

    /// Gigabytes of weights read per second while decoding; each step reads them once.
    fn weight_gb_s(&self, model: &ModelReport) -> Option<f64> {
        let steps = self.decode?.median / self.workload.batch as f64;
        Some(model.step_bytes(self.workload.batch)? as f64 * steps / 1e9)
    }

    /// [`weight_gb_s`](Run::weight_gb_s) as a share of the memory's bandwidth.
    fn read_fraction(&self, report: &BenchReport) -> Option<f64> {
        Some(self.weight_gb_s(&report.model)? / report.model.read_gb_s(&report.machine)?)
    }

    /// 10^12 floating-point operations per second of a prompt's products with weights.
    fn prefill_tflop_s(&self, model: &ModelReport) -> Option<f64> {
        Some(2.0 * model.active_parameters? as f64 * self.prefill.median / 1e12)
    }

    fn json(&self, report: &BenchReport) -> Value {
        let Workload { prompt, generate, batch, sampling } = self.workload;
        let per_token = self.per_token;
        json!({
            "prompt": prompt,
            "generate": generate,
            "batch": batch,
            "sampling": sampling.name(),
            "repeats": self.repeats,
            "ttft_s": self.ttft.json(),
            "prefill_tok_s": self.prefill.json(),
            "decode_tok_s": self.decode.as_ref().map(Spread::json),
            "token_ms": self.token.as_ref().map(Percentiles::json),
            "kernel_ms_per_token": per_token.and_then(|each| each.kernel_ms),
            "host_ms_per_token": per_token.and_then(|each| each.host_ms),
            "nodes_per_token": per_token.map(|each| each.nodes),
            "kernels_per_token": per_token.and_then(|each| each.kernels),
            "kernels": self.kernels.iter().map(Kernel::json).collect::<Vec<_>>(),
            "weight_gb_s": self.weight_gb_s(&report.model),
            "read_fraction": self.read_fraction(report),
            "prefill_tflop_s": self.prefill_tflop_s(&report.model),
            "peak_memory_bytes": self.peak_memory,
            "mlx_peak_memory_bytes": self.mlx_peak_memory,
        })
    }

    fn cells(&self, report: &BenchReport) -> [String; COLUMNS.len()] {
        let Workload { prompt, generate, batch, sampling } = self.workload;
        let percentile = |of: fn(&Percentiles) -> f64| number(self.token.as_ref().map(of));
        let each = |of: fn(&PerToken) -> Option<f64>| number(self.per_token.as_ref().and_then(of));
        let percent = self.read_fraction(report).map(|part| format!("{:.0} %", part * 100.0));
        // The process does not count a GPU's memory.
        let of_process = self.peak_memory.filter(|_| report.model.gpu.is_none());
        let memory = of_process.unwrap_or(self.mlx_peak_memory);
        [
            prompt.to_string(),
            generate.to_string(),
            batch.to_string(),
            sampling.name().into(),
            number(Some(self.ttft.median * 1e3)),
            number(Some(self.prefill.median)),
            number(self.decode.map(|decode| decode.median)),
            percentile(|token| token.p50),
            percentile(|token| token.p90),
            percentile(|token| token.p99),
            each(|each| each.kernel_ms),
            each(|each| each.host_ms),
            each(|each| Some(each.nodes)),
            each(|each| each.kernels),
            number(self.weight_gb_s(&report.model)),
            percent.unwrap_or_else(|| "-".into()),
            number(self.prefill_tflop_s(&report.model)),
            (memory / 1_000_000).to_string(),
        ]
    }
}

impl Kernel {
    fn json(&self) -> Value {
        json!({ "name": self.name, "ms_per_prompt_token": self.prompt, "ms_per_token": self.generated })
    }
}

/// Times are in milliseconds, memory in megabytes.
pub(super) const COLUMNS: [&str; 18] = [
    "prompt",
    "generate",
    "batch",
    "sampling",
    "TTFT",
    "prefill tok/s",
    "decode tok/s",
    "p50",
    "p90",
    "p99",
    "kernels",
    "host",
    "nodes",
    "calls",
    "weights GB/s",
    "of reads",
    "prefill TFLOP/s",
    "memory",
];

impl BenchReport {
    pub(crate) fn json(&self) -> Value {
        let mut report = about(&self.machine, &self.model);
        report["runs"] = self.runs.iter().map(|run| run.json(self)).collect();
        report
    }

    /// One row for each run, under [`COLUMNS`].
    pub(crate) fn rows(&self) -> Vec<[String; COLUMNS.len()]> {
        self.runs.iter().map(|run| run.cells(self)).collect()
    }

    pub(crate) fn text(&self) -> String {
        let [model, machine] = heading(&self.machine, &self.model);
        let rows = [vec![COLUMNS.map(str::to_owned)], self.rows()].concat();
        format!("{model}\n{machine}\n\n{}", table(&rows))
    }

    pub(crate) fn picture(&self) -> Picture {
        let bars = |of: fn(&Run) -> Option<Spread>| {
            self.runs.iter().map(|run| (label(run.workload), of(run))).collect::<Vec<_>>()
        };
        let prefill = bars(|run| Some(run.prefill));
        Picture {
            heading: heading(&self.machine, &self.model),
            columns: COLUMNS.map(str::to_owned).to_vec(),
            rows: self.rows().iter().map(|cells| cells.to_vec()).collect(),
            panels: vec![
                Panel { class: "prefill", title: "Prefill, tokens per second", bars: prefill },
                Panel { class: "decode", title: "Decode, tokens per second", bars: bars(|run| run.decode) },
            ],
        }
    }

    /// A table of the milliseconds of each kernel in each run.
    pub(crate) fn kernels(&self) -> String {
        let titles =
            ["prompt", "generate", "batch", "sampling", "kernel", "per prompt token", "per generated token"];
        let mut rows = vec![titles.map(str::to_owned)];
        for Run { workload: Workload { prompt, generate, batch, sampling }, kernels, .. } in &self.runs {
            rows.extend(kernels.iter().map(|kernel| {
                let [prompt, generate, batch] = [prompt, generate, batch].map(usize::to_string);
                let time = |ms: Option<f64>| ms.map_or("-".into(), |ms| format!("{ms:.3}"));
                [
                    prompt,
                    generate,
                    batch,
                    sampling.name().into(),
                    kernel.name.into(),
                    time(Some(kernel.prompt)),
                    time(kernel.generated),
                ]
            }));
        }
        table(&rows)
    }
}

fn memory_gb_s(gpu: &Gpu) -> Option<f64> {
    Some(gpu.memory_bandwidth? / 1e9)
}

/// The model and the machine, as JSON.
pub(super) fn about(machine: &Machine, model: &ModelReport) -> Value {
    json!({
        "lanner": env!("CARGO_PKG_VERSION"),
        "machine": {
            "cpu": machine.cpu,
            "cores": machine.cores,
            "threads": machine.threads,
            "vectors": machine.vectors,
            "read_gb_s": machine.read_gb_s,
            "gpu": model.gpu.as_ref().map(|gpu| {
                json!({ "name": gpu.name, "memory_gb_s": memory_gb_s(gpu) })
            }),
        },
        "model": {
            "name": model.name,
            "shape": model.shape,
            "parameters": model.parameters,
            "active_parameters": model.active_parameters,
            "weight_bytes": model.weight_bytes,
            "quantization": model.format,
            "precision": model.precision.map(Precision::name),
        },
    })
}

/// The model and the machine, in two lines.
pub(super) fn heading(machine: &Machine, model: &ModelReport) -> [String; 2] {
    let random = if model.shape.is_some() { ", random weights" } else { "" };
    let precision = model.precision.map_or(String::new(), |p| format!(", precision {}", p.name()));
    let gpu = model
        .gpu
        .as_ref()
        .map_or(String::new(), |gpu| format!("{}, memory {} GB/s; ", gpu.name, number(memory_gb_s(gpu))));
    let count = |n: usize, noun: &str| format!("{n} {noun}{}", if n == 1 { "" } else { "s" });
    [
        format!(
            "{}: {:.1} million parameters, {}, {:.1} MB{random}{precision}",
            model.name,
            model.parameters as f64 / 1e6,
            model.format,
            model.weight_bytes as f64 / 1e6
        ),
        format!(
            "{gpu}{}: {}, {}, {}, reads {} GB/s",
            machine.cpu.as_deref().unwrap_or("unknown processor"),
            count(machine.cores, "core"),
            count(machine.threads, "thread"),
            machine.vectors,
            number(machine.read_gb_s)
        ),
    ]
}

fn label(Workload { prompt, generate, batch, sampling }: Workload) -> String {
    let times = if batch == 1 { String::new() } else { format!("{batch} × ") };
    let sampled = match sampling {
        SamplingKind::Greedy => String::new(),
        other => format!(", {}", other.name()),
    };
    format!("{times}{prompt} in, {generate} out{sampled}")
}

/// At least three significant digits.
pub(crate) fn number(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(value) if value >= 100.0 => format!("{value:.0}"),
        Some(value) if value >= 10.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.2}"),
    }
}
