//! Runs generated Python and SQL in a child process with limits of time, memory and output.

use std::{
    io::{Read, Write},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

const RUN_PYTHON: &str = include_str!("../data/run_python.py");
const RUN_SQL: &str = include_str!("../data/run_sql.py");

const TIME: Duration = Duration::from_secs(10);
const OUTPUT: u64 = 1 << 20;

/// What became of generated code.
#[derive(Debug, PartialEq)]
pub(crate) enum Execution {
    Done(Value),
    /// The code is at fault.
    Failed(String),
    /// It could not be tried.
    NotRun(String),
}

/// The interpreter, and what it may run.
#[derive(Clone, Debug)]
pub(crate) struct Interpreter {
    pub program: String,
    /// Queries are read-only and need no permission.
    pub run_code: bool,
}

impl Interpreter {
    /// Runs `code`, then `check`, which raises an exception if the code is wrong.
    pub(crate) fn python(&self, code: &str, check: &str) -> Execution {
        if !self.run_code {
            return Execution::NotRun("code of answers is executed only with --run-code".into());
        }
        match self.run(RUN_PYTHON, &json!({ "code": code, "check": check })) {
            Execution::Done(result) if result["ok"] == true => Execution::Done(Value::Null),
            Execution::Done(result) => Execution::Failed(text(&result["error"])),
            other => other,
        }
    }

    /// The rows of `query` on a new database in memory.
    pub(crate) fn sql(&self, setup: &str, query: &str) -> Execution {
        match self.run(RUN_SQL, &json!({ "setup": setup, "query": query })) {
            Execution::Done(result) if result["rows"].is_array() => Execution::Done(result["rows"].clone()),
            Execution::Done(result) => Execution::Failed(text(&result["error"])),
            other => other,
        }
    }

    fn run(&self, script: &str, input: &Value) -> Execution {
        let child = Command::new(&self.program)
            // Without the user's packages and current folder; the script clears the variables.
            .args(["-I", "-S", "-c", script])
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        match child {
            Ok(child) => converse(child, input.to_string()),
            Err(error) => Execution::NotRun(format!("{} does not start: {error}", self.program)),
        }
    }
}

fn converse(mut child: Child, input: String) -> Execution {
    let (sender, output) = mpsc::channel();
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    // A child that reads or writes nothing must not stop this thread.
    thread::spawn(move || stdin.map(|mut stdin| stdin.write_all(input.as_bytes())));
    thread::spawn(move || {
        let mut text = String::new();
        let read = stdout.map(|stdout| stdout.take(OUTPUT).read_to_string(&mut text));
        let _ = sender.send(read.and_then(Result::ok).map(|_| text));
    });
    let is_over = ended(&mut child);
    let _ = child.kill();
    let _ = child.wait();
    if !is_over {
        return Execution::Failed(format!("it did not end within {} s", TIME.as_secs()));
    }
    let text = output.recv_timeout(Duration::from_secs(1)).ok().flatten().unwrap_or_default();
    match serde_json::from_str(&text) {
        Ok(result) => Execution::Done(result),
        Err(_) => Execution::Failed("it ended without a result: a limit of time or memory".into()),
    }
}

/// Waits for the child's end; false if that takes too long.
fn ended(child: &mut Child) -> bool {
    let deadline = Instant::now() + TIME;
    while Instant::now() < deadline {
        match child.try_wait() {
            Ok(None) => thread::sleep(Duration::from_millis(5)),
            Ok(Some(_)) | Err(_) => return true,
        }
    }
    false
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("no reason given").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn python(code: &str, check: &str) -> Execution {
        Interpreter { program: "python3".into(), run_code: true }.python(code, check)
    }

    fn failure(code: &str) -> String {
        match python(code, "") {
            Execution::Failed(error) => error,
            other => panic!("{code}: {other:?}"),
        }
    }

    #[test]
    fn code_is_checked_and_its_output_ignored() {
        assert_eq!(python("def f(): print('{}'); return 3", "assert f() == 3"), Execution::Done(Value::Null));
        let wrong = python("def f(): return 4", "assert f() == 3, f'f() is {f()}'");
        assert_eq!(wrong, Execution::Failed("AssertionError: f() is 4".into()));
        assert!(failure("def f(:").starts_with("SyntaxError"));
        assert!(failure("raise SystemExit(0)").starts_with("SystemExit"));
    }

    #[test]
    fn code_without_permission_is_not_run() {
        let interpreter = Interpreter { program: "python3".into(), run_code: false };
        assert!(matches!(interpreter.python("", ""), Execution::NotRun(_)));
        let interpreter = Interpreter { program: "no-such-python".into(), run_code: true };
        assert!(
            matches!(interpreter.python("", ""), Execution::NotRun(reason) if reason.contains("no-such-python"))
        );
    }

    #[test]
    fn code_beyond_a_limit_fails() {
        // On a busy machine the wall clock is first.
        let endless = failure("while True: pass");
        assert!(endless.contains("limit of time") || endless.contains("did not end within"), "{endless}");
        assert!(failure("x = bytearray(1 << 31)").starts_with("MemoryError"));
        assert!(failure("import time\ntime.sleep(60)").contains("did not end within"));
    }

    #[test]
    fn code_that_touches_the_system_is_refused() {
        for code in [
            "import os; os.system('true')",
            "import subprocess; subprocess.run(['true'])",
            "import socket; socket.create_connection(('127.0.0.1', 1))",
            "open('lanner-eval-must-not-exist', 'w')",
            "import os; os.remove('lanner-eval-must-not-exist')",
        ] {
            assert!(failure(code).starts_with("PermissionError"), "{code}: {}", failure(code));
        }
    }

    #[test]
    fn query_reads_and_never_writes() {
        let interpreter = Interpreter { program: "python3".into(), run_code: false };
        let setup = "CREATE TABLE t (a INTEGER, b TEXT); INSERT INTO t VALUES (1, 'x'), (2, NULL);";
        let check = |query: &str| interpreter.sql(setup, query);
        assert_eq!(
            check("SELECT a, b FROM t ORDER BY a DESC"),
            Execution::Done(json!([[2, null], [1, "x"]]))
        );
        for query in [
            "DELETE FROM t",
            "ATTACH 'lanner-eval-must-not-exist' AS x",
            "SELECT 1; SELECT 2",
            "SELECT nothing FROM t",
            "",
        ] {
            let result = check(query);
            assert!(
                matches!(result, Execution::Failed(_)) || result == Execution::Done(json!([])),
                "{query}: {result:?}"
            );
        }
        assert_eq!(check("DELETE FROM t"), Execution::Failed("DatabaseError: not authorized".into()));
    }
}
