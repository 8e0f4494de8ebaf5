//! `lanner start`, `stop`, `status` and `logs`: a plain process for real, systemd and launchd as
//! scripts that do the same with what was written for them.

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
};

use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

use crate::support::{
    client,
    server::Setup,
    wait::{output, output_of, wait_until},
};

/// A user with a home folder, whose server ends with the test.
struct User {
    home: TempDir,
}

/// Exit status, stdout and stderr.
type Said = (Option<i32>, String, String);

impl User {
    fn new() -> User {
        User { home: tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lanner"));
        let path = format!("{}:/usr/bin:/bin", self.path("bin").display());
        command.env_clear().env("HOME", self.home.path()).env("PATH", path).args(args);
        command
    }

    fn run(&self, args: &[&str]) -> Said {
        said(output(&mut self.command(args)).unwrap())
    }

    /// Starts a server of the built-in model on any port; returns its URL.
    fn start(&self, args: &[&str]) -> String {
        let (code, stdout, stderr) = self.run(&[&["start", "--port", "0", "--device", "cpu"], args].concat());
        assert_eq!(code, Some(0), "{stderr}");
        assert!(stdout.starts_with("http://127.0.0.1:"), "{stdout}");
        stdout.trim().to_owned()
    }

    fn status(&self) -> (Option<i32>, Value) {
        let (code, stdout, stderr) = self.run(&["status", "--json"]);
        (code, serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{stdout} {stderr}")))
    }

    /// Puts a program into PATH.
    fn install(&self, name: &str, script: &str) {
        let file = self.path("bin").join(name);
        fs::create_dir_all(self.path("bin")).unwrap();
        fs::write(&file, script).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let _ = self.command(&["stop"]).output();
    }
}

fn said(Output { status, stdout, stderr }: Output) -> Said {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

fn kill(signal: &str, pid: &Value) {
    let pid = pid.as_u64().unwrap().to_string();
    assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
}

const PLAIN: [&str; 2] = ["--manager", "plain"];

#[test]
fn plain_server_is_started_asked_shown_and_stopped() {
    let user = User::new();
    let (code, stdout, _) = user.run(&["status"]);
    assert_eq!(code, Some(3));
    assert!(stdout.starts_with("no server of lanner start runs"), "{stdout}");
    let (code, _, stderr) = user.run(&["logs"]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("there is no log yet"), "{stderr}");

    let url = user.start(&[&PLAIN[..], &["--api-key", "s3cr3t", "--log", "info"]].concat());
    let address = url.strip_prefix("http://").unwrap().parse().unwrap();
    let body = json!({ "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 2 }).to_string();
    let headers = "Authorization: Bearer s3cr3t\r\nContent-Type: application/json\r\n";
    let reply = client::request(address, "POST /v1/chat/completions", headers, body.as_bytes());
    assert_eq!(reply.status, 200, "{}", reply.body);

    let (code, status) = user.status();
    assert_eq!(
        (code, &status["state"], &status["url"]),
        (Some(0), &json!("running"), &json!(url)),
        "{status}"
    );
    assert_eq!((&status["manager"], &status["program_change"]), (&json!("plain"), &Value::Null), "{status}");
    assert!(status["memory_bytes"].as_u64().is_none_or(|bytes| bytes > 1_000_000), "{status}");
    assert!(!status.to_string().contains("s3cr3t"), "{status}");
    let (_, text, _) = user.run(&["status"]);
    assert!(text.contains("the models are not known") && text.contains("answers 401"), "{text}");
    let (_, text, _) = user.run(&["status", "--api-key", "s3cr3t"]);
    for part in ["state    running\n", &*format!("address  {url}\n"), "merlin  loaded  8192"] {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
    let (code, logs, _) = user.run(&["logs", "-n", "1000"]);
    assert_eq!(code, Some(0));
    assert!(logs.contains(&format!("lanner: serving merlin on {url}/v1")), "{logs}");
    assert_eq!(user.run(&["logs", "-n", "1"]).1.lines().count(), 1);
    let record = fs::read_to_string(user.path(".local/state/lanner/service/service.json")).unwrap();
    assert!(!record.contains("s3cr3t"), "{record}");

    let (code, _, stderr) = user.run(&["stop", "--port", "1"]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("not at http://127.0.0.1:1; nothing was stopped"), "{stderr}");
    let (code, _, stderr) = user.run(&["stop"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains(&format!("the server at {url} has ended")), "{stderr}");
    assert_eq!(user.status(), (Some(3), json!({ "state": "stopped" })));
    let (code, _, stderr) = user.run(&["stop"]);
    assert_eq!(code, Some(0));
    assert!(stderr.contains("no server of lanner start runs"), "{stderr}");
}

#[test]
fn killed_server_is_told_and_replaced() {
    let user = User::new();
    user.start(&PLAIN);
    let (_, status) = user.status();
    kill("-KILL", &status["pid"]);
    let mut after = (None, Value::Null);
    wait_until("the server is gone", || {
        after = user.status();
        after.0 == Some(3)
    });
    assert_eq!(after.1["state"], "ended");
    let (_, text, _) = user.run(&["status"]);
    assert!(text.contains("ended without lanner stop: it crashed or was killed"), "{text}");
    // The log of the one before is kept.
    let (code, _, stderr) = user.run(&[&["start", "--port", "0", "--device", "cpu"], &PLAIN[..]].concat());
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("has ended without lanner stop"), "{stderr}");
    assert!(user.path(".local/state/lanner/service/server.log.1").exists());
    assert_eq!(user.status().1["state"], "running");
}

#[test]
fn start_twice_is_one_server() {
    let user = User::new();
    let url = user.start(&PLAIN);
    let args = ["start", "--port", "0", "--device", "cpu", "--manager", "plain"];
    let (code, stdout, stderr) = user.run(&args);
    assert_eq!((code, stdout.trim()), (Some(0), &*url), "{stderr}");
    assert!(stderr.contains("the server runs already"), "{stderr}");
    let (code, _, stderr) = user.run(&[&args[..], &["--name", "owl"]].concat());
    assert_eq!(code, Some(1));
    assert!(stderr.contains("that was started with another: flags\n"), "{stderr}");
    assert!(stderr.contains("hint: lanner stop ends it"), "{stderr}");
    for (flags, what) in [
        (&["--api-key", "s3cr3t"][..], "LANNER_API_KEY"),
        (&["--at-login"], "--at-login"),
        (&["--manager", "systemd"], "--manager"),
    ] {
        let keeps_manager = flags[0] != "--manager";
        let args = if keeps_manager { &args[..] } else { &args[..5] };
        let (code, _, stderr) = user.run(&[args, flags].concat());
        assert_eq!(code, Some(1), "{what}");
        assert!(stderr.contains(&format!("started with another: {what}\n")), "{stderr}");
    }
}

#[test]
fn server_in_another_folder_with_a_relative_path_is_another() {
    let user = User::new();
    for folder in ["a", "b"] {
        fs::create_dir_all(user.path(folder)).unwrap();
        fs::write(user.path(folder).join("keys"), "s3cr3t\n").unwrap();
    }
    let start = |folder: &str| {
        let args =
            ["start", "--port", "0", "--device", "cpu", "--manager", "plain", "--api-keys-file", "keys"];
        said(output(user.command(&args).current_dir(user.path(folder))).unwrap())
    };
    assert_eq!(start("a").0, Some(0));
    assert_eq!(start("a").0, Some(0));
    let (code, _, stderr) = start("b");
    assert_eq!(code, Some(1));
    assert!(stderr.contains("started with another: folder of relative paths\n"), "{stderr}");
}

#[test]
fn start_during_a_start_waits_until_the_server_is_ready() {
    let user = User::new();
    let args = ["start", "--port", "0", "--device", "cpu", "--manager", "plain"];
    let mut first = user.command(&args);
    let first = first.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let record = user.path(".local/state/lanner/service/service.json");
    wait_until("the server is recorded", || record.exists());
    // The other command may still hold the lock.
    let mut second = user.run(&args);
    while second.2.contains("another lanner start or lanner stop is running") {
        second = user.run(&args);
    }
    let (code, stdout, stderr) = second;
    assert_eq!(code, Some(0), "{stderr}");
    let first = said(output_of(first).unwrap());
    assert_eq!((first.0, &first.1), (Some(0), &stdout), "{}", first.2);
    assert!(!stdout.ends_with(":0\n"), "{stdout}");
}

#[test]
fn server_whose_log_was_emptied_is_running() {
    let user = User::new();
    let url = user.start(&PLAIN);
    fs::write(user.path(".local/state/lanner/service/server.log"), "").unwrap();
    let (code, status) = user.status();
    assert_eq!(
        (code, &status["state"], &status["url"]),
        (Some(0), &json!("running"), &json!(url)),
        "{status}"
    );
}

#[test]
fn unreadable_record_is_told_and_touches_nothing() {
    let user = User::new();
    user.start(&PLAIN);
    let record = user.path(".local/state/lanner/service/service.json");
    let before = fs::read_to_string(&record).unwrap();
    fs::write(&record, "{").unwrap();
    let log = fs::read_to_string(user.path(".local/state/lanner/service/server.log")).unwrap();
    for command in [&["stop"][..], &["status"], &["start", "--port", "0", "--manager", "plain"]] {
        let (code, _, stderr) = user.run(command);
        assert_eq!(code, Some(1), "{command:?}");
        assert!(stderr.contains("service.json is not readable"), "{stderr}");
    }
    let now = fs::read_to_string(user.path(".local/state/lanner/service/server.log")).unwrap();
    assert_eq!(now, log);
    fs::write(&record, before).unwrap();
}

#[test]
fn two_starts_at_once_are_one_server() {
    let user = User::new();
    let args = ["start", "--port", "0", "--device", "cpu", "--manager", "plain"];
    let spawn = || -> Child {
        user.command(&args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let both = [spawn(), spawn()].map(|child| said(output_of(child).unwrap()));
    let started =
        both.iter().filter(|(code, _, stderr)| *code == Some(0) && stderr.contains("runs in the background"));
    assert_eq!(started.count(), 1, "{both:?}");
    for (code, _, stderr) in both.iter().filter(|(code, ..)| *code != Some(0)) {
        assert!(stderr.contains("another lanner start or lanner stop is running"), "{code:?} {stderr}");
    }
    assert_eq!(user.status().1["state"], "running");
}

#[test]
fn server_that_fails_shows_the_end_of_its_log() {
    let user = User::new();
    let (code, stdout, stderr) =
        user.run(&["start", "--port", "0", "--model", "/nowhere/owl", "--manager", "plain"]);
    assert_eq!((code, &*stdout), (Some(1), ""));
    assert!(stderr.contains("the server has ended before it was ready; the end of "), "{stderr}");
    assert!(stderr.contains("there is no model folder /nowhere/owl"), "{stderr}");
    assert_eq!(user.status(), (Some(3), json!({ "state": "stopped" })));
    let (code, _, stderr) = user.run(&["start", "--manager", "plain", "--at-login"]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("--at-login needs systemd or launchd"), "{stderr}");
    let (code, _, stderr) =
        user.run(&["start", "--manager", "plain", "--prefix-cache", "off", "--disk-cache", "1G"]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("--disk-cache needs the prefix cache"), "{stderr}");
}

#[test]
fn taken_address_is_told_before_anything_starts() {
    let user = User::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let (code, _, stderr) = user.run(&["start", "--port", &port, "--manager", "plain"]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains(&format!("another program listens at 127.0.0.1:{port}")), "{stderr}");
    let server = Setup::default().says("x");
    let port = server.address.port().to_string();
    let (code, _, stderr) = user.run(&["start", "--port", &port, "--manager", "plain"]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("a Lanner server that lanner start has not started already answers"), "{stderr}");
    assert!(!user.path(".local/state/lanner/service/server.log").exists());
}

#[test]
fn logs_follow_the_next_server() {
    let user = User::new();
    user.start(&PLAIN);
    let file = user.path("followed");
    let mut follow = user.command(&["logs", "-f"]).stdout(fs::File::create(&file).unwrap()).spawn().unwrap();
    let count = || fs::read_to_string(&file).unwrap().matches("lanner: serving merlin on ").count();
    wait_until("the log is shown", || count() == 1);
    assert_eq!(user.run(&["stop"]).0, Some(0));
    user.start(&PLAIN);
    wait_until("the next log is shown", || count() == 2);
    fs::write(user.path(".local/state/lanner/service/server.log"), "after it was emptied\n").unwrap();
    wait_until("the emptied log is shown", || {
        fs::read_to_string(&file).unwrap().contains("after it was emptied")
    });
    follow.kill().unwrap();
    follow.wait().unwrap();
}

/// Runs the unit's command, restarted after a crash.
const SYSTEMCTL: &str = r#"#!/bin/bash
[ "$1" = --user ] && shift
unit="$HOME/.config/systemd/user/lanner.service"
state="$HOME/state"
mkdir -p "$state"
echo "$@" >>"$state/calls"
alive() { [ -f "$state/pid" ] && ps -o stat= -p "$(cat "$state/pid")" | grep -qv Z; }
case "$1" in
start)
    log=$(sed -n 's/^StandardError=append://p' "$unit")
    command=$(sed -n 's/^ExecStart=//p' "$unit")
    set -a; . "$(sed -n 's/^EnvironmentFile=//p' "$unit")"; set +a
    cd "$(sed -n 's/^WorkingDirectory=//p' "$unit")"
    eval "exec $command" </dev/null >>"$log" 2>&1 &
    echo $! >"$state/pid" ;;
stop)
    alive && kill "$(cat "$state/pid")"
    while alive; do sleep 0.05; done ;;
show)
    if alive; then echo "ActiveState=active"; else echo "ActiveState=failed"; fi
    echo "MainPID=$(cat "$state/pid")"; echo "NRestarts=0" ;;
esac
"#;

#[test]
fn systemd_runs_the_unit() {
    let user = User::new();
    user.install("systemctl", SYSTEMCTL);
    // Without --manager: systemd answers.
    let url = match cfg!(target_os = "macos") {
        true => user.start(&["--manager", "systemd", "--at-login", "--api-key", "a$b\"c"]),
        false => user.start(&["--at-login", "--api-key", "a$b\"c"]),
    };
    let unit = fs::read_to_string(user.path(".config/systemd/user/lanner.service")).unwrap();
    assert!(
        unit.contains("\"serve\" \"--device=cpu\" \"--port=0\"") || unit.contains("\"--port=0\""),
        "{unit}"
    );
    assert!(!unit.contains("a$b"), "{unit}");
    let environment = user.path(".local/state/lanner/service/environment");
    assert_eq!(fs::metadata(&environment).unwrap().permissions().mode() & 0o777, 0o600);
    let address = url.strip_prefix("http://").unwrap().parse().unwrap();
    let reply = client::request(address, "GET /v1/models", "Authorization: Bearer a$b\"c\r\n", b"");
    assert_eq!(reply.status, 200, "{}", reply.body);
    let (code, status) = user.status();
    assert_eq!((code, &status["manager"], &status["at_login"]), (Some(0), &json!("systemd"), &json!(true)));
    assert_eq!(user.run(&["stop"]).0, Some(0));
    let calls = fs::read_to_string(user.path("state/calls")).unwrap();
    let expected = [
        "daemon-reload",
        "enable lanner.service",
        "start lanner.service",
        "disable lanner.service",
        "stop lanner.service",
    ];
    let at: Vec<usize> =
        expected.iter().map(|call| calls.find(call).unwrap_or_else(|| panic!("{calls}"))).collect();
    assert!(at.is_sorted(), "{calls}");
    // A server that cannot start.
    let (code, _, stderr) =
        user.run(&["start", "--manager", "systemd", "--port", "0", "--model", "/nowhere/owl"]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("there is no model folder /nowhere/owl"), "{stderr}");
    // A unit of the user's own.
    fs::write(user.path(".config/systemd/user/lanner.service"), "[Unit]\n").unwrap();
    let (code, _, stderr) = user.run(&["start", "--manager", "systemd", "--port", "0"]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("was not written by lanner start"), "{stderr}");
}

/// Runs the program of a property list.
const LAUNCHCTL: &str = r#"#!/bin/bash
state="$HOME/state"
mkdir -p "$state"
echo "$@" >>"$state/calls"
alive() { [ -f "$state/pid" ] && ps -o stat= -p "$(cat "$state/pid")" | grep -qv Z; }
case "$1" in
bootstrap)
    words=$(sed -n '/<array>/,/<\/array>/s/ *<string>\(.*\)<\/string>/\1/p' "$3")
    log=$(grep -A1 StandardErrorPath "$3" | sed -n 's/ *<string>\(.*\)<\/string>/\1/p')
    readarray -t command <<<"$words"
    "${command[@]}" </dev/null >>"$log" 2>&1 &
    echo $! >"$state/pid" ;;
bootout)
    alive || exit 3
    kill "$(cat "$state/pid")"
    while alive; do sleep 0.05; done
    rm "$state/pid" ;;
print)
    alive || exit 113
    printf '%s = {\n\tstate = running\n\truns = 1\n\tpid = %s\n}\n' "$2" "$(cat "$state/pid")" ;;
esac
"#;

#[test]
fn launchd_runs_the_agent() {
    let user = User::new();
    user.install("launchctl", LAUNCHCTL);
    user.start(&["--manager", "launchd", "--at-login"]);
    let agent = user.path("Library/LaunchAgents/lanner.server.plist");
    assert!(fs::read_to_string(&agent).unwrap().contains("<string>--device=cpu</string>"));
    assert_eq!(fs::metadata(&agent).unwrap().permissions().mode() & 0o777, 0o600);
    let (code, status) = user.status();
    assert_eq!((code, &status["manager"], &status["restarts"]), (Some(0), &json!("launchd"), &json!(0)));
    assert_eq!(user.run(&["stop"]).0, Some(0));
    assert!(!agent.exists(), "it does not start at the next login");
    // Without --at-login launchd does not find it at login.
    user.start(&["--manager", "launchd"]);
    assert!(!agent.exists() && user.path(".local/state/lanner/service/lanner.server.plist").exists());
    let (code, _, stderr) = user.run(&["start", "--manager", "launchd", "--port", "0", "--name", "owl"]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("that was started with another: flags\n"), "{stderr}");
}
