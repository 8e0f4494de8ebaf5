//! Hostile image files over HTTP: each is a 400 that names its field, and costs little.

use std::{
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::support::{
    client::{self, Reply},
    pictures::{base64, data_uri, png},
    server::{Setup, TestServer},
};

fn chat(server: &TestServer, file: &[u8]) -> Reply {
    let image = json!({ "url": format!("data:image/png;base64,{}", base64(file)) });
    let content = json!([{ "type": "image_url", "image_url": image }]);
    server.chat(&json!({ "messages": [{ "role": "user", "content": content }] }))
}

/// The same PNG with another width and height in its header, and the right checksum.
fn lying(png: &[u8], width: u32, height: u32) -> Vec<u8> {
    let mut lying = png.to_vec();
    lying[16..20].copy_from_slice(&width.to_be_bytes());
    lying[20..24].copy_from_slice(&height.to_be_bytes());
    let crc = crc32(&lying[12..29]);
    lying[29..33].copy_from_slice(&crc.to_be_bytes());
    lying
}

fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ if crc & 1 == 1 { 0xEDB8_8320 } else { 0 })
    };
    !bytes.iter().fold(!0, step)
}

fn hostile() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let honest = png(64, 64, 7);
    let truncated = honest[..honest.len() - 20].to_vec();
    let with = |more: &[u8]| [&honest[..], more].concat();
    vec![
        (
            "an SVG document",
            b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>".to_vec(),
            "SVG",
        ),
        (
            "an SVG after a declaration",
            b"<?xml version='1.0'?><!DOCTYPE svg [<!ENTITY x SYSTEM 'file:///etc/passwd'>]><svg>&x;</svg>"
                .to_vec(),
            "SVG",
        ),
        ("an HTML page", b"<!doctype html><script>alert(1)</script>".to_vec(), "HTML"),
        ("a PDF document", b"%PDF-1.7\n".to_vec(), "PDF"),
        ("a TIFF file", b"II*\0\x08\0\0\0".to_vec(), "TIFF"),
        ("nothing but a signature", b"\x89PNG\r\n\x1a\n".to_vec(), "damaged"),
        ("a PNG cut off", truncated, "damaged"),
        ("10,000 pixels wide", png(10_000, 1, 7), "pixels of width"),
        ("10,000 pixels high", png(1, 10_000, 7), "pixels of height"),
        ("64 megapixels", png(8000, 8000, 0), "pixels"),
        ("a header of four billion pixels", lying(&honest, 65_535, 65_535), "pixels"),
        ("a header without pixels", lying(&honest, 0, 64), "damaged"),
        ("a header of more rows than there are", lying(&honest, 64, 4096), "damaged"),
        ("a PNG with a ZIP archive after it", with(b"PK\x03\x04 payload"), "not part of it"),
        ("a PNG with a script after it", with(b"<script>alert(1)</script>"), "not part of it"),
        (
            "a PNG that is a PDF too",
            [&honest[..33], b"\0\0\0\x09tEXt%PDF-1.7\0\0\0\0\0", &honest[33..]].concat(),
            "PDF",
        ),
        (
            "a GIF of 65,535 pixels",
            b"GIF89a\xff\xff\xff\xff\x80\0\0\0\0\0\xff\xff\xff,\0\0\0\0\xff\xff\xff\xff\0\x02\x02D\x01\0;"
                .to_vec(),
            "pixels",
        ),
        ("a JPEG without an image", b"\xff\xd8\xff\xd9".to_vec(), "damaged"),
        ("a WebP that ends early", b"RIFF\xff\xff\xff\x7fWEBPVP8 ".to_vec(), "damaged"),
    ]
}

#[test]
fn hostile_file_is_a_400_on_every_wire() {
    let server = Setup { body_limit: 16 << 20, ..Setup::with_vision() }.says("x");
    for (name, file, words) in hostile() {
        let data = base64(&file);
        let uri = format!("data:image/png;base64,{data}");
        let source = json!({ "type": "base64", "media_type": "image/png", "data": data });
        let user = |part: Value| json!([{ "role": "user", "content": [part] }]);
        let result = json!({ "type": "tool_result", "tool_use_id": "t", "content": [{ "type": "image", "source": source }] });
        for (path, body) in [
            (
                "/v1/chat/completions",
                json!({ "messages": user(json!({ "type": "image_url", "image_url": { "url": uri } })) }),
            ),
            ("/v1/responses", json!({ "input": user(json!({ "type": "input_image", "image_url": uri })) })),
            (
                "/v1/messages",
                json!({ "messages": user(json!({ "type": "image", "source": source })), "max_tokens": 1 }),
            ),
            ("/v1/messages", json!({ "messages": user(result), "max_tokens": 1 })),
            ("/api/chat", json!({ "messages": [{ "role": "user", "content": "x", "images": [data] }] })),
        ] {
            let reply = client::post(server.address, path, &body);
            assert_eq!(reply.status, 400, "{name} at {path}: {}", reply.body);
            assert!(reply.body.contains(words), "{name} at {path}: {}", reply.body);
        }
    }
    assert_eq!(server.num_requests(), 0);
    assert_eq!(chat(&server, &png(64, 64, 7)).status, 200);
}

/// A GIF that states a large size, with too little data for it.
fn hollow_gif(width: u16, height: u16, shade: u8) -> Vec<u8> {
    let size = [width.to_le_bytes(), height.to_le_bytes()].concat();
    let palette = [0x80, 0, 0, shade, shade, shade, 0, 0, 0];
    [b"GIF89a", &size[..], &palette, b",\0\0\0\0", &size, b"\0\x02\x02D\x01\0;"].concat()
}

#[test]
fn request_with_too_many_pixels_is_refused_before_decoding() {
    let server = Setup::with_vision().says("x");
    let part = |shade: u8| {
        let url = format!("data:image/gif;base64,{}", base64(&hollow_gif(8000, 6000, shade)));
        json!({ "type": "image_url", "image_url": { "url": url, "detail": "low" } })
    };
    let parts: Vec<Value> = (0..100).map(part).collect();
    let start = Instant::now();
    let reply = server.chat(&json!({ "messages": [{ "role": "user", "content": parts }] }));
    let error = reply.json()["error"].clone();
    assert_eq!((reply.status, &error["code"]), (400, &json!("invalid_image")), "{error}");
    assert_eq!(error["param"], "messages[0].content[10].image_url.url");
    assert!(error["message"].as_str().unwrap().contains("have 528000000 pixels"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[test]
fn timeout_of_a_request_ends_the_decoding_of_its_images() {
    let server = Setup::with_vision().says("x");
    let part = |shade: u8| {
        let image = json!({ "url": data_uri(&png(2000, 2000, shade)), "detail": "low" });
        json!({ "type": "image_url", "image_url": image })
    };
    let parts: Vec<Value> = (0..20).map(part).collect();
    let messages = json!([{ "role": "user", "content": parts }]);
    let reply = server.chat(&json!({ "timeout": 0.1, "messages": messages }));
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (504, &json!("timeout")), "{}", reply.body);
    assert_eq!(server.num_requests(), 0);
}

#[test]
fn bombs_take_turns_and_others_are_answered_meanwhile() {
    // 48 megapixels from 200 kB, which the limits allow: 144 MB of pixels each.
    let bomb = png(8000, 6000, 0);
    assert!(bomb.len() < 1 << 20, "{}", bomb.len());
    let server = Setup::with_vision().says("x");
    let statuses = Mutex::new(vec![]);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let status = chat(&server, &bomb).status;
                statuses.lock().unwrap().push(status);
            });
        }
        for _ in 0..20 {
            assert_eq!(server.chat(&json!({})).status, 200);
        }
    });
    assert_eq!(*statuses.lock().unwrap(), [200; 3]);
}
