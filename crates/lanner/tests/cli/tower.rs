//! A small checkpoint with a vision tower, from the command line and over HTTP.

use std::{fs, path::Path};

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::support::{
    checkpoint, client,
    pictures::{VISION_TEMPLATE, data_uri, png, png_of},
    process::{ServerProcess, lanner},
};

const NAME: &str = "qwen3_5-a";
const IMAGE_TOKEN: u64 = 252;
/// One token for 8 x 8 pixels.
const PROCESSOR: &str = r#"{"image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 4, "merge_size": 2,
    "temporal_patch_size": 2, "size": {"shortest_edge": 64, "longest_edge": 65536}}"#;

/// A tokenizer of bytes, but those that UTF-8 has none of, and of the checkpoint's control tokens.
fn tokenizer() -> Value {
    let unused = [0xC0, 0xC1, 0xF5, 0xF6, 0xF7];
    let bytes = (0..=255u8).filter(|byte| !unused.contains(byte));
    let vocab: Map<String, Value> = (0u32..)
        .zip(bytes)
        .map(|(id, byte)| (crate::support::server::byte_symbol(byte).to_string(), id.into()))
        .collect();
    let names = ["<|vision_start|>", "<|image_pad|>", "<|video_pad|>", "<|vision_end|>", "<|im_end|>"];
    let added: Vec<Value> = (251..).zip(names).map(|(id, name): (u32, &str)| {
        json!({ "id": id, "content": name, "special": true, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false })
    }).collect();
    let byte_level =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false });
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": added, "pre_tokenizer": byte_level, "decoder": byte_level,
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                   "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                   "vocab": vocab, "merges": [] },
    })
}

fn add_text_files(folder: &Path) {
    let write = |name: &str, text: String| fs::write(folder.join(name), text).unwrap();
    write("tokenizer.json", tokenizer().to_string());
    write("tokenizer_config.json", r#"{"eos_token": "<|im_end|>"}"#.into());
    write("chat_template.jinja", VISION_TEMPLATE.into());
    write("preprocessor_config.json", PROCESSOR.into());
}

fn with_tower() -> TempDir {
    let folder = checkpoint::folder(NAME);
    add_text_files(folder.path());
    folder
}

/// The same without the tower's tensors, as mlx-lm converts it.
fn without_tower() -> TempDir {
    let folder = checkpoint::folder(NAME);
    let text = fs::read_to_string(checkpoint::recorded().join(NAME).join("golden.json")).unwrap();
    let mut golden: Value = serde_json::from_str(&text).unwrap();
    golden["tensors"].as_object_mut().unwrap().retain(|name, _| !name.contains(".visual."));
    checkpoint::write(&golden, folder.path());
    add_text_files(folder.path());
    folder
}

fn run(model: &TempDir, image: &Path, more: &[&str]) -> std::process::Output {
    let arguments = [
        &["run", "-m", model.path().to_str().unwrap(), "--device", "cpu", "--image", image.to_str().unwrap()],
        &["--temperature", "0", "--max-tokens", "12", "--json"][..],
        more,
        &["what?"],
    ]
    .concat();
    lanner(&arguments, &[])
}

fn ids(output: &std::process::Output, field: &str) -> Vec<u64> {
    let text = String::from_utf8_lossy(&output.stdout);
    let json: Value = serde_json::from_str(&text)
        .unwrap_or_else(|_| panic!("{text} {}", String::from_utf8_lossy(&output.stderr)));
    json[field].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

#[test]
fn picture_changes_what_the_model_computes() {
    let (model, folder) = (with_tower(), tempfile::tempdir().unwrap());
    let picture = |name: &str, shade: u8| {
        let path = folder.path().join(name);
        fs::write(&path, png(24, 16, shade)).unwrap();
        path
    };
    let (dark, light) = (picture("dark.png", 0), picture("light.png", 255));
    let first = run(&model, &dark, &["--ignore-eos"]);
    let prompt = ids(&first, "prompt_ids");
    assert_eq!(prompt.iter().filter(|id| **id == IMAGE_TOKEN).count(), 6, "{prompt:?}");
    let answer = ids(&first, "ids");
    assert_eq!(answer, ids(&run(&model, &dark, &["--ignore-eos"]), "ids"));
    assert_ne!(answer, ids(&run(&model, &light, &["--ignore-eos"]), "ids"));
    // A page that is no picture is an error of one sentence.
    fs::write(&dark, "<svg/>").unwrap();
    let output = run(&model, &dark, &[]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains("SVG"), "{stderr}");
}

fn ask(server: &ServerProcess, messages: &Value) -> Value {
    let body = json!({ "messages": messages, "temperature": 0, "max_tokens": 8, "ignore_eos": true });
    let reply = client::post(server.address, "/v1/chat/completions", &body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()
}

#[test]
fn server_reuses_a_conversation_with_its_picture_and_names_a_dropped_one() {
    let model = with_tower();
    let server = ServerProcess::start(&["-m", model.path().to_str().unwrap(), "--disk-cache", "off"]);
    let listed = client::get(server.address, "/v1/models").json()["data"][0].clone();
    assert_eq!(listed["capabilities"]["vision"], true, "{listed}");
    let image =
        |shade: u8| json!({ "type": "image_url", "image_url": { "url": data_uri(&png(40, 40, shade)) } });
    let question =
        |shade: u8| json!({ "role": "user", "content": [{ "type": "text", "text": "what?" }, image(shade)] });
    let first = ask(&server, &json!([question(9)]));
    assert_eq!(first["usage"]["lanner"]["image_tokens"], 25, "{first}");
    let prompt = first["usage"]["prompt_tokens"].as_u64().unwrap();
    // The same question with another picture shares the text before the picture at most.
    let other = ask(&server, &json!([question(200)]));
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached(&other) < prompt - 25, "{other}");
    assert_ne!(first["choices"][0]["message"]["content"], other["choices"][0]["message"]["content"]);
    let again = ask(&server, &json!([question(9)]));
    assert!(cached(&again) > 25, "{again}");
    assert_eq!(first["choices"][0]["message"]["content"], again["choices"][0]["message"]["content"]);
    // Without the picture.
    let dropped =
        ask(&server, &json!([{ "role": "user", "content": [{ "type": "text", "text": "what?" }] }]));
    assert!(dropped["usage"]["lanner"].get("image_tokens").is_none());
}

#[test]
fn conversion_without_its_tower_says_so() {
    let model = without_tower();
    let server = ServerProcess::start(&["-m", model.path().to_str().unwrap(), "--disk-cache", "off"]);
    let content = json!([{ "type": "image_url", "image_url": data_uri(&png(8, 8, 1)) }]);
    let body = json!({ "messages": [{ "role": "user", "content": content }], "max_tokens": 1 });
    let reply = client::post(server.address, "/v1/chat/completions", &body);
    assert_eq!(reply.status, 400, "{}", reply.body);
    assert!(reply.body.contains("has no vision tower"), "{}", reply.body);
    let text = json!({ "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 1 });
    assert_eq!(client::post(server.address, "/v1/chat/completions", &text).status, 200);
}

#[test]
fn bombs_sent_together_take_the_memory_of_one() {
    let model = with_tower();
    let server = ServerProcess::start(&["-m", model.path().to_str().unwrap(), "--disk-cache", "off"]);
    ask(&server, &json!([{ "role": "user", "content": "hi" }]));
    let Some(before) = server.memory() else { return eprintln!("skipped: the system reports no memory") };
    // 144 MB of pixels from 200 kB, and 192 MB that the limit on pixels refuses.
    let (allowed, refused) = (data_uri(&png(8000, 6000, 0)), data_uri(&png(8000, 8000, 0)));
    let send = |uri: &str| {
        let content = json!([{ "type": "image_url", "image_url": uri }]);
        let body = json!({ "messages": [{ "role": "user", "content": content }], "max_tokens": 1 });
        client::post(server.address, "/v1/chat/completions", &body).status
    };
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let sent: Vec<_> = (0..8)
            .map(|index| {
                let uri = if index % 4 == 0 { &refused } else { &allowed };
                scope.spawn(move || send(uri))
            })
            .collect();
        sent.into_iter().map(|sent| sent.join().unwrap()).collect()
    });
    assert_eq!(statuses, [400, 200, 200, 200, 400, 200, 200, 200]);
    let peak = server.peak_memory().unwrap() - before;
    eprintln!("eight bombs took {peak:.0} MB more at the peak");
    assert!(peak < 700.0, "{peak} MB");
}

/// A picture of discs of one colour, each a centre and a radius, on white.
fn discs(colour: [u8; 3], discs: &[(i32, i32, i32)]) -> Vec<u8> {
    const SIDE: i32 = 256;
    let has = |x: i32, y: i32| discs.iter().any(|(a, b, r)| (x - a).pow(2) + (y - b).pow(2) < r * r);
    let pixel = |at: i32| if has(at % SIDE, at / SIDE) { colour } else { [255; 3] };
    let pixels: Vec<u8> = (0..SIDE * SIDE).flat_map(pixel).collect();
    png_of(SIDE as u32, SIDE as u32, &pixels)
}

#[test]
fn built_in_model_tells_colour_shape_and_number() {
    let folder = tempfile::tempdir().unwrap();
    let picture = |name: &str, bytes: Vec<u8>| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let red = picture("red.png", discs([220, 30, 30], &[(128, 128, 58)]));
    let green = picture("green.png", discs([20, 150, 40], &[(100, 140, 50)]));
    let three = picture("three.png", discs([20, 150, 40], &[(60, 60, 26), (180, 80, 26), (110, 180, 26)]));
    let questions = [
        (&red, "What color is the circle?", "Red."),
        (&red, "What shape is this?", "Circle."),
        (&green, "What color is the circle?", "Green."),
        (&three, "How many circles are in the picture?", "3."),
    ];
    for (picture, question, expected) in questions {
        let image = picture.to_str().unwrap();
        let output =
            lanner(&["run", "--device", "cpu", "--image", image, "--temperature", "0", question], &[]);
        let answer = String::from_utf8_lossy(&output.stdout);
        assert_eq!(answer.trim(), expected, "{question} {}", String::from_utf8_lossy(&output.stderr));
    }
}
