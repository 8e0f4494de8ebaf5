//! Coding agents themselves, started by `lanner launch`: each edits a file through its own tools,
//! over Lanner's wires, with a scripted model. `tools/agents.py` installs them and runs this.

use std::{
    collections::HashMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use engine::Request;
use serde_json::{Value, json};
use tempfile::tempdir;

use crate::support::server::{IM_END, Setup, TestServer, token, tokens};

/// Tokens are bytes here: room for long prompts of agents.
const CONTEXT: usize = 1_000_000;
const LIMIT: Duration = Duration::from_secs(180);
const FILE: &str = "greeting.txt";
const BEFORE: &str = "hello owl\n";
const AFTER: &str = "hello lanner\n";
const TASK: &str = "In greeting.txt replace owl by lanner.";
const DONE: &str = "The file is changed.";

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

fn calls(tool: &'static str, arguments: Value) -> Step {
    Step::Calls(vec![(tool, arguments)])
}

/// What the model got: the first prompt that offers tools, and all prompts.
#[derive(Clone, Default)]
struct Transcript(Arc<Mutex<Vec<String>>>);

/// A model that takes the steps, one after each result of a tool.
fn server(steps: Vec<Step>, transcript: &Transcript) -> TestServer {
    let (steps, transcript) = (Arc::new(steps), transcript.clone());
    let answers: Arc<Mutex<HashMap<Vec<u32>, Vec<u32>>>> = Arc::default();
    Setup { context: CONTEXT, ..Setup::default() }.script(move |request: &Request, n| {
        let mut answers = answers.lock().unwrap();
        let answer = answers.entry(request.prompt.clone()).or_insert_with(|| {
            let bytes: Vec<u8> = request.prompt.iter().filter_map(|id| u8::try_from(*id).ok()).collect();
            let prompt = String::from_utf8_lossy(&bytes).into_owned();
            let answer = tokens(&answer(&steps, &prompt));
            transcript.0.lock().unwrap().push(prompt);
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

/// Runs an agent in a home and a project of its own; a JSON object of what was seen.
fn measure(run: &Run, programs: &Path) -> Result<Value, String> {
    let (home, project) = (tempdir().unwrap(), tempdir().unwrap());
    let project = project.path().canonicalize().unwrap();
    let file = project.join(FILE);
    fs::write(&file, BEFORE).unwrap();
    let transcript = Transcript::default();
    let server = server((run.steps)(file.to_str().unwrap()), &transcript);
    let started = Instant::now();
    let mut command = Command::new(env!("CARGO_BIN_EXE_lanner"));
    command.args(["launch", run.agent, "--port", &server.address.port().to_string(), "--"]).args(run.args);
    let path = format!("{}:{}", programs.display(), env::var("PATH").unwrap_or_default());
    command.env_clear().env("PATH", path).env("HOME", home.path()).env("TERM", "xterm");
    let log = home.path().join("log");
    let output = fs::File::create(&log).unwrap();
    command.current_dir(&project).stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
    let mut agent = command.spawn().map_err(|error| error.to_string())?;
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
    let prompts = transcript.0.lock().unwrap();
    if let Ok(folder) = env::var("LANNER_AGENT_PROMPTS") {
        prompts.iter().enumerate().for_each(|(i, prompt)| {
            fs::write(PathBuf::from(&folder).join(format!("{}-{i}.txt", run.agent)), prompt).unwrap();
        });
    }
    let text = fs::read_to_string(&file).unwrap();
    if text != AFTER {
        let log = fs::read_to_string(&log).unwrap_or_default();
        return Err(format!("{status}; the file has {text:?} after {} requests:\n{log}", prompts.len()));
    }
    let longest = prompts.iter().filter(|prompt| !prompt.contains("\ntool\n")).map(String::len).max();
    Ok(json!({ "agent": run.agent, "requests": prompts.len(), "first_prompt_bytes": longest,
        "seconds": (seconds * 10.0).round() / 10.0, "status": status }))
}

#[test]
fn agents_edit_a_file_through_their_tools() {
    let Ok(folder) = env::var("LANNER_AGENTS").map(PathBuf::from) else {
        return eprintln!("skipped: coding agents need LANNER_AGENTS, a folder that tools/agents.py fills");
    };
    let mut failed = vec![];
    for run in runs() {
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
