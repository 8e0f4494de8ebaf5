//! Loading a model on a thread of its own and handing out the engine.

use std::{
    io,
    num::NonZeroUsize,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::{Arc, mpsc},
    thread,
};

use serde_json::Value;

use crate::{
    account::Reservation,
    checkpoint::Checkpoint,
    error::{LoadError, Result},
    generation_config::GenerationConfig,
    handle::{Engine, Message},
    heartbeat::Heartbeat,
    load_room::LoadRoom,
    memory::{Memory, megabytes},
    models::{self, DFlash, Model},
    options::{Device, DiskCache, Dtype, Options, Progress, Speculate},
    places::Places,
    prefix::{DiskTier, Fingerprint, LAYER_PROFILE_FILE, needs_snapshots},
    request::ModelInfo,
    run::run,
    speculate::{
        COSTS_FILE, Drafter, LayerSkip, Script, ScriptedDrafter, Speculator,
        drafters::{dflash::DFlashDrafter, draft_model::DraftModel, mtp::MtpDrafter},
        load_or_measure_costs, measure_step_costs,
    },
    weights::{Layout, QuantizationConfig, Types, Weights},
};

/// Loads a model on a thread of its own and returns when it is ready to step.
///
/// # Errors
/// One sentence that names the file, tensor or key at fault.
pub fn start(
    checkpoint: Checkpoint,
    options: Options,
    progress: impl FnMut(Progress) + Send + 'static,
) -> Result<Engine> {
    start_with(checkpoint, options, None, progress)
}

/// As [`start`], with a drafter `scripted` that follows a script: for tests and measurements.
///
/// # Errors
/// Those of [`start`].
pub fn start_scripted(
    checkpoint: Checkpoint,
    options: Options,
    script: Script,
    progress: impl FnMut(Progress) + Send + 'static,
) -> Result<Engine> {
    start_with(checkpoint, options, Some(script), progress)
}

fn start_with(
    checkpoint: Checkpoint,
    options: Options,
    script: Option<Script>,
    progress: impl FnMut(Progress) + Send + 'static,
) -> Result<Engine> {
    let (ready, loaded) = mpsc::channel();
    let (sender, messages) = mpsc::channel();
    let (places, metrics) = (Places::new(options.max_batch, options.queue_limit), options.metrics.clone());
    let heartbeat = Arc::new(Heartbeat::new(options.stuck_after));
    let (beats, waker) = (heartbeat.clone(), sender.clone());
    let thread = thread::Builder::new().name("lanner-engine".into());
    let work = move || {
        // Handed on when nothing is left that could compute on them.
        let _streams = match mlx::Streams::lease() {
            Ok(streams) => streams,
            Err(error) => return drop(ready.send(Err(error.into()))),
        };
        let result = catch_unwind(AssertUnwindSafe(|| load(&checkpoint, &options, script, progress)))
            .unwrap_or_else(|panic| Err(LoadError::Panicked(mlx::panic_message(&*panic))));
        match result {
            Ok(Ready { model, info, disk, speculator, memory }) => {
                let account = options.metrics.account.clone();
                let _registration = account.register(move || _ = waker.send(Message::MemoryChanged));
                // The caller may have given up waiting; then there is nobody to serve.
                if ready.send(Ok(info.clone())).is_ok() {
                    run(model, info, options, disk, speculator, &beats, messages);
                }
                drop(memory);
                account.wake_engines();
            }
            Err(error) => drop(ready.send(Err(error))),
        }
    };
    let thread =
        thread.spawn(work).map_err(|e| LoadError::Panicked(format!("no thread for the engine: {e}")))?;
    let info = loaded.recv().map_err(|_| LoadError::Panicked("the engine thread ended".into()))??;
    Ok(Engine::new(info, places, metrics, heartbeat, sender, thread))
}

fn load(
    checkpoint: &Checkpoint,
    options: &Options,
    script: Option<Script>,
    mut progress: impl FnMut(Progress) + 'static,
) -> Result<Ready> {
    choose_device(options.device)?;
    nn::set_precision(options.precision);
    options.threads.map(NonZeroUsize::get).into_iter().for_each(nn::set_threads);
    let generation = checkpoint.generation_config()?;
    // Hashes the weights while they are loaded.
    let fingerprint = start_fingerprint(checkpoint, options);
    let report = move |loaded_bytes, total_bytes| progress(Progress { loaded_bytes, total_bytes });
    let mut room = LoadRoom::new(options);
    let Loaded { model, config, weights } = load_model(checkpoint, options, &mut room, Box::new(report))?;
    let draft = options.draft_model.as_ref();
    let draft = draft.map(|draft| load_draft(draft, options, &mut room, &*model, &config)).transpose();
    let draft = draft.map_err(|error| match error {
        full @ LoadError::MemoryFull { .. } => full,
        error => LoadError::Options(format!("the draft model: {error}")),
    })?;
    let mut info = model_info(&*model, &config, &generation, options, &weights, draft.as_ref())?;
    let memory = room.settle(&info.memory)?;
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
    Ok(Ready { model, info, disk, speculator, memory })
}

/// All that an engine's thread runs.
struct Ready {
    model: Rc<dyn Model>,
    info: ModelInfo,
    disk: Option<DiskTier>,
    speculator: Speculator,
    /// For weights, steps and drafters.
    memory: Vec<Reservation>,
}

/// A model with what it was made of.
struct Loaded {
    model: Rc<dyn Model>,
    /// The text part of config.json.
    config: Value,
    weights: Weights,
}

/// What the user gave the model to draft with.
enum Draft {
    Model(Loaded),
    /// With the bytes of its weights.
    Block(DFlash, usize),
}

fn load_model(
    checkpoint: &Checkpoint,
    options: &Options,
    room: &mut LoadRoom,
    report: Box<dyn FnMut(usize, usize)>,
) -> Result<Loaded> {
    let config = checkpoint.config()?;
    let family = models::family(&config)?;
    let text = with_top_level_keys(models::text_config(&config), &config);
    let weights = open_weights(checkpoint, options, &config, &family.layout(&text), report)?;
    room.make(&weights, &text)?;
    let model: Rc<dyn Model> = (family.load)(&text, &weights)?.into();
    weights.all_used()?;
    Ok(Loaded { model, config: text, weights })
}

/// A model that guesses blocks, if its config.json says so, or any other. `config` is the text part of the config.json of
/// the model to draft for.
fn load_draft(
    checkpoint: &Checkpoint,
    options: &Options,
    room: &mut LoadRoom,
    target: &dyn Model,
    config: &Value,
) -> Result<Draft> {
    let own = checkpoint.config()?;
    if !models::is_dflash(&own) {
        return Ok(Draft::Model(load_model(checkpoint, options, room, Box::new(|_, _| {}))?));
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

/// Which state on the disk would be this model's, if a disk tier of the prefix cache is wanted and can be had: an engine
/// without is slower, not wrong.
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

fn choose_device(device: Option<Device>) -> Result<()> {
    match device {
        Some(Device::Gpu) if !mlx::gpu_available() => Err(LoadError::Options(format!(
            "there is no GPU for MLX {} here; use the CPU, or a build of MLX with a GPU backend",
            mlx::version()
        ))),
        Some(device) => Ok(nn::use_gpu(device == Device::Gpu)?),
        None => Ok(nn::use_gpu(mlx::gpu_available())?),
    }
}

/// On the CPU activations are float32 unless told otherwise: it is what the kernels compute in, and the most exact.
/// On a GPU they take the checkpoint's type.
fn activation_dtype(dtype: Option<Dtype>) -> Option<mlx::Dtype> {
    match dtype {
        Some(Dtype::Float32) => Some(mlx::Dtype::Float32),
        Some(Dtype::Float16) => Some(mlx::Dtype::Float16),
        Some(Dtype::Bfloat16) => Some(mlx::Dtype::Bfloat16),
        None => (!mlx::on_gpu()).then_some(mlx::Dtype::Float32),
    }
}

/// Multimodal checkpoints keep a few of the text model's keys beside `text_config` instead of in it.
pub fn with_top_level_keys(text: &Value, config: &Value) -> Value {
    let mut merged = text.clone();
    if let (Some(merged), Some(config)) = (merged.as_object_mut(), config.as_object()) {
        for key in ["tie_word_embeddings", "eos_token_id"] {
            let lacks = merged.get(key).is_none_or(Value::is_null);
            if let (true, Some(value)) = (lacks, config.get(key)) {
                merged.insert(key.into(), value.clone());
            }
        }
    }
    merged
}

fn model_info(
    model: &dyn Model,
    config: &Value,
    generation: &GenerationConfig,
    options: &Options,
    weights: &Weights,
    draft: Option<&Draft>,
) -> Result<ModelInfo> {
    let trained = model.context_length().max(stretched_context(config).unwrap_or(0));
    let context_length = options.max_context.map_or(trained, |limit| limit.min(trained));
    if context_length < 2 {
        return Err(LoadError::Options(format!("a context of {context_length} tokens holds no answer")));
    }
    let eos_ids = eos_ids(config, generation, options, model.vocab_size())?;
    Ok(ModelInfo {
        model_type: config.get("model_type").and_then(Value::as_str).unwrap_or_default().into(),
        vocab_size: model.vocab_size(),
        memory: memory(model, config, options, weights.loaded_bytes(), draft)?,
        context_length,
        eos_ids,
        drafters: vec![],
        speculate: options.speculate.clone(),
        default_sampling: generation.sampling.clone(),
        weight_bytes: weights.loaded_bytes(),
        weights: weights.summary(config),
    })
}

/// # Errors
/// The limit leaves no room for a sequence.
fn memory(
    model: &dyn Model,
    config: &Value,
    options: &Options,
    weights: usize,
    draft: Option<&Draft>,
) -> Result<Memory> {
    let mut memory = Memory::of(model, config, options, weights)?;
    match draft {
        Some(Draft::Model(Loaded { model, config, weights })) => {
            memory.add_draft(Memory::of(&**model, config, options, weights.loaded_bytes())?);
        }
        Some(Draft::Block(block, weights)) => memory.add_block(block, *weights, options),
        None => {}
    }
    // Without it everything is slower, and nothing wrong.
    mlx::wire_memory(memory.limit.unwrap_or(usize::MAX))
        .unwrap_or_else(|error| tracing::warn!("memory is not wired: {error}"));
    let Some(limit) = memory.limit else { return Ok(memory) };
    // A prompt of one token, and its answer.
    let least = memory.weights + memory.step + memory.state(2);
    if least > limit {
        return Err(LoadError::Options(format!(
            "the weights take {}, a step {} and the shortest sequence {} of memory, and the limit is {}; set it to {least} bytes \
             or more, or lower --prefill-chunk",
            megabytes(memory.weights),
            megabytes(memory.step),
            megabytes(memory.state(2)),
            megabytes(limit)
        )));
    }
    mlx::set_memory_limit(limit)?;
    Ok(memory)
}

/// Files that add YaRN to a shorter model leave `max_position_embeddings` as it was and mean the stretched length.
fn stretched_context(config: &Value) -> Option<usize> {
    let rope = config.get("rope_parameters").or(config.get("rope_scaling"))?;
    let yarn = ["rope_type", "type"].iter().any(|key| rope.get(key) == Some(&Value::from("yarn")));
    let number = |key: &str| rope.get(key).and_then(Value::as_f64).filter(|_| yarn);
    Some((number("original_max_position_embeddings")? * number("factor")?) as usize)
}

/// Of generation_config.json and config.json together, or of the tokenizer.
///
/// # Errors
/// generation_config.json names a token that the model does not have.
fn eos_ids(
    config: &Value,
    generation: &GenerationConfig,
    options: &Options,
    vocab_size: usize,
) -> Result<Vec<u32>> {
    let is_known = |id: &u32| (*id as usize) < vocab_size;
    if let Some(id) = generation.eos_ids.iter().find(|id| !is_known(id)) {
        return Err(LoadError::File {
            path: "generation_config.json".into(),
            message: format!("eos_token_id is {id}, and the model has {vocab_size} tokens"),
        });
    }
    let mut ids = [generation.eos_ids.clone(), token_ids(config.get("eos_token_id"))].concat();
    if ids.is_empty() {
        ids.extend(options.eos_ids.iter().filter(|id| is_known(id)));
    }
    ids.sort();
    ids.dedup();
    Ok(ids)
}

/// One token id or a list of them.
fn token_ids(value: Option<&Value>) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Some(Value::Array(ids)) => ids.iter().filter_map(id).collect(),
        Some(value) => id(value).into_iter().collect(),
        None => vec![],
    }
}
