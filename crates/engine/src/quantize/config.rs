//! config.json of the result.

use mlx::quant::Quantization;
use serde_json::{Value, json};

/// `model_type`s that mlx-lm has only under the name of the multimodal model.
const ALSO_SEE: &[(&str, &str)] = &[("qwen3_5_text", "qwen3_5"), ("qwen3_5_moe_text", "qwen3_5_moe")];

/// The source's config.json with the changes. Loaders recognise quantised tensors by their scales.
pub(super) fn config(source: &Value, q: Quantization, has_mtp: bool) -> Value {
    let mut config = source.clone();
    let quantization = json!({ "group_size": q.group_size, "bits": q.bits, "mode": q.mode.name() });
    if let Some((_, name)) = ALSO_SEE.iter().find(|(text, _)| config["model_type"] == *text) {
        config["model_type"] = json!(name);
    }
    if !has_mtp {
        no_mtp(&mut config);
        config.get_mut("text_config").into_iter().for_each(no_mtp);
    }
    // mlx-lm reads the first, tools of the hub the second.
    config["quantization"] = quantization.clone();
    config["quantization_config"] = quantization;
    config
}

/// Sets the number of MTP layers to 0, under Qwen's key and, if present, DeepSeek's.
fn no_mtp(config: &mut Value) {
    config["mtp_num_hidden_layers"] = json!(0);
    if let Some(layers) = config.get_mut("num_nextn_predict_layers") {
        *layers = json!(0);
    }
}

#[cfg(test)]
mod tests {
    use mlx::quant::Mode;

    use super::*;

    fn check(source: Value, has_mtp: bool, expected: Value) {
        let q = Quantization { mode: Mode::Affine, group_size: 64, bits: 4 };
        let mut expected = expected;
        for key in ["quantization", "quantization_config"] {
            expected[key] = json!({ "group_size": 64, "bits": 4, "mode": "affine" });
        }
        assert_eq!(config(&source, q, has_mtp), expected);
    }

    #[test]
    fn quantized_config_without_mtp_head_has_zero_mtp_layers() {
        let with = json!({ "model_type": "qwen3_5", "text_config": { "mtp_num_hidden_layers": 1 } });
        check(with.clone(), true, with.clone());
        let text = json!({ "mtp_num_hidden_layers": 0 });
        check(
            with,
            false,
            json!({ "model_type": "qwen3_5", "text_config": text, "mtp_num_hidden_layers": 0 }),
        );
        check(
            json!({ "num_nextn_predict_layers": 1 }),
            false,
            json!({ "num_nextn_predict_layers": 0, "mtp_num_hidden_layers": 0 }),
        );
    }

    #[test]
    fn quantized_config_of_text_model_has_the_model_type_of_mlx_lm() {
        check(json!({ "model_type": "qwen3_5_text" }), true, json!({ "model_type": "qwen3_5" }));
        check(json!({ "model_type": "qwen3" }), true, json!({ "model_type": "qwen3" }));
    }
}
