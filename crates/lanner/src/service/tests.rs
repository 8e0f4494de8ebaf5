use std::{collections::BTreeMap, fs, path::Path, process::Command};

use super::*;

fn definition() -> ServiceDefinition {
    let variables = [("HF_TOKEN", "a\"b\\c$d`e"), ("PATH", "/bin")];
    ServiceDefinition {
        program: "/opt/lanner/100%/lanner".into(),
        arguments: ["serve", "--model=a \"b\" $HOME %h & <c>", "--port=0"].map(str::to_owned).to_vec(),
        environment: variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        folder: "/home/an owl".into(),
        log: "/home/an owl/100%/server.log".into(),
        environment_file: "/home/an owl/environment".into(),
    }
}

#[test]
fn unit_has_this_text() {
    assert_eq!(
        systemd::unit(&definition()),
        r#"# Written by lanner start, and again by the next one.
[Unit]
Description=Lanner, a server of language models
# Five crashes within a minute, and it stays down.
StartLimitIntervalSec=60
StartLimitBurst=5

[Service]
Type=exec
ExecStart="/opt/lanner/100%%/lanner" "serve" "--model=a \"b\" $$HOME %%h & <c>" "--port=0"
WorkingDirectory=/home/an owl
EnvironmentFile=/home/an owl/environment
StandardOutput=append:/home/an owl/100%%/server.log
StandardError=append:/home/an owl/100%%/server.log
Restart=on-failure
RestartSec=2
# Running requests may end.
TimeoutStopSec=30

[Install]
WantedBy=default.target
"#
    );
    assert_eq!(
        systemd::environment(&definition().environment),
        "HF_TOKEN=\"a\\\"b\\\\c\\$d\\`e\"\nPATH=\"/bin\"\n"
    );
}

#[test]
fn property_list_has_this_text() {
    assert_eq!(
        launchd::plist(&definition()),
        r#"<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<!-- Written by lanner start, and again by the next one. -->
<plist version="1.0">
<dict>
  <key>Label</key>
  <string>lanner.server</string>
  <key>ProgramArguments</key>
  <array>
    <string>/opt/lanner/100%/lanner</string>
    <string>serve</string>
    <string>--model=a "b" $HOME %h &amp; &lt;c&gt;</string>
    <string>--port=0</string>
  </array>
  <key>EnvironmentVariables</key>
  <dict>
    <key>HF_TOKEN</key>
    <string>a"b\c$d`e</string>
    <key>PATH</key>
    <string>/bin</string>
  </dict>
  <key>WorkingDirectory</key>
  <string>/home/an owl</string>
  <key>StandardOutPath</key>
  <string>/home/an owl/100%/server.log</string>
  <key>StandardErrorPath</key>
  <string>/home/an owl/100%/server.log</string>
  <key>RunAtLoad</key>
  <true/>
  <key>KeepAlive</key>
  <dict>
    <key>SuccessfulExit</key>
    <false/>
  </dict>
  <key>ThrottleInterval</key>
  <integer>5</integer>
  <key>ExitTimeOut</key>
  <integer>30</integer>
  <key>ProcessType</key>
  <string>Interactive</string>
</dict>
</plist>
"#
    );
}

/// A definition whose program and folders exist.
fn real(folder: &Path) -> ServiceDefinition {
    ServiceDefinition {
        program: std::env::current_exe().unwrap(),
        folder: folder.into(),
        log: folder.join("server.log"),
        environment_file: folder.join("environment"),
        environment: BTreeMap::new(),
        ..definition()
    }
}

/// `None`: this machine lacks the program.
fn check(program: &str, arguments: &[&str], file: &str, text: &str) -> Option<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(file);
    fs::write(&path, text).unwrap();
    fs::write(folder.path().join("environment"), "").unwrap();
    let mut checker = Command::new(program);
    // systemd asks for the folder of a session, which not every test has.
    checker.args(arguments).arg(&path).env("XDG_RUNTIME_DIR", folder.path());
    let output = checker.output().ok()?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && !said.contains(file), "{said}\n{text}");
    Some(())
}

#[test]
fn systemd_accepts_the_unit() {
    let folder = tempfile::tempdir().unwrap();
    let text = systemd::unit(&real(folder.path()));
    if check("systemd-analyze", &["--user", "verify"], systemd::UNIT, &text).is_none() {
        eprintln!("skipped: there is no systemd-analyze to verify the unit");
    }
}

#[test]
fn launchd_accepts_the_property_list() {
    let folder = tempfile::tempdir().unwrap();
    let text = launchd::plist(&real(folder.path()));
    if check("plutil", &["-lint", "-s"], "lanner.server.plist", &text).is_none() {
        eprintln!("skipped: there is no plutil to check the property list");
    }
}
