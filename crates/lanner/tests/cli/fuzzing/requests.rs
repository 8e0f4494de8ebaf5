//! Random mutations of valid requests.

use serde_json::json;

use super::{
    fields::{NUMBERS, VALUES, posted},
    more_fields::{OLLAMA_NUMBERS, OTHERS, line},
};

/// Pseudorandom numbers, the same in every run (SplitMix64).
pub(super) struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }
}

/// Nested arrays or objects.
pub(super) fn nested(depth: usize) -> String {
    if depth.is_multiple_of(2) {
        return "[".repeat(depth) + &"]".repeat(depth);
    }
    r#"{"a":"#.repeat(depth) + "0" + &"}".repeat(depth)
}

/// Any JSON value, or almost JSON.
pub(super) fn value(random: &mut Random) -> String {
    match random.below(12) {
        0..5 => random.pick(&NUMBERS).into(),
        5..10 => random.pick(&VALUES).into(),
        10 => nested([1, 2, 3, 50, 126, 127, 128, 129, 5_000][random.below(9)]),
        _ => json!(text(random)).to_string(),
    }
}

pub(super) fn text(random: &mut Random) -> String {
    const PARTS: [&str; 12] = [
        "owl",
        " ",
        "\n",
        "\u{0}",
        "\u{1F985}",
        "e\u{301}",
        "<|im_start|>",
        "{{ x }}",
        "\\",
        "\"",
        "\u{202e}",
        "%s",
    ];
    let parts = if random.one_in(60) { 800 } else { 1 + random.below(6) };
    (0..parts).map(|_| random.pick(&PARTS)).collect()
}

pub(super) struct Ask {
    /// Method and path.
    pub line: String,
    pub headers: &'static str,
    pub body: Vec<u8>,
}

pub(super) const JSON: &str = "Content-Type: application/json\r\n";

pub(super) fn object(fields: &[(String, String)]) -> Vec<u8> {
    let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{}:{value}", json!(name))).collect();
    format!("{{{}}}", fields.join(",")).into_bytes()
}

/// A valid body with up to three changes. Its answer is short: few tokens, or a short timeout.
pub(super) fn ask(random: &mut Random) -> Ask {
    let routes = posted();
    let weights = [0, 0, 0, 1, 1, 1, 2, 3, 3, 4, 5, 6, 7, 7, 8, 9, 9, 10, 10, 11, 12, 13, 14, 15, 16];
    let (path, fields, always) = &routes[weights[random.below(weights.len())]];
    if random.one_in(8) {
        return Ask { line: random.pick(&OTHERS).into(), headers: "", body: vec![] };
    }
    let mut body: Vec<(String, String)> = vec![];
    let mut left_as_it_is = false;
    for (name, good, odd) in fields {
        if !always.contains(name) && !random.one_in(8) {
            continue;
        }
        let ends = matches!(*name, "max_tokens" | "max_completion_tokens" | "max_output_tokens" | "timeout");
        let change = if ends && left_as_it_is { 99 } else { random.below(24) };
        let mut push = |name: &str, value: String| body.push((name.into(), value));
        left_as_it_is |= ends && change < 5;
        match change {
            0 if !odd.is_empty() => push(name, random.pick(odd).into()),
            0 | 1 => push(name, value(random)),
            2 => {}
            3 => {
                push(name, random.pick(good).into());
                push(name, value(random));
            }
            4 => push(&format!("{name}\u{0}"), value(random)),
            _ => push(name, random.pick(good).into()),
        }
    }
    let mut bytes = object(&body);
    match random.below(60) {
        0 => bytes.truncate(random.below(bytes.len())),
        1 => {
            let at = random.below(bytes.len());
            bytes[at] = random.next() as u8;
        }
        2 => bytes = value(random).into_bytes(),
        3 => bytes.extend(b" {}"),
        _ => {}
    }
    let headers = if random.one_in(100) { random.pick(&["", "Content-Type: text/plain\r\n"]) } else { JSON };
    Ask { line: line(path), headers, body: bytes }
}

/// Each field alone, at each of its extremes, in an otherwise valid request.
pub(super) fn extremes() -> Vec<Ask> {
    let mut asks = vec![];
    for (path, fields, always) in posted() {
        let usual = |skip: &str| -> Vec<(String, String)> {
            let needed = fields.iter().filter(|(name, ..)| always.contains(name) && *name != skip);
            needed.map(|(name, good, _)| ((*name).into(), good[0].into())).collect()
        };
        for (name, good, odd) in &fields {
            let deep = [nested(100), nested(101), nested(5_000), json!("x".repeat(20_000)).to_string()];
            let plain = NUMBERS.iter().chain(&VALUES).chain(*good).chain(*odd).map(|value| value.to_string());
            let inner = if *name == "options" { extreme_options() } else { vec![] };
            for value in plain.chain(deep).chain(inner) {
                let mut body = usual(name);
                // Other fields that this one requires.
                match *name {
                    "top_logprobs" if path.contains("chat") => body.push(("logprobs".into(), "true".into())),
                    "stream_options" => body.push(("stream".into(), "true".into())),
                    "idempotency_key" => body.push(("seed".into(), asks.len().to_string())),
                    _ => {}
                }
                body.push(((*name).into(), value));
                asks.push(Ask { line: line(path), headers: JSON, body: object(&body) });
            }
        }
    }
    asks
}

/// Ollama's options, each at its extremes.
fn extreme_options() -> Vec<String> {
    let with = |name: &&str| {
        let name = *name;
        // The answer stays short.
        let rest = if name == "num_predict" { "" } else { r#","num_predict":1"# };
        NUMBERS.map(|number| format!("{{{}:{number}{rest}}}", json!(name)))
    };
    OLLAMA_NUMBERS.iter().flat_map(with).collect()
}
