//! Entry points for fuzzing the parsers of request bodies, hub responses and model files. Each
//! takes bytes and returns `Ok` or an error; none may panic, hang or allocate out of proportion.

use std::path::{Component, Path};

use crate::{
    hub::fuzzing as hub,
    server::openai::{
        self, ValidRequest,
        chat::{ChatPrompt, ChatRequest},
        completions::{CompletionPrompts, CompletionRequest},
        error::ApiError,
    },
};

/// Parses and validates a body of POST /v1/chat/completions and of POST /v1/completions.
pub fn http_request(body: &[u8]) -> Result<(), String> {
    let chat = openai::parse::<ChatRequest>(body).and_then(ValidRequest::<ChatPrompt>::try_from);
    let completion =
        openai::parse::<CompletionRequest>(body).and_then(ValidRequest::<CompletionPrompts>::try_from);
    let chat = chat.map(|valid| check(body, &valid));
    let completion = completion.map(|valid| check(body, &valid));
    match (chat, completion) {
        (Err(chat), Err(completion)) => {
            check_error(&chat);
            check_error(&completion);
            Err(format!("{}; {}", chat.body.message, completion.body.message))
        }
        (chat, completion) => {
            chat.err().iter().chain(completion.err().iter()).for_each(check_error);
            Ok(())
        }
    }
}

/// Parses the hub's listing of a repository and an index of shards: no file that they name is
/// outside its folder.
pub fn hub_files(bytes: &[u8]) -> Result<(), String> {
    let names = hub::index(bytes);
    let listed = hub::listing(bytes);
    for name in names.iter().chain(&listed).flatten() {
        let path = Path::new("/folder").join(name);
        let leaves = path.components().any(|part| part == Component::ParentDir);
        assert!(path.starts_with("/folder") && !leaves, "{name:?} lies outside its folder");
    }
    names.map(drop).or(listed.map(drop))
}

/// Checks that a weight file has the length that its header states.
pub fn hub_header(bytes: &[u8]) -> Result<(), String> {
    hub::header(bytes)
}

fn check<P>(body: &[u8], valid: &ValidRequest<P>) {
    let params = &valid.params;
    assert!((1..=16).contains(&params.n) && params.stop.iter().all(|stop| !stop.is_empty()));
    // Equal bodies have equal fingerprints.
    assert!(openai::fingerprint("route", body, false) == openai::fingerprint("route", body, false));
}

/// Errors are 4xx and have a message.
fn check_error(error: &ApiError) {
    assert!(error.status.is_client_error() && !error.body.message.is_empty(), "{error:?}");
}

#[cfg(test)]
#[path = "../../../fuzz/check_seeds.rs"]
mod check_seeds;

#[cfg(test)]
mod tests {
    use super::{check_seeds::check_seeds, *};

    #[test]
    fn request_seeds_are_accepted_or_rejected() {
        check_seeds("http_request", http_request, 8);
    }

    #[test]
    fn hub_file_seeds_are_accepted_or_rejected() {
        check_seeds("safetensors_index", hub_files, 3);
        check_seeds("safetensors_header", hub_header, 3);
    }
}
