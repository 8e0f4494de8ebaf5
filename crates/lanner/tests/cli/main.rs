//! The program as its users see it. Server tests run over a scripted engine and a byte
//! tokenizer, command tests over a small recorded checkpoint.

// A panic is the verdict of a test.
#![allow(clippy::unwrap_used)]

mod admin;
mod agents;
mod anthropic;
mod bench;
mod bench_speculate;
mod cache;
mod chat;
mod chat_commands;
mod chat_terminal;
mod codex;
mod commands;
mod completions;
mod connections;
mod cors;
mod disconnects;
mod disk;
mod doctor;
mod draft_model;
mod embeddings;
mod errors;
mod eval;
mod flags;
mod fuzzing;
mod health;
mod hostile_images;
mod idempotency;
mod images;
mod launch;
mod load;
mod local_models;
mod mcp;
mod memory;
mod metrics;
mod ngram;
mod ollama;
mod openapi;
mod overload;
mod oversized_requests;
mod page;
mod pull;
mod quantize;
mod remote;
mod repeated_loads;
mod requests;
mod responses;
mod service;
mod several_models;
mod soak;
mod speculation;
mod store;
mod structured_output;
mod support;
mod tenants;
mod thinking;
mod thinking_settings;
mod tokens;
mod tools;
mod tower;
mod tune;
