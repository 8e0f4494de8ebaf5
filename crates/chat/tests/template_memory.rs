//! Values of a template are freed after rendering. A separate binary: memory is measured per
//! process.

// Tests fail by panicking.
#![allow(clippy::unwrap_used)]

use lanner_chat::{RenderInput, Template};
use serde_json::Map;

#[test]
fn namespace_that_contains_itself_is_freed() {
    let source =
        "{% set ns = namespace(big='x' * 4000000) %}{% set ns.self = ns %}{% set ns.big = ns.big + 'y' %}";
    let template = Template::new(source, Map::new()).unwrap();
    for _ in 0..20 {
        template.render(&RenderInput::default()).unwrap();
    }
    let before = resident();
    for _ in 0..100 {
        template.render(&RenderInput::default()).unwrap();
    }
    assert!(resident() < before + 100_000_000, "{before} bytes became {}", resident());
}

/// Resident memory of this process in bytes; 0 where the system does not report it.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    pages.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}
