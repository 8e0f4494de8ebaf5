//! `eval` from the command line, against our own server: reports, comparison, one-sentence errors.

use std::{fs, net::TcpListener};

use serde_json::Value;

use crate::support::{process::lanner, server::Setup};

/// stdout of a command that must succeed.
fn eval(args: &[&str], env: &[(&str, &str)]) -> String {
    let output = lanner(&[&["eval"], args].concat(), env);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn error(args: &[&str]) -> String {
    let output = lanner(&[&["eval"], args].concat(), &[]);
    assert!(!output.status.success() && output.stdout.is_empty(), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn eval_of_our_server_writes_reports_that_compare() {
    let server =
        Setup { api_key: Some("secret"), ..Setup::default() }.says("Zug um sieben, Schalter um acht.");
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (json, html, both) = (path("a.json"), path("a.html"), path("both.html"));
    let url = format!("http://{}", server.address);
    let args = [&*url, "--tests", "translation", "--repeats", "2", "--json", &json, "--html", &html];
    let table = eval(&args, &[("LANNER_EVAL_KEY", "secret")]);
    assert!(table.contains("owl at http://127.0.0.1:") && table.contains("0 of 2"), "{table}");
    assert!(table.contains("quality: translation: keeps the contrast: none of"), "{table}");

    let report: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let run = &report["cases"][0]["runs"][1];
    assert_eq!((&run["answer"], &run["error"]), (&"Zug um sieben, Schalter um acht.".into(), &Value::Null));
    assert!(run["timing"]["ttft_s"].as_f64() < run["timing"]["total_s"].as_f64(), "{run}");
    assert_eq!(run["timing"]["usage"], true);
    assert!(report["origin"]["date"].as_str().is_some_and(|date| date.ends_with('Z')), "{report}");
    assert!(fs::read_to_string(&html).unwrap().contains("<svg"));

    let compared = eval(&["--compare", &json, &json, "--html", &both], &[]);
    assert!(compared.contains("quality: translation") && !compared.contains("Note: "), "{compared}");
    assert!(fs::read_to_string(&both).unwrap().contains("class=\"b\""));
}

#[test]
fn eval_errors_name_the_argument_and_what_to_do() {
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let check = |args: &[&str], expected: &str| {
        let error = error(args);
        assert!(error.contains(expected), "{args:?}: {error}");
    };
    check(&[], "<URL>");
    check(
        &["http://localhost", "--tests", "fly"],
        "--tests: there is no test `fly`; there are generation, tools",
    );
    check(&["localhost:80"], "`localhost:80` is no address of a server; write http://HOST:PORT/v1");
    check(&[&format!("http://{unused}")], "no server answers at http://127.0.0.1:");
    check(&["--compare", "a.json"], "2 values required");
    check(&["--compare", "/no/a.json", "/no/b.json"], "cannot read the report /no/a.json");
    check(&["http://localhost", "--compare", "a.json", "b.json"], "cannot be used with");
}
