//! `lanner doctor` on the machine that runs the tests. Checks of other machines are unit tests.

use std::{fs, net::TcpListener};

use serde_json::Value;
use tempfile::tempdir;

use crate::support::{process::lanner, server::Setup};

fn free_port() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string()
}

#[test]
fn doctor_reports_this_machine_as_text_and_json() {
    let home = tempdir().unwrap();
    let env = [("HOME", home.path().to_str().unwrap()), ("PATH", "/usr/bin:/bin")];
    let port = free_port();
    let output = lanner(&["doctor", "--json", "--port", &port], &env);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let find = |name: &str| checks.iter().find(|check| check["name"] == name).unwrap();
    assert_eq!(find("port")["status"], "ok", "{report:#}");
    assert_ne!(find("model folder")["status"], "error", "{report:#}");
    assert!(find("MLX")["found"].as_str().unwrap().contains("libmlx"), "{report:#}");
    assert!(checks.iter().all(|check| check["name"] != "hub"), "no network unless asked");
    assert_eq!(output.status.success(), report["status"] != "error");
    let text = String::from_utf8(lanner(&["doctor", "--port", &port], &env).stdout).unwrap();
    for check in checks {
        assert!(text.contains(check["name"].as_str().unwrap()), "{text}");
    }
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0, "nothing was written");
}

#[test]
fn doctor_fails_where_a_check_does_and_reads_a_faulty_config() {
    let home = tempdir().unwrap();
    let config = home.path().join("config.toml");
    fs::write(&config, "[server]\nprot = 's3cr3t'\n").unwrap();
    let output = lanner(&["doctor", "--config", config.to_str().unwrap(), "--port", &free_port()], &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("unknown field `prot`") && !text.contains("s3cr3t"), "{text}");
}

#[test]
fn doctor_knows_a_running_server() {
    let server = Setup::default().says("hi");
    let output = lanner(&["doctor", "--port", &server.address.port().to_string()], &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(&format!("runs at {}", server.address)), "{text}");
}

#[test]
fn bug_report_is_shown_and_written_only_when_confirmed() {
    let home = tempdir().unwrap();
    let (file, port) = (home.path().join("report.md"), free_port());
    let path = file.to_str().unwrap();
    let env = [
        ("HOME", home.path().to_str().unwrap()),
        ("LANNER_API_KEY", "s3cr3t"),
        ("HF_TOKEN", "hf_0123456789"),
        ("LANNER_CACHE_DIR", "/x"),
    ];
    let args = ["doctor", "--bug-report", path, "--port", &port];
    let output = lanner(&args, &env);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("hint: add --yes"));
    assert!(!file.exists() && String::from_utf8(output.stdout).unwrap().contains("## Checks"));

    let output = lanner(&[&args as &[&str], &["--yes"]].concat(), &env);
    let text = fs::read_to_string(&file).unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), text, "what is written is shown");
    assert!(text.contains("LANNER_CACHE_DIR=/x") && text.contains("HF_TOKEN=[redacted]"), "{text}");
    for secret in ["s3cr3t", "hf_0123456789", home.path().to_str().unwrap()] {
        assert!(!text.contains(secret), "{secret} is in\n{text}");
    }
}
