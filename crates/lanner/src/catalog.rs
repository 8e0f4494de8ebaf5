//! Short names of popular models, and their repositories.

use crate::hub::RepoName;

/// One short name.
pub struct Entry {
    pub name: &'static str,
    pub repo: &'static str,
    pub description: &'static str,
}

const fn entry(name: &'static str, repo: &'static str, description: &'static str) -> Entry {
    Entry { name, repo, description }
}

pub const CATALOG: &[Entry] = &[
    entry("qwen3.5-0.8b", "mlx-community/Qwen3.5-0.8B-MLX-4bit", "Qwen3.5, 0.8 billion parameters, 4-bit"),
    entry("qwen3.5-0.8b-bf16", "Qwen/Qwen3.5-0.8B", "Qwen3.5, 0.8 billion parameters, bf16"),
    entry("qwen3.5-4b", "mlx-community/Qwen3.5-4B-MLX-4bit", "Qwen3.5, 4 billion parameters, 4-bit"),
    entry("qwen3.5-9b", "mlx-community/Qwen3.5-9B-MLX-4bit", "Qwen3.5, 9 billion parameters, 4-bit"),
    entry(
        "qwen3.6-35b",
        "mlx-community/Qwen3.6-35B-A3B-4bit",
        "Qwen3.6, 35 billion parameters, 3 active, 4-bit",
    ),
    entry("qwen3-0.6b", "mlx-community/Qwen3-0.6B-4bit", "Qwen3, 0.6 billion parameters, 4-bit"),
    entry("qwen3-4b", "mlx-community/Qwen3-4B-4bit", "Qwen3, 4 billion parameters, 4-bit"),
    entry("qwen3-8b", "mlx-community/Qwen3-8B-4bit", "Qwen3, 8 billion parameters, 4-bit"),
    entry(
        "llama-3.2-1b",
        "mlx-community/Llama-3.2-1B-Instruct-4bit",
        "Llama 3.2, 1 billion parameters, 4-bit",
    ),
    entry(
        "llama-3.2-3b",
        "mlx-community/Llama-3.2-3B-Instruct-4bit",
        "Llama 3.2, 3 billion parameters, 4-bit",
    ),
    entry("gemma-3-4b", "mlx-community/gemma-3-4b-it-4bit", "Gemma 3, 4 billion parameters, 4-bit"),
    entry(
        "gemma-4-e2b",
        "mlx-community/gemma-4-e2b-it-4bit",
        "Gemma 4, 2 billion effective parameters, 4-bit",
    ),
    entry("lfm2-1.2b", "mlx-community/LFM2-1.2B-4bit", "LFM2, 1.2 billion parameters, 4-bit"),
    entry("glm-4-9b", "mlx-community/GLM-4-9B-0414-4bit", "GLM-4, 9 billion parameters, 4-bit"),
    entry(
        "gpt-oss-20b",
        "mlx-community/gpt-oss-20b-MXFP4-Q8",
        "gpt-oss, 21 billion parameters, 3.6 active, mxfp4",
    ),
];

/// The repository of a short name, in any case.
pub fn look_up(name: &str) -> Option<RepoName> {
    let entry = CATALOG.iter().find(|entry| entry.name.eq_ignore_ascii_case(name))?;
    RepoName::parse(entry.repo)
}

/// The short names as a Markdown table, for docs/models.md.
pub fn catalog_table() -> String {
    let row = |entry: &Entry| {
        let Entry { name, repo, description } = entry;
        format!("| `{name}` | [{repo}](https://huggingface.co/{repo}) | {description} |\n")
    };
    let rows: String = CATALOG.iter().map(row).collect();
    format!("| short name | repository | what it is |\n|---|---|---|\n{rows}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_are_unique_and_name_a_repository() {
        for (index, entry) in CATALOG.iter().enumerate() {
            let repo = look_up(&entry.name.to_uppercase());
            assert_eq!(repo.map(|repo| repo.to_string()).as_deref(), Some(entry.repo));
            assert!(!entry.name.contains(['/', ' ', '@', ':']), "{}", entry.name);
            assert!(CATALOG[..index].iter().all(|other| other.name != entry.name), "{}", entry.name);
            assert!(catalog_table().contains(&format!("| `{}` | [{}]", entry.name, entry.repo)));
        }
        assert!(look_up("qwen9").is_none());
    }
}
