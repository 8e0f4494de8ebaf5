//! Answers stored for `previous_response_id` and for later reading, in memory: least recently used
//! ones are evicted beyond a size, and all of them after a time.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::server::tenant::{Client, Tenant};

/// Most bytes of stored answers and their input, as JSON.
const BUDGET: usize = 64 << 20;
/// How long an answer is stored after its last use.
const TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// Bytes of an entry besides its text.
const OVERHEAD: usize = 512;

#[derive(Debug)]
pub struct ResponseStore {
    budget: usize,
    ttl: Duration,
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    by_id: BTreeMap<String, Entry>,
    bytes: usize,
    /// Counts uses.
    clock: u64,
}

/// Values are stored as text, which takes a fraction of their memory.
#[derive(Debug)]
struct Entry {
    /// May continue it.
    tenant: Tenant,
    previous: Option<String>,
    /// The input items of this turn alone, as a JSON array.
    input: Box<str>,
    response: Box<str>,
    last_use: u64,
    expires: Instant,
}

/// A stored answer, by its response's id, and what it continues.
#[derive(Clone, Copy)]
pub struct Turn<'a> {
    pub id: &'a str,
    pub previous: Option<&'a str>,
    pub tenant: &'a Tenant,
    pub input: &'a [Value],
}

/// No answer with this id is stored for the client.
#[derive(Debug, PartialEq, Eq)]
pub struct NotStored(pub String);

impl Default for ResponseStore {
    fn default() -> ResponseStore {
        ResponseStore::new(BUDGET, TTL)
    }
}

impl ResponseStore {
    fn new(budget: usize, ttl: Duration) -> ResponseStore {
        ResponseStore { budget, ttl, entries: Mutex::default() }
    }

    /// Stores an answer, or replaces it. One that exceeds the budget is not stored.
    pub fn insert(&self, turn: Turn, response: &Value) {
        let mut entries = self.lock();
        entries.clock += 1;
        let entry = Entry {
            tenant: turn.tenant.clone(),
            previous: turn.previous.map(str::to_owned),
            input: Value::from(turn.input).to_string().into(),
            response: response.to_string().into(),
            last_use: entries.clock,
            expires: Instant::now() + self.ttl,
        };
        entries.remove(turn.id);
        entries.bytes += entry.bytes();
        entries.by_id.insert(turn.id.to_owned(), entry);
        entries.shrink(self.budget);
    }

    /// The response of this id.
    pub fn response(&self, id: &str, client: &Client) -> Result<Value, NotStored> {
        self.read(id, |tenant| tenant.client == *client, |entry| parse(&entry.response))
    }

    /// The input items of this turn alone.
    pub fn input(&self, id: &str, client: &Client) -> Result<Vec<Value>, NotStored> {
        self.read(id, |tenant| tenant.client == *client, |entry| items(parse(&entry.input)))
    }

    pub fn remove(&self, id: &str, client: &Client) -> Result<(), NotStored> {
        let mut entries = self.lock();
        if !entries.by_id.get(id).is_some_and(|entry| entry.tenant.client == *client) {
            return Err(NotStored(id.to_owned()));
        }
        entries.remove(id);
        Ok(())
    }

    /// Input and output items of a response and of all that it continues, oldest first.
    ///
    /// # Errors
    /// One of them is not stored any more.
    pub fn history(&self, id: &str, tenant: &Tenant) -> Result<Vec<Value>, NotStored> {
        let (mut turns, mut next) = (vec![], Some(id.to_owned()));
        while let Some(id) = next {
            let turn = self.read(
                &id,
                |owner| owner == tenant,
                |entry| (entry.previous.clone(), items(parse(&entry.input)), output(parse(&entry.response))),
            );
            let (previous, input, output) = turn?;
            turns.push([input, output].concat());
            next = previous;
        }
        turns.reverse();
        Ok(turns.concat())
    }

    /// An input or output item of any of the tenant's stored answers.
    pub fn item(&self, id: &str, tenant: &Tenant) -> Result<Value, NotStored> {
        let quoted = Value::from(id).to_string();
        let entries = self.lock();
        let holds = |entry: &&Entry| entry.response.contains(&quoted) || entry.input.contains(&quoted);
        let own = entries.by_id.values().rev().filter(|entry| entry.tenant == *tenant);
        let candidates = own.filter(holds);
        let mut all =
            candidates.flat_map(|entry| [output(parse(&entry.response)), items(parse(&entry.input))]);
        all.find_map(|items| items.into_iter().find(|item| item["id"] == id))
            .ok_or_else(|| NotStored(id.to_owned()))
    }

    /// Reads an entry of a permitted owner, which counts as a use.
    fn read<T>(
        &self,
        id: &str,
        is_permitted: impl FnOnce(&Tenant) -> bool,
        read: impl FnOnce(&Entry) -> T,
    ) -> Result<T, NotStored> {
        let mut entries = self.lock();
        entries.clock += 1;
        let (clock, expires) = (entries.clock, Instant::now() + self.ttl);
        let entry = entries.by_id.get_mut(id).filter(|entry| is_permitted(&entry.tenant));
        let entry = entry.ok_or_else(|| NotStored(id.to_owned()))?;
        (entry.last_use, entry.expires) = (clock, expires);
        Ok(read(entry))
    }

    /// The entries that have not expired.
    fn lock(&self) -> MutexGuard<'_, Entries> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        entries.by_id.retain(|_, entry| entry.expires > now);
        entries.bytes = entries.by_id.values().map(Entry::bytes).sum();
        entries
    }
}

impl Entries {
    fn remove(&mut self, id: &str) -> Option<Entry> {
        let entry = self.by_id.remove(id)?;
        self.bytes -= entry.bytes();
        Some(entry)
    }

    fn shrink(&mut self, budget: usize) {
        while self.bytes > budget {
            let oldest = self.by_id.iter().min_by_key(|(_, entry)| entry.last_use);
            let Some(id) = oldest.map(|(id, _)| id.clone()) else { return };
            self.remove(&id);
        }
    }
}

impl Entry {
    fn bytes(&self) -> usize {
        OVERHEAD + self.input.len() + self.response.len()
    }
}

fn parse(text: &str) -> Value {
    // It was written by `Value::to_string`.
    serde_json::from_str(text).unwrap_or_default()
}

fn items(value: Value) -> Vec<Value> {
    match value {
        Value::Array(items) => items,
        _ => vec![],
    }
}

fn output(mut response: Value) -> Vec<Value> {
    items(response["output"].take())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn insert(store: &ResponseStore, id: &str, previous: Option<&str>, text: &str) {
        insert_for(&Tenant::default(), store, id, previous, text);
    }

    fn insert_for(tenant: &Tenant, store: &ResponseStore, id: &str, previous: Option<&str>, text: &str) {
        let input = [json!({ "id": format!("in-{id}"), "text": text })];
        let response = json!({ "id": id, "output": [{ "id": format!("out-{id}"), "text": text }] });
        store.insert(Turn { id, previous, tenant, input: &input }, &response);
    }

    fn texts(items: &[Value]) -> String {
        items.iter().map(|item| item["id"].as_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn history_follows_the_chain_and_names_the_missing_link() {
        let store = ResponseStore::default();
        insert(&store, "a", None, "x");
        insert(&store, "b", Some("a"), "y");
        insert(&store, "c", Some("b"), "z");
        insert(&store, "other", Some("a"), "w");
        let tenant = Tenant::default();
        let (history, client) = (|id| store.history(id, &tenant), &tenant.client);
        assert_eq!(texts(&history("c").unwrap()), "in-a out-a in-b out-b in-c out-c");
        assert_eq!(store.response("b", client).unwrap()["id"], "b");
        assert_eq!(texts(&store.input("b", client).unwrap()), "in-b");
        assert_eq!(store.item("out-b", &tenant).unwrap()["text"], "y");
        assert_eq!(store.item("nothing", &tenant), Err(NotStored("nothing".into())));
        assert_eq!(store.remove("b", client), Ok(()));
        assert_eq!(store.remove("b", client), Err(NotStored("b".into())));
        assert_eq!(history("c"), Err(NotStored("b".into())));
        assert_eq!(texts(&history("other").unwrap()), "in-a out-a in-other out-other");
    }

    #[test]
    fn answers_of_another_key_or_salt_are_not_stored() {
        let store = ResponseStore::default();
        let client = |key: &str| Client { key: Some(key.into()), shares_prefixes: false };
        let tenant = |key: &str, salt: Option<&str>| Tenant::new(client(key), salt);
        insert_for(&tenant("ann", Some("s")), &store, "a", None, "x");
        let missing = |id: &str| Err(NotStored(id.into()));
        for other in [tenant("ann", None), tenant("ann", Some("t")), tenant("bob", Some("s"))] {
            assert_eq!(store.history("a", &other), Err(NotStored("a".into())), "{other:?}");
            assert_eq!(store.item("out-a", &other), missing("out-a"), "{other:?}");
        }
        assert_eq!(store.response("a", &client("bob")), missing("a"));
        assert!(store.input("a", &client("bob")).is_err());
        assert_eq!(store.remove("a", &client("bob")), Err(NotStored("a".into())));
        let own = tenant("ann", Some("s"));
        assert_eq!(texts(&store.history("a", &own).unwrap()), "in-a out-a");
        assert_eq!(store.response("a", &client("ann")).unwrap()["id"], "a");
        assert_eq!(store.remove("a", &client("ann")), Ok(()));
    }

    #[test]
    fn least_recently_used_answers_are_evicted() {
        let text = "t".repeat(1000);
        let store = ResponseStore::new(3 * (OVERHEAD + 2 * 1100), TTL);
        for id in ["a", "b", "c"] {
            insert(&store, id, None, &text);
        }
        store.response("a", &Client::default()).unwrap();
        insert(&store, "d", None, &text);
        let known = |id: &str| store.response(id, &Client::default()).is_ok();
        assert_eq!(["a", "b", "c", "d"].map(known), [true, false, true, true]);
        // Replacing one does not count it twice.
        (0..9).for_each(|_| insert(&store, "a", None, &text));
        assert_eq!(["a", "c", "d"].map(known), [true; 3]);
        insert(&store, "e", None, &"t".repeat(9000));
        assert!(!known("e"));
    }

    #[test]
    fn expired_answers_are_gone() {
        let store = ResponseStore::new(BUDGET, Duration::ZERO);
        insert(&store, "a", None, "x");
        assert_eq!(store.response("a", &Client::default()), Err(NotStored("a".into())));
        assert_eq!(store.lock().bytes, 0);
    }
}
