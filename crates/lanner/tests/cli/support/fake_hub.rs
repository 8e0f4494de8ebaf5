//! A hub on loopback that serves one repository and injects faults.

use std::{
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use lanner::hub::{HubConfig, HubError, PullEvent, PullJob, Pulled, RepoName, pull};
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use serde_json::{Value, json};

use super::server::{TEMPLATE, tokenizer_json};

pub(crate) const REPO: &str = "org/tiny";

/// A fault injected into one request.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    Status(u16, &'static str),
    /// Ends the connection after this many bytes of the body.
    Cut(usize),
    /// Sends other bytes of the same length.
    Garble,
    /// Sends a complete file of this length.
    Length(usize),
    /// Like `Length`, with chunked encoding: the length is unknown until the end.
    Chunked(usize),
    /// Ignores the range and sends the whole file.
    IgnoreRange,
    Redirect(String),
    /// Waits after every kilobyte.
    Slow(Duration),
}

#[derive(Clone, Debug)]
pub(crate) struct HubRequest {
    pub path: String,
    pub range: Option<String>,
    pub token: Option<String>,
}

pub(crate) struct FakeHub {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
}

struct State {
    files: Vec<(String, Vec<u8>)>,
    commit: String,
    /// Pending faults, by a part of the path.
    faults: Vec<(String, Fault)>,
    requests: Vec<HubRequest>,
    listing: Option<Value>,
}

impl FakeHub {
    pub(crate) fn new(files: Vec<(&str, Vec<u8>)>) -> FakeHub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let files = files.into_iter().map(|(path, bytes)| (path.to_owned(), bytes)).collect();
        let state = State { files, commit: "c0".repeat(20), faults: vec![], requests: vec![], listing: None };
        let state = Arc::new(Mutex::new(state));
        let shared = state.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = shared.clone();
                thread::spawn(move || answer(stream, &state));
            }
        });
        FakeHub { address, state }
    }

    /// A small model of the engine's tests, with a byte tokenizer and the usual other files.
    pub(crate) fn tiny() -> FakeHub {
        let read = |name: &str| golden("qwen3_5-hub", name);
        FakeHub::new(vec![
            ("README.md", b"# Tiny\n".to_vec()),
            ("config.json", read("config.json")),
            ("model.safetensors", read("model.safetensors")),
            ("tokenizer.json", tokenizer_json().into_bytes()),
            ("chat_template.jinja", TEMPLATE.into()),
            ("training_args.bin", vec![0; 100]),
        ])
    }

    /// A model in shards, beside weights that are not part of it.
    pub(crate) fn sharded() -> FakeHub {
        let names = [
            "config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
        ];
        let mut files: Vec<_> =
            names.into_iter().map(|name| (name, golden("qwen3_5-text-sharded", name))).collect();
        files.push(("consolidated.safetensors", vec![1; 5000]));
        files.push(("tokenizer.json", tokenizer_json().into_bytes()));
        FakeHub::new(files)
    }

    /// Injects `faults`, in order, into the next requests whose path contains `path`.
    pub(crate) fn fails(self, path: &str, faults: impl IntoIterator<Item = Fault>) -> FakeHub {
        let faults = faults.into_iter().map(|fault| (path.to_owned(), fault));
        self.state.lock().unwrap().faults.extend(faults);
        self
    }

    /// Overrides the listing of its files.
    pub(crate) fn lists(self, listing: Value) -> FakeHub {
        self.state.lock().unwrap().listing = Some(listing);
        self
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Received requests whose path contains `path`.
    pub(crate) fn requests(&self, path: &str) -> Vec<HubRequest> {
        let requests = self.state.lock().unwrap().requests.clone();
        requests.into_iter().filter(|request| request.path.contains(path)).collect()
    }

    pub(crate) fn commit(&self) -> String {
        self.state.lock().unwrap().commit.clone()
    }

    /// A new commit with other contents.
    pub(crate) fn push(&self, commit: &str, path: &str, bytes: Vec<u8>) {
        let mut state = self.state.lock().unwrap();
        state.commit = commit.into();
        state.files.retain(|(other, _)| other != path);
        state.files.push((path.into(), bytes));
    }

    pub(crate) fn file(&self, path: &str) -> Vec<u8> {
        self.state.lock().unwrap().files.iter().find(|(other, _)| other == path).unwrap().1.clone()
    }

    pub(crate) fn etag(&self, path: &str) -> String {
        etag(path, &self.file(path))
    }

    pub(crate) fn config(&self, cache: &Path) -> HubConfig {
        HubConfig {
            cache: Some(cache.into()),
            endpoint: self.endpoint(),
            token: None,
            offline: false,
            proxy: None,
            uses: Some(cache.join("uses")),
            backoff: Duration::from_millis(1),
        }
    }

    pub(crate) fn pull(&self, cache: &Path) -> Result<Pulled, HubError> {
        pull_from(&self.config(cache), REPO)
    }
}

pub(crate) fn pull_from(config: &HubConfig, name: &str) -> Result<Pulled, HubError> {
    pull_with_events(config, name).0
}

pub(crate) fn pull_with_events(config: &HubConfig, name: &str) -> (Result<Pulled, HubError>, Vec<PullEvent>) {
    let events = Mutex::new(Vec::new());
    let job = PullJob { report: &|event| events.lock().unwrap().push(event), cancelled: &false.into() };
    let result = pull(config, &RepoName::parse(name).unwrap(), &job);
    (result, events.into_inner().unwrap())
}

/// A file of a recorded checkpoint.
pub(crate) fn golden(family: &str, name: &str) -> Vec<u8> {
    std::fs::read(super::checkpoint::folder(family).path().join(name)).unwrap()
}

/// Large files are named by SHA-256, others by git's SHA-1.
fn etag(path: &str, bytes: &[u8]) -> String {
    let digest = if is_large(path) {
        ring::digest::digest(&SHA256, bytes)
    } else {
        let mut hash = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
        hash.update(format!("blob {}\0", bytes.len()).as_bytes());
        hash.update(bytes);
        hash.finish()
    };
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is_large(path: &str) -> bool {
    path.ends_with(".safetensors") || path.ends_with(".bin")
}

fn answer(mut stream: TcpStream, state: &Mutex<State>) {
    let Some(request) = read_request(&stream) else { return };
    let (fault, reply) = {
        let mut state = state.lock().unwrap();
        state.requests.push(request.clone());
        let at = state.faults.iter().position(|(path, _)| request.path.contains(path.as_str()));
        let fault = at.map(|at| state.faults.remove(at).1);
        (fault, reply(&state, &request))
    };
    // Some tests close the connection early.
    let _ = send(&mut stream, fault, reply, request.range.as_deref());
}

fn read_request(stream: &TcpStream) -> Option<HubRequest> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let mut request = HubRequest { path, range: None, token: None };
    for line in lines.take_while(|line| !line.is_empty()) {
        match line.split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("range") => request.range = Some(value.into()),
            Some((name, value)) if name.eq_ignore_ascii_case("authorization") => {
                request.token = Some(value.into())
            }
            _ => {}
        }
    }
    Some(request)
}

/// Status, headers, body.
type Reply = (u16, String, Vec<u8>);

fn reply(state: &State, request: &HubRequest) -> Reply {
    let path = request.path.split('?').next().unwrap();
    let listing = format!("/api/models/{REPO}/revision/");
    let file = format!("/{REPO}/resolve/{}/", state.commit);
    if let Some(revision) = path.strip_prefix(&listing) {
        if !["main", "v1", "refs%2Fpr%2F1", &state.commit].contains(&revision) {
            return (404, "X-Error-Code: RevisionNotFound\r\n".into(), b"{}".to_vec());
        }
        assert!(request.path.ends_with("?blobs=true"), "{}", request.path);
        let siblings = state.listing.clone().unwrap_or_else(|| state.files.iter().map(sibling).collect());
        let body = json!({ "id": REPO, "sha": state.commit, "siblings": siblings });
        return (200, String::new(), body.to_string().into_bytes());
    }
    match path.strip_prefix(&file).or_else(|| path.strip_prefix("/cdn/")) {
        Some(name) => match state.files.iter().find(|(path, _)| path == name) {
            Some((_, bytes)) => (200, String::new(), bytes.clone()),
            None => (404, "X-Error-Code: EntryNotFound\r\n".into(), vec![]),
        },
        None => (404, "X-Error-Code: RepoNotFound\r\n".into(), b"{}".to_vec()),
    }
}

fn sibling((path, bytes): &(String, Vec<u8>)) -> Value {
    let (etag, size) = (etag(path, bytes), bytes.len());
    if is_large(path) {
        let lfs = json!({ "sha256": etag, "size": size, "pointerSize": 130 });
        return json!({ "rfilename": path, "size": size, "blobId": "0".repeat(40), "lfs": lfs });
    }
    json!({ "rfilename": path, "size": size, "blobId": etag })
}

fn send(
    stream: &mut TcpStream,
    fault: Option<Fault>,
    reply: Reply,
    range: Option<&str>,
) -> std::io::Result<()> {
    let (status, headers, mut body) = match &fault {
        Some(Fault::Status(status, headers)) => (*status, (*headers).to_owned(), b"{}".to_vec()),
        Some(Fault::Redirect(to)) => (302, format!("Location: {to}\r\n"), vec![]),
        Some(Fault::Length(length) | Fault::Chunked(length)) => {
            let mut body = reply.2;
            body.resize(*length, 0);
            (reply.0, reply.1, body)
        }
        Some(Fault::Garble) => (reply.0, reply.1, reply.2.iter().map(|byte| !byte).collect()),
        _ => reply,
    };
    let total = body.len();
    let from = range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    let (status, headers) = match from.filter(|_| status == 200 && !matches!(fault, Some(Fault::IgnoreRange)))
    {
        Some(from) if from >= total => (416, headers),
        Some(from) => {
            body.drain(..from);
            (206, format!("{headers}Content-Range: bytes {from}-{}/{total}\r\n", total - 1))
        }
        None => (status, headers),
    };
    let length = match &fault {
        Some(Fault::Chunked(_)) => "Transfer-Encoding: chunked".to_owned(),
        _ => format!("Content-Length: {}", body.len()),
    };
    write!(stream, "HTTP/1.1 {status} X\r\nConnection: close\r\n{length}\r\n{headers}\r\n")?;
    match fault {
        Some(Fault::Chunked(_)) => {
            write!(stream, "{:x}\r\n", body.len())?;
            stream.write_all(&body)?;
            stream.write_all(b"\r\n0\r\n\r\n")
        }
        Some(Fault::Cut(after)) => stream.write_all(&body[..after]),
        Some(Fault::Slow(pause)) => body.chunks(1024).try_for_each(|chunk| {
            thread::sleep(pause);
            stream.write_all(chunk)
        }),
        _ => stream.write_all(&body),
    }
}
