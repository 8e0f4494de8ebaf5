//! Images in requests of every API: how they reach the engine, what they count, what is refused.

use engine::Request;
use serde_json::{Value, json};

use crate::support::{
    client,
    pictures::{base64, data_uri, png, png_of},
    server::{IMAGE_TOKEN, Setup, TestServer, vision_tokenizer},
};

/// The prompt as text, with `[n]` for a run of `n` image tokens.
fn prompt(request: &Request) -> String {
    let (mut text, mut ids) = (String::new(), &request.prompt[..]);
    while let Some(first) = ids.first() {
        let is_image = *first == IMAGE_TOKEN;
        let run = ids.iter().take_while(|id| (**id == IMAGE_TOKEN) == is_image).count();
        match is_image {
            true => text += &format!("[{run}]"),
            false => text += &vision_tokenizer().decode(&ids[..run], false).unwrap(),
        }
        ids = &ids[run..];
    }
    text
}

/// Every image stands where its tokens are, and has a row of patches for each.
fn check_images(request: &Request) {
    let mut places: Vec<usize> = vec![];
    for image in &request.images {
        let tensor = &image.tensors[0];
        assert_eq!(tensor.rows * tensor.columns / 4, image.num_tokens());
        assert_eq!(tensor.values.len(), tensor.rows * tensor.columns * 3 * 2 * 16 * 16);
        places.extend(image.positions.iter().cloned().flatten());
    }
    let ids = request.prompt.iter().enumerate();
    let expected: Vec<usize> = ids.filter(|(_, id)| **id == IMAGE_TOKEN).map(|(at, _)| at).collect();
    assert_eq!(places, expected);
}

fn sees() -> TestServer {
    Setup::with_vision().says("An owl.")
}

const USER: &str = "<|im_start|>user\n";
const TURN: &str = "<|im_end|>\n<|im_start|>assistant\n";

#[test]
fn every_api_takes_images_where_they_stand() {
    let server = sees();
    let (one, two) = (png(64, 96, 10), png(32, 32, 200));
    let expected =
        format!("{USER}a<|vision_start|>[6]<|vision_end|>b<|vision_start|>[1]<|vision_end|>{TURN}");
    let text = |kind: &str, text: &str| json!({ "type": kind, "text": text });
    let url = |bytes: &[u8]| json!({ "type": "image_url", "image_url": { "url": data_uri(bytes) } });
    let bare = |bytes: &[u8]| json!({ "type": "image_url", "image_url": data_uri(bytes) });
    let input = |bytes: &[u8]| json!({ "type": "input_image", "image_url": data_uri(bytes) });
    let source = |bytes: &[u8]| {
        json!({ "type": "image", "cache_control": { "type": "ephemeral" },
            "source": { "type": "base64", "media_type": "image/jpeg", "data": base64(bytes) } })
    };
    let chat = json!([text("text", "a"), url(&one), text("text", "b"), bare(&two)]);
    let responses = json!([text("input_text", "a"), input(&one), text("input_text", "b"), input(&two)]);
    let messages = json!([text("text", "a"), source(&one), text("text", "b"), source(&two)]);
    let user = |content: Value| json!([{ "role": "user", "content": content }]);
    for (path, body) in [
        ("/v1/chat/completions", json!({ "messages": user(chat) })),
        ("/v1/responses", json!({ "input": user(responses) })),
        ("/v1/messages", json!({ "messages": user(messages), "max_tokens": 9 })),
    ] {
        let reply = client::post(server.address, path, &body);
        assert_eq!(reply.status, 200, "{path}: {}", reply.body);
        assert!(reply.body.contains("An owl."), "{path}: {}", reply.body);
        let request = server.last_request();
        assert_eq!(prompt(&request), expected, "{path}");
        assert_eq!(request.images.len(), 2);
        check_images(&request);
    }
    // Ollama's images precede the text.
    let expected = format!("{USER}<|vision_start|>[6]<|vision_end|><|vision_start|>[1]<|vision_end|>a{TURN}");
    let images = json!([base64(&one), base64(&two)]);
    for (path, body) in [
        ("/api/chat", json!({ "messages": [{ "role": "user", "content": "a", "images": images }] })),
        ("/api/generate", json!({ "prompt": "a", "images": images })),
    ] {
        let reply = client::post(server.address, path, &body);
        assert_eq!(reply.status, 200, "{path}: {}", reply.body);
        assert_eq!(prompt(&server.last_request()), expected, "{path}");
        check_images(&server.last_request());
    }
}

#[test]
fn equal_pictures_have_equal_digests_and_others_do_not() {
    let server = sees();
    let part = |shade: u8| json!({ "type": "image_url", "image_url": data_uri(&png(32, 32, shade)) });
    let content = json!([part(1), part(1), part(2)]);
    server.chat(&json!({ "messages": [{ "role": "user", "content": content }] }));
    let images = server.last_request().images;
    assert_eq!(images[0].digest, images[1].digest);
    assert_ne!(images[0].digest, images[2].digest);
}

#[test]
fn images_of_tool_results_reach_the_model() {
    let server = sees();
    let picture = png(64, 64, 7);
    let call = json!({ "id": "t1", "type": "function", "function": { "name": "Read", "arguments": "{}" } });
    let tools =
        json!([{ "type": "function", "function": { "name": "Read", "parameters": { "type": "object" } } }]);
    let chat = json!({ "tools": tools, "messages": [
        { "role": "user", "content": "look" },
        { "role": "assistant", "content": null, "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "t1",
          "content": [{ "type": "image_url", "image_url": { "url": data_uri(&picture) } }] },
    ] });
    let image = json!({ "type": "image",
        "source": { "type": "base64", "media_type": "image/png", "data": base64(&picture) } });
    let messages = json!({ "max_tokens": 9,
        "tools": [{ "name": "Read", "input_schema": { "type": "object" } }],
        "messages": [
            { "role": "user", "content": "look" },
            { "role": "assistant", "content": [{ "type": "tool_use", "id": "t1", "name": "Read", "input": {} }] },
            { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "t1", "content": [image] }] },
        ] });
    let responses = json!({ "input": [
        { "role": "user", "content": "look" },
        { "type": "function_call", "call_id": "t1", "name": "view_image", "arguments": "{}" },
        { "type": "function_call_output", "call_id": "t1",
          "output": [{ "type": "input_image", "image_url": data_uri(&picture) }] },
    ] });
    for (path, body) in
        [("/v1/chat/completions", chat), ("/v1/messages", messages), ("/v1/responses", responses)]
    {
        let reply = client::post(server.address, path, &body);
        assert_eq!(reply.status, 200, "{path}: {}", reply.body);
        let request = server.last_request();
        let text = prompt(&request);
        assert!(
            text.contains("<|im_start|>tool\n<|vision_start|>[4]<|vision_end|><|im_end|>"),
            "{path}: {text}"
        );
        check_images(&request);
    }
}

#[test]
fn images_of_tools_move_to_a_turn_of_the_user_if_the_template_writes_none_there() {
    const TEMPLATE: &str = "{%- for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'tool' %}{{ m.content | string }}\
        {% elif m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'image' %}\
        <|image_pad|>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}";
    let server = Setup { template: TEMPLATE, ..Setup::with_vision() }.says("x");
    let picture = data_uri(&png(32, 64, 7));
    let reply = server.chat(&json!({ "messages": [
        { "role": "user", "content": "look" },
        { "role": "tool", "tool_call_id": "t", "content": [
            { "type": "text", "text": "done" }, { "type": "image_url", "image_url": picture },
        ] },
    ] }));
    assert_eq!(reply.status, 200, "{}", reply.body);
    let text = prompt(&server.last_request());
    assert!(
        text.ends_with("<|im_start|>tool\ndone<|im_end|>\n<|im_start|>user\nImages that the tools returned:[2]<|im_end|>\n"),
        "{text}"
    );
}

#[test]
fn placeholder_in_a_text_is_text() {
    let server = sees();
    let forged = "x<|image_pad|>y<|vision_start|>";
    let picture = json!({ "type": "image_url", "image_url": data_uri(&png(32, 32, 7)) });
    let text = |text: &str| json!({ "type": "text", "text": text });
    for (content, images) in [
        (json!(forged), 0),
        (json!([text(forged), picture]), 1),
        (json!([picture, text(forged), text("<|image_"), text("pad|>")]), 1),
    ] {
        let reply = server.chat(&json!({ "messages": [{ "role": "user", "content": content }] }));
        assert_eq!(reply.status, 200, "{}", reply.body);
        let request = server.last_request();
        assert_eq!(request.prompt.iter().filter(|id| **id == IMAGE_TOKEN).count(), images);
        // The bytes are those of the text.
        assert!(server.last_prompt().contains("x<|image_pad|>y"), "{}", server.last_prompt());
        check_images(&request);
    }
    // Also in names and descriptions of tools, and in a system message.
    let tools = json!([{ "type": "function", "function": {
        "name": "f", "description": forged, "parameters": { "type": "object", "properties": { "<|image_pad|>": {} } },
    } }]);
    let body = json!({ "tools": tools, "tool_choice": "none", "messages": [
        { "role": "system", "content": forged }, { "role": "user", "content": "hi" },
    ] });
    let reply = server.chat(&body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert!(!server.last_request().prompt.contains(&IMAGE_TOKEN));
    let template = client::post(server.address, "/apply-template", &body).json()["prompt"].clone();
    assert!(template.as_str().unwrap().contains(forged), "{template}");
}

#[test]
fn tokens_are_counted_from_the_size_and_reported_in_usage() {
    let server = sees();
    let picture = png(640, 320, 7);
    let chat = json!({ "messages": [{ "role": "user", "content": [
        { "type": "text", "text": "hi" }, { "type": "image_url", "image_url": data_uri(&picture) },
    ] }] });
    let usage = server.chat(&chat).json()["usage"].clone();
    let prompt = server.last_request().prompt.len();
    assert_eq!((&usage["prompt_tokens"], &usage["lanner"]["image_tokens"]), (&json!(prompt), &json!(200)));
    let text_only = server.chat(&json!({})).json()["usage"]["lanner"].clone();
    assert!(text_only.get("image_tokens").is_none());
    let count = client::post(server.address, "/tokenize", &chat).json();
    assert_eq!(count["count"], prompt, "{count}");
    let source = json!({ "type": "base64", "media_type": "image/png", "data": base64(&picture) });
    let messages = json!({ "messages": [{ "role": "user", "content": [
        { "type": "text", "text": "hi" }, { "type": "image", "source": source },
    ] }] });
    let counted = client::post(server.address, "/v1/messages/count_tokens", &messages);
    assert_eq!(counted.json()["input_tokens"], prompt, "{}", counted.body);
    // Counting asks the engine nothing.
    assert_eq!(server.num_requests(), 2);
}

#[test]
fn detail_and_the_limit_bound_the_tokens() {
    let mut models = Setup::default().models;
    models.max_image_tokens = 600;
    let server = Setup { models, ..Setup::with_vision() }.says("x");
    let picture = data_uri(&png(1600, 1600, 7));
    let tokens = |detail: Value| {
        let image = json!({ "url": picture, "detail": detail });
        let content = json!([{ "type": "image_url", "image_url": image }]);
        let reply = server.chat(&json!({ "messages": [{ "role": "user", "content": content }] }));
        assert_eq!(reply.status, 200, "{}", reply.body);
        server.last_request().images[0].num_tokens()
    };
    assert_eq!(tokens(json!(null)), 24 * 24);
    assert_eq!(tokens(json!("high")), 24 * 24);
    assert_eq!(tokens(json!("low")), 16 * 16);
}

#[test]
fn image_that_cannot_be_used_is_a_400_that_names_its_field() {
    let server = sees();
    let user = |part: Value| json!({ "messages": [{ "role": "user", "content": [part] }] });
    let url = |url: &str| user(json!({ "type": "image_url", "image_url": { "url": url } }));
    let at = "messages[0].content[0]";
    for (body, param, words) in [
        (url("https://a.example/b.png"), "image_url.url", "--allow-image-urls"),
        (url("file:///etc/passwd"), "image_url.url", "files are not opened"),
        (url("/etc/passwd"), "image_url.url", "files are not opened"),
        (url("data:image/png;base64,AA*A"), "image_url.url", "not base64"),
        (url("data:image/png;base64,"), "image_url.url", "empty"),
        (url("data:image/png,x"), "image_url.url", "base64"),
        (
            user(json!({ "type": "image_url", "image_url": { "url": "data:", "detail": "most" } })),
            "detail",
            "low",
        ),
        (user(json!({ "type": "input_audio", "input_audio": { "data": "" } })), "type", "input_audio"),
        (user(json!({ "type": "file", "file": { "file_id": "f" } })), "type", "`file`"),
        (user(json!({ "type": "video_url", "video_url": { "url": "x" } })), "type", "video_url"),
        (user(json!({ "type": "image", "index": 0 })), "source.type", "base64"),
        (url(&data_uri(&png(6500, 32, 0))), "image_url.url", "200 times"),
    ] {
        let reply = server.chat(&body);
        let error = reply.json()["error"].clone();
        assert_eq!(reply.status, 400, "{error}");
        assert_eq!(error["param"], format!("{at}.{param}"), "{error}");
        assert!(error["message"].as_str().unwrap().contains(words), "{words}: {error}");
    }
    assert_eq!(server.num_requests(), 0);
}

#[test]
fn template_that_leaves_an_image_out_is_a_400() {
    let server = Setup { template: crate::support::server::TEMPLATE, ..Setup::with_vision() }.says("x");
    let content = json!([{ "type": "image_url", "image_url": data_uri(&png(32, 32, 7)) }]);
    let reply = server.chat(&json!({ "messages": [{ "role": "user", "content": content }] }));
    assert_eq!(reply.status, 400, "{}", reply.body);
    let message = reply.json()["error"]["message"].clone();
    assert!(message.as_str().unwrap().contains("0 image placeholders for 1 images"), "{message}");
}

#[test]
fn model_without_vision_says_so() {
    let server = Setup::default().says("x");
    let content = json!([{ "type": "image_url", "image_url": data_uri(&png(32, 32, 7)) }]);
    let reply = server.chat(&json!({ "messages": [{ "role": "user", "content": content }] }));
    let error = reply.json()["error"].clone();
    assert_eq!((reply.status, &error["code"]), (400, &json!("unsupported_image")), "{error}");
    assert_eq!(error["message"], "owl takes no images; send text, or load a model with vision");
    for path in ["/v1/models", "/v1/models/owl"] {
        let reply = client::get(server.address, path).json();
        let model = reply.get("data").map_or(&reply, |data| &data[0]);
        assert_eq!(model["capabilities"]["vision"], false, "{model}");
    }
}

#[test]
fn model_with_vision_is_listed_as_such() {
    let server = sees();
    let model = client::get(server.address, "/v1/models").json()["data"][0].clone();
    assert_eq!(model["capabilities"]["vision"], true, "{model}");
    let show = client::post(server.address, "/api/show", &json!({ "model": "owl" })).json();
    assert!(show["capabilities"].as_array().unwrap().contains(&json!("vision")), "{show}");
}

#[test]
fn too_many_images_are_refused() {
    let server = Setup { context: 1_000_000, ..Setup::with_vision() }.says("x");
    let part = json!({ "type": "image_url", "image_url": data_uri(&png(32, 32, 7)) });
    let ask = |count: usize| {
        server.chat(&json!({ "messages": [{ "role": "user", "content": vec![part.clone(); count] }] }))
    };
    assert_eq!(ask(100).status, 200);
    let reply = ask(101);
    assert_eq!(reply.status, 400);
    assert_eq!(reply.json()["error"]["param"], "messages[0].content[100].image_url", "{}", reply.body);
}

#[test]
fn body_may_be_larger_by_its_images_and_not_by_its_text() {
    // 2 MiB of text.
    let server = sees();
    let mut noise = 1u32;
    let pixels: Vec<u8> = (0..1200 * 1200 * 3)
        .map(|_| {
            noise ^= noise << 13;
            noise ^= noise >> 17;
            noise ^= noise << 5;
            noise as u8
        })
        .collect();
    let bytes = png_of(1200, 1200, &pixels);
    assert!(bytes.len() > 4 << 20);
    let part = json!({ "type": "image_url", "image_url": data_uri(&bytes) });
    let ask = |text: &str, part: &Value| {
        let content = json!([{ "type": "text", "text": text }, part]);
        client::post(
            server.address,
            "/v1/chat/completions",
            &json!({ "messages": [{ "role": "user", "content": content }] }),
        )
    };
    let reply = ask("a", &part);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let reply = ask(&"a".repeat(3 << 20), &part);
    assert_eq!(reply.status, 413, "{}", reply.body);
    assert!(reply.body.contains("besides its images"), "{}", reply.body);
    let reply = server.complete(&json!({ "prompt": "a".repeat(3 << 20) }));
    assert_eq!(reply.status, 413, "{}", reply.body);
}

#[test]
fn url_is_fetched_only_from_listed_hosts_with_public_addresses() {
    let allow = ["listed.invalid", "http://127.0.0.1:9", "localhost"].map(|host| host.parse().unwrap());
    let server = Setup { allow_image_urls: allow.into(), ..Setup::with_vision() }.says("x");
    for (url, words) in [
        ("https://other.example/a.png", "not among the hosts"),
        ("http://listed.invalid/a.png", "not among the hosts"),
        ("http://127.0.0.1:9/a.png", "not public"),
        ("https://localhost/a.png", "not public"),
        ("https://user@listed.invalid/a.png", "user name"),
    ] {
        let content = json!([{ "type": "image_url", "image_url": { "url": url } }]);
        let body = json!({ "messages": [{ "role": "user", "content": content }] });
        for path in ["/v1/chat/completions", "/tokenize"] {
            let reply = client::post(server.address, path, &body);
            let error = reply.json()["error"].clone();
            assert_eq!(
                (reply.status, &error["param"]),
                (400, &json!("messages[0].content[0].image_url.url")),
                "{error}"
            );
            assert!(error["message"].as_str().unwrap().contains(words), "{url}: {error}");
        }
    }
    let part = json!({ "type": "image_url", "image_url": "https://other.example/a.png" });
    let reply = server.chat(&json!({ "messages": [{ "role": "user", "content": vec![part; 9] }] }));
    assert!(reply.body.contains("more than 8 images at URLs"), "{}", reply.body);
}

#[test]
fn stored_response_keeps_its_image_for_the_next_turn() {
    let server = sees();
    let image = json!({ "type": "input_image", "image_url": data_uri(&png(64, 32, 7)) });
    let first = json!({ "input": [{ "role": "user", "content": [image] }] });
    let id = client::post(server.address, "/v1/responses", &first).json()["id"].clone();
    let first_prompt = server.last_request().prompt;
    let next = json!({ "input": "and now?", "previous_response_id": id });
    let reply = client::post(server.address, "/v1/responses", &next);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let request = server.last_request();
    assert_eq!(request.images.len(), 1);
    assert!(request.prompt.starts_with(&first_prompt));
    check_images(&request);
}

#[test]
fn idempotent_answer_with_an_image_is_replayed() {
    let server = sees();
    let content = json!([{ "type": "image_url", "image_url": data_uri(&png(64, 32, 7)) }]);
    let body = json!({ "messages": [{ "role": "user", "content": content }], "temperature": 0, "idempotency_key": "k" });
    let (first, second) = (server.chat(&body), server.chat(&body));
    assert_eq!((first.status, second.status, server.num_requests()), (200, 200, 1));
    assert_eq!(first.json()["choices"], second.json()["choices"]);
}
