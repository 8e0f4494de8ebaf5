//! Names under which tools of several servers are offered together: `mcp__server__tool`.

use std::collections::HashSet;

/// OpenAI's limit for names of functions, and that of many models' templates.
const MAX_NAME: usize = 64;

/// The name of a tool among those of all servers. Characters that names of functions do not have
/// become `_`; a long name is shortened; a number at its end keeps it apart from those in `taken`.
pub fn offered_name(server: &str, tool: &str, taken: &mut HashSet<String>) -> String {
    let valid = |c: char| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' };
    let whole: String = format!("mcp__{server}__{tool}").chars().map(valid).collect();
    let name = |suffix: &str| format!("{}{suffix}", &whole[..whole.len().min(MAX_NAME - suffix.len())]);
    let mut candidates = std::iter::once(name("")).chain((2..).map(|n| name(&format!("_{n}"))));
    let free = candidates.find(|name| !taken.contains(name)).unwrap_or_default();
    taken.insert(free.clone());
    free
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_valid_short_and_different() {
        let mut taken = HashSet::new();
        let mut name = |server, tool| offered_name(server, tool, &mut taken);
        assert_eq!(name("files", "read"), "mcp__files__read");
        assert_eq!(name("a_b", "c.d/é"), "mcp__a_b__c_d__");
        assert_eq!(name("a_b", "c:d/ü"), "mcp__a_b__c_d___2");
        let long = "x".repeat(100);
        let [first, second] = [name("files", &long), name("files", &long)];
        assert_eq!((first.len(), second.len()), (64, 64));
        assert!(second.ends_with("x_2") && first != second, "{second}");
    }
}
