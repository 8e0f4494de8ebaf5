//! Models that fit into this machine's memory, at which context and how fast: local models as they
//! are, and every model of the catalogue in several formats.

use engine::{
    Footprint, Headers, Memory, Options,
    quantize::{Mode, Quantization, QuantizeError, quantization},
};

use super::{
    MeasuredModel, Room,
    calibration::Calibration,
    catalog::{RecordedModel, recorded},
    predict::{Prediction, predict},
};
use crate::hub::megabytes;

/// A model on this machine.
#[derive(Clone)]
pub(crate) struct NamedHeaders {
    pub name: String,
    pub headers: Headers,
}

/// A model in one format.
pub(crate) struct SurveyRow {
    pub model: String,
    /// The repository, of a model of the catalogue.
    pub source: Option<String>,
    /// Whether it is on this machine in this format.
    pub local: bool,
    pub format: String,
    /// Or why nothing is known.
    pub found: Result<SurveyedModel, String>,
    /// Tokens per second in a prompt and while decoding.
    pub measured: Option<[f64; 2]>,
}

pub(crate) struct SurveyedModel {
    pub weight_bytes: usize,
    /// Bytes of state for each token.
    pub token_bytes: usize,
    pub context_length: usize,
    pub fits: Fit,
    /// The same under --memory-limit.
    pub fits_limit: Option<Fit>,
    pub prediction: Prediction,
}

/// Whether a model fits, with a sequence of how many tokens.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fit {
    /// 0: it does not fit.
    pub tokens: usize,
    /// Why not, or why not more.
    pub reason: Option<String>,
}

/// Everything that a row needs.
struct Surveyor<'a> {
    room: &'a Room,
    options: &'a Options,
    calibration: &'a Calibration,
    measured: &'a [MeasuredModel],
}

/// Rows of local models, then of the catalogue.
pub(crate) fn survey(
    local: &[NamedHeaders],
    room: &Room,
    options: &Options,
    calibration: &Calibration,
    measured: &[MeasuredModel],
) -> Vec<SurveyRow> {
    let surveyor = Surveyor { room, options, calibration, measured };
    let recorded = recorded();
    let own = local.iter().map(|NamedHeaders { name, headers }| (&**name, None, headers));
    let published =
        recorded.iter().map(|RecordedModel { name, source, headers }| (*name, Some(&**source), headers));
    own.chain(published).flat_map(|(name, source, headers)| surveyor.rows(name, source, headers)).collect()
}

/// Formats that `lanner quantize` makes.
fn formats() -> impl Iterator<Item = Quantization> {
    [8, 6, 4].into_iter().filter_map(|bits| quantization(Mode::Affine, Some(bits), None).ok())
}

impl SurveyRow {
    fn is_dense(&self) -> bool {
        ["bfloat16", "float16", "float32"].contains(&&*self.format)
    }
}

impl Surveyor<'_> {
    /// The model as it is and, unless it is quantised already, as `lanner quantize` makes it.
    fn rows(&self, name: &str, source: Option<&str>, headers: &Headers) -> Vec<SurveyRow> {
        let Ok(own) = self.row(name, source, headers, None) else { return vec![] };
        let formats = formats().filter(|_| own.is_dense());
        let copies = formats.filter_map(|format| self.row(name, source, headers, Some(format)).ok());
        let copies: Vec<SurveyRow> = copies.collect();
        [own].into_iter().chain(copies).collect()
    }

    /// # Errors
    /// The model is quantised already.
    fn row(
        &self,
        name: &str,
        source: Option<&str>,
        headers: &Headers,
        format: Option<Quantization>,
    ) -> Result<SurveyRow, QuantizeError> {
        let is_local = source.is_none() && format.is_none();
        let footprint = match Footprint::of(headers, self.options, format) {
            Err(error @ QuantizeError::AlreadyQuantized(_)) => return Err(error),
            found => found.map_err(|error| error.to_string()),
        };
        let measured = self.measured.iter().find(|measured| is_local && measured.name == name);
        let format = footprint.as_ref().map_or_else(|_| "-".into(), |found| found.weights.format.clone());
        Ok(SurveyRow {
            model: name.into(),
            source: source.map(str::to_owned),
            local: is_local,
            measured: measured.map(|measured| [measured.prefill.median, measured.decode.median]),
            found: footprint.map(|footprint| self.found(&footprint)),
            format,
        })
    }

    fn found(&self, footprint: &Footprint) -> SurveyedModel {
        let memory = &footprint.memory;
        let fit = |room: u64, owner: &str| Fit::of(memory, footprint.context_length, room as usize, owner);
        SurveyedModel {
            weight_bytes: memory.weights,
            token_bytes: memory.token,
            context_length: footprint.context_length,
            fits: fit(self.room.bytes, self.room.rule),
            fits_limit: self.options.memory_limit.map(|limit| fit(limit as u64, "the memory limit")),
            prediction: predict(footprint, self.calibration),
        }
    }
}

impl Fit {
    fn of(memory: &Memory, context: usize, room: usize, owner: &str) -> Fit {
        let under = Memory { limit: Some(room), ..memory.clone() };
        let human = |bytes: usize| megabytes(bytes as u64);
        let least = memory.weights + memory.step + memory.state(2);
        if least > room {
            let reason = format!(
                "weights {} and a step {} are more than {owner}, {}",
                human(memory.weights),
                human(memory.step),
                human(room)
            );
            return Fit { tokens: 0, reason: Some(reason) };
        }
        let tokens = under.most_tokens(context);
        let reason = (tokens < context).then(|| {
            format!(
                "{} of state for {context} tokens do not fit beside the weights",
                human(memory.state(context))
            )
        });
        Fit { tokens, reason }
    }
}
