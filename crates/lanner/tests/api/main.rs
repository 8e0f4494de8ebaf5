//! The server as its clients see it: a real socket, a scripted engine, a tokenizer of single bytes.

mod chat;
mod client;
mod completions;
mod errors;
mod server;
mod survival;
