//! Checkpoint layouts: recipes that make tensors in MLX's layout, which models load and `quantize`
//! writes, from those of a checkpoint.
//!
//! MLX's layout stacks experts and splits fused projections; most tensors are the same in both.

use std::collections::BTreeMap;

use mlx::Array;
use serde_json::Value;

use super::files::WeightFiles;
use crate::error::{LoadError, Result};

/// Maps tensors of a checkpoint to MLX's layout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    /// Values of `model_type` that it applies to; none means all.
    model_types: &'static [&'static str],
    /// Whether it applies only to copies that `quantize` writes.
    only_copies: bool,
    /// Suffix of a tensor's name; `#` matches the number of a tensor in a stack.
    from: &'static str,
    /// Suffixes of the names in MLX's layout, and the part of the tensor that goes there.
    to: &'static [(&'static str, Transform)],
}

impl Rule {
    pub(crate) const fn new(from: &'static str, to: &'static [(&'static str, Transform)]) -> Rule {
        Rule { model_types: &[], only_copies: false, from, to }
    }

    /// Restricts it to some of a family's values of `model_type`.
    pub(crate) const fn of(self, model_types: &'static [&'static str]) -> Rule {
        Rule { model_types, ..self }
    }

    /// Restricts it to copies; loading handles both layouts.
    pub(crate) const fn only_in_copies(self) -> Rule {
        Rule { only_copies: true, ..self }
    }
}

/// The part of a tensor that is taken, and how it is rearranged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Transform {
    Whole,
    /// The last two axes swapped.
    Transposed,
    /// The first or second half of each matrix's rows, in a stack.
    Half(usize),
    /// The first or second half of each expert's `[2 * moe_intermediate_size, hidden_size]`, in a
    /// stack that may be stored transposed.
    GateOrUp(usize),
    /// Each expert's `[hidden_size, moe_intermediate_size]`, in a stack that may be stored
    /// transposed.
    Down,
    /// Every other row of each matrix in a stack that is stored transposed.
    AlternateColumns(usize),
    /// Every other element along the second axis.
    Alternate(usize),
    /// Bytes that hold two 4-bit codes each, as uint32 words.
    Words,
    /// [`Words`](Transform::Words) of every other row of each matrix in a stack.
    AlternateWords(usize),
    /// The rows of latent attention's `kv_b_proj` that make keys, per head and transposed.
    Keys,
    /// The rows of latent attention's `kv_b_proj` that make values, per head.
    Values,
    /// One is added: norms that the hub stores as `weight - 1`.
    PlusOne,
}
use Transform::*;

/// Rules of all families, after a family's own; the first match applies.
const COMMON: &[Rule] = &[
    Rule::new(
        ".mlp.experts.gate_up_proj",
        &[(".mlp.switch_mlp.gate_proj.weight", Half(0)), (".mlp.switch_mlp.up_proj.weight", Half(1))],
    ),
    Rule::new(".mlp.experts.down_proj", &[(".mlp.switch_mlp.down_proj.weight", Whole)]),
    Rule::new(
        ".experts.gate_up_proj",
        &[(".experts.switch_glu.gate_proj.weight", Half(0)), (".experts.switch_glu.up_proj.weight", Half(1))],
    ),
    Rule::new(".experts.down_proj", &[(".experts.switch_glu.down_proj.weight", Whole)]),
    Rule::new(".mlp.experts.#.gate_proj.weight", &[(".mlp.switch_mlp.gate_proj.weight", Whole)]),
    Rule::new(".mlp.experts.#.up_proj.weight", &[(".mlp.switch_mlp.up_proj.weight", Whole)]),
    Rule::new(".mlp.experts.#.down_proj.weight", &[(".mlp.switch_mlp.down_proj.weight", Whole)]),
    Rule::new(
        ".self_attn.kv_b_proj.weight",
        &[(".self_attn.embed_q.weight", Keys), (".self_attn.unembed_out.weight", Values)],
    ),
];

/// How to make a tensor in MLX's layout from tensors of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Recipe {
    /// Tensors of the checkpoint, concatenated along the first axis.
    pub sources: Vec<String>,
    /// The shape that each source is viewed as.
    pub view: Vec<usize>,
    /// View the bytes as uint32 words.
    pub words: bool,
    pub slice: Option<Slice>,
    /// Swap the last two axes, after slicing.
    pub transposed: bool,
    pub plus_one: bool,
    /// Shape of the result.
    pub shape: Vec<usize>,
}

/// Elements `from`, `from + step` and so on, `count` of them, along `axis`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Slice {
    axis: usize,
    from: usize,
    count: usize,
    step: usize,
}

/// A tensor in MLX's layout while its sources are collected.
struct Sources {
    transform: Transform,
    /// By number in the stack; `None` if it is not stacked.
    names: BTreeMap<Option<usize>, String>,
}

/// How a family stores its tensors.
pub(crate) struct Layout<'a> {
    /// The text part of config.json.
    pub config: &'a Value,
    /// The family's rules.
    pub rules: &'static [Rule],
    /// A tensor's name to its canonical path, given `config`; `None` drops the tensor.
    pub sanitize: fn(&Value, &str) -> Option<String>,
}

impl Layout<'_> {
    /// Unchanged names and the common rules.
    pub(crate) fn plain(config: &Value) -> Layout<'_> {
        Layout { config, rules: &[], sanitize: |_, name| Some(name.to_string()) }
    }

    /// The path that models use; `None` if the tensor is dropped.
    pub(crate) fn canonical(&self, name: &str) -> Option<String> {
        (self.sanitize)(self.config, name)
    }

    /// Recipes to load the tensors `names`, by name in MLX's layout.
    ///
    /// # Errors
    /// A stack has gaps or parts of different shapes, or config.json lacks a size.
    pub(crate) fn to_load(&self, files: &WeightFiles, names: &[String]) -> Result<BTreeMap<String, Recipe>> {
        self.recipes(files, names, |rule, _| !rule.only_copies)
    }

    /// Recipes to write copies of the tensors `names`, by name in MLX's layout. Tensors that
    /// `is_verbatim` selects are not rearranged, except norms and convolutions.
    ///
    /// # Errors
    /// See [`to_load`](Layout::to_load).
    pub(crate) fn to_copy(
        &self,
        files: &WeightFiles,
        names: &[String],
        is_verbatim: impl Fn(&str) -> bool,
    ) -> Result<BTreeMap<String, Recipe>> {
        let is_hub = |name: &String| name.ends_with(".conv1d.weight") && is_hub_conv1d(files.shape(name));
        let from_hub = names.iter().any(is_hub);
        self.recipes(files, names, |rule, name| if rule.only_copies { from_hub } else { !is_verbatim(name) })
    }

    fn recipes(
        &self,
        files: &WeightFiles,
        names: &[String],
        applies: impl Fn(&Rule, &str) -> bool,
    ) -> Result<BTreeMap<String, Recipe>> {
        let model_type = self.config.get("model_type").and_then(Value::as_str).unwrap_or_default();
        let mut gathered: BTreeMap<String, Sources> = BTreeMap::new();
        for name in names {
            let of_type =
                |rule: &&Rule| rule.model_types.is_empty() || rule.model_types.contains(&model_type);
            let rules = self.rules.iter().chain(COMMON).filter(of_type).filter(|rule| applies(rule, name));
            for (to, number, transform) in targets(rules, name) {
                let sources =
                    gathered.entry(to.clone()).or_insert(Sources { transform, names: BTreeMap::new() });
                if sources.names.insert(number, name.clone()).is_some() {
                    return Err(bad(&to, "two tensors of the source would become this one"));
                }
            }
        }
        let recipe = |(name, sources): (String, Sources)| {
            let recipe = sources.recipe(self.config, files, &name)?;
            Ok((name, recipe))
        };
        gathered.into_iter().map(recipe).collect()
    }
}

/// Whether a depthwise convolution has the hub's layout `[channels, 1, width]`, not MLX's
/// `[channels, width, 1]`.
pub(crate) fn is_hub_conv1d<N: PartialEq + From<u8>>(shape: &[N]) -> bool {
    shape.get(1) == Some(&N::from(1))
}

/// Target names of a tensor, its number in a stack, and its transform; its own name if no rule
/// matches.
fn targets<'a>(
    mut rules: impl Iterator<Item = &'a Rule>,
    name: &str,
) -> Vec<(String, Option<usize>, Transform)> {
    let found = rules.find_map(|rule| {
        let (from, part) = suffix_of(rule, name);
        let (start, number) = strip_suffix(name.strip_suffix(part)?, from)?;
        Some((rule, start, number, part))
    });
    let Some((rule, start, number, part)) = found else { return vec![(name.into(), None, Whole)] };
    let target = |(end, transform): &(&str, Transform)| {
        let end = if part.is_empty() { end } else { end.strip_suffix(".weight").unwrap_or(end) };
        (format!("{start}{end}{part}"), number, *transform)
    };
    rule.to.iter().map(target).collect()
}

/// The suffix to match and a part suffix after it: rules for whole weights apply to scales and
/// biases too.
fn suffix_of(rule: &Rule, name: &str) -> (&'static str, &'static str) {
    let is_whole = rule.to.iter().all(|(_, transform)| *transform == Whole);
    let part = [".scales", ".biases"].into_iter().find(|part| name.ends_with(part));
    match (rule.from.strip_suffix(".weight"), part) {
        (Some(path), Some(part)) if is_whole => (path, part),
        _ => (rule.from, ""),
    }
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

impl Sources {
    fn recipe(self, config: &Value, files: &WeightFiles, name: &str) -> Result<Recipe> {
        let stacked = !self.names.contains_key(&None);
        if stacked && self.names.keys().copied().ne((0..self.names.len()).map(Some)) {
            return Err(bad(name, "the experts it is stacked of are not numbered without holes"));
        }
        let sources: Vec<String> = self.names.into_values().collect();
        let shape = files.shape(&sources[0]).to_vec();
        let dtype = files.dtype(&sources[0])?;
        for source in &sources {
            if files.shape(source) != shape || files.dtype(source)? != dtype {
                return Err(bad(source, "its shape or type is not that of the other experts"));
            }
        }
        // A quantised matrix is dequantised before slicing; config.json has its shape.
        let packed = !dtype.is_float() && files.scales_of(&sources[0]).is_some();
        let mut recipe = Recipe::whole(sources, shape, stacked);
        recipe
            .apply_transform(self.transform, config, packed)
            .ok_or_else(|| bad(name, "it cannot be cut as config.json's sizes say"))?;
        Ok(recipe)
    }
}

impl Recipe {
    /// Unchanged sources: a stack of them, or a single one.
    pub(crate) fn whole(sources: Vec<String>, shape: Vec<usize>, stacked: bool) -> Recipe {
        let count = sources.len();
        let view = if stacked { [&[1], &shape[..]].concat() } else { shape.clone() };
        let shape = if stacked { [&[count], &shape[..]].concat() } else { shape };
        // A scalar is read as a list of one.
        let view = if view.is_empty() { vec![1] } else { view };
        Recipe { sources, view, words: false, slice: None, transposed: false, plus_one: false, shape }
    }

    /// Whether the result has the sources' bytes unchanged.
    pub(crate) fn is_whole(&self) -> bool {
        !self.words && self.slice.is_none() && !self.transposed && !self.plus_one
    }

    /// `None` if the shape does not fit.
    fn apply_transform(&mut self, transform: Transform, config: &Value, packed: bool) -> Option<()> {
        match transform {
            Whole => return Some(()),
            PlusOne => {
                self.plus_one = true;
                return Some(());
            }
            Transposed => self.transposed = true,
            Half(i) => {
                let count = self.half(1)?;
                self.slice = Some(Slice { axis: 1, from: i * count, count, step: 1 });
            }
            GateOrUp(i) => {
                let rows = size_of(config, "moe_intermediate_size")?.checked_mul(2)?;
                self.transposed = self.view.get(1..)? != [rows, size_of(config, "hidden_size")?];
                let axis = if self.transposed { 2 } else { 1 };
                let count = self.half(axis)?;
                self.slice = Some(Slice { axis, from: i * count, count, step: 1 });
            }
            Down => {
                let sides = [size_of(config, "hidden_size")?, size_of(config, "moe_intermediate_size")?];
                self.transposed = self.view.get(1..)? != sides;
            }
            AlternateColumns(i) => {
                self.slice = Some(Slice { axis: 2, from: i, count: self.half(2)?, step: 2 });
                self.transposed = true;
            }
            Alternate(i) => self.slice = Some(Slice { axis: 1, from: i, count: self.half(1)?, step: 2 }),
            Words => self.view_as_words()?,
            AlternateWords(i) => {
                self.view_as_words()?;
                self.slice = Some(Slice { axis: 1, from: i, count: self.half(1)?, step: 2 });
            }
            Keys => self.slice_heads(true, config, packed)?,
            Values => self.slice_heads(false, config, packed)?,
        }
        if self.view.len() < 2 {
            return None;
        }
        self.shape = self.view.clone();
        if let Some(slice) = self.slice {
            self.shape[slice.axis] = slice.count;
        }
        if self.transposed {
            let last = self.shape.len() - 1;
            self.shape.swap(last - 1, last);
        }
        Some(())
    }

    /// Half of an even axis.
    fn half(&self, axis: usize) -> Option<usize> {
        self.view.get(axis).filter(|size| size.is_multiple_of(2)).map(|size| size / 2)
    }

    /// `[.., blocks, bytes]` as `[.., words]`.
    fn view_as_words(&mut self) -> Option<()> {
        let [rows @ .., blocks, bytes] = &self.view[..] else { return None };
        if !bytes.is_multiple_of(4) {
            return None;
        }
        self.words = true;
        self.view = [rows, &[blocks * bytes / 4]].concat();
        Some(())
    }

    fn slice_heads(&mut self, keys: bool, config: &Value, packed: bool) -> Option<()> {
        let size = |key: &str| size_of(config, key);
        let (heads, nope, value) =
            (size("num_attention_heads")?, size("qk_nope_head_dim")?, size("v_head_dim")?);
        let rank = if packed { size("kv_lora_rank")? } else { *self.view.get(1)? };
        if !packed && self.view != [heads * (nope + value), rank] {
            return None;
        }
        self.view = vec![heads, nope + value, rank];
        let (from, count) = if keys { (0, nope) } else { (nope, value) };
        self.slice = Some(Slice { axis: 1, from, count, step: 1 });
        self.transposed = keys;
        Some(())
    }

    /// Applies slice, transposition and offset to rows of a source viewed as
    /// [`view`](Recipe::view).
    pub(crate) fn apply(&self, values: Array) -> Array {
        let values = match self.slice {
            Some(slice) => slice.apply(&values),
            None => values,
        };
        let values = match (self.transposed, values.ndim() as i32) {
            (true, axes) => {
                let order: Vec<i32> = (0..axes - 2).chain([axes - 1, axes - 2]).collect();
                values.transpose(&order)
            }
            (false, _) => values,
        };
        if self.plus_one { values + 1.0 } else { values }
    }
}

impl Slice {
    fn apply(self, values: &Array) -> Array {
        let Slice { axis, from, count, step } = self;
        if step == 1 {
            return values.slice(axis as i32, from as i32, (from + count) as i32);
        }
        // Steps become an axis of their own.
        let (before, after) = (&values.shape()[..axis], &values.shape()[axis + 1..]);
        let stepped = values.reshape(&[before, &[count as i32, step as i32], after].concat());
        let one = stepped.slice(axis as i32 + 1, from as i32, from as i32 + 1);
        one.reshape(&[before, &[count as i32], after].concat())
    }
}

/// A size in config.json.
fn size_of(config: &Value, key: &str) -> Option<usize> {
    config.get(key).and_then(Value::as_u64).map(|size| size as usize)
}

fn bad(name: &str, message: &str) -> LoadError {
    LoadError::BadTensor { name: name.into(), message: message.into() }
}
