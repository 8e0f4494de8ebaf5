//! Published checkpoints as recorded by tools/goldens/indexes.py: config.json, and the names,
//! dtypes and shapes of their tensors, as patterns. No weights.

/// Expands a pattern into names: `{0-3}` is an inclusive range of integers, `{q,k,5,7-9}` a list.
pub(super) fn expand(pattern: &str) -> Vec<String> {
    let Some((before, rest)) = pattern.split_once('{') else { return vec![pattern.to_string()] };
    let (items, after) = rest.split_once('}').unwrap_or_else(|| panic!("{pattern} has no closing brace"));
    let tails = expand(after);
    let choices = items.split(',').flat_map(numbers_in);
    choices.flat_map(|choice| tails.iter().map(move |tail| format!("{before}{choice}{tail}"))).collect()
}

/// `7-9` as three numbers, anything else unchanged.
fn numbers_in(item: &str) -> Vec<String> {
    let ends = item.split_once('-').and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
    match ends {
        Some((first, last)) => (first..=last).map(|n: u32| n.to_string()).collect(),
        None => vec![item.to_string()],
    }
}

#[test]
fn pattern_with_ranges_and_lists_expands_into_names() {
    let check = |pattern: &str, names: &[&str]| assert_eq!(expand(pattern), names, "{pattern}");
    check("model.norm.weight", &["model.norm.weight"]);
    check("{9-11}.a", &["9.a", "10.a", "11.a"]);
    check(
        "layers.{0-1,4}.{q,k}",
        &["layers.0.q", "layers.0.k", "layers.1.q", "layers.1.k", "layers.4.q", "layers.4.k"],
    );
    check("{up-down,1}", &["up-down", "1"]);
}
