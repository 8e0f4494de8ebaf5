//! Predictions, what fits, and advice, from made-up measurements.

use engine::{Footprint, Options};

use super::{
    advice::SettingValue,
    calibration::{Calibration, Probe},
    catalog::{RecordedModel, recorded},
    measure::MeasuredDrafter,
    predict::predict,
    survey::Fit,
    *,
};
use crate::bench::Spread;

const GIB: u64 = 1 << 30;

fn calibration() -> Calibration {
    let probe = |format: &str, weight_gb_s, prefill_gflop_s| Probe {
        format: format.into(),
        weight_gb_s,
        prefill_gflop_s,
    };
    Calibration {
        read_gb_s: 20.0,
        layer_ms: 0.1,
        probes: vec![
            probe("bfloat16", 16.0, 100.0),
            probe("affine 8-bit, group 64", 12.0, 150.0),
            probe("affine 6-bit, group 64", 11.0, 120.0),
            probe("affine 4-bit, group 64", 10.0, 200.0),
            probe("mxfp4", 10.0, 100.0),
        ],
    }
}

fn room(bytes: u64) -> Room {
    Room { total: bytes, group_limit: None, bytes, rule: "the memory" }
}

fn footprint(name: &str) -> Footprint {
    let model = recorded().into_iter().find(|model| model.name == name).unwrap();
    Footprint::of(&model.headers, &cpu(), None).unwrap()
}

fn cpu() -> Options {
    Options { device: Some(engine::Device::Cpu), ..Options::default() }
}

#[test]
fn prediction_is_reading_computing_and_a_time_per_layer() {
    let found = footprint("qwen3-0.6b");
    let reads = found.weights.reads.unwrap();
    let state = found.memory.stored.as_ref().unwrap().at(512);
    let ms = (reads.every_step as f64 / 16.0 + state as f64 / 20.0) / 1e6 + 28.0 * 0.1;
    let predicted = predict(&found, &calibration());
    assert!((predicted.decode.unwrap() - 1e3 / ms).abs() < 1e-9, "{predicted:?}");
    let parameters = found.weights.active_parameters.unwrap();
    assert!((430_000_000..450_000_000).contains(&parameters), "0.6 less the embedding: {parameters}");
    let ms = 2.0 * parameters as f64 * 512.0 / 100.0 / 1e6 + 28.0 * 0.1;
    assert!((predicted.prefill.unwrap() - 512e3 / ms).abs() < 1e-9, "{predicted:?}");
    assert_eq!(predicted.basis.as_deref(), Some("bfloat16"));
}

#[test]
fn format_without_a_probe_is_predicted_from_the_read_bandwidth() {
    let mut found = footprint("qwen3-0.6b");
    found.weights.format = "affine 3-bit, group 64".into();
    let predicted = predict(&found, &calibration());
    assert_eq!((predicted.prefill, predicted.basis), (None, None));
    assert!(predicted.decode.is_some());
    found.weights.format = "affine 4-bit, group 32".into();
    assert_eq!(predict(&found, &calibration()).basis.as_deref(), Some("affine 4-bit, group 64"));
}

#[test]
fn survey_has_every_model_of_the_catalogue_in_every_format() {
    let rows = survey(&[], &room(16 * GIB), &cpu(), &calibration(), &[]);
    for RecordedModel { name, .. } in recorded() {
        let own: Vec<_> = rows.iter().filter(|row| row.model == name).collect();
        let formats: Vec<&str> = own.iter().map(|row| &*row.format).collect();
        let all = ["bfloat16", "affine 8-bit, group 64", "affine 6-bit, group 64", "affine 4-bit, group 64"];
        assert_eq!(formats, if name == "gpt-oss-20b" { &["mxfp4"][..] } else { &all }, "{name}");
        let found: Vec<_> = own
            .iter()
            .map(|row| row.found.as_ref().unwrap_or_else(|error| panic!("{name}: {error}")))
            .collect();
        assert!(found.windows(2).all(|pair| pair[0].weight_bytes > pair[1].weight_bytes), "{name}");
        for found in found {
            assert!(found.prediction.decode.is_some() && found.prediction.prefill.is_some(), "{name}");
            assert_eq!(found.fits.tokens == found.context_length, found.fits.reason.is_none(), "{name}");
        }
    }
    let fits = |model: &str, format: &str| {
        let row = rows.iter().find(|row| row.model == model && row.format.starts_with(format)).unwrap();
        row.found.as_ref().unwrap().fits.tokens
    };
    assert_eq!(fits("qwen3.6-35b", "bfloat16"), 0, "70 GB in 16 GiB");
    assert!(fits("qwen3-8b", "affine 4-bit") > 4096);
}

#[test]
fn context_that_fits_is_the_longest_whose_state_has_room() {
    let found = footprint("qwen3-0.6b");
    let memory = &found.memory;
    let least = memory.weights + memory.step;
    let surveyed = |bytes: usize| {
        let rows = survey(&[], &room(bytes as u64), &cpu(), &calibration(), &[]);
        let row = rows.into_iter().find(|row| row.model == "qwen3-0.6b").unwrap();
        row.found.unwrap().fits
    };
    let Fit { tokens, reason } = surveyed(least + memory.state(3000));
    assert!((3000..3400).contains(&tokens), "{tokens}: buffers grow in steps");
    assert!(reason.unwrap().contains("of state for 40960 tokens"));
    let none = surveyed(least);
    assert!(none.tokens == 0 && none.reason.unwrap().contains("are more than the memory"));
}

fn measured(ratios: &[(&str, f64, bool)]) -> MeasuredModel {
    let spread = Spread { median: 10.0, min: 9.0, max: 11.0 };
    let drafter = |&(mode, ratio, identical): &(&str, f64, bool)| MeasuredDrafter {
        mode: mode.into(),
        ratio,
        drafted: 10,
        accepted: 5,
        identical,
    };
    MeasuredModel {
        name: "owl".into(),
        weight_bytes: 1,
        format: "bfloat16".into(),
        prompt: 512,
        prefill: spread,
        decode: spread,
        drafters: ratios.iter().map(drafter).collect(),
    }
}

#[test]
fn advice_names_a_drafter_only_if_it_beats_plain_decoding_and_auto() {
    let check = |ratios: &[(&str, f64, bool)], expected: Option<&str>| {
        let settings = advice(None, &measured(ratios), &[], &room(GIB), Effort::Full);
        let values: Vec<_> = settings.iter().map(|setting| (setting.key, setting.value.clone())).collect();
        let expected: Vec<_> =
            expected.into_iter().map(|mode| ("speculate", SettingValue::Text(mode.into()))).collect();
        assert_eq!(values, expected, "{ratios:?}");
    };
    check(&[], None);
    check(&[("ngram", 0.8, true), ("mtp", 0.9, true), ("auto", 0.99, true)], None);
    check(&[("ngram", 1.3, true), ("auto", 1.4, true)], None);
    check(&[("ngram", 1.3, true), ("auto", 1.28, true)], None);
    check(&[("ngram", 1.3, true), ("mtp", 1.6, true), ("auto", 1.4, true)], Some("mtp"));
    check(&[("ngram", 1.3, true), ("mtp", 1.6, false), ("auto", 1.1, true)], Some("ngram"));
    let quick = advice(None, &measured(&[("mtp", 1.6, true)]), &[], &room(GIB), Effort::Quick);
    assert_eq!(quick, [], "one text says too little");
}

#[test]
fn advice_keeps_below_the_limit_of_a_control_group() {
    let room = Room { group_limit: Some(10 * GIB), ..room(9 * GIB) };
    let settings = advice(Some("a \"b\""), &measured(&[]), &[], &room, Effort::Full);
    let lines: Vec<String> =
        settings.iter().map(|setting| format!("{} = {}", setting.key, setting.value.toml())).collect();
    assert_eq!(lines, ["path = \"a \\\"b\\\"\"".to_owned(), format!("memory-limit = {}", GIB * 10 / 10 * 9)]);
}
