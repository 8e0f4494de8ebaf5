//! Settings of the config file that follow from what was measured.

use super::{Effort, MeasuredModel, Room, survey::SurveyRow};

/// A key of the section `[model]`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Setting {
    pub key: &'static str,
    pub value: SettingValue,
    /// Why, in a few words.
    pub reason: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SettingValue {
    Text(String),
    Number(usize),
}

/// A drafter must be this much faster than plain decoding to be worth a setting.
const GAIN: f64 = 1.05;

/// The settings for a server of the measured model; `path` is how the user named it, if it was
/// named. None for speculation unless one drafter beats both plain decoding and `auto`, the
/// default, which falls back to plain decoding by itself.
pub(crate) fn advice(
    path: Option<&str>,
    measured: &MeasuredModel,
    rows: &[SurveyRow],
    room: &Room,
    effort: Effort,
) -> Vec<Setting> {
    let mut settings = vec![];
    if let Some(path) = path {
        let (value, reason) = (SettingValue::Text(path.into()), "the measured model".into());
        settings.push(Setting { key: "path", value, reason });
    }
    if let Some(limit) = room.group_limit {
        let value = SettingValue::Number((limit / 10 * 9) as usize);
        let reason = "nine tenths of what the control group allows; beyond that the system ends the process";
        settings.push(Setting { key: "memory-limit", value, reason: reason.into() });
    }
    let own = rows.iter().find(|row| row.local && row.model == measured.name);
    if let Some(found) = own.and_then(|row| row.found.as_ref().ok()) {
        let fit = found.fits_limit.as_ref().unwrap_or(&found.fits);
        if fit.tokens > 0 && fit.tokens < found.context_length {
            let value = SettingValue::Number(fit.tokens);
            let reason = format!("its context of {} tokens does not fit", found.context_length);
            settings.push(Setting { key: "max-context", value, reason });
        }
    }
    // One short text says too little.
    settings.extend(speculation(measured).filter(|_| effort == Effort::Full));
    settings
}

fn speculation(measured: &MeasuredModel) -> Option<Setting> {
    let right = measured.drafters.iter().filter(|drafter| drafter.identical);
    let best = right.max_by(|a, b| a.ratio.total_cmp(&b.ratio))?;
    let auto = measured.drafters.iter().find(|drafter| drafter.mode == "auto").map_or(1.0, |auto| auto.ratio);
    let wins = best.mode != "auto" && best.ratio >= GAIN * auto.max(1.0);
    wins.then(|| Setting {
        key: "speculate",
        value: SettingValue::Text(best.mode.clone()),
        reason: format!(
            "{:.2} times the speed of plain decoding on the measured texts, auto {auto:.2}",
            best.ratio
        ),
    })
}

impl SettingValue {
    /// The value as TOML.
    pub(crate) fn toml(&self) -> String {
        match self {
            // A JSON string is a TOML string.
            SettingValue::Text(text) => serde_json::Value::from(text.as_str()).to_string(),
            SettingValue::Number(number) => number.to_string(),
        }
    }
}
