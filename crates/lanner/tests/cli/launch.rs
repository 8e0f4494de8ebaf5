//! `lanner launch`: agents here are scripts that write down what they were given.

use std::{
    fs,
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use tempfile::{TempDir, tempdir};

use crate::support::{
    server::{Setup, TestServer},
    wait::{output, status_of, wait_until},
};

/// Writes its arguments, its variables and what the server answers, and fails with 7.
const AGENT: &str = r#"#!/bin/bash
printf '%s\n' "$@" >"$HOME/args"
env >"$HOME/env"
if [ -n "$PORT" ]; then
    exec 3<>"/dev/tcp/127.0.0.1/$PORT"
    printf 'GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' >&3
    cat <&3 >"$HOME/health"
fi
exit 7
"#;

/// A home with programs.
struct World {
    home: TempDir,
}

impl World {
    fn new(programs: &[&str]) -> World {
        let world = World { home: tempdir().unwrap() };
        programs.iter().for_each(|name| world.install(name, AGENT));
        world
    }

    fn install(&self, name: &str, script: &str) {
        let file = self.path("bin").join(name);
        fs::create_dir_all(self.path("bin")).unwrap();
        fs::write(&file, script).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lanner"));
        let path = format!("{}:/usr/bin:/bin", self.path("bin").display());
        command.env_clear().env("HOME", self.home.path()).env("PATH", path);
        command.arg("launch").args(args);
        command
    }

    fn launch(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let Output { status, stdout, stderr } = output(&mut self.command(args)).unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (status.code(), text(stdout), text(stderr))
    }

    /// Asserts that it fails with these parts in its message, and that no agent ran.
    fn fails(&self, args: &[&str], expected: &[&str]) {
        let (code, stdout, stderr) = self.launch(args);
        assert_eq!((code, &*stdout), (Some(1), ""), "{stderr}");
        for part in expected {
            assert!(stderr.contains(part), "{stderr:?} lacks {part:?}");
        }
        assert!(!self.path("args").exists());
    }
}

fn owl(context: usize) -> (TestServer, String) {
    let server = Setup { context, ..Setup::default() }.says("hi");
    let port = server.address.port().to_string();
    (server, port)
}

fn free_port() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string()
}

#[test]
fn agent_gets_the_running_server_and_its_real_context() {
    let ((_server, port), world) = (owl(54_321), World::new(&["codex"]));
    let (code, stdout, stderr) = world.launch(&["codex", "--port", &port, "--", "exec", "fix it"]);
    assert_eq!((code, &*stdout), (Some(7), ""), "{stderr}");
    let args = world.read("args");
    assert!(args.contains("model=\"owl\"\n") && args.contains("model_context_window=54321\n"), "{args}");
    assert!(args.contains(&format!("base_url=\"http://127.0.0.1:{port}/v1\"")), "{args}");
    assert!(args.ends_with("\nexec\nfix it\n"), "{args}");
    assert!(world.read("env").contains("\nNO_PROXY=127.0.0.1\n"));
}

#[test]
fn server_is_started_and_ends_with_the_agent() {
    let (world, port) = (World::new(&["claude"]), free_port());
    let args = ["claude", "--port", &port, "--force", "--api-key", "s3cr3t"];
    let output = output(world.command(&args).env("PORT", &port)).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(7), "{stderr}");
    assert!(
        stderr.contains("starting a server at http://127.0.0.1:") && stderr.contains("server.log"),
        "{stderr}"
    );
    assert!(world.read("health").starts_with("HTTP/1.1 200"), "the server runs while the agent does");
    let env = world.read("env");
    for line in ["ANTHROPIC_AUTH_TOKEN=s3cr3t", "ANTHROPIC_DEFAULT_HAIKU_MODEL=merlin"] {
        assert!(env.contains(line), "{env}");
    }
    let address = format!("127.0.0.1:{port}");
    assert!(TcpStream::connect(&address).is_err(), "the server has ended");
    let log = world.read(".local/state/lanner/agents/server.log");
    assert!(log.contains("serving merlin"), "{log}");
}

#[test]
fn terminated_launch_ends_the_agent_and_the_server() {
    let (world, port) = (World::new(&[]), free_port());
    world.install(
        "claude",
        "#!/bin/bash\nsleep 60 &\ntrap \"kill $!; exit 3\" TERM\ntouch \"$HOME/args\"\nwait\n",
    );
    let mut launch = world.command(&["claude", "--port", &port, "--force"]).spawn().unwrap();
    wait_until("the agent starts", || world.path("args").exists());
    // Ctrl-C reaches the agent from the terminal, and does not end the launch.
    signal(&launch, "INT");
    std::thread::sleep(Duration::from_millis(200));
    assert!(launch.try_wait().unwrap().is_none());
    signal(&launch, "TERM");
    assert_eq!(status_of(&mut launch).code(), Some(3));
    assert!(TcpStream::connect(format!("127.0.0.1:{port}")).is_err(), "the server has ended");
}

fn signal(process: &std::process::Child, name: &str) {
    let args = [format!("-{name}"), process.id().to_string()];
    assert!(Command::new("kill").args(args).status().unwrap().success());
}

#[test]
fn what_is_missing_is_named() {
    let ((_server, port), world) = (owl(1000), World::new(&["qwen", "aider"]));
    world.fails(&["claude"], &["Claude Code is not installed", "npm install -g @anthropic-ai/claude-code"]);
    let small = ["Qwen Code needs a context of", "owl has 1000", "hint: choose another model", "--force"];
    world.fails(&["qwen", "--port", &port], &small);
    world.fails(
        &["qwen", "--port", &port, "--model", "ant"],
        &["no model `ant` loaded", "there is no model `ant`"],
    );
    let broken = ["qwen", "--port", &free_port(), "--model", "/no/such"];
    world.fails(&broken, &["the server ended", "there is no model folder /no/such"]);
    let (code, _, stderr) = world.launch(&["qwen", "--port", &port, "--force"]);
    assert_eq!(code, Some(7), "{stderr}");
}

#[test]
fn model_without_tool_syntax_is_refused_to_agents_that_need_it() {
    let world = World::new(&["qwen", "aider"]);
    let server =
        Setup { context: 100_000, template: "{{ messages[0].content }}", ..Setup::default() }.says("hi");
    let port = server.address.port().to_string();
    world.fails(
        &["qwen", "--port", &port],
        &["Qwen Code edits files through tool calls, and owl has no syntax"],
    );
    assert_eq!(world.launch(&["aider", "--port", &port]).0, Some(7));
}

#[test]
fn running_server_loads_the_model_that_is_asked_for() {
    let ((server, port), world) = (owl(100_000), World::new(&["aider"]));
    let (code, _, stderr) = world.launch(&["aider", "--port", &port, "--model", "merlin"]);
    assert_eq!(code, Some(7), "{stderr}");
    assert!(stderr.contains("loads merlin"), "{stderr}");
    assert!(world.read("args").starts_with("--model\nopenai/merlin\n"));
    let metadata = world.read(".local/state/lanner/agents/aider/model-metadata.json");
    assert!(metadata.contains("\"max_input_tokens\": 8192"), "{metadata}");
    let models = crate::support::client::get(server.address, "/v1/models").json();
    let names: Vec<_> = models["data"].as_array().unwrap().iter().map(|model| model["id"].clone()).collect();
    assert_eq!(names[0], "owl", "{models}");
}

#[test]
fn print_changes_nothing_and_hides_the_key() {
    let ((_server, port), world) = (owl(100_000), World::new(&[]));
    for agent in ["claude", "codex", "opencode", "aider", "goose", "crush", "cline", "pi", "qwen"] {
        let args = [agent, "--port", &port, "--api-key", "s3cr3t", "--print", "--", "it's"];
        let (code, stdout, stderr) = world.launch(&args);
        assert_eq!(code, Some(0), "{stderr}");
        let first = stdout.lines().next().unwrap();
        assert!(first.contains("with owl (context: 100000 tokens) of the server that runs"), "{first}");
        assert!(stdout.contains(&format!("http://127.0.0.1:{port}")), "{stdout}");
        assert!(!stdout.contains("s3cr3t") && stdout.contains("$LANNER_API_KEY"), "{stdout}");
        assert!(stdout.ends_with(r"'it'\''s'") || stdout.ends_with("'it'\\''s'\n"), "{stdout}");
        let parsed = Command::new("sh").arg("-n").stdin(piped(&world, &stdout)).output().unwrap();
        assert!(parsed.status.success(), "{stdout}");
    }
    fs::remove_file(world.path("script")).unwrap();
    assert_eq!(fs::read_dir(world.home.path()).unwrap().count(), 0, "nothing was written");

    let (_, stdout, _) = world.launch(&["codex", "--port", &free_port(), "--print"]);
    assert!(
        stdout.contains("with merlin (context: 8192 tokens) of a server that would be started"),
        "{stdout}"
    );
}

fn piped(world: &World, text: &str) -> fs::File {
    fs::write(world.path("script"), text).unwrap();
    fs::File::open(world.path("script")).unwrap()
}

#[test]
fn restore_undoes_the_entry_in_the_agents_file() {
    let ((_server, port), world) = (owl(100_000), World::new(&["pi", "codex"]));
    let file = ".pi/agent/models.json";
    let mine = "{\n  // by hand\n  \"providers\": {\"z\": {\"apiKey\": \"k\"}}\n}\n";
    fs::create_dir_all(world.path(".pi/agent")).unwrap();
    fs::write(world.path(file), mine).unwrap();
    let (code, _, stderr) = world.launch(&["pi", "--port", &port]);
    assert_eq!(code, Some(7), "{stderr}");
    assert!(stderr.contains("lanner launch pi --restore"), "{stderr}");
    let changed = world.read(file);
    assert!(changed.contains("// by hand") && changed.contains("\"contextWindow\": 100000"), "{changed}");
    let (code, _, stderr) = world.launch(&["pi", "--restore"]);
    assert_eq!(code, Some(0));
    assert!(stderr.contains("is as it was"), "{stderr}");
    assert_eq!(world.read(file), mine);
    let (_, _, stderr) = world.launch(&["codex", "--restore"]);
    assert!(stderr.contains("no file of Codex is ever changed"), "{stderr}");
}

#[test]
fn without_an_agent_all_are_listed() {
    let world = World::new(&["opencode"]);
    let (code, stdout, _) = world.launch(&[]);
    assert_eq!(code, Some(0));
    let line = |name: &str| stdout.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(line("opencode").ends_with(&*Path::new("bin/opencode").display().to_string()), "{stdout}");
    assert!(line("claude").contains("not installed; npm install -g @anthropic-ai/claude-code"), "{stdout}");
}
