//! Memory of a loaded model by use: estimated from its config.json, or measured by a step
//! under a limit.

use mlx::Array;
use serde_json::Value;

use crate::{
    api::{Memory, Options, StateSize},
    batch::{Batch, BatchRow},
    cache::Cache,
    models::{DFlash, Model},
    speculate::{
        MAX_STEP_DRAFT,
        drafters::{dflash, draft_context::ROLLBACK_POINTS, mtp},
    },
};

/// Layers whose buffers may be copied at the same time: MLX lets 10 operations go ahead of what is
/// computed, and growing takes two.
const GROWING: usize = 6;
/// Tokens beyond a window and a step that its buffer may hold before it moves.
const BEYOND_WINDOW: usize = 1024;
/// The draft model's cache is the model's divided by this.
const DRAFT_CACHE: usize = 8;
/// Loading temporarily takes additional memory: the weights divided by this.
const LOADING: usize = 10;
/// Outputs run ahead by at most a layer's activations divided by this.
const AHEAD_PART: usize = 4;
/// Bytes of outputs that may always run ahead: waiting for the stream after each operation of a
/// tiny model would cost more time than it saves memory.
const LEAST_AHEAD: usize = 64 << 10;

impl Memory {
    /// The estimate for a loaded model, from the text part of its config.json.
    ///
    /// # Errors
    /// Computing a step to measure it failed.
    pub(crate) fn of(
        model: &dyn Model,
        config: &Value,
        options: &Options,
        weights: usize,
    ) -> mlx::Result<Memory> {
        let (chunk, logits) = (options.prefill_chunk.max(1), model.vocab_size() * size_of::<f32>());
        let mut memory = Memory {
            limit: options.memory_limit,
            weights,
            step: sampling(logits, options)
                + match options.memory_limit {
                    None => estimated_step(config, chunk),
                    Some(_) => measured_step(model, config, options)?,
                },
            // The logits on the device, the ones read back, and a copy in between.
            prompt_logits: 3 * chunk * logits,
            prefix_cache: options.prefix_cache_bytes,
            ..Memory::default()
        };
        // Running sequences take the other half: see `resize_prefix_cache`.
        let most = memory.room().map_or(usize::MAX, |room| room / 2);
        memory.prefix_cache = memory.prefix_cache.min(most);
        let caches = caches_of_one_token(model);
        memory.add_caches(&caches, chunk);
        memory.stored = StateSize::of(&caches[..model.make_caches().len()]);
        if let Some(tower) = model.tower() {
            let hidden = config.get("hidden_size").and_then(Value::as_u64).unwrap_or(0) as usize;
            memory.image_token = (1 + tower.num_deep()) * hidden * size_of::<f32>();
            memory.image_step = tower.token_bytes() + estimated_step(config, 1);
        }
        if model.mtp().is_some() {
            memory.sequence += waiting_hidden(config, chunk);
        }
        Ok(memory)
    }

    /// Adds the state that every sequence has in caches like these, which hold one token.
    fn add_caches(&mut self, caches: &[Cache], chunk: usize) {
        let mut layers = vec![];
        for cache in caches {
            let bytes: usize = cache.arrays().map(Array::nbytes).sum();
            let token = cache.arrays().map(|array| array.nbytes() / array.dim(1).max(1) as usize).sum();
            match cache {
                // The state that is read, the one that is written, and the one that the next step
                // begins with.
                Cache::Recurrent(_) => self.sequence += 3 * bytes,
                Cache::Kv(kv) => match kv.window() {
                    None => layers.push(token),
                    Some(window) => {
                        // Twice: the old buffer exists while it moves.
                        self.windows.push((2 * token, 2 * window as usize + chunk + BEYOND_WINDOW));
                    }
                },
            }
        }
        layers.sort();
        self.token += layers.iter().sum::<usize>();
        self.growing += layers.iter().rev().take(GROWING).sum::<usize>();
    }

    /// Adds a block drafter with this many bytes of weights: it stores keys, values and pending
    /// hidden states of every sequence.
    pub(crate) fn add_block(&mut self, block: &DFlash, weights: usize, options: &Options) {
        let chunk = options.prefill_chunk.max(1);
        self.weights += weights;
        self.add_caches(&block.caches_of_one_token(), chunk);
        let shown = block.target_layers.len() * block.hidden_size as usize * size_of::<f32>();
        self.sequence += (dflash::MAX_PENDING + chunk) * shown;
        self.step += chunk * shown;
    }

    /// Adds a draft model by its own estimate: it has state for every sequence too.
    pub(crate) fn add_draft(&mut self, draft: Memory) {
        let Memory { weights, step, token, growing, windows, sequence, .. } = draft;
        self.weights += weights;
        self.step += step;
        self.token += token;
        self.growing += growing;
        self.windows.extend(windows);
        // A third of this is the state itself; the draft model also keeps the states to which a
        // wrong draft returns.
        self.sequence += sequence + sequence * ROLLBACK_POINTS / 3;
        let room = self.room().map_or(usize::MAX, |room| room / DRAFT_CACHE);
        self.draft_cache = (self.prefix_cache / DRAFT_CACHE).min(room);
        // Reserved at all times.
        self.step += self.draft_cache;
    }

    /// Upper estimate of the bytes that loading `weights` bytes takes, including a measured step.
    pub(crate) fn to_load(weights: usize, vocab_size: usize, config: &Value, options: &Options) -> usize {
        let logits = vocab_size * size_of::<f32>();
        let step = 2 * estimated_step(config, step_tokens(options));
        weights + weights / LOADING + sampling(logits, options) + step
    }
}

/// Caches after one token, those of the MTP head included. Only their shapes are read, so nothing
/// is computed.
fn caches_of_one_token(model: &dyn Model) -> Vec<Cache> {
    let mut caches = model.make_caches();
    let token = Array::from_slice(&[0u32], &[1]);
    let row = BatchRow { num_tokens: 1, num_draft: 0, num_computed: 0, caches: &mut caches };
    let hidden = model.forward(&token, &mut Batch::new([row]));
    let Some(mtp) = model.mtp() else { return caches };
    let mut ahead = mtp.make_caches();
    let row = BatchRow { num_tokens: 1, num_draft: 0, num_computed: 0, caches: &mut ahead };
    let _ = mtp.forward(&hidden, &token, &mut Batch::new([row]));
    caches.extend(ahead);
    caches
}

/// Bytes of the hidden states that may be pending for the MTP head: [`mtp::MAX_PENDING`] tokens and
/// a chunk.
fn waiting_hidden(config: &Value, chunk: usize) -> usize {
    let hidden = config.get("hidden_size").and_then(Value::as_u64).unwrap_or(0) as usize;
    (mtp::MAX_PENDING + chunk) * hidden * size_of::<f32>()
}

/// Memory of sampling the rows of a step and their drafts.
fn sampling(logits: usize, options: &Options) -> usize {
    4 * (options.max_batch.max(1) + MAX_STEP_DRAFT) * logits
}

/// Maximum tokens in a step: a part of prompts, a token of each other row, and drafts.
fn step_tokens(options: &Options) -> usize {
    options.prefill_chunk.max(1) + options.max_batch.max(1) + MAX_STEP_DRAFT
}

/// Likely memory of the activations of a step of `tokens`: those of four layers, because MLX begins
/// operations ahead of the ones that it computes.
fn estimated_step(config: &Value, tokens: usize) -> usize {
    4 * layer_activations(config, tokens)
}

fn layer_activations(config: &Value, tokens: usize) -> usize {
    let number = |key: &str| config.get(key).and_then(Value::as_u64).unwrap_or(0) as usize;
    let hidden = number("hidden_size");
    let heads = number("num_attention_heads") * number("head_dim");
    let linear = number("linear_num_value_heads") * number("linear_value_head_dim")
        + 2 * number("linear_num_key_heads") * number("linear_key_head_dim");
    let experts = number("num_experts_per_tok") * (3 * number("moe_intermediate_size") + 2 * hidden);
    let layer = experts.max(3 * number("intermediate_size")) + 4 * heads.max(linear) + 8 * hidden;
    tokens * layer * size_of::<f32>()
}

/// Memory of the widest steps, of sequences without and with a past. How far operations run ahead
/// depends on how busy the machine is, so from here on it is bounded, by a part of a layer's
/// activations, and counted in full: a step on a busy machine takes no more than this.
fn measured_step(model: &dyn Model, config: &Value, options: &Options) -> mlx::Result<usize> {
    let tokens = step_tokens(options);
    let ahead = (layer_activations(config, tokens) / AHEAD_PART).max(LEAST_AHEAD);
    mlx::set_run_ahead(ahead);
    // Two rows, whose separate results are joined.
    let rows = [tokens.div_ceil(2), (tokens / 2).max(1)];
    let ids = Array::from_slice(&vec![0u32; rows[0] + rows[1]], &[(rows[0] + rows[1]) as i32]);
    let mut caches = rows.map(|_| model.make_caches());
    let state = |caches: &[Vec<Cache>; 2]| -> usize {
        caches.iter().flatten().flat_map(Cache::arrays).map(Array::nbytes).sum()
    };
    let (mut most, mut held) = (0, 0);
    for steps in 0..2 {
        let before = mlx::active_memory();
        mlx::reset_peak_memory();
        let rows = caches.iter_mut().zip(rows);
        let rows = rows.map(|(caches, tokens)| BatchRow {
            num_tokens: tokens,
            num_draft: 0,
            num_computed: steps * tokens,
            caches,
        });
        let mut batch = Batch::new(rows);
        let hidden = model.forward(&ids, &mut batch);
        mlx::eval(batch.cache_arrays().chain([&hidden]))?;
        // Growth of the sequences' state is counted with them.
        let holds = state(&caches);
        let grown = holds.saturating_sub(held);
        held = holds;
        most = most.max(mlx::peak_memory().saturating_sub(before + grown));
    }
    // On a GPU the next step, which is begun already, takes as much again.
    Ok(if mlx::on_gpu() { 2 * most } else { most + ahead })
}
