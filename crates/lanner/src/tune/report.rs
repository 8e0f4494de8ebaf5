//! The result of `lanner tune`, as text and as JSON; docs/tune.md describes both.

use serde_json::{Value, json};

use super::{
    Effort, MeasuredModel, Room, Setting,
    calibration::Calibration,
    chips::Chip,
    survey::{Fit, SurveyRow, SurveyedModel},
};
use crate::{
    bench::{machine::Machine, number},
    hub::megabytes,
    terminal::table,
};

/// A prediction that is off by more than this part of the measured speed is pointed out.
const LARGE_ERROR: f64 = 0.25;
/// Version of the JSON.
const SCHEMA: u32 = 1;

pub(crate) struct TuneReport {
    pub effort: Effort,
    pub machine: Machine,
    pub chip: Option<Chip>,
    pub room: Room,
    pub memory_limit: Option<usize>,
    pub calibration: Calibration,
    pub measured: Vec<MeasuredModel>,
    pub rows: Vec<SurveyRow>,
    pub settings: Vec<Setting>,
}

/// A speed that was predicted and measured.
struct SpeedError {
    model: String,
    what: &'static str,
    predicted: f64,
    measured: f64,
}

impl SpeedError {
    /// Relative to the measured speed: positive if it was predicted too high.
    fn share(&self) -> f64 {
        self.predicted / self.measured - 1.0
    }
}

impl TuneReport {
    pub(crate) fn text(&self) -> String {
        let parts = [self.heading(), self.survey(), self.errors(), self.drafters(), self.advice()];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n")
    }

    fn heading(&self) -> String {
        let Machine { cpu, cores, threads, vectors, .. } = &self.machine;
        let cpu = cpu.as_deref().unwrap_or("unknown processor");
        let mut text = format!(
            "{cpu}: {cores} cores, {threads} threads, {vectors}, reads {} GB/s\n",
            number(Some(self.calibration.read_gb_s))
        );
        if let Some(Chip { name, gpu_cores, published_gb_s }) = &self.chip {
            let cores = gpu_cores.map_or(String::new(), |cores| format!(" with {cores} GPU cores"));
            let published = published_gb_s.map_or("not in the table".into(), |gb_s| format!("{gb_s} GB/s"));
            text += &format!("{name}{cores}: published bandwidth {published}\n");
        }
        let Room { total, bytes, rule, .. } = &self.room;
        text += &format!("memory {}; models may take {}, {rule}\n", megabytes(*total), megabytes(*bytes));
        if let Some(limit) = self.memory_limit {
            text += &format!("memory limit {}\n", megabytes(limit as u64));
        }
        for probe in &self.calibration.probes {
            text += &format!(
                "{}: weights are read at {} GB/s, prompts computed at {} Gflop/s\n",
                probe.format,
                number(Some(probe.weight_gb_s)),
                number(Some(probe.prefill_gflop_s))
            );
        }
        text + &format!("a layer takes {:.3} ms beside that\n", self.calibration.layer_ms)
    }

    fn survey(&self) -> String {
        let titles = [
            "model",
            "format",
            "weights",
            "fits",
            "context",
            "under limit",
            "decode tok/s",
            "measured",
            "prefill tok/s",
            "measured",
            "why not",
        ];
        let rows = self.rows.iter().map(|row| {
            let measured = |i: usize| number(row.measured.map(|speeds| speeds[i]));
            let name = if row.local { format!("{} (here)", row.model) } else { row.model.clone() };
            let cells = match &row.found {
                Err(error) => {
                    ["-", "unknown", "-", "-", "-", "-", "-", "-", error.as_str()].map(str::to_owned)
                }
                Ok(found) => [
                    megabytes(found.weight_bytes as u64),
                    if found.fits.tokens > 0 { "yes" } else { "no" }.into(),
                    context(&found.fits, found.context_length),
                    found.fits_limit.as_ref().map_or("-".into(), |fit| context(fit, found.context_length)),
                    number(found.prediction.decode),
                    measured(1),
                    number(found.prediction.prefill),
                    measured(0),
                    found.why().unwrap_or_default().to_owned(),
                ],
            };
            let [a, b, c, d, e, f, g, h, i] = cells;
            [name, row.format.clone(), a, b, c, d, e, f, g, h, i]
        });
        table(&[titles.map(str::to_owned)].into_iter().chain(rows).collect::<Vec<_>>())
    }

    /// Every speed that was predicted and measured.
    fn speed_errors(&self) -> Vec<SpeedError> {
        let of = |row: &SurveyRow| {
            let ([prefill, decode], found) = (row.measured?, row.found.as_ref().ok()?);
            let compare = |what, predicted: Option<f64>, measured| {
                Some(SpeedError { model: row.model.clone(), what, predicted: predicted?, measured })
            };
            let both = [
                compare("decode", found.prediction.decode, decode),
                compare("prefill", found.prediction.prefill, prefill),
            ];
            Some(both.into_iter().flatten().collect::<Vec<_>>())
        };
        self.rows.iter().filter_map(of).flatten().collect()
    }

    fn errors(&self) -> String {
        let line = |error: &SpeedError| {
            let SpeedError { model, what, predicted, measured } = error;
            let large = match error.share().abs() > LARGE_ERROR {
                true => format!(": more than {:.0} %, so trust the measurement", LARGE_ERROR * 100.0),
                false => String::new(),
            };
            format!(
                "{model}, {what}: predicted {}, measured {} tok/s, off by {:+.0} %{large}\n",
                number(Some(*predicted)),
                number(Some(*measured)),
                error.share() * 100.0
            )
        };
        self.speed_errors().iter().map(line).collect()
    }

    fn drafters(&self) -> String {
        let line = |name: &str, drafter: &super::measure::MeasuredDrafter| {
            let differs = if drafter.identical { "" } else { "; ANSWERS DIFFER from plain decoding" };
            format!(
                "{name}, --speculate {}: {:.2} times the speed of plain decoding, {} of {} drafted tokens accepted{differs}\n",
                drafter.mode, drafter.ratio, drafter.accepted, drafter.drafted
            )
        };
        let of = |model: &MeasuredModel| {
            model.drafters.iter().map(|drafter| line(&model.name, drafter)).collect::<String>()
        };
        self.measured.iter().map(of).collect()
    }

    fn advice(&self) -> String {
        if self.settings.is_empty() {
            return "settings: the defaults are right for this machine; there is nothing to write\n".into();
        }
        let lines = self
            .settings
            .iter()
            .map(|Setting { key, value, reason }| format!("{key} = {} # {reason}\n", value.toml()));
        format!(
            "settings for the config file's section [model]; --write merges them:\n{}",
            lines.collect::<String>()
        )
    }

    /// Modes whose answers differ from plain decoding, although they must not.
    pub(crate) fn differences(&self) -> Vec<String> {
        let of = |model: &MeasuredModel| {
            let wrong = model.drafters.iter().filter(|drafter| !drafter.identical);
            wrong.map(|drafter| format!("{}: {}", model.name, drafter.mode)).collect::<Vec<_>>()
        };
        self.measured.iter().flat_map(of).collect()
    }

    pub(crate) fn json(&self) -> Value {
        let Machine { cpu, cores, threads, vectors, .. } = &self.machine;
        let Room { total, group_limit, bytes, rule } = &self.room;
        let probes = self.calibration.probes.iter().map(|probe| {
            json!({
                "format": probe.format,
                "weight_gb_s": probe.weight_gb_s,
                "prefill_gflop_s": probe.prefill_gflop_s,
            })
        });
        let errors = self.speed_errors().into_iter().map(|error| {
            json!({
                "model": error.model,
                "speed": error.what,
                "predicted_tok_s": error.predicted,
                "measured_tok_s": error.measured,
                "error": error.share(),
                "large": error.share().abs() > LARGE_ERROR,
            })
        });
        let settings = self.settings.iter().map(
            |Setting { key, value, reason }| json!({ "key": key, "toml": value.toml(), "reason": reason }),
        );
        json!({
            "schema": SCHEMA,
            "lanner": env!("CARGO_PKG_VERSION"),
            "effort": self.effort.name(),
            "machine": { "cpu": cpu, "cores": cores, "threads": threads, "vectors": vectors },
            "chip": self.chip.as_ref().map(|chip| json!({
                "name": chip.name, "gpu_cores": chip.gpu_cores, "published_gb_s": chip.published_gb_s,
            })),
            "memory": {
                "total_bytes": total,
                "group_limit_bytes": group_limit,
                "models_bytes": bytes,
                "rule": rule,
                "limit_bytes": self.memory_limit,
            },
            "calibration": {
                "read_gb_s": self.calibration.read_gb_s,
                "layer_ms": self.calibration.layer_ms,
                "formats": probes.collect::<Vec<_>>(),
            },
            "measured": self.measured.iter().map(measured).collect::<Vec<_>>(),
            "models": self.rows.iter().map(row).collect::<Vec<_>>(),
            "errors": errors.collect::<Vec<_>>(),
            "settings": settings.collect::<Vec<_>>(),
        })
    }
}

impl SurveyedModel {
    /// Why it does not fit, or not with its whole context.
    fn why(&self) -> Option<&str> {
        [Some(&self.fits), self.fits_limit.as_ref()]
            .into_iter()
            .flatten()
            .find_map(|fit| fit.reason.as_deref())
    }
}

fn context(fit: &Fit, all: usize) -> String {
    match fit.tokens {
        0 => "-".into(),
        tokens if tokens == all => tokens.to_string(),
        tokens => format!("{tokens} of {all}"),
    }
}

fn measured(model: &MeasuredModel) -> Value {
    json!({
        "model": model.name,
        "format": model.format,
        "weight_bytes": model.weight_bytes,
        "prompt": model.prompt,
        "prefill_tok_s": model.prefill.json(),
        "decode_tok_s": model.decode.json(),
        "drafters": model.drafters.iter().map(super::measure::MeasuredDrafter::json).collect::<Vec<_>>(),
    })
}

fn row(row: &SurveyRow) -> Value {
    let fit = |fit: &Fit| json!({ "fits": fit.tokens > 0, "context": fit.tokens, "reason": fit.reason });
    let found = row.found.as_ref().ok();
    json!({
        "model": row.model,
        "source": row.source,
        "local": row.local,
        "format": row.format,
        "error": row.found.as_ref().err(),
        "weight_bytes": found.map(|found| found.weight_bytes),
        "state_bytes_per_token": found.map(|found| found.token_bytes),
        "context_length": found.map(|found| found.context_length),
        "machine": found.map(|found| fit(&found.fits)),
        "limit": found.and_then(|found| found.fits_limit.as_ref().map(fit)),
        "predicted": found.map(|found| json!({
            "decode_tok_s": found.prediction.decode,
            "prefill_tok_s": found.prediction.prefill,
            "basis": found.prediction.basis,
        })),
        "measured": row.measured.map(|[prefill, decode]| json!({
            "decode_tok_s": decode, "prefill_tok_s": prefill,
        })),
    })
}
