//! The program as its users see it. The server's stories run over a scripted engine and a tokenizer of single bytes,
//! those of the commands over a small recorded checkpoint.

mod chat;
#[path = "../../../engine/tests/checkpoint/mod.rs"]
mod checkpoint;
mod cli;
mod client;
mod commands;
mod completions;
mod errors;
mod quantize;
mod server;
mod survival;
