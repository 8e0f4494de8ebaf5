use std::{
    env,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use lanner_store::{RequestRecord, Scope, Store, now};

use crate::{open, turn};

/// Names the file to the program that is killed.
const STORE: &str = "LANNER_TEST_STORE";
const KILLS: u64 = 50;

/// Runs in a process of its own: writes, and says what is committed.
#[test]
#[ignore = "the program that the next test kills"]
fn writes_until_killed() {
    let Ok(path) = env::var(STORE) else { return };
    let store = open(Path::new(&path));
    let start = store.list(&Scope::All, None, 1_000_000).unwrap().items.len();
    for number in start.. {
        let id = format!("c{number}");
        store.put("", &id, turn(&format!("question {number}"), &"answer ".repeat(number % 700))).unwrap();
        store.record(RequestRecord { at: now(), id: id.clone(), ..RequestRecord::default() });
        if number % 8 == 0 {
            store.flush().unwrap();
            println!("request {id}");
        }
        println!("conversation {id}");
    }
}

#[test]
fn killed_writer_loses_nothing_committed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let (mut conversations, mut requests) = (vec![], vec![]);
    for kill in 0..KILLS {
        let program = env::current_exe().unwrap();
        let mut child = Command::new(program)
            .args(["kill::writes_until_killed", "--exact", "--ignored", "--nocapture"])
            .env(STORE, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let reader = thread::spawn(move || lines.map_while(Result::ok).collect::<Vec<String>>());
        // Always at another point.
        thread::sleep(Duration::from_millis(15 + kill * 3 % 60));
        child.kill().unwrap();
        child.wait().unwrap();
        for line in reader.join().unwrap() {
            match line.split_once(' ') {
                Some(("conversation", id)) => conversations.push(id.to_owned()),
                Some(("request", id)) => requests.push(id.to_owned()),
                _ => {}
            }
        }
        check(&open(&path), &conversations, &requests);
    }
    assert!(conversations.len() > 100, "{} conversations were written", conversations.len());
    assert!(!requests.is_empty());
}

fn check(store: &Store, conversations: &[String], requests: &[String]) {
    for id in conversations.iter().rev().take(50) {
        let conversation = store.conversation(&Scope::All, id).unwrap();
        let number = id.trim_start_matches('c');
        assert_eq!(conversation.messages.len(), 2, "{id}");
        assert_eq!(conversation.messages[0].text, format!("question {number}"));
        let found = store.search(&Scope::All, &format!("question {number}"), None, 1000).unwrap();
        assert!(found.items.iter().any(|summary| summary.id == *id), "{id} is in the index");
    }
    let listed = store.list(&Scope::All, None, 1_000_000).unwrap().items;
    assert!(listed.len() >= conversations.len());
    let stored: Vec<String> = store.requests(100_000).unwrap().into_iter().map(|record| record.id).collect();
    assert!(requests.iter().all(|id| stored.contains(id)));
}
