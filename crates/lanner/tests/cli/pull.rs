//! Downloads from an unreliable hub.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use lanner::hub::{HubConfig, PullEvent};
use serde_json::json;
use tempfile::tempdir;

use crate::support::fake_hub::{FakeHub, Fault, REPO, golden, pull_from, pull_with_events};

const WEIGHTS: &str = "model.safetensors";

/// Asserts that the pull fails with all of `expected` in its sentence.
fn check_failure(hub: &FakeHub, config: &HubConfig, name: &str, expected: &[&str]) {
    let error = pull_from(config, name).unwrap_err().to_string();
    for part in expected {
        assert!(error.contains(part), "{error:?} does not say {part:?}; {:?}", hub.requests(""));
    }
}

fn blob(cache: &Path, etag: &str) -> std::path::PathBuf {
    cache.join("models--org--tiny/blobs").join(etag)
}

fn partial(cache: &Path, hub: &FakeHub) -> std::path::PathBuf {
    blob(cache, &format!("{}.incomplete", hub.etag(WEIGHTS)))
}

#[test]
fn pull_writes_the_cache_layout_of_huggingface_hub() {
    let (cache, hub) = (tempdir().unwrap(), FakeHub::tiny());
    let (pulled, events) = pull_with_events(&hub.config(cache.path()), REPO);
    let pulled = pulled.unwrap();
    let repo = cache.path().join("models--org--tiny");
    assert_eq!(pulled.path, repo.join("snapshots").join(hub.commit()));
    assert_eq!(fs::read_to_string(repo.join("refs/main")).unwrap(), hub.commit());
    let mut names: Vec<_> = fs::read_dir(&pulled.path).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["chat_template.jinja", "config.json", WEIGHTS, "tokenizer.json"]);
    for name in ["chat_template.jinja", "config.json", WEIGHTS, "tokenizer.json"] {
        let link = fs::read_link(pulled.path.join(name)).unwrap();
        assert_eq!(link, Path::new("../../blobs").join(hub.etag(name)));
        assert_eq!(fs::read(pulled.path.join(name)).unwrap(), hub.file(name));
    }
    assert_eq!(fs::read_dir(repo.join("blobs")).unwrap().count(), 4, "no partial file is left");
    assert!(cache.path().join(format!(".locks/models--org--tiny/{}.lock", hub.etag(WEIGHTS))).is_file());

    let sizes: usize = ["chat_template.jinja", "config.json", WEIGHTS, "tokenizer.json"]
        .map(|n| hub.file(n).len())
        .iter()
        .sum();
    let small = (sizes - hub.file(WEIGHTS).len()) as u64;
    assert!(
        events.contains(&PullEvent::Start { files: 4, present: small, total: sizes as u64 }),
        "{events:?}"
    );
    let total = hub.file(WEIGHTS).len() as u64;
    assert!(events.contains(&PullEvent::File { path: WEIGHTS.into(), completed: total, total }));
}

#[test]
fn pull_skips_files_already_in_the_cache() {
    let (cache, hub) = (tempdir().unwrap(), FakeHub::tiny());
    hub.pull(cache.path()).unwrap();
    let before = hub.requests("").len();
    hub.pull(cache.path()).unwrap();
    assert_eq!(hub.requests("").len(), before + 1, "only the listing is asked for");

    // A new commit shares the files that did not change; the old snapshot stays.
    let old = hub.commit();
    hub.push(&"d1".repeat(20), "chat_template.jinja", b"{{ messages }}".to_vec());
    hub.pull(cache.path()).unwrap();
    assert_eq!(hub.requests(WEIGHTS).len(), 1);
    let snapshots = cache.path().join("models--org--tiny/snapshots");
    assert_eq!(
        fs::read(snapshots.join(hub.commit()).join("chat_template.jinja")).unwrap(),
        b"{{ messages }}"
    );
    assert!(snapshots.join(old).join(WEIGHTS).exists());
}

#[test]
fn pull_downloads_the_shards_named_by_the_index() {
    let (cache, hub) = (tempdir().unwrap(), FakeHub::sharded());
    let pulled = hub.pull(cache.path()).unwrap();
    assert_eq!(fs::read_dir(&pulled.path).unwrap().count(), 5);
    assert_eq!(hub.requests("consolidated").len(), 0);

    let index = json!({ "weight_map": { "a": "model-00001-of-00002.safetensors", "b": "gone.safetensors" } });
    hub.push(&"d1".repeat(20), "model.safetensors.index.json", index.to_string().into());
    check_failure(&hub, &hub.config(cache.path()), REPO, &["org/tiny has no file gone.safetensors"]);
    let index = json!({ "weight_map": { "a": "../../../evil.safetensors" } });
    hub.push(&"d2".repeat(20), "model.safetensors.index.json", index.to_string().into());
    check_failure(
        &hub,
        &hub.config(cache.path()),
        REPO,
        &["names the file `../../../evil.safetensors`", "not in its folder"],
    );
    let main = fs::read_to_string(cache.path().join("models--org--tiny/refs/main")).unwrap();
    assert_eq!(main, "c0".repeat(20), "the revision still names the complete snapshot");
}

#[test]
fn pull_accepts_branch_tag_or_commit_as_revision() {
    let (cache, hub) = (tempdir().unwrap(), FakeHub::tiny());
    let config = hub.config(cache.path());
    let refs = cache.path().join("models--org--tiny/refs");
    pull_from(&config, "org/tiny@refs/pr/1").unwrap();
    assert_eq!(fs::read_to_string(refs.join("refs/pr/1")).unwrap(), hub.commit());
    pull_from(&config, &format!("org/tiny@{}", hub.commit())).unwrap();
    assert!(!refs.join("main").exists() && !refs.join(hub.commit()).exists());
    check_failure(&hub, &config, "org/tiny@v9", &["org/tiny has no revision v9"]);
    check_failure(&hub, &config, "org/other", &["there is no model org/other on http://127.0.0.1"]);
}

#[test]
fn pull_refused_by_the_hub_explains_what_to_do() {
    let cache = tempdir().unwrap();
    let check = |status, code, token: Option<&str>, expected: &[&str]| {
        let hub = FakeHub::tiny().fails("/api/", [Fault::Status(status, code)]);
        let config = HubConfig { token: token.map(str::to_owned), ..hub.config(cache.path()) };
        check_failure(&hub, &config, REPO, expected);
        assert_eq!(hub.requests("").len(), 1, "a final answer is not asked for again");
    };
    check(401, "", None, &["refuses access to org/tiny", "or it needs HF_TOKEN"]);
    check(401, "", Some("hf_x"), &["HF_TOKEN is not valid"]);
    check(
        403,
        "X-Error-Code: GatedRepo\r\n",
        None,
        &["org/tiny is gated", "accept its licence", "set HF_TOKEN"],
    );
    check(403, "X-Error-Code: GatedRepo\r\n", Some("hf_x"), &["has not accepted its licence"]);
    check(404, "X-Error-Code: RepoNotFound\r\n", None, &["no model org/tiny", "or it is private"]);
    check(404, "X-Error-Code: RevisionNotFound\r\n", None, &["org/tiny has no revision main"]);
    check(418, "", None, &["answered 418"]);
    check(
        429,
        "Retry-After: 3600\r\n",
        None,
        &["asks to wait 3600 s", "with HF_TOKEN the limits are higher"],
    );

    let hub = FakeHub::tiny().fails("/api/", [Fault::Status(429, "Retry-After: 3600\r\n")]);
    let config = HubConfig { token: Some("hf_x".into()), ..hub.config(cache.path()) };
    let error = pull_from(&config, REPO).unwrap_err().to_string();
    assert_eq!(error, "the hub limits requests and asks to wait 3600 s; try again then");
}

#[test]
fn gated_file_is_refused_like_a_gated_repository() {
    let (cache, hub) = (tempdir().unwrap(), FakeHub::tiny());
    let hub = hub.fails(WEIGHTS, [Fault::Status(403, "X-Error-Code: GatedRepo\r\n")]);
    check_failure(&hub, &hub.config(cache.path()), REPO, &["org/tiny is gated"]);
}

#[test]
fn transient_hub_errors_are_retried() {
    let cache = tempdir().unwrap();
    let hub = FakeHub::tiny()
        .fails("/api/", [Fault::Status(429, "Retry-After: 1\r\n"), Fault::Status(503, ""), Fault::Cut(10)])
        .fails(WEIGHTS, [Fault::Status(500, ""), Fault::Status(429, "RateLimit: \"api\";r=0;t=0\r\n")]);
    let started = Instant::now();
    let (pulled, events) = pull_with_events(&hub.config(cache.path()), REPO);
    pulled.unwrap();
    assert!(started.elapsed() >= Duration::from_secs(1), "the hub asked for a second");
    assert_eq!((hub.requests("/api/").len(), hub.requests(WEIGHTS).len()), (4, 3));
    let waits: Vec<_> = events.iter().filter(|event| matches!(event, PullEvent::Waiting { .. })).collect();
    assert_eq!(waits.len(), 5, "{waits:?}");
}

#[test]
fn permanent_hub_errors_end_the_pull() {
    let cache = tempdir().unwrap();
    let hub = FakeHub::tiny().fails(WEIGHTS, vec![Fault::Status(502, ""); 50]);
    check_failure(&hub, &hub.config(cache.path()), REPO, &[WEIGHTS, "answered 502"]);
    assert_eq!(hub.requests(WEIGHTS).len(), 5);

    let hub = FakeHub::tiny().fails("/api/", vec![Fault::Status(429, ""); 50]);
    check_failure(&hub, &hub.config(cache.path()), REPO, &["limits requests; try again later"]);
    let closed = HubConfig { endpoint: "http://127.0.0.1:9".into(), ..hub.config(cache.path()) };
    check_failure(&hub, &closed, REPO, &["cannot reach http://127.0.0.1:9/api/models/org/tiny"]);
}

#[test]
fn cut_connection_is_resumed_at_its_offset() {
    let (cache, hub) = (tempdir().unwrap(), FakeHub::tiny());
    // More cuts than the retry limit: each attempt makes progress.
    let cuts = [1000, 1, 2000, 3, 4, 500, 7, 70_000].map(Fault::Cut);
    let hub = hub.fails(WEIGHTS, cuts).fails("tokenizer.json", [Fault::Cut(100)]);
    let pulled = hub.pull(cache.path()).unwrap();
    assert_eq!(fs::read(pulled.path.join(WEIGHTS)).unwrap(), hub.file(WEIGHTS));
    let ranges: Vec<_> = hub.requests(WEIGHTS).into_iter().map(|request| request.range).collect();
    let expected = [0, 1000, 1001, 3001, 3004, 3008, 3508, 3515, 73_515];
    let expected = expected.map(|from| (from > 0).then(|| format!("bytes={from}-")));
    assert_eq!(ranges, expected);
    assert_eq!(hub.requests("tokenizer.json")[1].range.as_deref(), Some("bytes=100-"));
}

#[test]
fn partial_file_of_an_earlier_pull_is_resumed() {
    let (cache, hub) = (tempdir().unwrap(), FakeHub::tiny());
    fs::create_dir_all(partial(cache.path(), &hub).parent().unwrap()).unwrap();
    fs::write(partial(cache.path(), &hub), &hub.file(WEIGHTS)[..5000]).unwrap();
    hub.pull(cache.path()).unwrap();
    assert_eq!(hub.requests(WEIGHTS).len(), 1);
    assert_eq!(hub.requests(WEIGHTS)[0].range.as_deref(), Some("bytes=5000-"));

    // The complete file: nothing is left to download.
    let cache = tempdir().unwrap();
    fs::create_dir_all(partial(cache.path(), &hub).parent().unwrap()).unwrap();
    fs::write(partial(cache.path(), &hub), hub.file(WEIGHTS)).unwrap();
    hub.pull(cache.path()).unwrap();
    assert_eq!(hub.requests(WEIGHTS).len(), 1);
}

#[test]
fn hub_without_range_support_restarts_the_download() {
    let (cache, hub) = (tempdir().unwrap(), FakeHub::tiny());
    let hub = hub.fails(WEIGHTS, [Fault::Cut(1000), Fault::IgnoreRange]);
    let pulled = hub.pull(cache.path()).unwrap();
    assert_eq!(fs::read(pulled.path.join(WEIGHTS)).unwrap(), hub.file(WEIGHTS));
    assert_eq!(hub.requests(WEIGHTS).len(), 2);
}

#[test]
fn download_with_a_wrong_checksum_is_discarded() {
    for (file, fetched) in [(WEIGHTS, 1), ("config.json", 1)] {
        let (cache, hub) = (tempdir().unwrap(), FakeHub::tiny());
        let hub = hub.fails(file, [Fault::Garble]);
        let expected = [file, "is not what the hub promised", &hub.etag(file), "it was removed"];
        check_failure(&hub, &hub.config(cache.path()), REPO, &expected);
        assert_eq!(hub.requests(file).len(), fetched);
        assert!(!blob(cache.path(), &format!("{}.incomplete", hub.etag(file))).exists());
        assert!(!blob(cache.path(), &hub.etag(file)).exists());
        hub.pull(cache.path()).unwrap();
    }
}

#[test]
fn file_of_another_length_fails_without_retry() {
    let size = FakeHub::tiny().file(WEIGHTS).len();
    let check = |fault: Fault, found: &str| {
        let (cache, hub) = (tempdir().unwrap(), FakeHub::tiny());
        let hub = hub.fails(WEIGHTS, vec![fault; 20]);
        let expected = format!("{WEIGHTS} of org/tiny has {found} bytes instead of {size}");
        check_failure(&hub, &hub.config(cache.path()), REPO, &[&expected]);
        assert_eq!(hub.requests(WEIGHTS).len(), 1);
        assert!(!partial(cache.path(), &hub).exists());
    };
    check(Fault::Length(3000), "3000");
    check(Fault::Length(size + 1), &(size + 1).to_string());
    check(Fault::Chunked(3000), "3000");
    check(Fault::Chunked(size + 1), &format!("more than {size}"));
}

#[test]
fn response_of_another_length_keeps_the_partial_file() {
    let (cache, hub) = (tempdir().unwrap(), FakeHub::tiny());
    let hub = hub.fails(WEIGHTS, [Fault::Cut(5000), Fault::Length(6000)]);
    check_failure(&hub, &hub.config(cache.path()), REPO, &["has 6000 bytes instead of"]);
    hub.pull(cache.path()).unwrap();
    assert_eq!(hub.requests(WEIGHTS)[2].range.as_deref(), Some("bytes=5000-"));
}

#[test]
fn repeated_bytes_do_not_count_as_progress() {
    let (cache, hub) = (tempdir().unwrap(), FakeHub::tiny());
    let faults = vec![[Fault::Cut(1000), Fault::Status(416, "")]; 20];
    let hub = hub.fails(WEIGHTS, faults.into_iter().flatten());
    check_failure(&hub, &hub.config(cache.path()), REPO, &[WEIGHTS]);
    assert_eq!(hub.requests(WEIGHTS).len(), 5);
}

#[test]
fn partial_file_of_other_content_is_downloaded_again() {
    for rubbish in [vec![7; 5000], vec![7; 10_000_000]] {
        let (cache, hub) = (tempdir().unwrap(), FakeHub::tiny());
        fs::create_dir_all(partial(cache.path(), &hub).parent().unwrap()).unwrap();
        fs::write(partial(cache.path(), &hub), rubbish).unwrap();
        let pulled = hub.pull(cache.path()).unwrap();
        assert_eq!(fs::read(pulled.path.join(WEIGHTS)).unwrap(), hub.file(WEIGHTS));
        assert_eq!(hub.requests(WEIGHTS).last().unwrap().range, None);
    }
}

#[test]
fn blob_of_the_wrong_length_is_downloaded_again() {
    let (cache, hub) = (tempdir().unwrap(), FakeHub::tiny());
    hub.pull(cache.path()).unwrap();
    fs::write(blob(cache.path(), &hub.etag(WEIGHTS)), b"cut").unwrap();
    let pulled = hub.pull(cache.path()).unwrap();
    assert_eq!(fs::read(pulled.path.join(WEIGHTS)).unwrap(), hub.file(WEIGHTS));
}

/// On Linux, writes to this device fail like writes to a full disk.
#[cfg(target_os = "linux")]
#[test]
fn full_disk_reports_the_needed_space_and_keeps_the_partial_file() {
    let (cache, hub) = (tempdir().unwrap(), FakeHub::tiny());
    let path = partial(cache.path(), &hub);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink("/dev/full", &path).unwrap();
    let needed = format!("{:.1} MB more are needed", hub.file(WEIGHTS).len() as f64 / 1e6);
    check_failure(&hub, &hub.config(cache.path()), REPO, &["no space left in", "models--org--tiny", &needed]);
    assert!(fs::symlink_metadata(&path).is_ok(), "the partial file is kept");
    assert_eq!(hub.requests(WEIGHTS).len(), 1, "a full disk does not empty by trying again");

    fs::remove_file(&path).unwrap();
    hub.pull(cache.path()).unwrap();
}

#[test]
fn hub_token_is_not_sent_to_other_hosts() {
    let (cache, cdn) = (tempdir().unwrap(), FakeHub::tiny());
    let hub = FakeHub::tiny();
    let elsewhere = format!("{}/cdn/{WEIGHTS}?signature=1", cdn.endpoint());
    let here = format!("/{REPO}/resolve/{}/config.json", hub.commit());
    // The second redirect leads back to the hub itself.
    let hub = hub.fails(WEIGHTS, [Fault::Redirect(elsewhere)]).fails("config.json", [Fault::Redirect(here)]);
    let config = HubConfig { token: Some("hf_secret".into()), ..hub.config(cache.path()) };
    pull_from(&config, REPO).unwrap();
    assert!(hub.requests("").iter().all(|request| request.token.as_deref() == Some("Bearer hf_secret")));
    assert_eq!(hub.requests("config.json").len(), 2);
    assert_eq!(cdn.requests(WEIGHTS).len(), 1);
    assert_eq!(cdn.requests(WEIGHTS)[0].token, None);
}

#[test]
fn relative_redirect_is_followed() {
    let (cache, hub) = (tempdir().unwrap(), FakeHub::tiny());
    let up = format!("../../../../cdn/{WEIGHTS}?from=https://a/b");
    let hub =
        hub.fails(WEIGHTS, [Fault::Redirect(up)]).fails("config", [Fault::Redirect("./config.json".into())]);
    hub.pull(cache.path()).unwrap();
    assert_eq!(hub.requests("/cdn/").len(), 1);
    assert_eq!(hub.requests("/cdn/")[0].path, format!("/cdn/{WEIGHTS}?from=https://a/b"));
    assert_eq!(hub.requests("config.json").len(), 2);
}

#[test]
fn redirect_loop_ends_with_an_error() {
    let (cache, hub) = (tempdir().unwrap(), FakeHub::tiny());
    let again = format!("/{REPO}/resolve/{}/{WEIGHTS}", hub.commit());
    let hub = hub.fails(WEIGHTS, vec![Fault::Redirect(again); 50]);
    check_failure(&hub, &hub.config(cache.path()), REPO, &["too many redirects"]);
}

#[test]
fn file_name_outside_the_cache_is_refused() {
    for name in ["../../../evil.json", "/etc/evil.json", "tokenizer\\..\\..\\evil.json"] {
        let (cache, hub) = (tempdir().unwrap(), FakeHub::tiny());
        let config = json!({ "rfilename": "config.json", "size": 1, "blobId": "0".repeat(40) });
        let weights =
            json!({ "rfilename": WEIGHTS, "size": 1, "lfs": { "sha256": "0".repeat(64), "size": 1 } });
        let evil = json!({ "rfilename": name, "size": 1, "blobId": "1".repeat(40) });
        let hub = hub.lists(json!([config, weights, evil]));
        check_failure(&hub, &hub.config(cache.path()), REPO, &["names a file", "outside the cache"]);
        assert_eq!(hub.requests("").len(), 1);
        assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0, "nothing was written");
    }
}

#[test]
fn repository_with_several_models_lists_them() {
    let cache = tempdir().unwrap();
    let read = |name| golden("qwen3_5-hub", name);
    let hub = FakeHub::new(vec![
        ("4bit/config.json", read("config.json")),
        ("4bit/model.safetensors", read(WEIGHTS)),
        ("8bit/config.json", read("config.json")),
        ("8bit/model.safetensors", read(WEIGHTS)),
    ]);
    let config = hub.config(cache.path());
    check_failure(&hub, &config, REPO, &["org/tiny has several models: 4bit, 8bit", "org/tiny:4bit"]);
    let pulled = pull_from(&config, "org/tiny:8bit").unwrap();
    assert!(pulled.path.ends_with(format!("{}/8bit", hub.commit())));
    assert_eq!(
        fs::read_link(pulled.path.join("config.json")).unwrap().to_str().unwrap(),
        format!("../../../blobs/{}", hub.etag("8bit/config.json"))
    );
    assert_eq!(hub.requests("4bit").len(), 0);

    let hub = FakeHub::new(vec![("config.json", read("config.json")), ("x-q4.gguf", vec![0; 9])]);
    check_failure(&hub, &hub.config(cache.path()), REPO, &["org/tiny has only GGUF weights", "hint: "]);
}

#[test]
fn concurrent_pulls_download_each_file_once() {
    let (cache, hub) = (tempdir().unwrap(), FakeHub::tiny());
    let hub = hub.fails(WEIGHTS, [Fault::Slow(Duration::from_millis(2))]);
    let config = hub.config(cache.path());
    thread::scope(|scope| {
        let pulls: Vec<_> = (0..3).map(|_| scope.spawn(|| pull_from(&config, REPO))).collect();
        for pull in pulls {
            let pulled = pull.join().unwrap().unwrap();
            assert_eq!(fs::read(pulled.path.join(WEIGHTS)).unwrap(), hub.file(WEIGHTS));
        }
    });
    assert_eq!(hub.requests(WEIGHTS).len(), 1, "the others waited for the first");
}

#[test]
fn offline_pull_sends_no_request() {
    let (cache, hub) = (tempdir().unwrap(), FakeHub::tiny());
    let offline = HubConfig { offline: true, ..hub.config(cache.path()) };
    let expected =
        ["HF_HUB_OFFLINE is set", "org/tiny is not complete in the cache", "nothing of it is there"];
    check_failure(&hub, &offline, REPO, &expected);
    let pulled = hub.pull(cache.path()).unwrap();
    let requests = hub.requests("").len();
    assert_eq!(pull_from(&offline, REPO).unwrap(), pulled);
    fs::remove_file(blob(cache.path(), &hub.etag(WEIGHTS))).unwrap();
    check_failure(&hub, &offline, REPO, &["model.safetensors is missing"]);
    assert_eq!(hub.requests("").len(), requests);
}
