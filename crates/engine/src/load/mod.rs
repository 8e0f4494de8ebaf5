//! Loads a model: its files, weights, drafters and disk cache.

mod info;
mod reservation;

use std::{io, num::NonZeroUsize, rc::Rc};

use mlx::quant::Mode;
use serde_json::Value;

pub(crate) use self::info::trained_context;
use self::{info::model_info, reservation::LoadRoom};
use crate::{
    api::{
        Checkpoint, Device, DiskCache, Dtype, ModelInfo, Options, Progress, Reservation, Speculate,
        error::{LoadError, Result},
    },
    models::{self, DFlash, Model},
    prefix::{DiskTier, Fingerprint, LAYER_PROFILE_FILE, needs_snapshots},
    speculate::{
        COSTS_FILE, Drafter, LayerSkip, Script, ScriptedDrafter, Speculator,
        drafters::{dflash::DFlashDrafter, draft_model::DraftModel, mtp::MtpDrafter},
        load_or_measure_costs, measure_step_costs, warm_up,
    },
    weights::{Layout, QuantizationConfig, Types, Weights, has_mxfp4_experts},
};

/// Loads everything that the engine's thread needs, on that thread.
///
/// # Errors
/// One sentence that names the file, tensor or key at fault.
pub(crate) fn load(
    checkpoint: &Checkpoint,
    options: &Options,
    script: Option<Script>,
    mut progress: impl FnMut(Progress) + 'static,
) -> Result<Ready> {
    choose_device(options.device, checkpoint)?;
    nn::set_precision(options.precision);
    nn::set_kv_cache_dtype(kv_cache_dtype(options)?);
    options.buffer_cache_bytes.map_or(Ok(()), mlx::set_cache_limit)?;
    options.threads.map(NonZeroUsize::get).into_iter().for_each(nn::set_threads);
    let generation = checkpoint.generation_config()?;
    let report = move |loaded_bytes, total_bytes| progress(Progress { loaded_bytes, total_bytes });
    let mut room = LoadRoom::new(options);
    let mut fingerprint = None;
    // Hashes the weights while they are loaded, and no file that was refused.
    let on_open = || fingerprint = start_fingerprint(checkpoint, options);
    let Loaded { model, config, weights } =
        load_model(checkpoint, options, &mut room, Box::new(report), on_open)?;
    let options = &suited_options(options, &*model);
    let draft = options.draft_model.as_ref();
    let draft = draft.map(|draft| load_draft(draft, options, &mut room, &*model, &config)).transpose();
    let draft = draft.map_err(|error| match error {
        full @ LoadError::MemoryFull { .. } => full,
        error => LoadError::Options(format!("the draft model: {error}")),
    })?;
    let mut info = model_info(&*model, &config, &generation, options, &weights, draft.as_ref())?;
    let memory = room.keep_fixed(&info.memory)?;
    if mlx::on_gpu() && !model.is_bidirectional() {
        warm_up(&*model)?;
    }
    let mut more: Vec<Box<dyn Drafter>> = vec![];
    if let Some(mtp) = MtpDrafter::new(model.clone()) {
        more.push(Box::new(mtp));
    }
    let disk = fingerprint.and_then(|fingerprint| open_disk(fingerprint, options, &*model));
    let profile = disk.as_ref().map(|disk| disk.folder().join(LAYER_PROFILE_FILE));
    if let Some(layer_skip) = LayerSkip::new(model.clone(), profile) {
        more.push(Box::new(layer_skip));
    }
    match draft {
        Some(Draft::Model(Loaded { model, .. })) => {
            let costs = measure_step_costs(&*model)?;
            more.push(Box::new(DraftModel::new(model, costs, options, info.memory.draft_cache)));
        }
        Some(Draft::Block(block, _)) => more.push(Box::new(DFlashDrafter::new(model.clone(), block))),
        None => {}
    }
    if let Some(script) = script {
        more.push(Box::new(ScriptedDrafter(script)));
    }
    let file = disk.as_ref().map(|disk| disk.folder().join(COSTS_FILE));
    let auto = options.speculate == Speculate::Auto;
    let costs = load_or_measure_costs(&*model, &mut more, file.as_deref(), auto)?;
    let mut speculator = Speculator::new(options, more, costs).map_err(LoadError::Options)?;
    speculator.set_costs_file(file);
    info.drafters = speculator.names();
    report_fallbacks();
    Ok(Ready { model, info, options: options.clone(), disk, speculator, memory })
}

/// A text encoder computes a prompt in one step, and no state of it is of use to another.
fn suited_options(options: &Options, model: &dyn Model) -> Options {
    let options = options.clone();
    if !model.is_bidirectional() {
        return options;
    }
    let prefill_chunk = options.prefill_chunk.max(model.context_length());
    Options { prefill_chunk, prefix_cache_bytes: 0, disk_cache: None, speculate: Speculate::Off, ..options }
}

/// Logs what the CPU does for the GPU, and how rows are given to MLX's kernels there, each item
/// once.
pub(crate) fn report_fallbacks() {
    for calls in nn::take_row_calls() {
        tracing::info!("on MLX's GPU: {calls}");
    }
    for what in nn::take_fallbacks() {
        tracing::warn!("the GPU leaves to the CPU: {what}");
    }
}

/// Everything that an engine's thread runs.
pub(crate) struct Ready {
    pub model: Rc<dyn Model>,
    pub info: ModelInfo,
    pub options: Options,
    pub disk: Option<DiskTier>,
    pub speculator: Speculator,
    /// For weights, steps and drafters.
    pub memory: Vec<Reservation>,
}

/// A model, its config and its weights.
struct Loaded {
    model: Rc<dyn Model>,
    /// The text part of config.json.
    config: Value,
    weights: Weights,
}

/// Drafters that are loaded beside the model.
enum Draft {
    Model(Loaded),
    /// With the bytes of its weights.
    Block(DFlash, usize),
}

/// `on_open` runs once the weight files are checked and have room, before they are read.
fn load_model(
    checkpoint: &Checkpoint,
    options: &Options,
    room: &mut LoadRoom,
    report: Box<dyn FnMut(usize, usize)>,
    on_open: impl FnOnce(),
) -> Result<Loaded> {
    let config = checkpoint.config()?;
    let family = models::family(&config)?;
    let text = with_top_level_keys(models::text_config(&config), &config);
    let weights = open_weights(checkpoint, options, &config, &family.layout(&text), report)?;
    room.make(&weights, &text)?;
    on_open();
    let model: Rc<dyn Model> = (family.load)(&text, &weights)?.into();
    weights.all_used()?;
    Ok(Loaded { model, config: text, weights })
}

/// Loads a block drafter if its config.json says so, else any other model. `config` is the text
/// part of the config.json of the model to draft for.
fn load_draft(
    checkpoint: &Checkpoint,
    options: &Options,
    room: &mut LoadRoom,
    target: &dyn Model,
    config: &Value,
) -> Result<Draft> {
    let own = checkpoint.config()?;
    if !models::is_dflash(&own) {
        return Ok(Draft::Model(load_model(checkpoint, options, room, Box::new(|_, _| {}), || {})?));
    }
    let hidden_size = config.get("hidden_size").and_then(Value::as_i64).unwrap_or(0) as i32;
    let weights = open_weights(checkpoint, options, &own, &Layout::plain(&own), Box::new(|_, _| {}))?;
    room.make(&weights, &own)?;
    let block = DFlash::load(&own, &weights, target, hidden_size)?;
    weights.all_used()?;
    Ok(Draft::Block(block, weights.loaded_bytes()))
}

fn open_weights(
    checkpoint: &Checkpoint,
    options: &Options,
    config: &Value,
    layout: &Layout,
    report: Box<dyn FnMut(usize, usize)>,
) -> Result<Weights> {
    let activations = activation_dtype(options.dtype);
    // CPU kernels take weights of any type; MLX's own operations want the activations'.
    let types = Types { activations, weights: activations.filter(|_| mlx::on_gpu()) };
    match checkpoint.random() {
        Some(random) => Ok(Weights::random(random, types, report)),
        None => {
            let declared = QuantizationConfig::from_config(config)?;
            Weights::new(checkpoint.weight_files()?, layout, types, declared, report)
        }
    }
}

/// The fingerprint of this model's state on the disk; `None` if no disk tier is wanted or it cannot
/// be opened, which only costs speed.
fn start_fingerprint(checkpoint: &Checkpoint, options: &Options) -> Option<Fingerprint> {
    let place = options.disk_cache.as_ref().filter(|_| options.prefix_cache_bytes > 0)?;
    Fingerprint::start(place, checkpoint, options).unwrap_or_else(|error| no_disk(place, &error))
}

fn open_disk(fingerprint: Fingerprint, options: &Options, model: &dyn Model) -> Option<DiskTier> {
    let place = options.disk_cache.as_ref()?;
    let opened = DiskTier::open(place, fingerprint, needs_snapshots(&model.make_caches()));
    opened.map(Some).unwrap_or_else(|error| no_disk(place, &error))
}

fn no_disk<T>(place: &DiskCache, error: &io::Error) -> Option<T> {
    tracing::warn!("there is no disk cache in {}: {error}", place.folder.display());
    None
}

/// An NVIDIA GPU runs our kernels, unless MLX has a GPU too and the model's weights have no
/// kernels.
fn choose_device(device: Option<Device>, checkpoint: &Checkpoint) -> Result<()> {
    match device {
        Some(Device::Gpu) if mlx::gpu_available() && !has_kernels(checkpoint)? => Ok(nn::use_gpu(true)?),
        Some(Device::Gpu) => match nn::use_cuda() {
            Ok(()) => Ok(()),
            Err(error) if mlx::gpu_available() => {
                tracing::warn!("MLX's GPU kernels are used, not Lanner's: {error}");
                Ok(nn::use_gpu(true)?)
            }
            Err(error) => Err(LoadError::Options(format!(
                "there is no GPU here for Lanner's kernels ({error}) nor for MLX {}; use the CPU",
                mlx::version()
            ))),
        },
        Some(Device::Cpu) => Ok(nn::use_gpu(false)?),
        None => Ok(nn::use_gpu(mlx::gpu_available())?),
    }
}

/// Whether our kernels for GPUs read the format of most weights: affine codes in groups of 64 or
/// 128, 4-bit floats in MXFP4, and floats but those of experts.
fn has_kernels(checkpoint: &Checkpoint) -> Result<bool> {
    let config = checkpoint.config()?;
    let format = match checkpoint.random() {
        Some(random) => random.quantization,
        None => QuantizationConfig::default_format(&config),
    };
    Ok(match format {
        Some(q) => match q.mode {
            Mode::Affine => matches!(q.group_size, 64 | 128),
            Mode::Mxfp4 => true,
            Mode::Mxfp8 | Mode::Nvfp4 => false,
        },
        // Random experts are then floats, too.
        None => !has_experts(&config) || checkpoint.random().is_none() && has_mxfp4_experts(&config),
    })
}

fn has_experts(config: &Value) -> bool {
    let text = models::text_config(config);
    let keys = ["num_experts", "num_local_experts", "n_routed_experts"];
    keys.iter().any(|key| text.get(key).and_then(Value::as_i64).is_some_and(|count| count > 0))
}

/// On the CPU activations are float32 unless `dtype` says otherwise: the kernels compute in it, and
/// it is the most exact. On a GPU they take the checkpoint's type.
fn activation_dtype(dtype: Option<Dtype>) -> Option<mlx::Dtype> {
    match dtype {
        Some(dtype) => Some(mlx_dtype(dtype)),
        None => (!mlx::on_gpu()).then_some(mlx::Dtype::Float32),
    }
}

/// The type of stored keys and values, if it is not that of the activations.
fn kv_cache_dtype(options: &Options) -> Result<Option<mlx::Dtype>> {
    let Some(dtype) = options.kv_cache_dtype.map(mlx_dtype) else { return Ok(None) };
    match activation_dtype(options.dtype) {
        Some(activations) if activations == dtype => Ok(None),
        Some(mlx::Dtype::Float32) if dtype == mlx::Dtype::Bfloat16 && !on_any_gpu() => Ok(Some(dtype)),
        _ => Err(LoadError::Options(format!(
            "keys and values cannot be stored as {}: they have the type of the activations, or bfloat16 on the CPU \
             where those are float32",
            dtype.name()
        ))),
    }
}

/// Whether MLX's kernels or ours compute on a GPU.
fn on_any_gpu() -> bool {
    mlx::on_gpu() || mlx::cuda::in_use()
}

fn mlx_dtype(dtype: Dtype) -> mlx::Dtype {
    match dtype {
        Dtype::Float32 => mlx::Dtype::Float32,
        Dtype::Float16 => mlx::Dtype::Float16,
        Dtype::Bfloat16 => mlx::Dtype::Bfloat16,
    }
}

/// Keys that multimodal checkpoints may have beside the text part of config.json, those of their
/// vision part among them.
const TOP_LEVEL_KEYS: &[&str] = &[
    "tie_word_embeddings",
    "eos_token_id",
    "vision_config",
    "image_token_id",
    "image_token_index",
    "spatial_merge_size",
    "projector_hidden_act",
    "projector_hidden_size",
    "projector_bias",
    "projector_use_layernorm",
    "downsample_factor",
    "multimodal_projector_bias",
    "vision_feature_layer",
    "mm_tokens_per_image",
];

/// Multimodal checkpoints keep a few of the text model's keys beside `text_config` instead of in
/// it, and those of images.
pub(crate) fn with_top_level_keys(text: &Value, config: &Value) -> Value {
    let mut merged = text.clone();
    if let (Some(merged), Some(config)) = (merged.as_object_mut(), config.as_object()) {
        for key in TOP_LEVEL_KEYS {
            let lacks = merged.get(*key).is_none_or(Value::is_null);
            if let (true, Some(value)) = (lacks, config.get(*key)) {
                merged.insert((*key).into(), value.clone());
            }
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use mlx::quant::Quantization;
    use serde_json::json;

    use super::*;

    #[test]
    fn kernels_for_gpus_read_floats_mxfp4_and_affine_codes_in_groups_of_64_and_128() {
        let random = |bits, group_size| {
            let quantization = Some(Quantization { mode: Mode::Affine, group_size, bits });
            has_kernels(&Checkpoint::Random { config: json!({}), quantization }).unwrap()
        };
        assert!([2, 3, 4, 5, 6, 8].iter().all(|&bits| random(bits, 64) && random(bits, 128)));
        assert!(!random(4, 32) && !random(8, 32));
        let floats = |config| has_kernels(&Checkpoint::Random { config, quantization: None }).unwrap();
        assert!(floats(json!({})) && floats(json!({ "num_experts": 0 })));
        let method = json!({ "quant_method": "mxfp4" });
        assert!(!floats(json!({ "num_local_experts": 32, "quantization_config": method })));
        assert!(
            !floats(json!({ "num_experts": 8 }))
                && !floats(json!({ "text_config": { "n_routed_experts": 4 } }))
        );
        let folder = tempfile::tempdir().unwrap();
        let declared = |config: Value| {
            std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
            has_kernels(&Checkpoint::Folder(folder.path().into())).unwrap()
        };
        let format = json!({ "bits": 4, "group_size": 64 });
        assert!(declared(json!({ "quantization": format })));
        assert!(declared(json!({ "text_config": { "quantization": format } })));
        let floats = |mode, group_size| json!({ "mode": mode, "bits": 4, "group_size": group_size });
        assert!(declared(json!({})) && declared(json!({ "quantization": floats("mxfp4", 32) })));
        assert!(!declared(json!({ "quantization": floats("nvfp4", 16) })));
        // gpt-oss as published, and with experts of bfloat16.
        let method = json!({ "quant_method": "mxfp4" });
        assert!(declared(json!({ "num_local_experts": 32, "quantization_config": method })));
        assert!(!declared(json!({ "num_local_experts": 32 })));
    }
}
