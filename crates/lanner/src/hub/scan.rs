//! Lists the models in the cache, also those that other tools downloaded.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use serde_json::Value;

use super::{
    cache::HubCache,
    check::{check_snapshot, files},
    choose::ChooseError,
    last_used::LastUsed,
    missing::Missing,
    name::{RepoName, is_commit},
};

/// One model of one snapshot.
#[derive(Debug)]
pub struct CachedModel {
    /// With a part if the model is not at the repository's root.
    pub repo: RepoName,
    pub commit: String,
    /// Branches and tags that name the commit.
    pub refs: Vec<String>,
    pub path: PathBuf,
    /// Bytes on disk of the whole snapshot.
    pub size: u64,
    /// config.json's model_type.
    pub family: String,
    pub format: String,
    pub last_used: Option<SystemTime>,
    /// `None`: the model is complete.
    pub missing: Option<Missing>,
}

/// Every snapshot whose config.json has a model type, sorted by name.
pub fn scan(cache: &HubCache, uses: &LastUsed) -> Vec<CachedModel> {
    let mut models = Vec::new();
    for folder in names(cache.root()) {
        let Some(repo) = RepoName::from_folder(&folder) else { continue };
        let refs = refs(&cache.repo(&repo).folder.join("refs"));
        for commit in
            names(&cache.repo(&repo).folder.join("snapshots")).into_iter().filter(|name| is_commit(name))
        {
            let snapshot = cache.repo(&repo).snapshot(&commit);
            let refs = refs.get(&commit).cloned().unwrap_or_default();
            models.extend(in_snapshot(&repo, &commit, &snapshot, &refs, uses));
        }
    }
    models
}

fn in_snapshot(
    repo: &RepoName,
    commit: &str,
    snapshot: &Path,
    refs: &[String],
    uses: &LastUsed,
) -> Vec<CachedModel> {
    let paths = files(snapshot);
    let on_disk: Vec<PathBuf> =
        paths.iter().filter_map(|path| snapshot.join(path).canonicalize().ok()).collect();
    let model = |part: Option<&str>| {
        let folder = part.map_or(snapshot.to_path_buf(), |part| snapshot.join(part));
        let config = ::files::read(&folder.join("config.json"), ::files::SETTINGS).ok()?;
        let config: Value = serde_json::from_slice(&config).ok()?;
        let (family, format) = describe_config(&config)?;
        let checked = check_snapshot(snapshot, &repo.id(), part);
        let (path, missing) = match checked {
            Ok(path) => (path, None),
            Err(missing) => (folder, Some(missing)),
        };
        Some(CachedModel {
            repo: part.map_or(repo.clone(), |part| repo.with_part(part)),
            commit: commit.into(),
            refs: refs.into(),
            path,
            size: size(&on_disk),
            family,
            format,
            last_used: uses.last(&repo.folder(), commit, &on_disk),
            missing,
        })
    };
    match check_snapshot(snapshot, &repo.id(), None) {
        Err(Missing::Choice(ChooseError::Ambiguous { candidates, .. }))
            if !paths.iter().any(|path| path == "config.json") =>
        {
            candidates.iter().filter_map(|part| model(Some(part))).collect()
        }
        _ => model(None).or_else(|| model(Some(&only_folder(&paths)?))).into_iter().collect(),
    }
}

/// The first folder with a config.json.
fn only_folder(paths: &[String]) -> Option<String> {
    paths.iter().find_map(|path| path.strip_suffix("/config.json")).map(str::to_owned)
}

/// A blob that several files link to counts once.
fn size(files: &[PathBuf]) -> u64 {
    let sizes: BTreeMap<&PathBuf, u64> =
        files.iter().map(|path| (path, fs::metadata(path).map_or(0, |metadata| metadata.len()))).collect();
    sizes.values().sum()
}

/// The family and the weights' format, if this is a model's config.json.
pub fn describe_config(config: &Value) -> Option<(String, String)> {
    let family = config.get("model_type")?.as_str()?;
    let text = config.get("text_config").unwrap_or(&Value::Null);
    let either = |key: &str| config.get(key).or_else(|| text.get(key)).filter(|value| !value.is_null());
    let quantization = either("quantization").or_else(|| either("quantization_config"));
    let format = match quantization {
        Some(quantization) => quantized(quantization),
        None => {
            let dtype =
                either("torch_dtype").or_else(|| either("dtype")).and_then(Value::as_str).unwrap_or("-");
            match dtype {
                "bfloat16" => "bf16",
                "float16" => "f16",
                "float32" => "f32",
                other => other,
            }
            .to_owned()
        }
    };
    Some((family.into(), format))
}

fn quantized(quantization: &Value) -> String {
    let text = |key: &str| quantization.get(key).and_then(Value::as_str);
    let number = |key: &str| quantization.get(key).and_then(Value::as_u64);
    match (text("quant_method").or(text("mode")), number("bits")) {
        (None | Some("affine"), Some(bits)) => {
            let group = number("group_size").map(|size| format!(" g{size}")).unwrap_or_default();
            format!("{bits}-bit affine{group}")
        }
        (Some(method @ ("gptq" | "awq")), Some(bits)) => format!("{bits}-bit {method}"),
        (Some(method), _) => method.into(),
        (None, None) => "quantized".into(),
    }
}

/// Branches and tags by commit.
fn refs(folder: &Path) -> BTreeMap<String, Vec<String>> {
    let mut refs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in files(folder) {
        if let Ok(commit) = ::files::read_text(&folder.join(&name), ::files::REF) {
            refs.entry(commit.trim().into()).or_default().push(name);
        }
    }
    refs
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn describe_config_names_the_weight_format() {
        let check = |config: Value, expected: &str| {
            assert_eq!(
                describe_config(&config).map(|(_, format)| format).as_deref(),
                Some(expected),
                "{config}"
            );
        };
        check(json!({ "model_type": "x", "torch_dtype": "bfloat16" }), "bf16");
        check(json!({ "model_type": "x", "text_config": { "dtype": "float16" } }), "f16");
        check(json!({ "model_type": "x" }), "-");
        check(
            json!({ "model_type": "x", "quantization": { "group_size": 64, "bits": 4 } }),
            "4-bit affine g64",
        );
        check(
            json!({ "model_type": "x", "quantization": { "group_size": 32, "bits": 4, "mode": "mxfp4" } }),
            "mxfp4",
        );
        check(json!({ "model_type": "x", "quantization_config": { "quant_method": "fp8" } }), "fp8");
        check(
            json!({ "model_type": "x", "quantization_config": { "quant_method": "gptq", "bits": 4 } }),
            "4-bit gptq",
        );
        assert_eq!(describe_config(&json!({ "architectures": [] })), None);
    }

    #[test]
    fn ref_that_is_a_pipe_is_skipped_at_once() {
        let root = tempfile::tempdir().unwrap();
        let cache = HubCache::new(root.path().into());
        let repo = cache.repo(&RepoName::parse("org/tiny").unwrap());
        let (commit, folder) = ("0".repeat(40), repo.folder.join("refs"));
        fs::create_dir_all(repo.snapshot(&commit)).unwrap();
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("good"), &commit).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(folder.join("main")).status().unwrap().success());
        let (sender, found) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            sender.send((repo.commit("good"), repo.commit("main"), refs(&folder))).unwrap();
        });
        let found = found.recv_timeout(std::time::Duration::from_secs(60)).expect("reading a ref blocks");
        let refs = BTreeMap::from([(commit.clone(), vec!["good".to_owned()])]);
        assert_eq!(found, (Some(commit), None, refs));
    }
}
