//! Multi-token prediction heads: compared with transformers for every split of the prompt, and the
//! acceptance rate of merlin's.

use std::{path::Path, rc::Rc};

use mlx::{Array, Dtype};
use serde::Deserialize;

use super::{DraftPosition, HeadContext, HeadRow, MtpDrafter, draft_rows};
use crate::{
    api::{Checkpoint, Sampling},
    batch::{Batch, BatchRow},
    cache::Cache,
    models::{Model, Mtp},
    sample::{SampleRow, Sampler, sample},
    speculate::drafter::{DraftRequest, Drafter, DrafterState, HiddenObserver, HiddenStates},
    tests::{checkpoint, load_checkpoint, load_golden},
    weights::Types,
};

const FLOAT32: Types = Types { activations: Some(Dtype::Float32), weights: None };

/// Recorded by tools/goldens/heads.py.
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

fn part(tokens: usize, past: usize, caches: &mut [Cache]) -> BatchRow<'_> {
    BatchRow { num_tokens: tokens, num_draft: 0, num_computed: past, caches }
}

/// Hidden states `[tokens, hidden_size]` of a new sequence.
fn hidden(model: &dyn Model, tokens: &[u32]) -> Array {
    let mut caches = model.make_caches();
    model.forward(&ids(tokens), &mut Batch::new([part(tokens.len(), 0, &mut caches)]))
}

/// The head's logits for all pairs of a hidden state and the token after it, in chunks of `chunk`.
fn head_logits(model: &dyn Model, mtp: &Mtp, hidden: &Array, tokens: &[u32], chunk: usize) -> Vec<Vec<f32>> {
    let (mut caches, mut logits) = (mtp.make_caches(), vec![]);
    for (i, tokens) in tokens[1..].chunks(chunk).enumerate() {
        let (at, n) = (i * chunk, tokens.len());
        let mut batch = Batch::new([part(n, at, &mut caches)]);
        let out = mtp.forward(&hidden.slice(0, at as i32, (at + n) as i32), &ids(tokens), &mut batch);
        let out = model.logits(&out).astype(Dtype::Float32);
        logits.extend(out.to_vec::<f32>().expect("logits").chunks(out.dim(1) as usize).map(<[f32]>::to_vec));
    }
    logits
}

fn greedy(logits: &Array, _: &[DraftPosition]) -> Array {
    logits.argmax(-1)
}

fn read(draft: &Option<Array>) -> Vec<u32> {
    draft.as_ref().map_or(vec![], |draft| draft.to_vec().expect("tokens"))
}

fn off(got: &[f32], expected: &[f32]) -> f32 {
    got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn head_logits_and_drafts_match_transformers() {
    let mut count = 0;
    for entry in std::fs::read_dir(checkpoint::recorded()).expect("goldens") {
        let folder = entry.expect("an entry").path();
        let Some(recorded) = recorded(&folder) else { continue };
        let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
        check(&name, &recorded);
        count += 1;
    }
    assert!(count >= 17, "{count} recorded heads");
}

fn check(name: &str, recorded: &Recorded) {
    nn::set_precision(nn::Precision::Float32);
    let model = load_golden(name, FLOAT32);
    let mtp = model.mtp().unwrap_or_else(|| panic!("{name} has a head"));
    let hidden = hidden(&*model, &recorded.prompt_ids);
    let logits = head_logits(&*model, mtp, &hidden, &recorded.prompt_ids, 4096);
    let mut worst = 0.0f32;
    for (&at, expected) in recorded.positions.iter().zip(&recorded.logits) {
        worst = worst.max(off(&logits[at], expected));
    }
    for chunk in [1, 7, 64] {
        assert_eq!(
            head_logits(&*model, mtp, &hidden, &recorded.prompt_ids, chunk),
            logits,
            "{name}: {chunk}"
        );
    }
    // Hidden states of all tokens but the last, as if that had just been sampled.
    let mut context = HeadContext::new(mtp);
    let n = recorded.prompt_ids.len() - 1;
    context.observe(0, &hidden.slice(0, 0, n as i32));
    let row = HeadRow { context: &mut context, tokens: &recorded.prompt_ids, depth: recorded.drafts.len() };
    let mut last = vec![];
    let drafts = draft_rows(&*model, &mut [row], &mut |logits, positions| {
        last = logits.to_vec::<f32>().expect("logits");
        greedy(logits, positions)
    });
    let decided = recorded.draft_margins.iter().position(|&margin| margin < 2e-3);
    let decided = decided.unwrap_or(recorded.drafts.len());
    assert_eq!(read(&drafts[0])[..decided], recorded.drafts[..decided], "{name}");
    worst = worst.max(off(&last, &recorded.last_logits));
    println!("{name}: within {worst:.1e}");
    assert!(worst < 3e-4, "{name}: logits are off by {worst}");
}

/// An answer of merlin, and its hidden states.
struct Answer {
    /// Prompt and greedy answer.
    tokens: Vec<u32>,
    /// Hidden states of all tokens, `[tokens, hidden_size]`.
    hidden: Array,
    prompt: usize,
}

/// Tokens that end merlin's answers.
const ENDS: [u32; 2] = [8178, 8180];

fn merlin() -> Box<dyn Model> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/merlin");
    load_checkpoint(&Checkpoint::Folder(folder.into()), FLOAT32)
}

/// Questions, as rendered by merlin's template.
fn prompts() -> Vec<Vec<u32>> {
    #[derive(Deserialize)]
    struct Prompt {
        ids: Vec<u32>,
    }
    let text = include_str!("../../../../tests/merlin.json");
    let prompts: Vec<Prompt> = serde_json::from_str(text).expect("JSON");
    prompts.into_iter().map(|prompt| prompt.ids).collect()
}

/// An answer of at most `length` tokens.
fn answer(model: &dyn Model, prompt: &[u32], sampling: &Sampling, length: usize) -> Answer {
    let (mut caches, mut tokens, mut hidden) = (model.make_caches(), prompt.to_vec(), vec![]);
    let mut sampler = Sampler::new(sampling, model.vocab_size(), prompt, &[]);
    let mut computed = 0;
    loop {
        let n = tokens.len() - computed;
        let mut batch = Batch::new([part(n, computed, &mut caches)]);
        let states = model.forward(&ids(&tokens[computed..]), &mut batch);
        let last = states.slice(0, n as i32 - 1, n as i32);
        hidden.push(states);
        computed = tokens.len();
        let ended = computed > prompt.len() && tokens.last().is_some_and(|id| ENDS.contains(id));
        if ended || computed == prompt.len() + length {
            return Answer { tokens, hidden: Array::concatenate(&hidden, 0), prompt: prompt.len() };
        }
        let row = SampleRow { sampler: &mut sampler, position: computed, draft: &[], allowed: &[] };
        let token = sample(&model.logits(&last), vec![row]).tokens.to_vec::<u32>().expect("a token")[0];
        sampler.push(token);
        tokens.push(token);
    }
}

fn observe(drafter: &mut MtpDrafter, state: &mut DrafterState, from: usize, hidden: &Array) {
    drafter.observe(&HiddenStates { tokens: &[], from, hidden: vec![hidden.clone()] }, state);
}

/// Drafts all answers together: verified and accepted tokens, by position in the draft.
fn acceptance(
    model: &Rc<dyn Model>,
    answers: &[Answer],
    sampling: &Sampling,
    depth: usize,
) -> Vec<[usize; 2]> {
    let mut drafter = MtpDrafter::new(model.clone()).expect("a head");
    // The first token of an answer is the model's own.
    let mut known: Vec<[usize; 2]> = answers.iter().map(|s| [0, s.prompt + 1]).collect();
    let mut states: Vec<DrafterState> = answers.iter().map(|_| DrafterState::default()).collect();
    let mut counts = vec![[0; 2]; depth];
    loop {
        let going: Vec<usize> =
            (0..answers.len()).filter(|&i| known[i][1] < answers[i].tokens.len()).collect();
        let mut requests = vec![];
        for (i, state) in states.iter_mut().enumerate().filter(|(i, _)| going.contains(i)) {
            let (s, [observed, n]) = (&answers[i], known[i]);
            observe(&mut drafter, state, observed, &s.hidden.slice(0, observed as i32, n as i32 - 1));
            let depth = depth.min(s.tokens.len() - n);
            requests.push(DraftRequest::new(&s.tokens[..n], s.prompt, depth, sampling, state));
        }
        if requests.is_empty() {
            return counts;
        }
        for (draft, i) in drafter.propose(&mut requests).expect("drafts").iter().zip(going) {
            let n = known[i][1];
            let pairs = draft.tokens.iter().zip(&answers[i].tokens[n..]);
            let right = pairs.take_while(|(drafted, token)| drafted == token).count();
            counts.iter_mut().take(draft.tokens.len().min(right + 1)).for_each(|count| count[0] += 1);
            counts.iter_mut().take(right).for_each(|count| count[1] += 1);
            known[i] = [n - 1, n + right + 1];
        }
    }
}

fn share([looked, right]: [usize; 2]) -> f64 {
    right as f64 / looked as f64
}

#[test]
fn acceptance_rate_of_merlins_head_is_high() {
    let (model, greedy) = (Rc::from(merlin()), Sampling::default());
    let answers: Vec<Answer> = prompts().iter().map(|prompt| answer(&*model, prompt, &greedy, 64)).collect();
    for depth in 1..=4 {
        let counts = acceptance(&model, &answers, &greedy, depth);
        let shares: Vec<f64> = counts.iter().copied().map(share).collect();
        println!("depth {depth}: {shares:.3?} of {counts:?}");
        assert!(shares[0] > 0.66, "depth {depth}: {shares:?}");
        assert!(depth == 1 || shares[1] > 0.6, "depth {depth}: {shares:?}");
    }
}

#[test]
fn drafts_with_the_same_noise_are_accepted_more_often() {
    let model = Rc::from(merlin());
    let sampled = |seed| Sampling { temperature: 1.0, top_p: 0.95, seed, ..Sampling::default() };
    let answers: Vec<Answer> =
        prompts().iter().map(|prompt| answer(&*model, prompt, &sampled(5), 32)).collect();
    let rate = |sampling: &Sampling| share(acceptance(&model, &answers, sampling, 1)[0]);
    let (shared, other, greedy) = (rate(&sampled(5)), rate(&sampled(6)), rate(&Sampling::default()));
    println!("shared {shared:.3}, other noise {other:.3}, greedy {greedy:.3}");
    assert!(shared > greedy && shared > other + 0.1, "{shared}, {greedy}, {other}");
}

/// Compares a context that drafted with one that only observed.
#[test]
fn drafts_leave_no_trace_in_the_context() {
    let model = load_golden("qwen3_5-hub", FLOAT32);
    assert!(model.mtp().is_none(), "a checkpoint without a head has none");
    for name in ["qwen3_5-a", "qwen3_5_moe-b", "deepseek_v3-a", "glm4_moe-a"] {
        let model = load_golden(name, FLOAT32);
        let mtp = model.mtp().expect("a head");
        let tokens: Vec<u32> = (0..400).map(|i| 3 + (i * 7 + i / 5) % 240).collect();
        let hidden = hidden(&*model, &tokens);
        let part = |from: usize, to: usize| hidden.slice(0, from as i32, to as i32);
        let draft = |context: &mut HeadContext, known: usize, depth: usize| {
            let row = HeadRow { context, tokens: &tokens[..known], depth };
            read(&draft_rows(&*model, &mut [row], &mut greedy)[0])
        };
        let (mut often, mut once) = (HeadContext::new(mtp), HeadContext::new(mtp));
        for (known, depth) in [(20, 8), (21, 1), (24, 3), (100, 2)] {
            let observed = often.observed();
            often.observe(observed, &part(observed, known - 1));
            assert_eq!(draft(&mut often, known, depth).len(), depth);
        }
        once.observe(0, &part(0, 99));
        assert_eq!(draft(&mut once, 100, 0), [0; 0], "no draft is wanted");
        for context in [&mut often, &mut once] {
            context.observe(99, &part(99, 110));
        }
        assert_eq!(draft(&mut often, 111, 4), draft(&mut once, 111, 4), "{name}");
        assert_eq!(draft(&mut often, 111, 4), [0; 0], "no new hidden states");
        assert_eq!(draft(&mut often, 112, 4), [0; 0], "a token without its hidden state");
    }
}

#[test]
fn batched_drafts_equal_single_ones() {
    let model = load_golden("qwen3_5_moe-a", FLOAT32);
    let mtp = model.mtp().expect("a head");
    let texts: Vec<Vec<u32>> =
        (1..=4).map(|s| (0..30 * s + 2).map(|i| 3 + (i * (2 * s + 5) + i / 3) % 240).collect()).collect();
    let states: Vec<Array> = texts.iter().map(|text| hidden(&*model, text)).collect();
    let heads = || -> Vec<HeadContext> {
        let begin = |(text, states): (&Vec<u32>, &Array)| {
            let mut context = HeadContext::new(mtp);
            context.observe(0, &states.slice(0, 0, text.len() as i32 - 1));
            context
        };
        texts.iter().zip(&states).map(begin).collect()
    };
    let depths = [3, 0, 5, 1];
    fn row<'a>(context: &'a mut HeadContext, tokens: &'a [u32], depth: usize) -> HeadRow<'a> {
        HeadRow { context, tokens, depth }
    }
    let record = |all: &mut Vec<DraftPosition>, logits: &Array, positions: &[DraftPosition]| {
        all.extend(positions);
        logits.argmax(-1)
    };
    let (mut together, mut positions) = (heads(), vec![]);
    let mut rows: Vec<HeadRow> =
        together.iter_mut().enumerate().map(|(i, context)| row(context, &texts[i], depths[i])).collect();
    let drafts = draft_rows(&*model, &mut rows, &mut |logits, at| record(&mut positions, logits, at));
    for ((i, draft), mut alone) in drafts.iter().enumerate().zip(heads()) {
        let own = draft_rows(&*model, &mut [row(&mut alone, &texts[i], depths[i])], &mut greedy);
        assert_eq!(read(draft), read(&own[0]), "row {i}");
        let expected: Vec<usize> = (0..depths[i]).map(|step| texts[i].len() + step).collect();
        let drafted: Vec<usize> = positions.iter().filter(|at| at.row == i).map(|at| at.position).collect();
        assert_eq!(drafted, expected, "row {i}");
    }
}

#[test]
fn head_of_a_long_prompt_uses_the_last_hidden_states() {
    let model = load_golden("qwen3_5-a", FLOAT32);
    let mtp = model.mtp().expect("a head");
    let tokens: Vec<u32> = (0..1000).map(|i| 3 + (i * 7 + i / 5) % 240).collect();
    let hidden = hidden(&*model, &tokens);
    let draft = |parts: &[(usize, usize)]| {
        let mut context = HeadContext::new(mtp);
        for &(from, to) in parts {
            context.observe(from, &hidden.slice(0, from as i32, to as i32));
        }
        let mut last = vec![];
        let row = HeadRow { context: &mut context, tokens: &tokens, depth: 1 };
        draft_rows(&*model, &mut [row], &mut |logits, positions| {
            last = logits.to_vec::<f32>().expect("logits");
            greedy(logits, positions)
        });
        last
    };
    let whole = draft(&[(0, 999)]);
    assert_eq!(whole, draft(&[(0, 512), (512, 990), (990, 999)]));
    assert_eq!(whole, draft(&[(600, 999)]), "hidden states before the window are dropped");
    assert_eq!(whole, draft(&[(0, 300), (700, 999)]), "and so are those before a gap");
    assert_ne!(whole, draft(&[(900, 999)]), "those in the window are used");
}

#[test]
fn restarted_and_resumed_sequences_get_drafts() {
    let model: Rc<dyn Model> = Rc::from(load_golden("qwen3_5-b", FLOAT32));
    let tokens: Vec<u32> = (0..60).map(|i| 3 + (i * 7 + i / 5) % 240).collect();
    let (hidden, greedy) = (hidden(&*model, &tokens), Sampling::default());
    let ask = |drafter: &mut MtpDrafter, state: &mut DrafterState| {
        let request = DraftRequest::new(&tokens, 50, 4, &greedy, state);
        drafter.propose(&mut [request]).expect("drafts").remove(0)
    };
    let mut drafter = MtpDrafter::new(model.clone()).expect("a head");
    let [mut first, mut again, mut resumed] = [(); 3].map(|()| DrafterState::default());
    assert_eq!(ask(&mut drafter, &mut first).tokens, [0; 0], "nothing was observed");
    observe(&mut drafter, &mut first, 0, &hidden.slice(0, 0, 59));
    let expected = ask(&mut drafter, &mut first);
    assert_eq!(expected.tokens.len(), 4);
    observe(&mut drafter, &mut again, 0, &hidden.slice(0, 0, 59));
    observe(&mut drafter, &mut resumed, 40, &hidden.slice(0, 40, 59));
    assert_eq!(ask(&mut drafter, &mut again), expected);
    assert_eq!(ask(&mut drafter, &mut resumed).tokens.len(), 4, "it has observed the end alone");
}

#[test]
fn observe_writes_the_same_cache_as_forward() {
    for name in ["qwen3_5-a", "qwen3_5_moe-b", "deepseek_v3-a", "glm4_moe-a"] {
        let model = load_golden(name, FLOAT32);
        let mtp = model.mtp().expect("a head");
        let tokens: Vec<u32> = (0..90).map(|i| 3 + (i * 7 + i / 5) % 240).collect();
        let (hidden, n) = (hidden(&*model, &tokens), 89);
        let left = |whole: bool| -> Vec<f32> {
            let mut caches = mtp.make_caches();
            let mut batch = Batch::new([part(n as usize, 0, &mut caches)]);
            let (states, next) = (hidden.slice(0, 0, n), ids(&tokens[1..]));
            match whole {
                true => drop(mtp.forward(&states, &next, &mut batch)),
                false => mtp.observe(&states, &next, &mut batch),
            }
            let arrays =
                caches.iter().filter_map(Cache::as_full_attention).flat_map(|kv| kv.copy(0, n)).flatten();
            arrays.flat_map(|x| x.to_f32().expect("evaluates")).collect()
        };
        let (whole, alone) = (left(true), left(false));
        assert!(whole.len() > 89 && whole.len() == alone.len(), "{name}");
        let worst = whole.iter().zip(&alone).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-5, "{name}: off by {worst}");
    }
}
