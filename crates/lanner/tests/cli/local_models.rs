//! Local models: `--model`, and `lanner pull`, `models` and `rm` from the command line.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::Value;
use tempfile::{TempDir, tempdir};

use crate::support::{
    fake_hub::{FakeHub, Fault, golden},
    process::lanner,
    wait::{output, wait_until},
};

const WEIGHTS: &str = "model.safetensors";
const ASK: [&str; 9] =
    ["--ids", "1 2 3", "--max-tokens", "3", "--temperature", "0", "--ignore-eos", "--device", "cpu"];

/// A home with a cache, and a hub.
struct World {
    home: TempDir,
    hub: FakeHub,
}

impl World {
    fn new(hub: FakeHub) -> World {
        World { home: tempdir().unwrap(), hub }
    }

    /// With a model downloaded.
    fn pulled(hub: FakeHub) -> World {
        let world = World::new(hub);
        world.ok(&["pull", "org/tiny"]);
        world
    }

    fn run_with(&self, args: &[&str], more: &[(&str, &str)]) -> (bool, String, String) {
        let endpoint = self.hub.endpoint();
        let home = [("HOME", self.home.path().to_str().unwrap()), ("HF_ENDPOINT", &endpoint)];
        let output = lanner(args, &[&home, more].concat());
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.success(), text(output.stdout), text(output.stderr))
    }

    fn ok(&self, args: &[&str]) -> String {
        let (success, stdout, stderr) = self.run_with(args, &[]);
        assert!(success, "{args:?}: {stderr}");
        stdout
    }

    /// Asserts that it fails with all of `expected` in its sentence, and nothing on stdout.
    fn fails(&self, args: &[&str], expected: &[&str]) {
        let (success, stdout, stderr) = self.run_with(args, &[]);
        assert!(!success && stdout.is_empty(), "{args:?}: {stdout}");
        for part in expected {
            assert!(stderr.contains(part), "{args:?}: {stderr:?} lacks {part:?}");
        }
    }

    fn repo(&self) -> std::path::PathBuf {
        self.home.path().join(".cache/huggingface/hub/models--org--tiny")
    }

    fn snapshot(&self) -> std::path::PathBuf {
        self.repo().join("snapshots").join(self.hub.commit())
    }

    fn models(&self) -> Vec<Value> {
        serde_json::from_str(&self.ok(&["models", "--json"])).unwrap()
    }

    fn ids(&self, model: &str) -> String {
        self.ok(&[&["run", "--model", model], &ASK as &[&str]].concat())
    }
}

#[test]
fn pulled_model_runs_by_name() {
    let world = World::new(FakeHub::tiny());
    let ask = [&["run", "--model", "org/tiny"], &ASK as &[&str]].concat();
    world.fails(&ask, &["org/tiny has not been downloaded\nhint: lanner pull org/tiny"]);
    assert_eq!(world.hub.requests("").len(), 0, "no download without a pull");

    let path = world.ok(&["pull", "org/tiny"]);
    assert_eq!(path, format!("{}\n", world.snapshot().display()));
    let by_name = world.ids("org/tiny");
    assert_eq!(by_name.split_whitespace().count(), 3);
    assert_eq!(world.ids(path.trim()), by_name);
    assert_eq!(world.ids(&format!("org/tiny@{}", world.hub.commit())), by_name);
    assert_eq!(world.ids(world.snapshot().join(WEIGHTS).to_str().unwrap()), by_name);
    assert_eq!(world.ids("org/tiny:model.safetensors"), by_name);
    assert_eq!(world.ids("merlin"), world.ok(&[&["run"], &ASK as &[&str]].concat()));
}

#[test]
fn safetensors_file_as_model_loads_only_that_file() {
    let folder = tempdir().unwrap();
    let world = World::new(FakeHub::tiny());
    let copy = |name: &str, to: &str| fs::write(folder.path().join(to), golden("qwen3_5-hub", name)).unwrap();
    copy("config.json", "config.json");
    copy(WEIGHTS, "mine.safetensors");
    let file = folder.path().join("mine.safetensors");
    let ids = world.ids(file.to_str().unwrap());
    assert_eq!(world.ids(folder.path().to_str().unwrap()), ids);

    fs::write(folder.path().join("other.safetensors"), b"no weights").unwrap();
    assert_eq!(world.ids(file.to_str().unwrap()), ids);
    let ask =
        |model: &Path| [&["run", "--model", model.to_str().unwrap()], &ASK as &[&str]].concat().join("\n");
    let ask_folder = ask(folder.path());
    world.fails(
        &ask_folder.split('\n').collect::<Vec<_>>(),
        &["several safetensors files", "name the one to load"],
    );
    let odd = ask(&folder.path().join("config.json"));
    world.fails(&odd.split('\n').collect::<Vec<_>>(), &["config.json is no safetensors file"]);
}

#[test]
fn unknown_model_name_is_explained() {
    let world = World::new(FakeHub::tiny());
    let check = |model: &str, expected: &[&str]| world.fails(&["run", "hi", "--model", model], expected);
    check("qwen9", &["there is no model `qwen9`", "not ORG/NAME", "hint: lanner models"]);
    check("/no/such/folder", &["there is no model folder /no/such/folder"]);
    check("../x/y", &["there is no model folder ../x/y"]);
    check("qwen3-0.6b", &["qwen3-0.6b has not been downloaded\nhint: lanner pull qwen3-0.6b"]);
    world.fails(&["pull", "qwen9"], &["qwen9 is not ORG/NAME", "short name"]);
    world.fails(
        &["pull", "qwen3-0.6b"],
        &["there is no model mlx-community/Qwen3-0.6B-4bit on http://127.0.0.1"],
    );
    let (_, stdout, stderr) = {
        let output = lanner(&["models"], &[]);
        (output.status, String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(
        (stdout.as_str(), stderr.as_str()),
        ("", "lanner: there is no folder for models: set HF_HUB_CACHE or HOME\n")
    );
}

#[test]
fn folder_takes_precedence_over_repository_name() {
    let world = World::new(FakeHub::tiny());
    let folder = world.home.path().join("org/tiny");
    fs::create_dir_all(&folder).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_lanner"));
    command.env_clear().current_dir(world.home.path()).args(["run", "hi", "--model", "org/tiny"]);
    let output = output(&mut command).unwrap();
    assert!(String::from_utf8(output.stderr).unwrap().contains("cannot load tiny"));
}

#[test]
fn incomplete_download_is_not_loaded() {
    let world = World::pulled(FakeHub::sharded());
    world.ids("org/tiny");
    let ask = [&["run", "--model", "org/tiny"], &ASK as &[&str]].concat();
    let second = "model-00002-of-00002.safetensors";
    let blob = world.repo().join("blobs").join(world.hub.etag(second));
    let whole = fs::read(&blob).unwrap();
    fs::write(&blob, &whole[..whole.len() - 1]).unwrap();
    let cut =
        format!("org/tiny is not complete: {second} is cut short or broken\nhint: lanner pull org/tiny");
    world.fails(&ask, &[&cut]);
    fs::remove_file(&blob).unwrap();
    world.fails(&ask, &[&format!("org/tiny is not complete: {second} is missing")]);
    assert_eq!(world.models()[1]["complete"], false);
    assert!(world.ok(&["models"]).contains(&format!("no: {second} is missing")));

    world.ok(&["pull", "org/tiny"]);
    assert_eq!(world.hub.requests("model-00001").len(), 1);
    world.ids("org/tiny");
    fs::remove_file(world.snapshot().join("config.json")).unwrap();
    world.fails(&ask, &["config.json is missing"]);
}

#[test]
fn models_lists_local_models() {
    let world = World::pulled(FakeHub::tiny());
    world.ids("org/tiny");
    let models = world.models();
    assert_eq!((&models[0]["name"], &models[0]["complete"]), (&"merlin".into(), &true.into()));
    let tiny = &models[1];
    assert_eq!(
        (&tiny["name"], &tiny["refs"][0], &tiny["complete"]),
        (&"org/tiny".into(), &"main".into(), &true.into())
    );
    assert_eq!(tiny["revision"], world.hub.commit());
    assert_eq!(tiny["path"], world.snapshot().to_str().unwrap());
    assert_eq!((&tiny["family"], &tiny["missing"]), (&"qwen3_5".into(), &Value::Null));
    let size: usize = ["config.json", WEIGHTS, "tokenizer.json", "chat_template.jinja"]
        .map(|n| world.hub.file(n).len())
        .iter()
        .sum();
    assert_eq!(tiny["size_bytes"], size);
    assert!(tiny["last_used"].as_u64().unwrap() > 1_700_000_000);
    let uses = world.home.path().join(".local/state/lanner/uses");
    assert_eq!(fs::read_dir(uses).unwrap().count(), 1);

    let table = world.ok(&["models"]);
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("model     revision  size"), "{table}");
    assert!(lines[1].starts_with("merlin    built in"), "{table}");
    let megabytes = format!("org/tiny  main      {:.1} MB   qwen3_5", size as f64 / 1e6);
    assert!(lines[2].starts_with(&megabytes) && lines[2].ends_with("just now   yes"), "{table}");
    assert!(world.ok(&["models", "--catalog"]).contains("qwen3-0.6b         mlx-community/Qwen3-0.6B-4bit"));
}

#[test]
fn rm_removes_only_files_no_other_revision_needs() {
    let world = World::pulled(FakeHub::tiny());
    let old = world.hub.commit();
    let config = world.hub.etag("config.json");
    world.hub.push(&"d1".repeat(20), "config.json", golden("qwen3_5-mlx-4bit", "config.json"));
    world.ok(&["pull", "org/tiny"]);
    assert_eq!(world.models().len(), 3);
    world.fails(&["rm", "org/tiny"], &["cannot ask whether to remove org/tiny", "hint: add --yes"]);
    world.fails(&["rm", "org/other", "--yes"], &["org/other is not in the cache"]);
    world.fails(&["rm", "org/tiny@v9", "--yes"], &["org/tiny@v9 is not in the cache"]);
    world.fails(&["rm", "merlin", "--yes"], &["merlin is built in"]);
    world.fails(&["rm", "org/tiny:4bit", "--yes"], &["cannot be removed alone"]);
    world.fails(&["rm", "nonsense", "--yes"], &["nonsense is not ORG/NAME"]);

    // huggingface_hub's record of a commit's tree.
    let note = world.repo().join(format!("trees/{old}.json"));
    fs::create_dir_all(note.parent().unwrap()).unwrap();
    fs::write(&note, "{}").unwrap();
    world.ok(&["rm", &format!("org/tiny@{old}"), "--yes"]);
    assert!(!note.exists());
    assert!(
        !world.repo().join("snapshots").join(&old).exists()
            && !world.repo().join("blobs").join(config).exists()
    );
    assert_eq!(world.models().len(), 2);
    assert!(world.snapshot().join(WEIGHTS).exists(), "the other snapshot still has its weights");

    world.ok(&["rm", "org/tiny", "-y"]);
    assert!(!world.repo().exists() && world.models().len() == 1);
    world.fails(&["rm", "org/tiny", "--yes"], &["org/tiny is not in the cache"]);
}

/// A folder outside the cache.
struct Outside(TempDir);

impl Outside {
    fn files(&self) -> usize {
        fn count(folder: &Path) -> usize {
            let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
            paths.map(|path| if path.is_dir() { count(&path) } else { 1 }).sum()
        }
        count(self.0.path())
    }

    /// Moves a folder there and leaves a link.
    fn take(path: &Path) -> Outside {
        let outside = Outside(tempdir().unwrap());
        let to = outside.0.path().join(path.file_name().unwrap());
        fs::rename(path, &to).unwrap();
        std::os::unix::fs::symlink(to, path).unwrap();
        outside
    }
}

#[test]
fn rm_of_a_linked_repository_removes_only_the_link() {
    let world = World::pulled(FakeHub::tiny());
    let outside = Outside::take(&world.repo());
    let before = outside.files();
    world.fails(
        &["rm", &format!("org/tiny@{}", world.hub.commit()), "--yes"],
        &["models--org--tiny is a link"],
    );
    let (ok, _, stderr) = world.run_with(&["rm", "org/tiny", "--yes"], &[]);
    assert!(ok && stderr.contains("removed org/tiny, 0 B freed"), "{stderr}");
    assert_eq!(outside.files(), before);
    assert!(world.repo().symlink_metadata().is_err());
    world.fails(&["rm", "org/tiny", "--yes"], &["org/tiny is not in the cache"]);
}

#[test]
fn rm_with_linked_folders_inside_keeps_their_targets() {
    for part in ["refs", "snapshots", "blobs"] {
        let world = World::pulled(FakeHub::tiny());
        let outside = Outside::take(&world.repo().join(part));
        let before = outside.files();
        assert!(before > 0, "{part}");
        world.fails(&["rm", "org/tiny@main", "--yes"], &[&format!("{part} is a link"), "not removed"]);
        world.ok(&["rm", "org/tiny", "--yes"]);
        assert!(!world.repo().exists(), "{part}");
        assert_eq!(outside.files(), before, "{part}");
    }
}

#[test]
fn rm_of_a_linked_snapshot_keeps_its_target() {
    let world = World::pulled(FakeHub::tiny());
    let outside = Outside::take(&world.snapshot());
    let before = outside.files();
    world.ok(&["rm", "org/tiny@main", "--yes"]);
    assert_eq!(outside.files(), before);
    assert!(world.snapshot().symlink_metadata().is_err());

    let world = World::pulled(FakeHub::tiny());
    let locks = Outside::take(&world.repo().parent().unwrap().join(".locks"));
    let before = locks.files();
    world.ok(&["rm", "org/tiny", "--yes"]);
    assert_eq!(locks.files(), before);
}

#[test]
fn index_with_a_path_outside_its_folder_is_not_loaded() {
    let world = World::pulled(FakeHub::sharded());
    let folder = tempdir().unwrap();
    let (inside, secret) = (folder.path().join("model"), folder.path().join("model.safetensors"));
    fs::create_dir(&inside).unwrap();
    fs::write(inside.join("config.json"), golden("qwen3_5-hub", "config.json")).unwrap();
    fs::write(&secret, golden("qwen3_5-hub", WEIGHTS)).unwrap();
    for name in ["../model.safetensors", secret.to_str().unwrap(), "a/../../model.safetensors", "", "."] {
        let index = serde_json::json!({ "weight_map": { "a": name } }).to_string();
        fs::write(inside.join("model.safetensors.index.json"), &index).unwrap();
        let ask = [&["run", "--model", inside.to_str().unwrap()], &ASK as &[&str]].concat();
        world.fails(&ask, &["index.json", &format!("it names the file `{name}`"), "not in its folder"]);

        let blob = world.hub.etag("model.safetensors.index.json");
        fs::write(world.repo().join("blobs").join(blob), index).unwrap();
        let ask = [&["run", "--model", "org/tiny"], &ASK as &[&str]].concat();
        world.fails(&ask, &["index.json", &format!("names the file `{name}`"), "not in its folder"]);
    }
}

/// Starts a pull and waits for the first bytes of its weights.
fn pull_in_background(world: &World) -> std::process::Child {
    let child = Command::new(env!("CARGO_BIN_EXE_lanner"))
        .env_clear()
        .envs([("HOME", world.home.path().to_str().unwrap()), ("HF_ENDPOINT", &world.hub.endpoint())])
        .args(["pull", "org/tiny"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let partial = world.repo().join("blobs").join(format!("{}.incomplete", world.hub.etag(WEIGHTS)));
    wait_until("weights come", || fs::metadata(&partial).is_ok_and(|metadata| metadata.len() >= 10_000));
    child
}

#[test]
fn killed_pull_is_resumed() {
    let world = World::new(FakeHub::tiny().fails(WEIGHTS, [Fault::Slow(Duration::from_millis(5))]));
    let mut pull = pull_in_background(&world);
    world.fails(&["rm", "org/tiny", "--yes"], &["org/tiny is being downloaded"]);
    pull.kill().unwrap();
    pull.wait().unwrap();
    let ask = [&["run", "--model", "org/tiny"], &ASK as &[&str]].concat();
    world.fails(&ask, &["org/tiny has not been downloaded"]);

    world.ok(&["pull", "org/tiny"]);
    let ranges: Vec<_> = world.hub.requests(WEIGHTS).into_iter().map(|request| request.range).collect();
    let from = ranges[1]
        .as_ref()
        .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<u64>().ok());
    assert!(ranges.len() == 2 && ranges[0].is_none() && from.unwrap() >= 10_000, "{ranges:?}");
    world.ids("org/tiny");
}

#[test]
fn environment_sets_hub_endpoint_and_cache_folder() {
    let world = World::new(FakeHub::tiny());
    let folder = tempdir().unwrap();
    let cache = folder.path().join("cache");
    let pull = |env: &[(&str, &str)]| world.run_with(&["pull", "org/tiny"], env);
    let token = || world.hub.requests("/api/").last().unwrap().token.clone();

    let (ok, stdout, _) = pull(&[("HF_HUB_CACHE", cache.to_str().unwrap()), ("HF_TOKEN", "hf_env")]);
    assert!(ok && stdout.starts_with(cache.join("models--org--tiny").to_str().unwrap()), "{stdout}");
    assert_eq!(token().as_deref(), Some("Bearer hf_env"));

    let home = folder.path().join("home");
    fs::create_dir_all(&home).unwrap();
    fs::write(home.join("token"), "hf_file\n").unwrap();
    let home = home.to_str().unwrap();
    let (ok, stdout, _) = pull(&[("HF_HOME", home)]);
    assert!(ok && stdout.starts_with(&format!("{home}/hub/models--org--tiny")), "{stdout}");
    assert_eq!(token().as_deref(), Some("Bearer hf_file"));

    let requests = world.hub.requests("").len();
    let (ok, offline, _) = pull(&[("HF_HOME", home), ("HF_HUB_OFFLINE", "1")]);
    assert!(ok && offline == stdout);
    let (ok, _, stderr) = pull(&[("HF_HUB_OFFLINE", "TRUE")]);
    assert!(!ok && stderr.contains("HF_HUB_OFFLINE is set"), "{stderr}");
    for (name, value, expected) in [
        ("HF_ENDPOINT", "ftp://x", "HF_ENDPOINT is `ftp://x`"),
        ("HF_TOKEN", "a b", "HF_TOKEN holds characters"),
    ] {
        let (ok, _, stderr) = pull(&[(name, value)]);
        assert!(!ok && stderr.contains(expected), "{stderr}");
    }
    assert_eq!(world.hub.requests("").len(), requests, "no request reached the hub");
}
