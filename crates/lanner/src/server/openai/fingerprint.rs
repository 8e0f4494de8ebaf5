//! Which requests are the same, so that one with a known idempotency key is answered from the
//! store.

use ring::digest::{SHA256, digest};
use serde_json::Value;

use crate::server::idempotency::Fingerprint;

/// Fields that may differ when a request is sent again: they change how it is run and sent, not
/// what is generated.
const INCIDENTAL: [&str; 10] = [
    "idempotency_key",
    "cache_ttl_ms",
    "ttl",
    "keep_alive",
    "stream",
    "stream_options",
    "return_progress",
    "priority",
    "timeout",
    "speculation",
];

/// A hash of everything in a valid request of one route that its answer depends on. The order of
/// fields does not matter, and a null field counts as missing. Speculation changes no answer unless
/// it is `lossy`.
pub fn fingerprint(route: &str, body: &[u8], lossy: bool) -> Fingerprint {
    let body = match serde_json::from_slice::<Value>(body) {
        Ok(Value::Object(mut fields)) => {
            fields.retain(|name, value| !INCIDENTAL.contains(&name.as_str()) && !value.is_null());
            let mut fields = Value::Object(fields);
            fields.sort_all_objects();
            format!("json {fields}")
        }
        // Ignored fields may hold what no `Value` can: numbers too large, arrays too deep.
        _ => format!("bytes {}", String::from_utf8_lossy(body)),
    };
    let hash = digest(&SHA256, format!("{route} {lossy} {body}").as_bytes());
    let mut bytes = [0; 32];
    bytes.copy_from_slice(hash.as_ref());
    Fingerprint(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(body: &str) -> Fingerprint {
        fingerprint("r", body.as_bytes(), false)
    }

    #[test]
    fn fingerprint_ignores_field_order_and_incidental_fields() {
        let first = print(r#"{"seed": 7, "messages": [{"role": "user", "content": "a"}], "n": 1}"#);
        for same in [
            r#"{"n":1,"messages":[{"content":"a","role":"user"}],"seed":7}"#,
            r#"{"n": 1, "messages": [{"content": "\u0061", "role": "user"}], "seed": 7, "stop": null}"#,
            r#"{"n": 1, "messages": [{"content": "a", "role": "user"}], "seed": 7, "stream": true}"#,
        ] {
            assert_eq!(print(same), first, "{same}");
        }
        for other in [
            r#"{"n": 2, "messages": [{"content": "a", "role": "user"}], "seed": 7}"#,
            r#"{"n": 1, "messages": [{"content": "a", "role": "user", "name": null}], "seed": 7}"#,
            r#"{"n": 1, "messages": [{"content": "b", "role": "user"}], "seed": 7}"#,
        ] {
            assert_ne!(print(other), first, "{other}");
        }
        assert_ne!(print(r#"{"prompt": ["a", "b"]}"#), print(r#"{"prompt": ["b", "a"]}"#));
    }

    #[test]
    fn fingerprint_of_unrepresentable_json_uses_the_bytes() {
        let deep = "[".repeat(500) + &"]".repeat(500);
        let with = |prompt: &str, odd: &str| print(&format!(r#"{{"prompt": "{prompt}", "user": {odd}}}"#));
        for odd in [&deep[..], "1e999"] {
            assert_eq!(with("a", odd), with("a", odd));
            assert_ne!(with("a", odd), with("b", odd));
        }
    }
}
