//! Models loaded one after another, in a server of its own process.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::support::{client, process::ServerProcess};

/// Threads of the server; `None` where the system does not report them.
fn threads(server: &ServerProcess) -> Option<usize> {
    Some(fs::read_dir(format!("/proc/{}/task", server.child.id())).ok()?.count())
}

#[test]
fn repeated_loads_keep_threads_and_memory_constant() {
    let server = ServerProcess::start(&[]);
    let load = || {
        let reply = client::post(server.address, "/v1/models/load", &json!({ "model": "merlin" }));
        assert_eq!(reply.status, 200, "{}", reply.body);
        server.complete(&json!({ "prompt": "An owl", "max_tokens": 3, "temperature": 0 }));
    };
    // The first loads reach the maximum of concurrent engines and of memory retained by allocators.
    (0..6).for_each(|_| load());
    let (Some(before), Some(memory)) = (threads(&server), server.memory()) else {
        eprintln!("skipped: the system does not report a process's resources");
        return;
    };
    (0..30).for_each(|_| load());
    // The last replaced engine and idle threads of the runtime take time to end.
    let started = Instant::now();
    while threads(&server).is_some_and(|now| now > before + 2) && started.elapsed() < Duration::from_secs(20)
    {
        thread::sleep(Duration::from_millis(20));
    }
    let (now, grown) = (threads(&server).unwrap(), server.memory().unwrap() - memory);
    assert!(now <= before + 2, "{now} threads, {before} before");
    assert!(grown < 20.0, "{grown} MB more after 30 loads");
}
