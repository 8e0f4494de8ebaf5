//! How a checkpoint makes embeddings: the pooling that its files for sentence-transformers name,
//! and dense layers after it.

use std::{path::Path, sync::Arc};

use engine::Pooling;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::Value;

/// Most bytes of a dense layer; EmbeddingGemma's have 9 MB.
const DENSE_FILE: u64 = 256 << 20;

/// sentence-transformers' names of poolings, in `pooling_mode` or as the end of a key's name.
const POOLINGS: [(&str, Option<Pooling>); 6] = [
    ("lasttoken", Some(Pooling::Last)),
    ("mean_tokens", Some(Pooling::Mean)),
    ("mean", Some(Pooling::Mean)),
    ("cls_token", None),
    ("max_tokens", None),
    ("weightedmean_tokens", None),
];

/// How a checkpoint makes embeddings: the pooling of hidden states, and the layers after it.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingHead {
    pub pooling: Pooling,
    dense: Arc<[Dense]>,
}

impl EmbeddingHead {
    /// Without further layers.
    pub(crate) fn new(pooling: Pooling) -> EmbeddingHead {
        EmbeddingHead { pooling, dense: [].into() }
    }

    /// Whether there is nothing after the pooling.
    pub(crate) fn is_plain(&self) -> bool {
        self.dense.is_empty()
    }

    /// The embedding of a state that was pooled by `pooling`. The layers belong to the checkpoint's
    /// own pooling.
    pub(crate) fn forward(&self, pooling: Pooling, state: Vec<f32>) -> Vec<f32> {
        let layers = self.dense.iter().filter(|_| pooling == self.pooling);
        layers.fold(state, |x, layer| layer.forward(&x))
    }

    /// # Errors
    /// The first layer does not take states of this size.
    pub(crate) fn check(self, hidden_size: Option<usize>) -> Result<EmbeddingHead, String> {
        match (self.dense.first(), hidden_size) {
            (Some(dense), Some(size)) if dense.inputs != size => {
                Err(format!("its first dense layer takes {} numbers, and the model has {size}", dense.inputs))
            }
            _ => Ok(self),
        }
    }
}

/// Reads modules.json, 1_Pooling/config.json and dense layers of a checkpoint's folder. Models
/// without them were trained to generate; the mean represents a text better than their last token.
///
/// # Errors
/// The checkpoint names a pooling, or layers after it, that are not supported.
pub(crate) fn from_folder(folder: &Path) -> Result<EmbeddingHead, String> {
    let read = |name: &str| -> Result<Value, String> {
        if !folder.join(name).exists() {
            return Ok(Value::Null);
        }
        let bytes = read_file(folder, name, files::SETTINGS)?;
        serde_json::from_slice(&bytes).map_err(|error| format!("{name}: {error}"))
    };
    let (pooling, paths) = from_files(&read("modules.json")?, &read("1_Pooling/config.json")?)?;
    let dense = paths.iter().map(|path| {
        let config = read(&format!("{path}/config.json"))?;
        let weights = read_file(folder, &format!("{path}/model.safetensors"), DENSE_FILE)?;
        Dense::new(&config, &weights).map_err(|error| format!("{path}: {error}"))
    });
    let dense: Vec<Dense> = dense.collect::<Result<_, _>>()?;
    match dense.windows(2).find(|pair| pair[0].outputs() != pair[1].inputs) {
        Some(pair) => {
            let (outputs, inputs) = (pair[0].outputs(), pair[1].inputs);
            Err(format!("a dense layer has {outputs} outputs, and the next one takes {inputs} numbers"))
        }
        None => Ok(EmbeddingHead { pooling, dense: dense.into() }),
    }
}

fn read_file(folder: &Path, name: &str, most: u64) -> Result<Vec<u8>, String> {
    files::read(&folder.join(name), most).map_err(|error| format!("{name}: {error}"))
}

/// The pooling, and the folders of the dense layers after it.
fn from_files(modules: &Value, config: &Value) -> Result<(Pooling, Vec<String>), String> {
    let mut paths = vec![];
    let mut pooled = false;
    for module in modules.as_array().into_iter().flatten() {
        let kind = module["type"].as_str().and_then(|path| path.rsplit('.').next());
        match kind {
            Some("Transformer" | "Normalize") | None => {}
            Some("Pooling") => pooled = true,
            Some("Dense") if pooled => paths.push(dense_folder(module["path"].as_str().unwrap_or_default())?),
            Some(kind) => {
                return Err(format!("modules.json has a layer of type {kind}, which is not supported"));
            }
        }
    }
    Ok((pooling(config)?, paths))
}

/// A folder in that of the model.
fn dense_folder(path: &str) -> Result<String, String> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    match !path.is_empty() && path.bytes().all(is_name) {
        true => Ok(path.to_owned()),
        false => Err(format!("modules.json has a layer in `{path:.64}`, which is no folder of the model")),
    }
}

fn pooling(config: &Value) -> Result<Pooling, String> {
    let is_set = |name: &str| {
        config["pooling_mode"] == name || config[format!("pooling_mode_{name}")].as_bool() == Some(true)
    };
    let mut set = POOLINGS.iter().filter(|(name, _)| is_set(name));
    match (set.next(), set.next()) {
        (None, _) if config["pooling_mode"].is_null() => Ok(Pooling::Mean),
        (Some((_, Some(pooling))), None) => Ok(*pooling),
        _ => Err("1_Pooling/config.json names a pooling other than the mean or the last token".into()),
    }
}

/// A linear layer of sentence-transformers without activation.
#[derive(Debug, PartialEq)]
struct Dense {
    inputs: usize,
    /// Row by row, one for each output.
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
}

impl Dense {
    fn new(config: &Value, weights: &[u8]) -> Result<Dense, String> {
        let activation = config["activation_function"].as_str().unwrap_or_default();
        if !activation.ends_with(".Identity") {
            return Err(format!("the activation `{activation:.64}` is not supported, only Identity"));
        }
        let tensors = SafeTensors::deserialize(weights).map_err(|error| error.to_string())?;
        let weight = tensors.tensor("linear.weight").map_err(|error| error.to_string())?;
        let &[outputs, inputs] = weight.shape() else { return Err("linear.weight is no matrix".into()) };
        let bias = tensors.tensor("linear.bias").ok();
        if outputs == 0 || inputs == 0 || bias.as_ref().is_some_and(|bias| bias.shape() != [outputs]) {
            return Err("the shapes of linear.weight and linear.bias do not fit".into());
        }
        let bias = bias.map(|bias| numbers(&bias)).transpose()?;
        Ok(Dense { inputs, weight: numbers(&weight)?, bias })
    }

    fn outputs(&self) -> usize {
        self.weight.len() / self.inputs
    }

    fn forward(&self, x: &[f32]) -> Vec<f32> {
        let product =
            |row: &[f32]| row.iter().zip(x).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let products = self.weight.chunks_exact(self.inputs).map(product).enumerate();
        let bias = |at: usize| self.bias.as_ref().map_or(0.0, |bias| f64::from(bias[at]));
        products.map(|(at, product)| (product + bias(at)) as f32).collect()
    }
}

fn numbers(tensor: &TensorView) -> Result<Vec<f32>, String> {
    let bytes = tensor.data();
    match tensor.dtype() {
        Dtype::F32 => {
            Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
        }
        // The upper half of a float32.
        Dtype::BF16 => Ok(bytes.chunks_exact(2).map(|b| f32::from_le_bytes([0, 0, b[0], b[1]])).collect()),
        other => Err(format!("its weights are {other:?}; only F32 and BF16 are supported")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn modules(kinds: &[&str]) -> Value {
        let module = |(at, kind): (usize, &&str)| json!({ "type": format!("sentence_transformers.models.{kind}"), "path": format!("{at}_{kind}") });
        kinds.iter().enumerate().map(module).collect()
    }

    fn check(kinds: &[&str], config: &Value, expected: Result<Pooling, &str>) {
        let found = from_files(&modules(kinds), config).map(|(pooling, _)| pooling);
        match (&found, expected) {
            (Err(message), Err(part)) => assert!(message.contains(part), "{message}"),
            _ => assert_eq!(found, expected.map_err(str::to_owned), "{config}"),
        }
    }

    #[test]
    fn pooling_is_that_of_sentence_transformers_files() {
        let usual = ["Transformer", "Pooling", "Normalize"];
        check(&[], &Value::Null, Ok(Pooling::Mean));
        // Qwen3-Embedding.
        let qwen3 = json!({ "pooling_mode_mean_tokens": false, "pooling_mode_lasttoken": true });
        check(&usual, &qwen3, Ok(Pooling::Last));
        check(&usual, &json!({ "pooling_mode_mean_tokens": true }), Ok(Pooling::Mean));
        check(&usual, &json!({ "pooling_mode": "lasttoken" }), Ok(Pooling::Last));
        check(&usual, &json!({ "pooling_mode_cls_token": true }), Err("pooling"));
        check(&usual, &json!({ "pooling_mode": "splade" }), Err("pooling"));
        let both = json!({ "pooling_mode_mean_tokens": true, "pooling_mode_lasttoken": true });
        check(&usual, &both, Err("pooling"));
        check(&["Transformer", "Dense", "Pooling"], &qwen3, Err("Dense"));
        check(&["Transformer", "Pooling", "LayerNorm"], &qwen3, Err("LayerNorm"));
    }

    /// Writes a dense layer without bias.
    fn write_dense(folder: &Path, activation: &str, shape: [usize; 2], weight: &[f32]) {
        std::fs::create_dir_all(folder).unwrap();
        let config = json!({ "in_features": shape[1], "out_features": shape[0], "bias": false,
            "activation_function": format!("torch.nn.modules.linear.{activation}") });
        std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
        let bytes: Vec<u8> = weight.iter().flat_map(|value| value.to_le_bytes()).collect();
        let tensor = TensorView::new(Dtype::F32, shape.to_vec(), &bytes).unwrap();
        let file = folder.join("model.safetensors");
        safetensors::serialize_to_file([("linear.weight", tensor)], None, &file).unwrap();
    }

    #[test]
    fn dense_layers_follow_the_pooling_as_in_embedding_gemma() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let kinds = ["Transformer", "Pooling", "Dense", "Dense", "Normalize"];
        std::fs::write(folder.join("modules.json"), modules(&kinds).to_string()).unwrap();
        assert!(from_folder(folder).unwrap_err().starts_with("2_Dense"), "it is missing");
        let wide: Vec<f32> = (0..6).map(|value| value as f32).collect();
        write_dense(&folder.join("2_Dense"), "Identity", [3, 2], &wide);
        write_dense(&folder.join("3_Dense"), "Identity", [1, 3], &[1.0, -1.0, 0.5]);
        let head = from_folder(folder).unwrap();
        // [0 1; 2 3; 4 5] [10 1] = [1 23 45], and 1 - 23 + 22.5 = 0.5.
        assert_eq!(head.forward(Pooling::Mean, vec![10.0, 1.0]), [0.5]);
        assert_eq!(head.forward(Pooling::Last, vec![10.0, 1.0]), [10.0, 1.0]);
        assert_eq!(head.clone().check(Some(2)), Ok(head.clone()));
        assert!(head.check(Some(4)).unwrap_err().contains("takes 2 numbers, and the model has 4"));

        write_dense(&folder.join("3_Dense"), "Identity", [1, 2], &[1.0, 1.0]);
        assert!(from_folder(folder).unwrap_err().contains("3 outputs, and the next one takes 2"));
        write_dense(&folder.join("3_Dense"), "Tanh", [1, 3], &[1.0; 3]);
        assert!(from_folder(folder).unwrap_err().contains("Tanh` is not supported"));
        let outside = json!([{ "type": "a.Pooling" }, { "type": "a.Dense", "path": "../x" }]);
        assert!(from_files(&outside, &Value::Null).unwrap_err().contains("no folder of the model"));
    }
}
