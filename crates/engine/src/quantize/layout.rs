//! Which parts of the source each tensor of the result is made of. Most are one source tensor as it is; where mlx-lm
//! rearranges weights while it loads them, it does so before quantised ones make sense, so the result holds those as MLX
//! does.

use std::collections::BTreeMap;

use serde_json::Value;

use super::reader::Reader;
use crate::error::{LoadError, Result};

/// What one tensor of the result is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// Tensors of the source, one behind the other along the first axis.
    pub sources: Vec<String>,
    /// The shape each of them is seen as.
    pub seen_as: Vec<usize>,
    pub cut: Option<Cut>,
    /// Whether the last two axes change places, after the cut.
    pub transposed: bool,
    /// Whether one is added: norms that the hub stores as `weight - 1`.
    pub plus_one: bool,
    /// Shape of the result.
    pub shape: Vec<usize>,
}

/// Elements `from`, `from + step` and so on, `count` of them, along `axis`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cut {
    pub axis: usize,
    pub from: usize,
    pub count: usize,
    pub step: usize,
}

/// What of a source tensor is taken.
#[derive(Clone, Copy)]
enum View {
    Whole,
    Transposed,
    /// The first or second half of the rows of each matrix of a stack.
    Half(usize),
    /// Every other row of each matrix of a stack that is stored transposed.
    AlternateColumns(usize),
    /// Every other element of each vector of a stack.
    Alternate(usize),
    /// The part of latent attention's `kv_b_proj` that makes keys, or values, per head; that of keys transposed.
    Keys,
    Values,
    PlusOne,
}
use View::*;

struct Rule {
    /// Values of `model_type` it holds for; none means all.
    models: &'static [&'static str],
    /// End of a source tensor's name. `#` stands for a number: such tensors are stacked in its order.
    from: &'static str,
    /// Ends of the names it is stored under, and what of it.
    to: &'static [(&'static str, View)],
}

const fn rule(
    models: &'static [&'static str],
    from: &'static str,
    to: &'static [(&'static str, View)],
) -> Rule {
    Rule { models, from, to }
}

const ALL: &[&str] = &[];
const GPT_OSS: &[&str] = &["gpt_oss"];
const KIMI: &[&str] = &["kimi_linear"];
const LFM2: &[&str] = &["lfm2_moe"];
const NEXT: &[&str] = &["qwen3_next"];

/// The first rule that fits counts; a tensor that none fits keeps its name.
#[rustfmt::skip]
const RULES: &[Rule] = &[
    rule(GPT_OSS, ".experts.gate_up_proj", &[(".experts.gate_proj.weight", AlternateColumns(0)), (".experts.up_proj.weight", AlternateColumns(1))]),
    rule(GPT_OSS, ".experts.gate_up_proj_bias", &[(".experts.gate_proj.bias", Alternate(0)), (".experts.up_proj.bias", Alternate(1))]),
    rule(GPT_OSS, ".experts.down_proj", &[(".experts.down_proj.weight", Transposed)]),
    rule(GPT_OSS, ".experts.down_proj_bias", &[(".experts.down_proj.bias", Whole)]),
    rule(ALL, ".mlp.experts.gate_up_proj", &[(".mlp.switch_mlp.gate_proj.weight", Half(0)), (".mlp.switch_mlp.up_proj.weight", Half(1))]),
    rule(ALL, ".mlp.experts.down_proj", &[(".mlp.switch_mlp.down_proj.weight", Whole)]),
    rule(ALL, ".experts.gate_up_proj", &[(".experts.switch_glu.gate_proj.weight", Half(0)), (".experts.switch_glu.up_proj.weight", Half(1))]),
    rule(ALL, ".experts.down_proj", &[(".experts.switch_glu.down_proj.weight", Whole)]),
    rule(ALL, ".mlp.experts.#.gate_proj.weight", &[(".mlp.switch_mlp.gate_proj.weight", Whole)]),
    rule(ALL, ".mlp.experts.#.up_proj.weight", &[(".mlp.switch_mlp.up_proj.weight", Whole)]),
    rule(ALL, ".mlp.experts.#.down_proj.weight", &[(".mlp.switch_mlp.down_proj.weight", Whole)]),
    rule(KIMI, ".block_sparse_moe.experts.#.w1.weight", &[(".mlp.switch_mlp.gate_proj.weight", Whole)]),
    rule(KIMI, ".block_sparse_moe.experts.#.w2.weight", &[(".mlp.switch_mlp.down_proj.weight", Whole)]),
    rule(KIMI, ".block_sparse_moe.experts.#.w3.weight", &[(".mlp.switch_mlp.up_proj.weight", Whole)]),
    rule(KIMI, ".block_sparse_moe.shared_experts.gate_proj.weight", &[(".mlp.shared_experts.gate_proj.weight", Whole)]),
    rule(KIMI, ".block_sparse_moe.shared_experts.up_proj.weight", &[(".mlp.shared_experts.up_proj.weight", Whole)]),
    rule(KIMI, ".block_sparse_moe.shared_experts.down_proj.weight", &[(".mlp.shared_experts.down_proj.weight", Whole)]),
    rule(LFM2, ".feed_forward.experts.#.w1.weight", &[(".feed_forward.switch_mlp.gate_proj.weight", Whole)]),
    rule(LFM2, ".feed_forward.experts.#.w2.weight", &[(".feed_forward.switch_mlp.down_proj.weight", Whole)]),
    rule(LFM2, ".feed_forward.experts.#.w3.weight", &[(".feed_forward.switch_mlp.up_proj.weight", Whole)]),
    rule(LFM2, ".feed_forward.w1.weight", &[(".feed_forward.gate_proj.weight", Whole)]),
    rule(LFM2, ".feed_forward.w2.weight", &[(".feed_forward.down_proj.weight", Whole)]),
    rule(LFM2, ".feed_forward.w3.weight", &[(".feed_forward.up_proj.weight", Whole)]),
    rule(ALL, ".self_attn.kv_b_proj.weight", &[(".self_attn.embed_q.weight", Keys), (".self_attn.unembed_out.weight", Values)]),
];

/// Beside [`RULES`], for Qwen3-Next as the hub has it: mlx-lm tells that by experts one by one, and brings everything
/// into MLX's layout then, or nothing. Later Qwens' norms and convolutions stay as they are.
#[rustfmt::skip]
const HUB_NEXT_RULES: &[Rule] = &[
    rule(NEXT, ".linear_attn.conv1d.weight", &[(".linear_attn.conv1d.weight", Transposed)]),
    rule(NEXT, "input_layernorm.weight", &[("input_layernorm.weight", PlusOne)]),
    rule(NEXT, "post_attention_layernorm.weight", &[("post_attention_layernorm.weight", PlusOne)]),
    rule(NEXT, ".q_norm.weight", &[(".q_norm.weight", PlusOne)]),
    rule(NEXT, ".k_norm.weight", &[(".k_norm.weight", PlusOne)]),
    rule(NEXT, "model.norm.weight", &[("model.norm.weight", PlusOne)]),
    rule(NEXT, "mtp.norm.weight", &[("mtp.norm.weight", PlusOne)]),
    rule(NEXT, "mtp.pre_fc_norm_embedding.weight", &[("mtp.pre_fc_norm_embedding.weight", PlusOne)]),
    rule(NEXT, "mtp.pre_fc_norm_hidden.weight", &[("mtp.pre_fc_norm_hidden.weight", PlusOne)]),
];

/// A tensor of the result while its parts are being collected.
struct Gathered {
    view: View,
    /// By number; one that is not stacked has none.
    sources: BTreeMap<Option<usize>, String>,
}

/// What each tensor of the result is made of, by its name. `as_it_is` says which source tensors no rule of [`RULES`] is
/// for.
///
/// # Errors
/// A stack has holes, or parts of different shapes; or config.json lacks a size that a cut needs.
pub fn recipes(
    config: &Value,
    reader: &Reader,
    names: &[String],
    as_it_is: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, Recipe>> {
    let model = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let hub_convolution =
        |name: &String| name.ends_with(".conv1d.weight") && reader.shape(name).get(1) == Some(&1);
    let next_rules = if names.iter().any(hub_convolution) { HUB_NEXT_RULES } else { &[] };
    let mut gathered: BTreeMap<String, Gathered> = BTreeMap::new();
    for name in names {
        let rules = if as_it_is(name) { &[] } else { RULES };
        for (to, number, view) in targets(rules.iter().chain(next_rules), model, name) {
            let parts = gathered.entry(to.clone()).or_insert(Gathered { view, sources: BTreeMap::new() });
            if parts.sources.insert(number, name.clone()).is_some() {
                return Err(bad(&to, "two tensors of the source would become this one"));
            }
        }
    }
    let recipe = |(name, parts): (String, Gathered)| {
        let recipe = parts.recipe(config, reader, &name)?;
        Ok((name, recipe))
    };
    gathered.into_iter().map(recipe).collect()
}

/// The names a source tensor goes to, its number in the stack there, and what of it.
fn targets<'a>(
    rules: impl Iterator<Item = &'a Rule>,
    model: &str,
    name: &str,
) -> Vec<(String, Option<usize>, View)> {
    let mut fitting = rules.filter(|rule| rule.models.is_empty() || rule.models.contains(&model));
    let found = fitting.find_map(|rule| Some((rule, strip_suffix(name, rule.from)?)));
    let Some((rule, (start, number))) = found else { return vec![(name.into(), None, Whole)] };
    rule.to.iter().map(|(end, view)| (format!("{start}{end}"), number, *view)).collect()
}

/// The name without `suffix`, and the number that `#` in it stands for.
fn strip_suffix<'a>(name: &'a str, suffix: &str) -> Option<(&'a str, Option<usize>)> {
    let Some((before, after)) = suffix.split_once('#') else {
        return Some((name.strip_suffix(suffix)?, None));
    };
    let rest = name.strip_suffix(after)?;
    let start = rest.trim_end_matches(|c: char| c.is_ascii_digit());
    Some((start.strip_suffix(before)?, Some(rest[start.len()..].parse().ok()?)))
}

impl Gathered {
    fn recipe(self, config: &Value, reader: &Reader, name: &str) -> Result<Recipe> {
        let stacked = !self.sources.contains_key(&None);
        if stacked && self.sources.keys().copied().ne((0..self.sources.len()).map(Some)) {
            return Err(bad(name, "the experts it is stacked of are not numbered without holes"));
        }
        let sources: Vec<String> = self.sources.into_values().collect();
        let shape = reader.shape(&sources[0]).to_vec();
        let dtype = reader.dtype(&sources[0])?;
        for source in &sources {
            if reader.shape(source) != shape || reader.dtype(source)? != dtype {
                return Err(bad(source, "its shape or type is not that of the other experts"));
            }
        }
        let mut recipe = Recipe::whole(sources, shape, stacked);
        recipe
            .take(self.view, config)
            .ok_or_else(|| bad(name, "it cannot be cut as config.json's sizes say"))?;
        Ok(recipe)
    }
}

impl Recipe {
    fn whole(sources: Vec<String>, shape: Vec<usize>, stacked: bool) -> Recipe {
        let count = sources.len();
        let seen_as = if stacked { [&[1], &shape[..]].concat() } else { shape.clone() };
        let shape = if stacked { [&[count], &shape[..]].concat() } else { shape };
        // A number by itself is read as a list of one.
        let seen_as = if seen_as.is_empty() { vec![1] } else { seen_as };
        Recipe { sources, seen_as, cut: None, transposed: false, plus_one: false, shape }
    }

    /// Restricts the recipe to what `view` says; `None` if the shape does not allow it.
    fn take(&mut self, view: View, config: &Value) -> Option<()> {
        let half =
            |axis: usize| self.shape.get(axis).filter(|size| size.is_multiple_of(2)).map(|size| size / 2);
        match view {
            Whole => return Some(()),
            PlusOne => {
                self.plus_one = true;
                return Some(());
            }
            Transposed => self.transposed = true,
            Half(i) => self.cut = Some(Cut { axis: 1, from: i * half(1)?, count: half(1)?, step: 1 }),
            AlternateColumns(i) => {
                self.cut = Some(Cut { axis: 2, from: i, count: half(2)?, step: 2 });
                self.transposed = true;
            }
            Alternate(i) => self.cut = Some(Cut { axis: 1, from: i, count: half(1)?, step: 2 }),
            Keys | Values => self.take_per_head(matches!(view, Keys), config)?,
        }
        if self.seen_as.len() < 2 {
            return None;
        }
        self.shape = self.seen_as.clone();
        if let Some(cut) = self.cut {
            self.shape[cut.axis] = cut.count;
        }
        if self.transposed {
            let last = self.shape.len() - 1;
            self.shape.swap(last - 1, last);
        }
        Some(())
    }

    fn take_per_head(&mut self, keys: bool, config: &Value) -> Option<()> {
        let size = |key: &str| config.get(key).and_then(Value::as_u64).map(|size| size as usize);
        let (heads, nope, value) =
            (size("num_attention_heads")?, size("qk_nope_head_dim")?, size("v_head_dim")?);
        let rank = *self.shape.get(1)?;
        if self.shape != [heads * (nope + value), rank] {
            return None;
        }
        self.seen_as = vec![heads, nope + value, rank];
        let (from, count) = if keys { (0, nope) } else { (nope, value) };
        self.cut = Some(Cut { axis: 1, from, count, step: 1 });
        self.transposed = keys;
        Some(())
    }
}

fn bad(name: &str, message: &str) -> LoadError {
    LoadError::BadTensor { name: name.into(), message: message.into() }
}
