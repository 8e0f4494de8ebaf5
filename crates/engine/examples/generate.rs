//! Continues a prompt of token ids greedily:
//! `cargo run --release -p lanner-engine --example generate models/merlin 1 20 300`.

use std::{env, error::Error};

use lanner_engine::{Checkpoint, Event, Options, Request, start};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let folder = arguments.next().ok_or("usage: generate FOLDER TOKEN...")?;
    let prompt = arguments.map(|id| id.parse()).collect::<Result<Vec<u32>, _>>()?;
    let engine = start(Checkpoint::Folder(folder.into()), Options::default(), |_progress| {})?;
    let (sender, events) = std::sync::mpsc::channel();
    let _handle = engine.submit(Request::new(prompt, 32), move |event| {
        let _ = sender.send(event);
    })?;
    for event in events {
        match event {
            Event::Token { id, .. } => println!("{id}"),
            Event::Failed(error) => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}
