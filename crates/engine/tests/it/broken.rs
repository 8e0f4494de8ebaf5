//! Invalid checkpoints: each fails to load with a one-sentence error that names the file.

use std::{fs, path::Path};

use lanner_engine::*;
use serde_json::{Value, json};

use crate::support::checkpoint;

/// Loads a copy of a golden checkpoint changed by `damage`, and checks the error.
fn check(golden: &str, damage: impl FnOnce(&Path), expected: &[&str]) {
    let folder = checkpoint::folder(golden);
    damage(folder.path());
    let disk = tempfile::tempdir().expect("a folder");
    let disk_cache = Some(DiskCache { folder: disk.path().into(), bytes: 1 << 20, bits: None });
    let options = Options { device: Some(Device::Cpu), disk_cache, ..Options::default() };
    let result = start(Checkpoint::Folder(folder.path().into()), options, |_| {});
    let message = result.err().expect("does not load").to_string();
    for part in expected {
        assert!(message.contains(part), "`{message}` does not say `{part}`");
    }
    assert!(!message.contains('\n'), "one sentence: {message}");
}

fn edit_config(folder: &Path, edit: impl FnOnce(&mut Value)) {
    let path = folder.join("config.json");
    let mut config = serde_json::from_str(&fs::read_to_string(&path).expect("config")).expect("JSON");
    edit(&mut config);
    fs::write(path, config.to_string()).expect("written");
}

/// Sets the number of layers, without a list of their types.
fn layers(config: &mut Value, count: usize) {
    config["text_config"]["num_hidden_layers"] = json!(count);
    config["text_config"]["layer_types"] = Value::Null;
}

/// Replaces text in the header by another of the same length.
fn edit_header(folder: &Path, from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let path = folder.join("model.safetensors");
    let mut bytes = fs::read(&path).expect("weights");
    let at = bytes.windows(from.len()).position(|w| w == from.as_bytes()).expect("in the header");
    bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    fs::write(path, bytes).expect("written");
}

const HUB: &str = "qwen3_5-hub";

#[test]
fn load_damaged_weight_file_fails() {
    let cut = |keep: usize| {
        move |folder: &Path| {
            let path = folder.join("model.safetensors");
            let bytes = fs::read(&path).expect("weights");
            fs::write(path, &bytes[..keep.min(bytes.len() - 1)]).expect("written");
        }
    };
    check(HUB, cut(5), &["model.safetensors", "cut short"]);
    check(HUB, cut(100), &["model.safetensors", "cut short"]);
    check(HUB, cut(usize::MAX), &["model.safetensors", "download it again"]);
    check(
        HUB,
        |f| edit_header(f, "\"data_offsets\":[0,", "\"data_offsets\":[1,"),
        &["model.safetensors", "offset"],
    );
    check(
        HUB,
        |f| edit_header(f, "language_model.norm.weight", "language_model.nurm.weight"),
        &["the checkpoint has no tensor model.norm.weight"],
    );
    check(HUB, |f| fs::remove_file(f.join("model.safetensors")).expect("removed"), &["no safetensors file"]);
    check(
        HUB,
        |f| edit_header(f, "norm.weight\":{\"dtype\":\"BF16", "norm.weight\":{\"dtype\":\"UI16"),
        &["model.safetensors", "header is broken"],
    );
    check(
        HUB,
        |f| edit_header(f, "norm.weight\":{\"dtype\":\"BF16\"", "norm.weight\":{\"dtype\":\"I16\" "),
        &["norm.weight", "int16", "floating-point"],
    );
    check(
        "qwen3_5-text-sharded",
        |f| fs::remove_file(f.join("model-00002-of-00002.safetensors")).expect("removed"),
        &["model-00002-of-00002.safetensors", "missing", "index.json"],
    );
}

/// Replaces a file by a pipe without a writer.
#[cfg(unix)]
fn pipe(folder: &Path, name: &str) {
    let _ = fs::remove_file(folder.join(name));
    let made = std::process::Command::new("mkfifo").arg(folder.join(name)).status();
    assert!(made.expect("run").success());
}

#[cfg(unix)]
#[test]
fn load_pipe_or_device_fails_at_once() {
    for name in ["config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json"]
    {
        check(HUB, |f| pipe(f, name), &[name, "not a regular file"]);
    }
    let device = |folder: &Path| {
        fs::remove_file(folder.join("config.json")).expect("removed");
        std::os::unix::fs::symlink("/dev/zero", folder.join("config.json")).expect("linked");
    };
    check(HUB, device, &["config.json", "not a regular file"]);
    let endless = |folder: &Path| {
        fs::remove_file(folder.join("model.safetensors")).expect("removed");
        std::os::unix::fs::symlink("/dev/zero", folder.join("model.safetensors")).expect("linked");
    };
    check(HUB, endless, &["model.safetensors", "not a regular file"]);
    #[cfg(target_os = "linux")]
    no_thread_hashes();
}

/// Fails if a thread that hashes weights outlives its load.
#[cfg(target_os = "linux")]
fn no_thread_hashes() {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let name = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
    let hashes = || {
        let mut threads = fs::read_dir("/proc/self/task").expect("threads").flatten();
        threads.any(|entry| name(entry).starts_with("lanner-fingerpr"))
    };
    // Other tests load models too.
    while hashes() {
        assert!(std::time::Instant::now() < deadline, "a thread still hashes the weights of a refused model");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn load_huge_text_file_fails_without_reading() {
    for name in ["config.json", "generation_config.json", "model.safetensors.index.json"] {
        let grow = |folder: &Path| {
            let file = fs::File::create(folder.join(name)).expect("created");
            file.set_len(1 << 40).expect("sparse");
        };
        check(HUB, grow, &[name, "more than"]);
    }
}

#[test]
fn load_index_with_file_outside_folder_fails() {
    let sharded = "qwen3_5-text-sharded";
    let index = |text: &'static str| {
        move |f: &Path| fs::write(f.join("model.safetensors.index.json"), text).expect("written")
    };
    let outside = |name: &str, json: &'static str| {
        check(sharded, index(json), &["index.json: it names the file", name, "not in its folder"]);
    };
    outside("`../x.safetensors`", r#"{"weight_map": {"a": "../x.safetensors"}}"#);
    outside("`/x.safetensors`", r#"{"weight_map": {"a": "/x.safetensors"}}"#);
    outside("`a/../../x`", r#"{"weight_map": {"a": "a/../../x"}}"#);
    outside("``", r#"{"weight_map": {"a": ""}}"#);
    outside("`.`", r#"{"weight_map": {"a": "."}}"#);
    check(sharded, index(r#"{"weight_map": {"a": 7}}"#), &["index.json: it names no file for the tensor a"]);
    check(sharded, index(r#"{"weight_map": []}"#), &["index.json: there is no weight_map"]);
}

#[test]
fn load_unsupported_config_fails() {
    check(
        HUB,
        |f| fs::write(f.join("config.json"), "{").expect("written"),
        &["config.json", "not valid JSON"],
    );
    check(HUB, |f| fs::remove_file(f.join("config.json")).expect("removed"), &["config.json"]);
    check(
        HUB,
        |f| edit_config(f, |c| c["model_type"] = json!("gpt5")),
        &["`gpt5` is not supported", "supported: llama"],
    );
    check(
        HUB,
        |f| edit_config(f, |c| drop(c.as_object_mut().expect("an object").remove("model_type"))),
        &["model_type"],
    );
    let rope = |key: &'static str, value: Value| {
        move |f: &Path| edit_config(f, |c| c["text_config"]["rope_parameters"][key] = value)
    };
    check(HUB, rope("rope_type", json!("longrope")), &["rope_type `longrope` is not supported"]);
    check(HUB, rope("partial_rotary_factor", json!(5.0)), &["partial_rotary_factor is 5"]);
    check_text_config("hidden_act", json!("gelu"), &["hidden_act `gelu`"]);
    check_text_config("attention_bias", json!(true), &["attention_bias"]);
}

#[test]
fn load_config_with_wrong_sizes_fails() {
    let gate_proj = &["model.layers.0.mlp.gate_proj.weight", "[192, 128]", "[191, 128]"];
    check_text_config("intermediate_size", json!(191), gate_proj);
    check_text_config("hidden_size", json!("big"), &["config.json", "big"]);
    check_text_config("head_dim", json!(0), &["head_dim is 0"]);
    check_text_config("num_attention_heads", json!(3), &["num_attention_heads is 3"]);
    check_text_config("head_dim", json!(2147483647), &["head_dim is 2147483647"]);
    let wide = |c: &mut Value| {
        c["text_config"]["linear_num_value_heads"] = json!(8192);
        c["text_config"]["linear_value_head_dim"] = json!(131072);
    };
    check(
        HUB,
        |f| edit_config(f, wide),
        &["linear_num_value_heads is 8192", "together they must be at most"],
    );
    check(
        "lfm2-a",
        |f| edit_config(f, |c| c["block_ffn_dim_multiplier"] = json!(1e30)),
        &["block_ffn_dim_multiplier is 1e+30", "at most 1000"],
    );
    check(HUB, |f| edit_config(f, |c| layers(c, 9)), &["the checkpoint has no tensor model.layers.4."]);
    check(
        "qwen3_5-mlx-4bit",
        |f| edit_config(f, |c| c["text_config"]["vocab_size"] = json!(10)),
        &["model.embed_tokens.weight", "[320,", "[10,"],
    );
}

/// Checks a copy of `HUB` with one value of text_config replaced.
fn check_text_config(key: &str, value: Value, expected: &[&str]) {
    check(HUB, |f| edit_config(f, |c| c["text_config"][key] = value), expected);
}

#[test]
fn start_without_gpu_fails() {
    let options = Options { device: Some(Device::Gpu), ..Options::default() };
    let folder = checkpoint::folder(HUB);
    if let Err(error) = start(Checkpoint::Folder(folder.path().into()), options, |_| {}) {
        assert!(error.to_string().contains("no GPU"), "{error}");
    }
}

#[test]
fn load_unused_tensors_fails() {
    // One layer fewer than the checkpoint has.
    check(
        HUB,
        |f| edit_config(f, |c| layers(c, 3)),
        &["does not compute with", "model.language_model.layers.3."],
    );
}

#[test]
fn load_quantization_that_contradicts_tensors_fails() {
    let quantization = |path: &'static str, value: Value| {
        move |f: &Path| edit_config(f, |c| c["quantization"][path] = value)
    };
    let embed = "language_model.model.embed_tokens";
    check(
        "qwen3_5-mlx-4bit",
        quantization(embed, json!({"group_size": 64, "bits": 4})),
        &["model.embed_tokens.weight", "4-bit affine in groups of 64", "8-bit affine in groups of 32"],
    );
    check("qwen3_5-mlx-4bit", quantization(embed, json!(false)), &["embed_tokens", "not quantised"]);
    check(
        "qwen3_5-mlx-4bit",
        quantization(embed, json!({"bits": 4, "mode": "int4"})),
        &["mode `int4` is unknown"],
    );
    check(
        HUB,
        |f| edit_config(f, |c| c["quantization_config"] = json!({"quant_method": "awq", "bits": 4})),
        &["quantization method `awq` is not supported"],
    );
}

#[test]
fn load_invalid_optional_config_values_fails() {
    let set = |golden: &str, key: &'static str, value: Value, expected: &str| {
        check(golden, |f| edit_config(f, |c| c[key] = value), &["config.json", key, expected]);
    };
    set("llama-a", "rope_theta", json!("x"), "must be a number above 0");
    set("llama-a", "rope_scaling", json!("yarn"), "must be an object");
    set("llama-a", "rms_norm_eps", json!(-1.0), "must be a number above 0");
    set("llama-a", "hidden_act", json!(7), "must be a string");
    set("mistral-odd", "sliding_window", json!("4"), "must be a number between 1");
    set("mistral-odd", "sliding_window", json!(0), "must be a number between 1");
    set("qwen3_moe-a", "use_sliding_window", json!("true"), "must be true or false");
    set("qwen3_moe-a", "num_experts_per_tok", json!(9), "must be at most num_experts, 8");
    set("qwen3_moe-a", "layer_types", json!(["full_attention"]), "lists 1 layers");
    set("qwen3_moe-a", "layer_types", json!(["a", "b", "c"]), "unknown type \"a\"");
    check(
        "qwen3_moe-a",
        |f| edit_config(f, |c| c["mlp_only_layers"] = json!("all")),
        &["config.json", "invalid type"],
    );
    set("deepseek_v3-a", "topk_group", json!(64), "must be at most n_group");
    set("deepseek_v3-a", "n_shared_experts", json!(-1), "must be a number between 0");
    set("gpt_oss-a", "attention_bias", json!(false), "must be true");
    let factor = |f: &Path| edit_config(f, |c| c["rope_scaling"]["factor"] = json!(0));
    check("llama-a", factor, &["factor is 0", "above 0"]);
    // One layer fewer: not every tensor after the last layer is an MTP head.
    let fewer = |f: &Path| edit_config(f, |c| c["num_hidden_layers"] = json!(2));
    check("deepseek_v3-a", fewer, &["does not compute with", "model.layers."]);
    let heads = |f: &Path| edit_config(f, |c| c["linear_attn_config"]["num_heads"] = json!(3));
    check("kimi_linear-a", heads, &["self_attn"]);
}

#[test]
fn load_invalid_generation_config_fails() {
    let set = |text: &'static str, expected: &[&str]| {
        let write = |f: &Path| fs::write(f.join("generation_config.json"), text).expect("written");
        check(HUB, write, &[&["generation_config.json"], expected].concat());
    };
    set(r#"{"temperature": "warm"}"#, &["temperature is \"warm\"", "a number between 0 and 100"]);
    set(r#"{"temperature": -1}"#, &["temperature is -1"]);
    set(r#"{"temperature": NaN}"#, &["not valid JSON"]);
    set(r#"{"top_p": 1.5}"#, &["top_p is 1.5", "above 0 and at most 1"]);
    set(r#"{"top_k": -5}"#, &["top_k is -5"]);
    set(r#"{"repetition_penalty": 1e300}"#, &["repetition_penalty is 1e"]);
    set(r#"{"do_sample": "no"}"#, &["do_sample is \"no\"", "true or false"]);
    set(r#"{"eos_token_id": "</s>"}"#, &["eos_token_id is \"</s>\"", "a token id or a list of them"]);
    set(r#"{"eos_token_id": [1, -1]}"#, &["eos_token_id is [1,-1]"]);
    set(r#"{"eos_token_id": 100000}"#, &["eos_token_id is 100000", "the model has"]);
    set("[]", &["must be an object"]);
}

/// The rule of mlx-lm.
#[test]
fn eos_of_tokenizer_is_used_if_model_has_none() {
    let eos = |config: Value, generation: Option<Value>| {
        let folder = checkpoint::folder(HUB);
        edit_config(folder.path(), |c| {
            c.as_object_mut().expect("an object").remove("eos_token_id");
            c["text_config"]["eos_token_id"] = config;
        });
        if let Some(generation) = generation {
            fs::write(folder.path().join("generation_config.json"), generation.to_string()).expect("written");
        }
        let files = Checkpoint::Folder(folder.path().into());
        let options = Options { device: Some(Device::Cpu), eos_ids: vec![7, 100_000], ..Options::default() };
        (files.names_eos(), start(files, options, |_| {}).expect("loads").info().eos_ids.clone())
    };
    assert_eq!(eos(Value::Null, None), (false, vec![7]));
    assert_eq!(eos(Value::Null, Some(json!({ "temperature": 0.5 }))), (false, vec![7]));
    assert_eq!(eos(json!(2), None), (true, vec![2]));
    assert_eq!(eos(Value::Null, Some(json!({ "eos_token_id": [3, 2] }))), (true, vec![2, 3]));
}

#[test]
fn load_tensors_in_two_files_fails_unless_one_is_whole() {
    let folder = checkpoint::folder(HUB);
    let path = |name: &str| folder.path().join(name);
    fs::rename(path("model.safetensors"), path("model-00001-of-00002.safetensors")).expect("renamed");
    fs::copy(path("model-00001-of-00002.safetensors"), path("model-00002-of-00002.safetensors"))
        .expect("copied");
    let load = || start(Checkpoint::Folder(folder.path().into()), Options::default(), |_| {});
    let message = load().err().expect("the same tensors twice").to_string();
    assert!(message.contains("it is there twice"), "{message}");
    // A complete model takes precedence over other files.
    fs::rename(path("model-00001-of-00002.safetensors"), path("model.safetensors")).expect("renamed");
    load().map(|engine| engine.stop()).expect("loads");
}
