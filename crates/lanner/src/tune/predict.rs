//! Speeds of a model that has not run here, from its footprint and the calibration.

use engine::Footprint;

use super::calibration::{Calibration, PROMPT, Probe};

/// Tokens per second of one request; `None`: nothing to predict it from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Prediction {
    pub decode: Option<f64>,
    pub prefill: Option<f64>,
    /// The stored format whose measurements it rests on; `None`: the read bandwidth alone.
    pub basis: Option<String>,
}

/// Speeds of decoding after [`PROMPT`] tokens, and of a prompt of that length.
///
/// A step reads the weights and the state of the sequence once and spends a fixed time on each
/// layer; a prompt computes two operations for each parameter of the layers and token.
pub(crate) fn predict(footprint: &Footprint, calibration: &Calibration) -> Prediction {
    let probe = calibration.probe_of(&footprint.weights.format);
    let layers_ms = calibration.layer_ms * footprint.layers as f64;
    let gb_s = probe.map_or(calibration.read_gb_s, |probe| probe.weight_gb_s);
    let decode = footprint.weights.reads.map(|reads| {
        let weights = (reads.every_step + reads.per_token) as f64 / gb_s;
        let state = footprint.memory.stored.as_ref().map_or(0, |stored| stored.at(PROMPT));
        let reading_ms = (weights + state as f64 / calibration.read_gb_s) / 1e6;
        1e3 / (reading_ms + layers_ms)
    });
    let prefill = probe.zip(footprint.weights.active_parameters).map(|(probe, parameters)| {
        let computing_ms = 2.0 * parameters as f64 * PROMPT as f64 / probe.prefill_gflop_s / 1e6;
        PROMPT as f64 * 1e3 / (computing_ms + layers_ms)
    });
    Prediction { decode, prefill, basis: probe.map(|probe| probe.format.clone()) }
}

impl Calibration {
    /// The probe of this format, else of one with as many bits in other groups, or as wide floats.
    fn probe_of(&self, format: &str) -> Option<&Probe> {
        let kind = |format: &str| match format {
            "float16" => "bfloat16".to_owned(),
            format => format.split(',').next().unwrap_or_default().to_owned(),
        };
        let exact = self.probes.iter().find(|probe| probe.format == format);
        exact.or_else(|| self.probes.iter().find(|probe| kind(&probe.format) == kind(format)))
    }
}
