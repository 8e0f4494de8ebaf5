//! Footprint of a model on a machine, from config.json and the headers of its weight files alone:
//! no weights are read, and nothing is computed.

use std::thread;

use mlx::{Dtype, quant::Quantization};
use serde_json::Value;

use crate::{
    api::{
        self, Checkpoint, Device, Memory, Options, WeightSummary,
        error::{LoadError, Result},
    },
    load::{trained_context, with_top_level_keys},
    models,
    quantize::{Plan, QuantizeError},
    weights::{QuantizationConfig, Types, WeightFiles, Weights},
};

/// Memory and reads of a model that is not loaded.
#[derive(Clone, Debug)]
pub struct Footprint {
    /// `model_type` of config.json.
    pub model_type: String,
    /// Number of layers, without those of a multi-token prediction head.
    pub layers: usize,
    /// Longest prompt plus output, in tokens.
    pub context_length: usize,
    /// Size and format of the weights.
    pub weights: WeightSummary,
    /// Memory of weights, steps and state; the step is an estimate, under a limit too.
    pub memory: Memory,
}

/// A model of which at least the headers are known.
#[derive(Clone, Debug)]
pub enum Headers {
    /// Those of a model on this machine.
    Checkpoint(Checkpoint),
    /// A config.json, and its tensors.
    Recorded {
        /// Content of config.json.
        config: Value,
        /// Every tensor of the checkpoint.
        tensors: Vec<TensorHeader>,
    },
}

/// A tensor as the header of a safetensors file describes it.
#[derive(Clone, Debug)]
pub struct TensorHeader {
    /// Its name in the file.
    pub name: String,
    /// Its type as safetensors names it, such as `BF16`.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<usize>,
}

/// A checkpoint without data.
struct Described {
    config: Value,
    tensors: Vec<(String, Dtype, Vec<i32>)>,
}

impl Footprint {
    /// The footprint of a model run with these options; with a format, that of the copy which
    /// `lanner quantize` makes of it. A draft model, an n-gram table and caches are not counted.
    ///
    /// # Errors
    /// The headers cannot be read or do not fit config.json, the family is unknown, or a model that
    /// is quantised already is to be quantised.
    pub fn of(
        model: &Headers,
        options: &Options,
        format: Option<Quantization>,
    ) -> std::result::Result<Footprint, QuantizeError> {
        let described = match format {
            None => Described::of(model)?,
            Some(format) => Described::quantized(model, format)?,
        };
        // A thread of its own: shapes come from a graph of MLX's operations, whatever the caller's
        // threads compute with.
        let work = || {
            let _streams = mlx::Streams::lease()?;
            nn::use_shapes_only()?;
            described.footprint(options)
        };
        let found = thread::scope(|scope| scope.spawn(work).join());
        Ok(found.unwrap_or_else(|panic| Err(LoadError::Panicked(mlx::panic_message(&*panic))))?)
    }
}

impl Headers {
    fn config(&self) -> Result<Value> {
        match self {
            Headers::Checkpoint(checkpoint) => checkpoint.config(),
            Headers::Recorded { config, .. } => Ok(config.clone()),
        }
    }

    fn files(&self) -> Result<WeightFiles> {
        match self {
            Headers::Checkpoint(checkpoint) => WeightFiles::new(checkpoint.weight_files()?),
            Headers::Recorded { tensors, .. } => {
                let tensors = tensors.iter().map(TensorHeader::described).collect::<Result<Vec<_>>>()?;
                Ok(WeightFiles::described(tensors))
            }
        }
    }
}

impl TensorHeader {
    fn described(&self) -> Result<(String, Dtype, Vec<i32>)> {
        let bad = |message: String| LoadError::BadTensor { name: self.name.clone(), message };
        let dtype = match &*self.dtype {
            "F32" => Dtype::Float32,
            "F16" => Dtype::Float16,
            "BF16" => Dtype::Bfloat16,
            "U32" => Dtype::Uint32,
            "U8" => Dtype::Uint8,
            "I32" => Dtype::Int32,
            other => return Err(bad(format!("there is no type {other} here"))),
        };
        Ok((self.name.clone(), dtype, shape(&self.name, &self.shape)?))
    }
}

impl Described {
    /// The checkpoint as it is.
    fn of(model: &Headers) -> Result<Described> {
        let (config, files) = (model.config()?, model.files()?);
        let text = models::text_config(&config).clone();
        let layout = models::family(&config)?.layout(&text);
        // A tensor that no model uses may have a type that the engine lacks.
        let used = files.names().into_iter().filter(|name| layout.canonical(name).is_some());
        let described = |name: String| {
            let (dtype, shape) = (files.dtype(&name)?, shape(&name, files.shape(&name))?);
            Ok((name, dtype, shape))
        };
        let tensors = used.map(described).collect::<Result<Vec<_>>>()?;
        Ok(Described { config, tensors })
    }

    /// The copy that `quantize` would write.
    fn quantized(model: &Headers, format: Quantization) -> std::result::Result<Described, QuantizeError> {
        let plan = Plan::of(model.config()?, model.files()?, format)?;
        let tensors = plan.stored().into_iter().map(|tensor| {
            let shape = shape(&tensor.name, &tensor.shape)?;
            Ok((tensor.name, tensor.dtype, shape))
        });
        Ok(Described { tensors: tensors.collect::<Result<Vec<_>>>()?, config: plan.result_config() })
    }

    fn footprint(self, options: &Options) -> Result<Footprint> {
        let Described { config, tensors } = self;
        let family = models::family(&config)?;
        let text = with_top_level_keys(models::text_config(&config), &config);
        let declared = QuantizationConfig::from_config(&config)?;
        let activations = activation_dtype(options);
        let types = Types { activations, weights: None };
        let weights = Weights::described(tensors, &family.layout(&text), types, declared)?;
        let model = (family.load)(&text, &weights)?;
        let trained = trained_context(&*model, &text);
        let options = Options { memory_limit: None, ..options.clone() };
        let mut memory = Memory::of(&*model, &text, &options, weights.used_bytes())?;
        if options.kv_cache_dtype == Some(api::Dtype::Bfloat16) && activations == Some(Dtype::Float32) {
            halve_keys_and_values(&mut memory);
        }
        let number = |key: &str| text.get(key).and_then(Value::as_u64);
        Ok(Footprint {
            model_type: text.get("model_type").and_then(Value::as_str).unwrap_or_default().into(),
            layers: number("num_hidden_layers").unwrap_or(0) as usize,
            context_length: options.max_context.map_or(trained, |limit| limit.min(trained)),
            weights: weights.summary(&text),
            memory,
        })
    }
}

fn shape(name: &str, shape: &[usize]) -> Result<Vec<i32>> {
    let too_long =
        |_| LoadError::BadTensor { name: name.into(), message: "an axis is over 2^31 long".into() };
    shape.iter().map(|&dim| i32::try_from(dim).map_err(too_long)).collect()
}

/// The type of activations with these options; `None`: the checkpoint's.
fn activation_dtype(options: &Options) -> Option<Dtype> {
    let on_gpu = options.device != Some(Device::Cpu) && mlx::gpu_available();
    match options.dtype {
        Some(api::Dtype::Float32) => Some(Dtype::Float32),
        Some(api::Dtype::Float16) => Some(Dtype::Float16),
        Some(api::Dtype::Bfloat16) => Some(Dtype::Bfloat16),
        None => (!on_gpu).then_some(Dtype::Float32),
    }
}

/// The graph stores them in the type of the activations.
fn halve_keys_and_values(memory: &mut Memory) {
    memory.token /= 2;
    memory.growing /= 2;
    memory.windows.iter_mut().for_each(|(token, _)| *token /= 2);
    if let Some(stored) = &mut memory.stored {
        stored.token /= 2;
        stored.windows.iter_mut().for_each(|(token, _)| *token /= 2);
    }
}
