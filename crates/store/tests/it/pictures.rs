//! Pictures of messages: stored once, read as they were, and gone with their messages.

use lanner_store::{Message, Role, Scope, Update, to_markdown};
use serde_json::{Map, Value, json};

use crate::{Fixture, message};

const ONE: &str = "data:image/png;base64,AAEC";
const TWO: &str = "data:image/jpeg;base64,AwQFBg==";

fn with_pictures(id: &str, parent: Option<&str>, pictures: &[&str]) -> Message {
    let other = Map::from_iter([("images".to_owned(), json!(pictures)), ("isJson".to_owned(), json!(true))]);
    Message { other, ..message(id, parent, Role::User, "what?") }
}

fn blobs(fixture: &Fixture) -> i64 {
    let connection = rusqlite::Connection::open(fixture.path()).unwrap();
    connection.query_row("SELECT count(*) FROM blob", [], |row| row.get(0)).unwrap()
}

fn images(fixture: &Fixture, conversation: &str, index: usize) -> Value {
    let read = fixture.store.conversation(&Scope::All, conversation).unwrap();
    read.messages[index].other.get("images").cloned().unwrap_or_default()
}

#[test]
fn pictures_are_stored_once_and_read_as_they_were() {
    let fixture = Fixture::new();
    let messages = vec![with_pictures("a", None, &[ONE, TWO, ONE]), with_pictures("b", Some("a"), &[TWO])];
    fixture.store.put("", "c", Update { messages, ..Update::default() }).unwrap();
    assert_eq!(images(&fixture, "c", 0), json!([ONE, TWO, ONE]));
    assert_eq!(images(&fixture, "c", 1), json!([TWO]));
    assert_eq!(blobs(&fixture), 2);
    let read = fixture.store.conversation(&Scope::All, "c").unwrap();
    assert_eq!(read.messages[0].other["isJson"], true);
    assert!(to_markdown(&fixture.store.conversation(&Scope::All, "c").unwrap()).contains("# what?"));
    // The same message again changes nothing; one without pictures drops them.
    let again = |pictures: &[&str]| Update {
        messages: vec![with_pictures("a", None, pictures)],
        leaf: Some("a".into()),
        ..Update::default()
    };
    fixture.store.put("", "c", again(&[ONE, TWO, ONE])).unwrap();
    assert_eq!(images(&fixture, "c", 0), json!([ONE, TWO, ONE]));
    let branch = fixture.store.conversation(&Scope::All, "c").unwrap();
    assert!(to_markdown(&branch).contains("(pictures: 3)"));
    fixture.store.put("", "c", again(&[])).unwrap();
    assert_eq!(blobs(&fixture), 1);
}

#[test]
fn picture_is_removed_with_the_last_conversation_that_has_it() {
    let fixture = Fixture::new();
    for id in ["c", "d"] {
        let messages = vec![with_pictures("a", None, if id == "c" { &[ONE, TWO] } else { &[ONE] })];
        fixture.store.put("", id, Update { messages, ..Update::default() }).unwrap();
    }
    assert_eq!(blobs(&fixture), 2);
    fixture.store.remove(&Scope::All, "c").unwrap();
    assert_eq!(blobs(&fixture), 1);
    assert_eq!(images(&fixture, "d", 0), json!([ONE]));
    fixture.store.remove(&Scope::All, "d").unwrap();
    assert_eq!(blobs(&fixture), 0);
}

#[test]
fn images_that_are_no_data_uris_stay_as_they_are() {
    let fixture = Fixture::new();
    let messages = vec![with_pictures("a", None, &["https://a.example/b.png", ONE])];
    fixture.store.put("", "c", Update { messages, ..Update::default() }).unwrap();
    assert_eq!(images(&fixture, "c", 0), json!(["https://a.example/b.png", ONE]));
    assert_eq!(blobs(&fixture), 0);
}
