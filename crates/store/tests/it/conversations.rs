use lanner_store::{Conversation, Cursor, Role, Scope, StoreError, Update, from_json, to_json, to_markdown};
use serde_json::{Map, json};

use crate::{Fixture, message, open, turn};

const ALL: Scope = Scope::All;

fn owner(name: &str) -> Scope {
    Scope::Owner(name.into())
}

#[test]
fn conversation_grows_by_messages_and_keeps_the_others() {
    let fixture = Fixture::new();
    let store = &fixture.store;
    let summary = store.put("", "c", turn("Which birds hunt at night?", "Owls.")).unwrap();
    assert_eq!((&*summary.title, summary.messages), ("Which birds hunt at night?", 2));
    assert_eq!(summary.model.as_deref(), Some("owl"));
    // Another answer, and only it.
    let other = message("b", Some("q"), Role::Assistant, "Nightjars.");
    let settings = Map::from_iter([("system".to_owned(), json!("Be terse."))]);
    let update = Update {
        messages: vec![other],
        leaf: Some("b".into()),
        settings: Some(settings),
        ..Update::default()
    };
    assert_eq!(store.put("", "c", update).unwrap().messages, 3);
    let read = store.conversation(&ALL, "c").unwrap();
    let texts: Vec<&str> = read.branch().iter().map(|message| &*message.text).collect();
    assert_eq!(texts, ["Which birds hunt at night?", "Nightjars."]);
    assert_eq!(read.system(), Some("Be terse."));
    // It is the same after the file was closed.
    let path = fixture.path();
    let folder = fixture.close();
    assert_eq!(open(&path).conversation(&ALL, "c").unwrap(), read);
    drop(folder);
}

#[test]
fn messages_that_make_no_tree_are_refused_whole() {
    let fixture = Fixture::new();
    let store = &fixture.store;
    store.put("", "c", turn("q", "a")).unwrap();
    let stored = store.conversation(&ALL, "c").unwrap();
    let user = |id, parent| message(id, parent, Role::User, "x");
    let circle = vec![user("x", Some("y")), user("y", Some("x"))];
    for (messages, leaf, field) in [
        (vec![user("ok", None), user("x", Some("gone"))], None, "messages.x.parent"),
        (circle, None, "messages.x.parent"),
        (vec![user("x", Some("x"))], None, "messages.x.parent"),
        (vec![user("a", None)], None, "messages.a.parent"),
        (vec![user("", None)], None, "messages."),
        (vec![user("../x", None)], None, "messages.../x"),
        (vec![], Some("gone".to_owned()), "leaf"),
    ] {
        let error = store.put("", "c", Update { messages, leaf, ..Update::default() }).unwrap_err();
        assert!(matches!(&error, StoreError::Invalid { field: found, .. } if found == field), "{error}");
        assert_eq!(store.conversation(&ALL, "c").unwrap(), stored, "{field}");
    }
    for (id, title) in
        [("c c", None), ("", None), ("c", Some("")), ("c", Some(" ")), ("c", Some(&*"x".repeat(501)))]
    {
        let update = Update { title: title.map(str::to_owned), ..Update::default() };
        assert!(matches!(store.put("", id, update), Err(StoreError::Invalid { .. })), "{id:?} {title:?}");
    }
}

#[test]
fn list_pages_have_every_conversation_once() {
    let fixture = Fixture::new();
    let store = &fixture.store;
    for number in 0..25 {
        // Several at the same time.
        let update = Update { created: Some(1), updated: Some(number / 4), ..turn("q", "a") };
        store.put("", &format!("c{number}"), update).unwrap();
    }
    let (mut ids, mut after) = (vec![], None);
    loop {
        let page = store.list(&ALL, after, 7).unwrap();
        ids.extend(page.items.into_iter().map(|summary| summary.id));
        let Some(next) = page.next else { break };
        after = Some(Cursor::parse(&next.to_string()).unwrap());
        // One that becomes the latest meanwhile moves no other.
        store.put("", "c3", Update { updated: Some(100), ..Update::default() }).unwrap();
    }
    let expected: Vec<String> =
        (0..25).rev().filter(|number| *number != 3).map(|number| format!("c{number}")).collect();
    ids.retain(|id| id != "c3");
    assert_eq!(ids, expected);
    for text in ["", "1", "a-b", "1-", "-1-2-3"] {
        assert!(Cursor::parse(text).is_err(), "{text}");
    }
}

#[test]
fn keys_do_not_see_each_other() {
    let fixture = Fixture::new();
    let store = &fixture.store;
    store.put("ann", "c", turn("Ann asks about falcons", "a")).unwrap();
    store.put("bob", "c", turn("Bob asks about herons", "a")).unwrap();
    store.put("", "d", turn("Any client asks", "a")).unwrap();
    let titles = |scope: &Scope| -> Vec<String> {
        store.list(scope, None, 10).unwrap().items.into_iter().map(|summary| summary.title).collect()
    };
    assert_eq!(titles(&owner("ann")), ["Ann asks about falcons"]);
    assert_eq!(titles(&owner("")), ["Any client asks"]);
    assert_eq!(titles(&ALL).len(), 3);
    assert!(store.conversation(&owner("bob"), "c").unwrap().title.contains("herons"));
    assert!(matches!(store.conversation(&owner("ann"), "d"), Err(StoreError::NotFound(_))));
    assert!(matches!(store.rename(&owner("ann"), "d", "x"), Err(StoreError::NotFound(_))));
    assert!(matches!(store.remove(&owner("eve"), "c"), Err(StoreError::NotFound(_))));
    assert!(store.search(&owner("ann"), "herons", None, 10).unwrap().items.is_empty());
    assert_eq!(store.search(&owner("bob"), "herons", None, 10).unwrap().items.len(), 1);
    assert_eq!(store.remove_all(&owner("bob")).unwrap(), 1);
    assert_eq!(titles(&ALL).len(), 2);
}

#[test]
fn find_takes_the_start_of_an_id() {
    let fixture = Fixture::new();
    let store = &fixture.store;
    assert!(matches!(store.find(&ALL, None), Err(StoreError::Empty)));
    for (at, id) in ["abc", "abd", "ab", "x_1"].into_iter().enumerate() {
        let at = at as i64;
        store.put("", id, Update { created: Some(at), updated: Some(at), ..turn("q", "a") }).unwrap();
    }
    for (start, expected) in [(None, "x_1"), (Some("x"), "x_1"), (Some("ab"), "ab"), (Some("abd"), "abd")] {
        assert_eq!(store.find(&ALL, start).unwrap(), expected);
    }
    assert!(matches!(store.find(&ALL, Some("a")), Err(StoreError::Ambiguous(_))));
    assert!(matches!(store.find(&ALL, Some("%")), Err(StoreError::NotFound(_))));
}

#[test]
fn export_and_import_give_the_same_conversations() {
    let fixture = Fixture::new();
    let store = &fixture.store;
    let mut update = turn("Add 1 and 2", "");
    update.messages[1].tool_calls = Some(json!([{ "id": "t", "type": "function",
        "function": { "name": "add", "arguments": "{\"a\":1}" } }]));
    update.messages[1].other = Map::from_iter([("finish".to_owned(), json!("tool_calls"))]);
    update.messages.push(message("r", Some("a"), Role::Tool, "3"));
    update.leaf = Some("r".into());
    update.settings = Some(Map::from_iter([("system".to_owned(), json!("Count."))]));
    store.put("", "c", update).unwrap();
    let read = store.conversation(&ALL, "c").unwrap();
    let text = to_json(std::slice::from_ref(&read)).unwrap();

    let other = Fixture::new();
    assert_eq!(other.store.import("", from_json(&text).unwrap()).unwrap(), 1);
    // A second time it adds nothing.
    assert_eq!(other.store.import("", from_json(&text).unwrap()).unwrap(), 1);
    assert_eq!(other.store.conversation(&ALL, "c").unwrap(), read);

    let markdown = to_markdown(&read);
    let expected = "# Add 1 and 2\n\n## System prompt\n\nCount.\n\n## You\n\nAdd 1 and 2\n\n## Model\n\n\
                    ```json\n{\"name\":\"add\",\"arguments\":\"{\\\"a\\\":1}\"}\n```\n\n## Tool\n\n3\n";
    assert_eq!(markdown, expected);
}

#[test]
fn import_of_a_wrong_file_stores_nothing() {
    for (text, problem) in [
        ("", "it has no conversations that Lanner exported"),
        ("[]", "it has no conversations that Lanner exported"),
        (r#"{"format":"x","version":1,"conversations":[]}"#, "its format is `x`"),
        (r#"{"format":"lanner-conversations","version":9,"conversations":[]}"#, "version 9 is newer"),
        (
            r#"{"format":"lanner-conversations","version":1,"conversations":[{}]}"#,
            "conversations[0]: missing field",
        ),
    ] {
        let error = from_json(text).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
    }
    let fixture = Fixture::new();
    let conversation = |id: &str, parent: Option<&str>| Conversation {
        id: id.into(),
        title: "t".into(),
        created: 1,
        updated: 1,
        leaf: None,
        messages: vec![message("m", parent, Role::User, "x")],
        settings: Map::new(),
    };
    let conversations = vec![conversation("good", None), conversation("bad", Some("gone"))];
    let error = fixture.store.import("", conversations).unwrap_err().to_string();
    assert!(error.starts_with("conversations[1].messages.m.parent: "), "{error}");
    assert!(fixture.store.list(&ALL, None, 10).unwrap().items.is_empty());
}
