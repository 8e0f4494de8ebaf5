//! Times decoding and preprocessing of image files: `time_images PREPROCESSOR_CONFIG FILE...`.

use std::{env, error::Error, fs, time::Instant};

use lanner_vision::{ConfigFiles, Header, Limits, Processor, decode};

const ROUNDS: usize = 21;

/// The median of some rounds, in milliseconds.
fn median(mut run: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[ROUNDS / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    // Cargo adds an argument of its own.
    let mut arguments = env::args().skip(1).filter(|argument| argument != "--bench");
    let config = fs::read_to_string(arguments.next().ok_or("a configuration is missing")?)?;
    let files = ConfigFiles { preprocessor: Some(&config), processor: None };
    let (processor, limits) = (Processor::from_config(files)?, Limits::default());
    println!("file, width, height, tokens, milliseconds to decode, to preprocess, all");
    for name in arguments {
        let bytes = fs::read(&name)?;
        let header = Header::read(&bytes, &limits)?;
        let image = decode(&bytes, &header, limits.deadline())?;
        let tokens = processor.plan(image.width, image.height)?.num_image_tokens();
        let decoding = median(|| drop(decode(&bytes, &header, limits.deadline())));
        let preprocessing = median(|| drop(processor.preprocess(&image, limits.deadline())));
        let all = median(|| drop(processor.process(&bytes, &limits)));
        println!(
            "{name}, {}, {}, {tokens}, {decoding:.1}, {preprocessing:.1}, {all:.1}",
            image.width, image.height
        );
    }
    Ok(())
}
