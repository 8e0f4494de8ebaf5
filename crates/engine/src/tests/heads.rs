//! Heads that predict tokens further ahead: against transformers, in every cut, and how often merlin's is right.

use std::path::Path;

use mlx::{Array, Dtype};
use serde::Deserialize;

use super::{checkpoint, load_checkpoint, load_golden};
use crate::{
    batch::Batch,
    cache::Cache,
    checkpoint::Checkpoint,
    models::{Model, Mtp},
    speculate::mtp::{Ahead, Place, Row, propose},
    weights::Types,
};

const FLOAT32: Types = Types { activations: Some(Dtype::Float32), weights: None };

/// What tools/goldens/heads.py records.
#[derive(Deserialize)]
struct Recorded {
    prompt_ids: Vec<u32>,
    positions: Vec<usize>,
    logits: Vec<Vec<f32>>,
    drafts: Vec<u32>,
    draft_margins: Vec<f32>,
    last_logits: Vec<f32>,
}

fn recorded(folder: &Path) -> Option<Recorded> {
    let text = std::fs::read_to_string(folder.join("head.json")).ok()?;
    Some(serde_json::from_str(&text).expect("a recorded head"))
}

fn ids(tokens: &[u32]) -> Array {
    Array::from_slice(tokens, &[tokens.len() as i32])
}

/// Hidden states `[tokens, hidden_size]` of a new sequence.
fn hidden(model: &dyn Model, tokens: &[u32]) -> Array {
    let mut caches = model.make_caches();
    model.forward(&ids(tokens), &mut Batch::new([(tokens.len(), 0, &mut caches[..])]))
}

/// The head's logits for all pairs of a hidden state and the token behind it, in chunks of `chunk`.
fn head_logits(model: &dyn Model, mtp: &Mtp, hidden: &Array, tokens: &[u32], chunk: usize) -> Vec<Vec<f32>> {
    let (mut caches, mut logits) = (mtp.make_caches(), vec![]);
    for (i, tokens) in tokens[1..].chunks(chunk).enumerate() {
        let (at, n) = (i * chunk, tokens.len());
        let mut batch = Batch::new([(n, at, &mut caches[..])]);
        let out = mtp.forward(&hidden.slice(0, at as i32, (at + n) as i32), &ids(tokens), &mut batch);
        let out = model.logits(&out).astype(Dtype::Float32);
        logits.extend(out.to_vec::<f32>().expect("logits").chunks(out.dim(1) as usize).map(<[f32]>::to_vec));
    }
    logits
}

fn greedy(logits: &Array, _: &[Place]) -> Array {
    logits.argmax(-1)
}

fn read(draft: &Option<Array>) -> Vec<u32> {
    draft.as_ref().map_or(vec![], |draft| draft.to_vec().expect("tokens"))
}

fn off(got: &[f32], expected: &[f32]) -> f32 {
    got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn recorded_heads_predict_what_transformers_says() {
    let mut seen = 0;
    for entry in std::fs::read_dir(checkpoint::recorded()).expect("goldens") {
        let folder = entry.expect("an entry").path();
        let Some(recorded) = recorded(&folder) else { continue };
        let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
        check(&name, &recorded);
        seen += 1;
    }
    assert!(seen >= 17, "{seen} recorded heads");
}

fn check(name: &str, recorded: &Recorded) {
    mlx::set_precision(mlx::Precision::Float32);
    let model = load_golden(name, FLOAT32);
    let mtp = model.mtp().unwrap_or_else(|| panic!("{name} has a head"));
    let hidden = hidden(&*model, &recorded.prompt_ids);
    let logits = head_logits(&*model, mtp, &hidden, &recorded.prompt_ids, 4096);
    let mut worst = 0.0f32;
    for (&at, expected) in recorded.positions.iter().zip(&recorded.logits) {
        worst = worst.max(off(&logits[at], expected));
    }
    for chunk in [1, 7, 64] {
        assert_eq!(head_logits(&*model, mtp, &hidden, &recorded.prompt_ids, chunk), logits, "{name}: {chunk}");
    }
    // The hidden states are of all tokens but the last, as if that had just been sampled.
    let mut ahead = Ahead::new(mtp);
    let n = recorded.prompt_ids.len() - 1;
    ahead.observe(0, &hidden.slice(0, 0, n as i32));
    let row = Row { ahead: &mut ahead, tokens: &recorded.prompt_ids, depth: recorded.drafts.len() };
    let mut last = vec![];
    let drafts = propose(&*model, &mut [row], &mut |logits, places| {
        last = logits.to_vec::<f32>().expect("logits");
        greedy(logits, places)
    });
    let decided = recorded.draft_margins.iter().position(|&margin| margin < 2e-3);
    let decided = decided.unwrap_or(recorded.drafts.len());
    assert_eq!(read(&drafts[0])[..decided], recorded.drafts[..decided], "{name}");
    worst = worst.max(off(&last, &recorded.last_logits));
    println!("{name}: within {worst:.1e}");
    assert!(worst < 3e-4, "{name}: logits are off by {worst}");
}
