//! The program as its users see it. The server's stories run over a scripted engine and a tokenizer of single bytes,
//! those of the commands over a small recorded checkpoint.

mod admin;
mod bench;
mod cache;
mod chat;
#[path = "../../../engine/tests/it/support/checkpoint.rs"]
mod checkpoint;
mod cli;
mod client;
mod commands;
mod completions;
mod connections;
mod crowded;
mod disk;
#[path = "../../../engine/tests/it/support/document.rs"]
mod document;
mod drafting;
mod errors;
mod fake_hub;
mod fuzzing;
mod health;
mod hostile;
mod load;
mod loads;
mod local;
mod memory;
mod metrics;
mod ngram;
mod pulling;
mod quantize;
mod replaying;
mod server;
mod serving;
mod soak;
mod speculating;
mod speculation;
mod survival;
