#![no_main]

use libfuzzer_sys::fuzz_target;

// `Tokenizer` catches panics of the tokenizers crate, so the hook must not abort; uncaught ones
// still do.
fuzz_target!(init: std::panic::set_hook(Box::new(|_| {})), |bytes: &[u8]| {
    let _ = chat::fuzzing::tokenizer_json(bytes);
});
