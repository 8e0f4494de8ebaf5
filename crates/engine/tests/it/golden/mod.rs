//! Recorded checkpoints against the logits and tokens transformers gave for them in float32:
//! however the prompt is cut, whoever else is running.
//!
//! The folders in `tests/goldens` come from tools/goldens. LANNER_GOLDENS names a folder of more,
//! with weights.

mod long;
mod merlin;
mod routers;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use engine::Precision;

use crate::support::{
    checkpoint, document,
    recorded::{
        Answer, Golden, check, check_each, folders, golden, holds_weights, name, relative_error,
        same_in_every_cut,
    },
};

const LOGIT_BOUND: f32 = 3e-4;
/// How far logits may be off on average, as a part of their own size, where products round
/// activations: to bfloat16 (a router may then choose another expert), or beside quantised weights
/// to integers of 16 bits.
const ROUNDED: f64 = 0.15;
const ROUNDED_TO_INTEGERS: f64 = 0.003;

#[test]
fn every_golden_in_every_chunking_alone_and_together() {
    let folders = folders(false);
    assert!(folders.len() >= 80, "the goldens are there");
    let mut rows = BTreeMap::new();
    check_each(&folders, |folder| {
        let worst = check_golden(folder)?;
        Row::add(&mut rows, folder, &name(folder), worst);
        Ok(format!("logits within {worst:.1e}"))
    });
    check_document(&rows);
}

/// A family's line in docs/models.md.
#[derive(Default)]
struct Row {
    goldens: Vec<String>,
    references: BTreeSet<String>,
    worst: f32,
}

impl Row {
    /// Counts one golden of ours; those from elsewhere are not in the document.
    fn add(rows: &mut BTreeMap<&'static str, Row>, folder: &Path, name: &str, worst: f32) {
        if folder.parent() != Some(&checkpoint::recorded()) {
            return;
        }
        let config = std::fs::read_to_string(folder.join("config.json")).expect("config.json");
        let config: serde_json::Value = serde_json::from_str(&config).expect("JSON");
        let of = |(_, types): &(&str, &[&str])| types.iter().any(|&known| config["model_type"] == known);
        let row = rows.entry(engine::families().find(of).expect("a family").0).or_default();
        row.goldens.push(name.into());
        let reference = golden(folder).reference;
        row.references.insert(reference.split(' ').next().unwrap_or_default().into());
        row.worst = row.worst.max(worst);
    }
}

/// Bounds that the document names.
const LADDER: [f32; 6] = [1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 3e-4];

fn check_document(rows: &BTreeMap<&'static str, Row>) {
    let mut text =
        String::from("| family | model_type | checkpoints | against | within |\n|---|---|---|---|---|\n");
    for (family, types) in engine::families() {
        let row = rows.get(family).unwrap_or_else(|| panic!("{family} has no golden"));
        let within = LADDER.iter().find(|&&bound| row.worst <= bound).expect("below the bound");
        let references: Vec<&str> = row.references.iter().map(String::as_str).collect();
        text += &format!(
            "| `{family}` | {} | {} | {} | {within:.0e} |\n",
            types.join(", "),
            row.goldens.join(", "),
            references.join(", ")
        );
    }
    let written = document::part("families", &text);
    // Other processors round a little differently, so the figures may be off by a factor of two or
    // three.
    let columns = |text: &str| {
        text.lines().map(|line| line.rsplitn(3, '|').last().map(str::to_string)).collect::<Vec<_>>()
    };
    assert_eq!(
        columns(&written),
        columns(&text),
        "docs/models.md is stale: run this test with UPDATE_DOCS=1"
    );
    for line in written.lines().skip(2) {
        let column = |i| line.split('|').nth(i).unwrap_or_default().trim();
        let (family, within) = (column(1).trim_matches('`'), column(5).parse::<f32>().expect("a bound"));
        assert!(rows[family].worst <= 3.0 * within, "{family} is not within {within:e} any more");
    }
}

fn check_golden(folder: &Path) -> Result<f32, String> {
    let golden = golden(folder);
    let name = name(folder);
    let written = (!holds_weights(folder)).then(|| checkpoint::folder(&name));
    let folder = written.as_ref().map_or(folder, |written| written.path());
    let mut worst = 0.0f32;
    let answers = same_in_every_cut(folder, &golden, Precision::Float32, &[4096, 256, 64, 7, 1], 20)?;
    for (case, answer) in golden.cases.iter().zip(&answers) {
        worst = worst.max(check(case, answer, LOGIT_BOUND)?);
    }
    if name.contains("-mlx-") {
        // Others have no products of integers.
        same_in_every_cut(folder, &golden, Precision::Int8, &[4096, 37, 1], 20)?;
    }
    let answers = same_in_every_cut(folder, &golden, Precision::Rounded, &[4096, 37, 1], 20)?;
    check_rounded(&name, &golden, &answers)?;
    Ok(worst)
}

/// Logits of the prompts against the reference, on average: a rounded router may choose another
/// expert here and there.
fn check_rounded(name: &str, golden: &Golden, answers: &[Answer]) -> Result<(), String> {
    let off = relative_error(golden, answers);
    let integers = name.contains("-mlx-") && !name.ends_with("mxfp8");
    match off <= if integers { ROUNDED_TO_INTEGERS } else { ROUNDED } {
        true => Ok(()),
        false => Err(format!("rounded products put logits off by {off:.3} of their size")),
    }
}
