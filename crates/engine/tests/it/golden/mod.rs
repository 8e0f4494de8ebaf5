//! Recorded checkpoints against the logits and tokens of transformers in float32, in every chunking
//! and batch.
//!
//! tools/goldens records the folders in `tests/goldens`. LANNER_GOLDENS names a folder of more,
//! with weights.

mod long;
mod merlin;
mod routers;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use lanner_engine::Precision;

use crate::support::{
    checkpoint, document,
    recorded::{
        Answer, Golden, check, check_each, folders, golden, holds_weights, name, relative_error,
        same_in_every_cut,
    },
};

const LOGIT_BOUND: f32 = 3e-4;
/// Bound of the mean relative error of logits with rounded activations: to bfloat16, or to integers
/// of 11 significant bits with quantised weights. A router may then choose another expert.
const ROUNDED: f64 = 0.15;
const ROUNDED_TO_INTEGERS: f64 = 0.005;
const ROUNDED_TO_INTEGERS_WITH_EXPERTS: f64 = 0.05;

#[test]
fn goldens_in_every_chunking_and_batch_match_the_reference() {
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

/// A family's row in docs/models.md.
#[derive(Default)]
struct Row {
    goldens: Vec<String>,
    references: BTreeSet<String>,
    worst: f32,
}

impl Row {
    /// Adds a golden of this repository; the document omits others.
    fn add(rows: &mut BTreeMap<&'static str, Row>, folder: &Path, name: &str, worst: f32) {
        if folder.parent() != Some(&checkpoint::recorded()) {
            return;
        }
        let config = std::fs::read_to_string(folder.join("config.json")).expect("config.json");
        let config: serde_json::Value = serde_json::from_str(&config).expect("JSON");
        let of = |(_, types): &(&str, &[&str])| types.iter().any(|&known| config["model_type"] == known);
        let row = rows.entry(lanner_engine::families().find(of).expect("a family").0).or_default();
        row.goldens.push(name.into());
        let reference = golden(folder).reference;
        row.references.insert(reference.split(' ').next().unwrap_or_default().into());
        row.worst = row.worst.max(worst);
    }
}

fn check_document(rows: &BTreeMap<&'static str, Row>) {
    let mut text =
        String::from("| family | model_type | checkpoints | against | within |\n|---|---|---|---|---|\n");
    for (family, types) in lanner_engine::families() {
        let row = rows.get(family).unwrap_or_else(|| panic!("{family} has no golden"));
        let within = document::within(row.worst);
        let references: Vec<&str> = row.references.iter().map(String::as_str).collect();
        text += &format!(
            "| `{family}` | {} | {} | {} | {within:.0e} |\n",
            types.join(", "),
            row.goldens.join(", "),
            references.join(", ")
        );
    }
    document::check("families", &text, |family| rows[family.trim_matches('`')].worst);
}

fn check_golden(folder: &Path) -> Result<f32, String> {
    let golden = golden(folder);
    let name = name(folder);
    let written = (!holds_weights(folder)).then(|| checkpoint::folder(&name));
    let folder = written.as_ref().map_or(folder, |written| written.path());
    let mut worst = 0.0f32;
    let answers = same_in_every_cut(folder, &golden, Precision::Float32, &[4096, 64, 7, 1], 20)?;
    for (case, answer) in golden.cases.iter().zip(&answers) {
        worst = worst.max(check(case, answer, LOGIT_BOUND)?);
    }
    if name.contains("-mlx-") {
        // Only quantised weights have integer products.
        same_in_every_cut(folder, &golden, Precision::Int8, &[4096, 37, 1], 20)?;
    }
    let answers = same_in_every_cut(folder, &golden, Precision::Rounded, &[4096, 37, 1], 20)?;
    check_rounded(&name, &golden, &answers)?;
    Ok(worst)
}

/// Mean error of the prompts' logits: a rounded router may choose another expert.
fn check_rounded(name: &str, golden: &Golden, answers: &[Answer]) -> Result<(), String> {
    let off = relative_error(golden, answers);
    let integers = name.contains("-mlx-") && !name.ends_with("mxfp8");
    let bound = match integers {
        false => ROUNDED,
        true if ["moe", "kimi"].iter().any(|family| name.contains(family)) => {
            ROUNDED_TO_INTEGERS_WITH_EXPERTS
        }
        true => ROUNDED_TO_INTEGERS,
    };
    match off <= bound {
        true => Ok(()),
        false => Err(format!("rounded products put logits off by {off:.4} of their size")),
    }
}
