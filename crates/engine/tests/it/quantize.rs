//! Quantised copies of recorded checkpoints, and the files that failed runs leave.

use std::{
    collections::BTreeMap,
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::mpsc,
};

use half::{bf16, f16};
use lanner_engine::{
    Checkpoint, Device, Engine, Event, Options, Progress, Request,
    quantize::{Action, Mode, Plan, Quantization, QuantizeError, QuantizeReport, SHARD_BYTES, quantization},
};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::checkpoint;

fn affine(bits: i32, group_size: i32) -> Quantization {
    quantization(Mode::Affine, Some(bits), Some(group_size)).expect("a format")
}

fn go_on(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn plan(source: &Path, q: Quantization) -> Plan {
    Plan::new(&Checkpoint::Folder(source.into()), q).expect("planned")
}

fn quantize(source: &Path, out: &Path, q: Quantization) -> Result<QuantizeReport, QuantizeError> {
    Plan::new(&Checkpoint::Folder(source.into()), q)?.write(out, SHARD_BYTES, &mut go_on)
}

fn read(path: PathBuf) -> Vec<u8> {
    fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn read_json(path: PathBuf) -> Value {
    serde_json::from_slice(&read(path)).expect("JSON")
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// A tensor's type, shape and bytes.
type Tensor = (Dtype, Vec<usize>, Vec<u8>);

fn tensors(folder: &Path) -> BTreeMap<String, Tensor> {
    let mut tensors = BTreeMap::new();
    for name in names_in(folder).iter().filter(|name| name.ends_with(".safetensors")) {
        let bytes = read(folder.join(name));
        for (name, view) in SafeTensors::deserialize(&bytes).expect("safetensors").tensors() {
            tensors.insert(name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()));
        }
    }
    tensors
}

fn write_checkpoint(folder: &Path, config: Value, tensors: &[(&str, Dtype, &[usize], Vec<u8>)]) {
    fs::write(folder.join("config.json"), config.to_string()).expect("config.json");
    let view = |(name, dtype, shape, data): &(&str, Dtype, &[usize], Vec<u8>)| {
        (name.to_string(), *dtype, shape.to_vec(), data.clone())
    };
    let owned: Vec<_> = tensors.iter().map(view).collect();
    let views = owned.iter().map(|(name, dtype, shape, data)| {
        (name, TensorView::new(*dtype, shape.clone(), data).expect("a tensor"))
    });
    safetensors::serialize_to_file(views, None, &folder.join("model.safetensors")).expect("written");
}

#[derive(Deserialize)]
struct Packed {
    dtype: String,
    mode: String,
    bits: i32,
    group_size: i32,
    parts: Vec<String>,
}

/// packed.json comes from tools/goldens/packed.py, and so do the values.
#[test]
fn quantized_bytes_equal_those_of_mlx() {
    let recorded: Vec<Packed> = serde_json::from_str(include_str!("../packed.json")).expect("recorded");
    assert_eq!(recorded.len(), 63);
    for Packed { dtype, mode, bits, group_size, parts } in recorded {
        let mode = *Mode::ALL.iter().find(|m| m.name() == mode).expect("a mode");
        let q = quantization(mode, Some(bits), Some(group_size)).expect("a format");
        let folder = tempfile::tempdir().expect("a folder");
        let values = (0..512).map(value);
        let (dtype, bytes): (Dtype, Vec<u8>) = match &*dtype {
            "float32" => (Dtype::F32, values.flat_map(f32::to_le_bytes).collect()),
            "float16" => (Dtype::F16, values.flat_map(|v| f16::from_f32(v).to_le_bytes()).collect()),
            _ => (Dtype::BF16, values.flat_map(|v| bf16::from_f32(v).to_le_bytes()).collect()),
        };
        let config = json!({ "model_type": "llama" });
        write_checkpoint(folder.path(), config, &[("lm_head.weight", dtype, &[4, 128], bytes)]);
        let out = folder.path().join("out");
        quantize(folder.path(), &out, q).expect("quantised");
        let written = tensors(&out);
        for (name, expected) in ["weight", "scales", "biases"].iter().zip(&parts) {
            let got: String =
                written[&format!("lm_head.{name}")].2.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(got, *expected, "{name} in {q:?} of {dtype:?}");
        }
        assert_eq!(written.len(), parts.len());
    }
}

fn value(i: u64) -> f32 {
    let z = i.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = ((z >> 40) as f64 - 8_388_608.0) / 8_388_608.0;
    if i >= 480 { 0.0 } else { (number * f64::from(i as i32 / 64 - 6).exp2()) as f32 }
}

/// Logits after each token.
fn logits(engine: &Engine, prompt: &[u32]) -> Vec<Vec<f32>> {
    let (sender, events) = mpsc::channel();
    let request = Request { logits: true, ..Request::new(prompt.to_vec(), 1) };
    let _handle = engine.submit(request, move |event| drop(sender.send(event))).expect("a valid request");
    let values = events.into_iter().filter_map(|event| match event {
        Event::Logits { values, .. } => Some(values),
        Event::Failed(error) => panic!("{error}"),
        _ => None,
    });
    values.collect()
}

fn logits_of(folder: &Path) -> Vec<Vec<f32>> {
    let options = Options { device: Some(Device::Cpu), ..Options::default() };
    let engine = lanner_engine::start(Checkpoint::Folder(folder.into()), options, |_| {});
    let engine = engine.unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let logits = logits(&engine, &(3..40).collect::<Vec<u32>>());
    engine.stop();
    logits
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    dot(a, b) / (dot(a, a).sqrt() * dot(b, b).sqrt())
}

/// Every family in the hub's layout: a misplaced matrix would change the logits entirely.
/// tools/goldens/quantized_in_mlx_lm.py compares these and other formats with mlx-lm.
#[test]
fn quantized_8bit_copy_of_each_family_has_nearly_the_same_logits() {
    let mut seen = 0;
    for name in names_in(&checkpoint::recorded()).iter().filter(|name| name.ends_with("-a")) {
        let source = checkpoint::folder(name);
        let out = source.path().join("out");
        match quantize(source.path(), &out, affine(8, 32)) {
            Err(QuantizeError::AlreadyQuantized(_)) => continue,
            result => drop(result.unwrap_or_else(|e| panic!("{name}: {e}"))),
        }
        let (before, after) = (logits_of(source.path()), logits_of(&out));
        let mut cosines: Vec<f64> = before.iter().zip(&after).map(|(a, b)| cosine(a, b)).collect();
        cosines.sort_by(f64::total_cmp);
        // A router may choose another expert.
        let median = cosines[cosines.len() / 2];
        assert!(median > 0.97, "{name}: {median}");
        seen += 1;
    }
    assert!(seen >= 25, "{seen} families");
}

#[test]
fn quantize_twice_gives_the_same_bytes() {
    let source = checkpoint::folder("qwen3_5_moe-a");
    let outs = ["one", "two"].map(|name| source.path().join(name));
    for out in &outs {
        quantize(source.path(), out, quantization(Mode::Nvfp4, None, None).expect("a format"))
            .expect("quantised");
    }
    assert_eq!(names_in(&outs[0]), names_in(&outs[1]));
    for name in names_in(&outs[0]) {
        assert_eq!(read(outs[0].join(&name)), read(outs[1].join(&name)), "{name}");
    }
}

#[test]
fn quantized_copy_keeps_towers_mtp_heads_and_routers_bit_for_bit() {
    let source = checkpoint::folder("qwen3_5_moe-a");
    let out = source.path().join("out");
    let mut plan = plan(source.path(), affine(4, 32));
    plan.write(&out, SHARD_BYTES, &mut go_on).expect("written");
    let (before, after) = (tensors(source.path()), tensors(&out));
    for part in ["visual", "mtp.", "norm", "conv1d", "A_log", "dt_bias", "mlp.gate.", "shared_expert_gate"] {
        let names: Vec<&String> = before.keys().filter(|name| name.contains(part)).collect();
        assert!(!names.is_empty(), "{part}");
        names.into_iter().for_each(|name| assert!(before[name] == after[name], "{name}"));
    }
    let deviations = plan.verify(&out, &mut go_on).expect("verified");
    for deviation in deviations {
        let good = if deviation.quantized { 0.98..1.0 } else { 1.0..1.1 };
        assert!(good.contains(&deviation.cosine), "{deviation:?}");
        assert_eq!(deviation.max_error == 0.0, !deviation.quantized, "{deviation:?}");
    }
}

#[test]
fn quantized_config_has_format_and_missing_mtp_head() {
    let source = checkpoint::folder("qwen3_5-hub");
    let config = |out: &str| {
        let out = source.path().join(out);
        quantize(source.path(), &out, affine(4, 64)).expect("quantised");
        read_json(out.join("config.json"))
    };
    let has_mtp = tensors(source.path()).keys().any(|name| name.starts_with("mtp."));
    let written = config("out");
    let expected = json!({ "group_size": 64, "bits": 4, "mode": "affine" });
    assert_eq!(written["quantization"], expected);
    assert_eq!(written["quantization_config"], expected);
    assert_eq!(
        written["text_config"]["hidden_size"],
        read_json(source.path().join("config.json"))["text_config"]["hidden_size"]
    );
    assert_eq!(written["mtp_num_hidden_layers"] == 0, !has_mtp);
}

#[test]
fn quantized_shards_stay_below_the_limit() {
    let source = checkpoint::folder("qwen3_next-a");
    let out = source.path().join("out");
    const LIMIT: usize = 40_000;
    let report = plan(source.path(), affine(4, 32)).write(&out, LIMIT, &mut go_on).expect("written");
    let index = read_json(out.join("model.safetensors.index.json"));
    let map = index["weight_map"].as_object().expect("a map");
    let written = tensors(&out);
    assert_eq!(map.len(), written.len());
    assert_eq!(index["metadata"]["total_size"], written.values().map(|(.., data)| data.len()).sum::<usize>());
    let files: Vec<String> =
        names_in(&out).into_iter().filter(|name| name.ends_with(".safetensors")).collect();
    assert_eq!(files.len(), report.files);
    for file in &files {
        let bytes = read(out.join(file));
        assert!(bytes.len() <= LIMIT, "{file} has {} bytes", bytes.len());
        for name in SafeTensors::deserialize(&bytes).expect("safetensors").names() {
            assert_eq!(map[name], json!(file), "{name}");
            // mlx-lm does not know this family's MTP head and reads model*.safetensors.
            assert_eq!(file.starts_with("model"), !name.starts_with("mtp."), "{name} is in {file}");
        }
    }
    assert!(files.contains(&format!(
        "model-00001-of-{:05}.safetensors",
        files.iter().filter(|f| f.starts_with("model")).count()
    )));
    assert_eq!(logits_of(&out).len(), logits_of(source.path()).len());
}

#[test]
fn companion_files_are_copied_without_weights_of_other_formats() {
    let source = checkpoint::folder("llama-a");
    for name in [
        "tokenizer.json",
        "chat_template.jinja",
        "generation_config.json",
        "LICENSE",
        "pytorch_model.bin",
        "README.md",
    ] {
        fs::write(source.path().join(name), "{}").expect("written");
    }
    let out = source.path().join("out");
    quantize(source.path(), &out, affine(4, 32)).expect("quantised");
    let expected = [
        "LICENSE",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
    ];
    assert_eq!(names_in(&out), expected);
}

fn check_refused(source: &Path, out: &Path, expected: &str) {
    let before = names_in(out.parent().expect("a parent"));
    let message = quantize(source, out, affine(4, 32)).expect_err("refused").to_string();
    assert!(message.contains(expected), "`{message}` does not say `{expected}`");
    assert!(!message.contains('\n'), "{message}");
    assert_eq!(names_in(out.parent().expect("a parent")), before, "nothing is left");
}

#[test]
fn quantize_of_unsupported_source_fails_with_one_sentence() {
    let quantized = checkpoint::folder("qwen3_5-mlx-4bit");
    check_refused(quantized.path(), &quantized.path().join("out"), "quantised already");
    let bytes = tempfile::tempdir().expect("a folder");
    let weight = ("lm_head.weight", Dtype::U8, &[4usize, 32] as &[usize], vec![0; 128]);
    write_checkpoint(bytes.path(), json!({ "model_type": "llama" }), &[weight]);
    check_refused(bytes.path(), &bytes.path().join("out"), "lm_head.weight is uint8");
    let expert = |name| (name, Dtype::F32, &[1usize, 32] as &[usize], vec![0; 128]);
    let holes = tempfile::tempdir().expect("a folder");
    let experts =
        ["model.layers.0.mlp.experts.0.up_proj.weight", "model.layers.0.mlp.experts.2.up_proj.weight"];
    write_checkpoint(holes.path(), json!({ "model_type": "qwen3_moe" }), &experts.map(expert));
    check_refused(holes.path(), &holes.path().join("out"), "without holes");
    let unknown = tempfile::tempdir().expect("a folder");
    write_checkpoint(unknown.path(), json!({ "model_type": "griffin" }), &[expert("lm_head.weight")]);
    check_refused(unknown.path(), &unknown.path().join("out"), "`griffin` is not supported");
    check_refused(&unknown.path().join("no"), &unknown.path().join("out"), "there is no such folder");
}

#[test]
fn quantize_to_existing_path_fails() {
    let source = checkpoint::folder("llama-a");
    let file = source.path().join("file");
    fs::write(&file, "mine").expect("written");
    check_refused(source.path(), &file, "exists already");
    let full = source.path().join("full");
    fs::create_dir(&full).expect("made");
    fs::write(full.join("mine"), "").expect("written");
    check_refused(source.path(), &full, "exists already");
    // In a folder of its own, where no other test writes meanwhile.
    let parent = tempfile::tempdir().expect("a folder");
    let inside = parent.path().join("model");
    fs::create_dir(&inside).expect("made");
    for name in ["config.json", "model.safetensors"] {
        fs::copy(source.path().join(name), inside.join(name)).expect("copied");
    }
    check_refused(&inside, &inside, "exists already");
    let link = source.path().join("link");
    let elsewhere = tempfile::tempdir().expect("a folder");
    std::os::unix::fs::symlink(elsewhere.path(), &link).expect("linked");
    check_refused(source.path(), &link, "exists already");
    let empty = source.path().join("empty");
    fs::create_dir(&empty).expect("made");
    quantize(source.path(), &empty, affine(4, 32)).expect("an empty folder is accepted");
}

#[test]
fn quantization_format_unknown_to_mlx_fails() {
    let check = |mode, bits, group, expected: &str| {
        let message = quantization(mode, bits, group).expect_err("refused").to_string();
        assert_eq!(message, expected);
    };
    check(
        Mode::Affine,
        Some(7),
        None,
        "affine has 2, 3, 4, 5, 6, 8 bits in groups of 32, 64, 128, not 7 bits in groups of 64",
    );
    check(
        Mode::Affine,
        None,
        Some(16),
        "affine has 2, 3, 4, 5, 6, 8 bits in groups of 32, 64, 128, not 4 bits in groups of 16",
    );
    check(Mode::Mxfp4, Some(8), None, "mxfp4 has 4 bits in groups of 32, not 8 bits in groups of 32");
    check(Mode::Nvfp4, None, Some(32), "nvfp4 has 4 bits in groups of 16, not 4 bits in groups of 32");
    assert_eq!(quantization(Mode::Affine, None, None).expect("default"), affine(4, 64));
}

/// Cancels after `pieces` chunks; only the source may remain.
fn check_broken_off(source: &TempDir, mut stop: impl FnMut() -> ControlFlow<()>) {
    let (before, out) = (names_in(source.path()), source.path().join("out"));
    let mut plan = plan(source.path(), affine(4, 32));
    let mut pieces = 0;
    let mut progress = |_: Progress| {
        pieces += 1;
        assert!(!out.exists(), "it has its name only once it is whole");
        let partial = source.path().join("out.partial");
        assert!(partial.is_dir() && !partial.join("config.json").exists());
        if pieces == 7 { stop() } else { ControlFlow::Continue(()) }
    };
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        plan.write(&out, SHARD_BYTES, &mut progress)
    }));
    assert!(!matches!(result, Ok(Ok(_))), "broken off");
    assert_eq!(names_in(source.path()), before);
}

#[test]
fn quantize_cancelled_leaves_no_files() {
    let source = checkpoint::folder("llama-a");
    check_broken_off(&source, || ControlFlow::Break(()));
    check_broken_off(&source, || std::panic::resume_unwind(Box::new("a bug")));
}

/// Lock file of a running `quantize`.
const LOCK: &str = "lanner-quantize.lock";

/// Files of a folder and its subfolders, with their contents.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut contents = BTreeMap::new();
    for path in names_in(folder).iter().map(|name| folder.join(name)) {
        if path.is_dir() {
            contents.extend(self::contents(&path));
        } else {
            contents.insert(path.clone(), fs::read(&path).unwrap_or_default());
        }
    }
    contents
}

/// `prepare` creates a file in the way of `out`, which must not change.
fn check_in_the_way(prepare: impl FnOnce(&Path, &Path)) {
    let (source, place) = (checkpoint::folder("llama-a"), tempfile::tempdir().expect("a folder"));
    let elsewhere = tempfile::tempdir().expect("a folder");
    let partial = place.path().join("out.partial");
    prepare(&partial, elsewhere.path());
    let before = [contents(place.path()), contents(elsewhere.path())];
    check_refused(source.path(), &place.path().join("out"), "out.partial is in the way; move it elsewhere");
    assert!(fs::symlink_metadata(&partial).is_ok(), "the file in the way is kept");
    assert_eq!([contents(place.path()), contents(elsewhere.path())], before);
}

fn write_all(folder: &Path, names: &[&str]) {
    fs::create_dir_all(folder).expect("made");
    names.iter().for_each(|name| fs::write(folder.join(name), "mine").expect("written"));
}

#[test]
fn quantize_with_foreign_partial_folder_leaves_it_alone() {
    use std::os::unix::fs::symlink;
    check_in_the_way(|partial, _| write_all(partial, &[]));
    check_in_the_way(|partial, _| write_all(partial, &["model.safetensors", "lock"]));
    check_in_the_way(|partial, _| write_all(partial, &["thesis.odt", LOCK]));
    check_in_the_way(|partial, _| write_all(partial, &["model-1.safetensors", LOCK]));
    check_in_the_way(|partial, _| fs::write(partial, "a file").expect("written"));
    check_in_the_way(|partial, _| {
        write_all(partial, &[LOCK]);
        write_all(&partial.join("notes.txt"), &["deep"]);
    });
    check_in_the_way(|partial, elsewhere| {
        write_all(elsewhere, &["model.safetensors", LOCK]);
        symlink(elsewhere, partial).expect("linked");
    });
    check_in_the_way(|partial, elsewhere| {
        write_all(partial, &["model.safetensors"]);
        write_all(elsewhere, &["mine"]);
        symlink(elsewhere.join("mine"), partial.join(LOCK)).expect("linked");
    });
    check_in_the_way(|partial, elsewhere| {
        write_all(partial, &[LOCK]);
        symlink(elsewhere.join("none"), partial.join("model.safetensors")).expect("linked");
    });
}

#[test]
fn quantize_cancelled_removes_only_its_own_files() {
    let source = checkpoint::folder("llama-a");
    let (out, partial) = (source.path().join("out"), source.path().join("out.partial"));
    let mut progress = |_: Progress| {
        write_all(&partial, &["notes.txt"]);
        write_all(&partial.join("deep"), &["mine"]);
        ControlFlow::Break(())
    };
    let result = plan(source.path(), affine(4, 32)).write(&out, SHARD_BYTES, &mut progress);
    assert!(matches!(result, Err(QuantizeError::Interrupted)));
    assert_eq!(names_in(&partial), ["deep", "notes.txt"]);
    assert_eq!(names_in(&partial.join("deep")), ["mine"]);
}

#[test]
fn quantize_clears_leftovers_of_killed_run_but_not_of_running_one() {
    let source = checkpoint::folder("llama-a");
    let (out, partial) = (source.path().join("out"), source.path().join("out.partial"));
    fs::create_dir(&partial).expect("made");
    for name in ["model.safetensors", "mtp-00001-of-00002.safetensors", "tokenizer.json", LOCK] {
        fs::write(partial.join(name), "half").expect("written");
    }
    let mut second = None;
    let mut progress = |_: Progress| {
        second.get_or_insert_with(|| {
            quantize(source.path(), &out, affine(4, 32)).expect_err("busy").to_string()
        });
        ControlFlow::Continue(())
    };
    plan(source.path(), affine(4, 32)).write(&out, SHARD_BYTES, &mut progress).expect("written");
    assert!(second.expect("tried").contains("another run is writing to"));
    assert!(!partial.exists() && !out.join(LOCK).exists());
}

#[test]
fn plan_has_the_action_of_every_tensor() {
    let source = checkpoint::folder("llama-a");
    let actions = |group_size| -> BTreeMap<String, Action> {
        let plan = plan(source.path(), affine(4, group_size));
        plan.tensors.into_iter().map(|tensor| (tensor.name, tensor.action)).collect()
    };
    let fine = actions(32);
    assert_eq!(fine["model.norm.weight"], Action::Skip("norm"));
    assert_eq!(fine["model.layers.0.self_attn.q_proj.weight"], Action::Quantize);
    assert_eq!(
        actions(128)["model.layers.0.self_attn.q_proj.weight"],
        Action::Skip("not a whole number of groups")
    );
}
