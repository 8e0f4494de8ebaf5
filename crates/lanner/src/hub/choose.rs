//! Chooses the files of a repository that make a model. Works on names alone: the same rules apply
//! to the hub's listing and to a folder on disk.

use std::collections::BTreeSet;

/// The index of shards.
const INDEX: &str = "model.safetensors.index.json";

/// A folder of the repository and the weights in it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ModelFiles {
    /// Empty for the repository's root, else it ends with a slash.
    pub folder: String,
    pub weights: WeightFiles,
}

/// Paths in the repository.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WeightFiles {
    /// The shards that this index names.
    Index(String),
    Files(Vec<String>),
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ChooseError {
    #[error("{0} has no weights")]
    NoWeights(String),
    #[error(
        "{repo} has only {kinds} weights; Lanner reads safetensors\nhint: look for the model's original or MLX repository"
    )]
    NotSafetensors { repo: String, kinds: String },
    #[error("{repo} has no {part} with weights in it{}", candidates_hint(.candidates))]
    NoPart { repo: String, part: String, candidates: Vec<String> },
    #[error("{repo} has several models: {}\nhint: choose one, as in {repo}:{}", .candidates.join(", "), .candidates[0])]
    Ambiguous { repo: String, candidates: Vec<String> },
}

fn candidates_hint(candidates: &[String]) -> String {
    if candidates.is_empty() { String::new() } else { format!("; it has {}", candidates.join(", ")) }
}

/// The first of these: the requested part; the root, if it has weights; the only folder with
/// config.json and weights. Within a folder: the shards of the index; model.safetensors;
/// model-x-of-n.safetensors; the only safetensors file.
///
/// # Errors
/// There is no model, or more than one; `repo` is the name in messages.
pub(super) fn choose(repo: &str, part: Option<&str>, paths: &[String]) -> Result<ModelFiles, ChooseError> {
    let folders = model_folders(paths);
    match part {
        Some(file) if file.ends_with(".safetensors") => {
            if !paths.iter().any(|path| path == file) {
                return Err(ChooseError::NoPart {
                    repo: repo.into(),
                    part: file.into(),
                    candidates: weight_files(paths),
                });
            }
            let folder = file.rfind('/').map_or("", |slash| &file[..=slash]);
            Ok(ModelFiles { folder: folder.into(), weights: WeightFiles::Files(vec![file.into()]) })
        }
        Some(part) => {
            let folder = format!("{}/", part.trim_end_matches('/'));
            let none = || ChooseError::NoPart {
                repo: repo.into(),
                part: part.into(),
                candidates: trimmed(&folders),
            };
            weights_in(repo, &folder, paths)?.ok_or_else(none)
        }
        None => match weights_in(repo, "", paths)? {
            Some(chosen) => Ok(chosen),
            None => only_folder(repo, &folders, paths),
        },
    }
}

/// Whether a model needs this file besides its weights.
pub(super) fn is_companion(name: &str) -> bool {
    matches!(
        name,
        "config.json"
            | "generation_config.json"
            | "chat_template.jinja"
            | "chat_template.json"
            | "special_tokens_map.json"
            | "added_tokens.json"
            | "merges.txt"
            | "modules.json"
            | "vocab.json"
            | "vocab.txt"
    ) || (name.starts_with("tokenizer") && name.ends_with(".json"))
        || (name.ends_with(".model") && !name.contains('/'))
}

/// Whether the path is of the pooling or a dense layer of sentence-transformers.
pub(super) fn is_embedding_layer(path: &str) -> bool {
    let Some((folder, file)) = path.split_once('/') else { return false };
    let kind = folder.trim_start_matches(|c: char| c.is_ascii_digit());
    matches!((kind, file), ("_Pooling" | "_Dense", "config.json") | ("_Dense", "model.safetensors"))
}

/// The file name of a path directly in the folder.
pub(super) fn name_in<'a>(path: &'a str, folder: &str) -> Option<&'a str> {
    path.strip_prefix(folder).filter(|name| !name.contains('/'))
}

fn only_folder(repo: &str, folders: &[String], paths: &[String]) -> Result<ModelFiles, ChooseError> {
    match folders {
        [] => Err(no_weights(repo, paths)),
        [folder] => weights_in(repo, folder, paths)?.ok_or_else(|| no_weights(repo, paths)),
        _ => Err(ChooseError::Ambiguous { repo: repo.into(), candidates: trimmed(folders) }),
    }
}

fn weights_in(repo: &str, folder: &str, paths: &[String]) -> Result<Option<ModelFiles>, ChooseError> {
    let names: Vec<&str> = paths.iter().filter_map(|path| name_in(path, folder)).collect();
    let files: Vec<&str> = names.iter().copied().filter(|name| name.ends_with(".safetensors")).collect();
    let full = |name: &str| format!("{folder}{name}");
    let weights = if names.contains(&INDEX) {
        WeightFiles::Index(full(INDEX))
    } else if files.contains(&"model.safetensors") {
        WeightFiles::Files(vec![full("model.safetensors")])
    } else if let Some(total) = files.iter().find_map(|name| shards(name)) {
        // All shards, so that a missing one is reported later.
        WeightFiles::Files(
            (1..=total).map(|n| full(&format!("model-{n:05}-of-{total:05}.safetensors"))).collect(),
        )
    } else {
        match files[..] {
            [] => return Ok(None),
            [only] => WeightFiles::Files(vec![full(only)]),
            _ => {
                let candidates = files.into_iter().map(full).collect();
                return Err(ChooseError::Ambiguous { repo: repo.into(), candidates });
            }
        }
    };
    Ok(Some(ModelFiles { folder: folder.into(), weights }))
}

/// n of `model-x-of-n.safetensors`.
fn shards(name: &str) -> Option<usize> {
    let (number, total) = name.strip_prefix("model-")?.strip_suffix(".safetensors")?.split_once("-of-")?;
    let parse = |digits: &str| (digits.len() == 5).then(|| digits.parse().ok()).flatten();
    let (number, total): (usize, usize) = (parse(number)?, parse(total)?);
    (1..=total).contains(&number).then_some(total)
}

/// Folders below the root that have config.json and weights.
fn model_folders(paths: &[String]) -> Vec<String> {
    let folder = |path: &str| path.rfind('/').map(|slash| path[..=slash].to_owned());
    let weights: BTreeSet<String> = weight_files(paths).iter().filter_map(|path| folder(path)).collect();
    weights.into_iter().filter(|folder| paths.contains(&format!("{folder}config.json"))).collect()
}

fn weight_files(paths: &[String]) -> Vec<String> {
    paths.iter().filter(|path| path.ends_with(".safetensors")).cloned().collect()
}

fn trimmed(folders: &[String]) -> Vec<String> {
    folders.iter().map(|folder| folder.trim_end_matches('/').to_owned()).collect()
}

fn no_weights(repo: &str, paths: &[String]) -> ChooseError {
    let has = |suffix: &str| paths.iter().any(|path| path.ends_with(suffix));
    let kinds = [
        (".gguf", "GGUF"),
        (".bin", "PyTorch"),
        (".pth", "PyTorch"),
        (".pt", "PyTorch"),
        (".onnx", "ONNX"),
        (".h5", "TensorFlow"),
    ];
    let mut kinds: Vec<&str> =
        kinds.into_iter().filter(|(suffix, _)| has(suffix)).map(|(_, kind)| kind).collect();
    kinds.dedup();
    match kinds[..] {
        [] => ChooseError::NoWeights(repo.into()),
        _ => ChooseError::NotSafetensors { repo: repo.into(), kinds: kinds.join(" and ") },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(part: Option<&str>, paths: &[&str]) -> Result<ModelFiles, ChooseError> {
        let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
        choose("a/b", part, &paths)
    }

    fn check(part: Option<&str>, paths: &[&str], folder: &str, weights: &[&str]) {
        let weights = match weights {
            [index] if index.ends_with(INDEX) => WeightFiles::Index((*index).into()),
            files => WeightFiles::Files(files.iter().map(|file| (*file).into()).collect()),
        };
        assert_eq!(chosen(part, paths), Ok(ModelFiles { folder: folder.into(), weights }), "{paths:?}");
    }

    fn check_error(part: Option<&str>, paths: &[&str], expected: &str) {
        let error = chosen(part, paths).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn choose_prefers_index_then_model_then_only_file() {
        check(None, &["config.json", "model.safetensors"], "", &["model.safetensors"]);
        check(None, &["weird.safetensors"], "", &["weird.safetensors"]);
        check(None, &["model.safetensors", "consolidated.safetensors"], "", &["model.safetensors"]);
        check(None, &["model.safetensors", "model.fp16.safetensors"], "", &["model.safetensors"]);
        check(None, &[INDEX, "model-00001-of-00002.safetensors", "consolidated.safetensors"], "", &[INDEX]);
        let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
        check(None, &shards, "", &shards);
        check(None, &[shards[1], "consolidated.safetensors"], "", &shards);
        check_error(
            None,
            &["a.safetensors", "b.safetensors"],
            "several models: a.safetensors, b.safetensors",
        );
    }

    #[test]
    fn choose_takes_a_folder_if_the_root_has_no_weights() {
        let folders =
            ["4bit/config.json", "4bit/model.safetensors", "8bit/config.json", "8bit/model.safetensors"];
        check(None, &folders[..2], "4bit/", &["4bit/model.safetensors"]);
        check(Some("8bit"), &folders, "8bit/", &["8bit/model.safetensors"]);
        check(Some("8bit/"), &folders, "8bit/", &["8bit/model.safetensors"]);
        check_error(None, &folders, "several models: 4bit, 8bit\nhint: choose one, as in a/b:4bit");
        check_error(Some("2bit"), &folders, "no 2bit with weights in it; it has 4bit, 8bit");
        let both = ["model.safetensors", "onnx/config.json", "onnx/model.safetensors"];
        check(None, &both, "", &["model.safetensors"]);
        check(Some("onnx/model.safetensors"), &both, "onnx/", &["onnx/model.safetensors"]);
        check_error(Some("x.safetensors"), &both, "it has model.safetensors, onnx/model.safetensors");
    }

    #[test]
    fn choose_error_names_other_weight_formats() {
        check_error(None, &["x-q4.gguf", "README.md"], "has only GGUF weights");
        check_error(None, &["pytorch_model.bin", "x.gguf"], "has only GGUF and PyTorch weights");
        check_error(None, &["README.md"], "a/b has no weights");
    }

    #[test]
    fn embedding_layer_is_a_pooling_or_a_dense_layer() {
        for path in ["1_Pooling/config.json", "2_Dense/config.json", "3_Dense/model.safetensors"] {
            assert!(is_embedding_layer(path), "{path}");
        }
        for path in ["config.json", "2_Dense/pytorch_model.bin", "a/2_Dense/config.json", "onnx/config.json"]
        {
            assert!(!is_embedding_layer(path), "{path}");
        }
    }

    #[test]
    fn is_companion_accepts_config_tokenizer_and_template() {
        for name in [
            "config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "tokenizer.model",
            "chat_template.jinja",
        ] {
            assert!(is_companion(name), "{name}");
        }
        for name in
            ["README.md", "LICENSE", "training_args.bin", "preprocessor_config.json", "model.safetensors"]
        {
            assert!(!is_companion(name), "{name}");
        }
    }
}
