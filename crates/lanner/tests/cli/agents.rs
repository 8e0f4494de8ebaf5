//! Coding agents themselves, started by `lanner launch`: each edits a file and reads a picture
//! through its own tools, over Lanner's wires, with a scripted model. `tools/agents.py` installs
//! them and runs this.

use std::{
    collections::HashMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use engine::{Image, Request};
use serde_json::{Value, json};
use tempfile::tempdir;

use crate::support::{
    pictures::{data_uri, png},
    server::{IM_END, Setup, TestServer, token, tokens},
};

/// Tokens are bytes here: room for long prompts of agents.
const CONTEXT: usize = 1_000_000;
const LIMIT: Duration = Duration::from_secs(180);
const FILE: &str = "greeting.txt";
const BEFORE: &str = "hello owl\n";
const AFTER: &str = "hello lanner\n";
const TASK: &str = "In greeting.txt replace owl by lanner.";
const DONE: &str = "The file is changed.";
const PICTURE: &str = "picture.png";
const QUESTION: &str = "Which colour has picture.png?";

/// How an agent is asked for one task, and what the model answers, step by step.
struct Run {
    agent: &'static str,
    args: &'static [&'static str],
    /// For the path of the file: calls of tools, of which the first that the agent offers is made;
    /// a text stands for itself.
    steps: fn(&str) -> Vec<Step>,
}

enum Step {
    Calls(Vec<(&'static str, Value)>),
    Text(String),
}

fn runs() -> Vec<Run> {
    let shell = |_: &str| {
        let edit = format!("sed -i s/owl/lanner/ {FILE}");
        vec![Step::Calls(vec![
            ("exec_command", json!({ "cmd": edit })),
            ("shell_command", json!({ "command": edit })),
            ("shell", json!({ "command": ["bash", "-c", edit] })),
        ])]
    };
    let run = |agent, args, steps| Run { agent, args, steps };
    vec![
        run("claude", &["-p", TASK, "--permission-mode", "acceptEdits"], |file| {
            let edit = json!({ "file_path": file, "old_string": "owl", "new_string": "lanner" });
            vec![calls("Read", json!({ "file_path": file })), calls("Edit", edit)]
        }),
        run(
            "codex",
            &["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", TASK],
            shell,
        ),
        run("opencode", &["run", TASK], |file| {
            let edit = json!({ "filePath": file, "oldString": "owl", "newString": "lanner" });
            vec![calls("read", json!({ "filePath": file })), calls("edit", edit)]
        }),
        run(
            "aider",
            &["--yes-always", "--no-git", "--no-stream", "--edit-format", "whole", "--message", TASK, FILE],
            |_| vec![Step::Text(format!("{FILE}\n```\n{AFTER}```\n"))],
        ),
        run("cline", &[TASK], |file| {
            let edit = json!({ "path": file, "old_text": "owl", "new_text": "lanner" });
            vec![calls("editor", edit)]
        }),
        run("pi", &["-p", TASK], |file| {
            let edits = json!({ "path": file, "edits": [{ "oldText": "owl", "newText": "lanner" }] });
            vec![calls("read", json!({ "path": file })), calls("edit", edits)]
        }),
        run("qwen", &["-p", TASK, "--approval-mode", "yolo"], |file| {
            let edit = json!({ "file_path": file, "old_string": "owl", "new_string": "lanner" });
            vec![calls("read_file", json!({ "file_path": file })), calls("edit", edit)]
        }),
        run("goose", &["run", "--text", TASK], shell),
        run("crush", &["run", "--quiet", TASK], |file| {
            let edit = json!({ "file_path": file, "old_string": "owl", "new_string": "lanner" });
            vec![calls("view", json!({ "file_path": file })), calls("edit", edit)]
        }),
    ]
}

/// Those that read pictures through a tool: the model calls it, and then answers.
fn picture_runs() -> Vec<Run> {
    let run = |agent, args, steps| Run { agent, args, steps };
    vec![
        run("claude", &["-p", QUESTION], |file| vec![calls("Read", json!({ "file_path": file }))]),
        run(
            "codex",
            &["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", QUESTION],
            |file| vec![calls("view_image", json!({ "path": file }))],
        ),
        run("opencode", &["run", QUESTION], |file| vec![calls("read", json!({ "filePath": file }))]),
        run("cline", &[QUESTION], |file| vec![calls("read_files", json!({ "files": [{ "path": file }] }))]),
        run("pi", &["-p", QUESTION], |file| vec![calls("read", json!({ "path": file }))]),
        run("qwen", &["-p", QUESTION, "--approval-mode", "yolo"], |file| {
            vec![calls("read_file", json!({ "file_path": file }))]
        }),
    ]
}

fn calls(tool: &'static str, arguments: Value) -> Step {
    Step::Calls(vec![(tool, arguments)])
}

/// A prompt of the model, and its images.
struct Prompt {
    text: String,
    images: Vec<Image>,
}

/// All prompts that the model got.
#[derive(Clone, Default)]
struct Transcript(Arc<Mutex<Vec<Prompt>>>);

/// A model that takes the steps, one after each result of a tool.
fn server(setup: Setup, steps: Vec<Step>, transcript: &Transcript) -> TestServer {
    let (steps, transcript) = (Arc::new(steps), transcript.clone());
    let answers: Arc<Mutex<HashMap<Vec<u32>, Vec<u32>>>> = Arc::default();
    Setup { context: CONTEXT, ..setup }.script(move |request: &Request, n| {
        let mut answers = answers.lock().unwrap();
        let answer = answers.entry(request.prompt.clone()).or_insert_with(|| {
            let bytes: Vec<u8> = request.prompt.iter().filter_map(|id| u8::try_from(*id).ok()).collect();
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let answer = tokens(&answer(&steps, &text));
            transcript.0.lock().unwrap().push(Prompt { text, images: request.images.clone() });
            answer
        });
        token(answer.get(n).copied().unwrap_or(IM_END))
    })
}

/// Special tokens are not in `prompt`: a message begins with its role in a line of its own.
fn answer(steps: &[Step], prompt: &str) -> String {
    let results = prompt.matches("\ntool\n").count();
    match steps.get(results) {
        Some(Step::Text(text)) if !prompt.contains(AFTER) => text.clone(),
        Some(Step::Calls(choices)) => {
            let offered = choices.iter().find(|(tool, _)| prompt.contains(&format!("\"name\": \"{tool}\"")));
            offered.map_or_else(
                || "Edit a greeting".into(),
                |(tool, arguments)| {
                    let call = json!({ "name": tool, "arguments": arguments });
                    format!("<tool_call>\n{call}\n</tool_call>")
                },
            )
        }
        _ => DONE.into(),
    }
}

/// Runs an agent in `project`, with a home of its own. Returns how it ended, after how many
/// seconds, and what it wrote.
fn launch(run: &Run, programs: &Path, server: &TestServer, project: &Path) -> (String, f64, String) {
    let home = tempdir().unwrap();
    let started = Instant::now();
    let mut command = Command::new(env!("CARGO_BIN_EXE_lanner"));
    command.args(["launch", run.agent, "--port", &server.address.port().to_string(), "--"]).args(run.args);
    let path = format!("{}:{}", programs.display(), env::var("PATH").unwrap_or_default());
    command.env_clear().env("PATH", path).env("HOME", home.path()).env("TERM", "xterm");
    let log = home.path().join("log");
    let output = fs::File::create(&log).unwrap();
    command.current_dir(project).stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
    let mut agent = command.spawn().unwrap();
    let status = loop {
        match agent.try_wait().unwrap() {
            Some(status) => break status.to_string(),
            None if started.elapsed() > LIMIT => {
                // The launch passes it on to the agent.
                let _ = Command::new("kill").arg(agent.id().to_string()).status();
                let _ = agent.wait();
                break format!("no end within {LIMIT:?}");
            }
            None => thread::sleep(Duration::from_millis(50)),
        }
    };
    let seconds = started.elapsed().as_secs_f64();
    (status, seconds, fs::read_to_string(&log).unwrap_or_default())
}

/// Keeps the prompts of an agent where `LANNER_AGENT_PROMPTS` says.
fn keep_prompts(agent: &str, prompts: &[Prompt]) {
    if let Ok(folder) = env::var("LANNER_AGENT_PROMPTS") {
        prompts.iter().enumerate().for_each(|(i, prompt)| {
            fs::write(PathBuf::from(&folder).join(format!("{agent}-{i}.txt")), &prompt.text).unwrap();
        });
    }
}

/// Has an agent edit a file; a JSON object of what was seen.
fn edit(run: &Run, programs: &Path) -> Result<Value, String> {
    let project = tempdir().unwrap();
    let project = project.path().canonicalize().unwrap();
    let file = project.join(FILE);
    fs::write(&file, BEFORE).unwrap();
    let transcript = Transcript::default();
    let server = server(Setup::default(), (run.steps)(file.to_str().unwrap()), &transcript);
    let (status, seconds, log) = launch(run, programs, &server, &project);
    let prompts = transcript.0.lock().unwrap();
    keep_prompts(run.agent, &prompts);
    let text = fs::read_to_string(&file).unwrap();
    if text != AFTER {
        return Err(format!("{status}; the file has {text:?} after {} requests:\n{log}", prompts.len()));
    }
    let first = prompts.iter().filter(|prompt| !prompt.text.contains("\ntool\n"));
    Ok(json!({ "agent": run.agent, "requests": prompts.len(), "seconds": (seconds * 10.0).round() / 10.0,
        "first_prompt_bytes": first.map(|prompt| prompt.text.len()).max(), "status": status }))
}

/// Has an agent read a picture: the model sees its pixels.
fn read_picture(run: &Run, programs: &Path) -> Result<Value, String> {
    let project = tempdir().unwrap();
    let project = project.path().canonicalize().unwrap();
    let (file, picture) = (project.join(PICTURE), png(96, 64, 70));
    fs::write(&file, &picture).unwrap();
    let transcript = Transcript::default();
    let server = server(Setup::with_vision(), (run.steps)(file.to_str().unwrap()), &transcript);
    let (status, _, log) = launch(run, programs, &server, &project);
    let part = json!({ "type": "image_url", "image_url": data_uri(&picture) });
    let reply = server.chat(&json!({ "messages": [{ "role": "user", "content": [part] }] }));
    assert_eq!(reply.status, 200, "{}", reply.body);
    let sent = &server.last_request().images[0].tensors[0].values;
    let mut prompts = transcript.0.lock().unwrap();
    prompts.pop();
    keep_prompts(&format!("{}-picture", run.agent), &prompts);
    let seen = prompts.iter().any(|prompt| {
        prompt.text.contains("\ntool\n") && prompt.images.iter().any(|image| image.tensors[0].values == *sent)
    });
    match seen {
        true => Ok(json!({ "agent": run.agent, "picture": true })),
        false => Err(format!("{status}; no picture in {} requests:\n{log}", prompts.len())),
    }
}

/// Runs those agents that are installed; prints what was seen of each.
fn run_installed(runs: Vec<Run>, measure: fn(&Run, &Path) -> Result<Value, String>) {
    let Ok(folder) = env::var("LANNER_AGENTS").map(PathBuf::from) else {
        return eprintln!("skipped: coding agents need LANNER_AGENTS, a folder that tools/agents.py fills");
    };
    let mut failed = vec![];
    for run in runs {
        let own = folder.join(run.agent);
        let programs =
            [own.join("node_modules/.bin"), own.join("bin")].into_iter().find(|path| path.is_dir());
        let Some(programs) = programs else { continue };
        match measure(&run, &programs) {
            Ok(seen) => println!("agent: {seen}"),
            Err(error) => failed.push(format!("{}: {error}", run.agent)),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

#[test]
fn agents_edit_a_file_through_their_tools() {
    run_installed(runs(), edit);
}

#[test]
fn agents_show_the_model_a_picture_that_a_tool_reads() {
    run_installed(picture_runs(), read_picture);
}
