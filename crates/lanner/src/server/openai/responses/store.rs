//! Answers stored for `previous_response_id` and for later reading, in memory: least recently used
//! ones are evicted beyond a size, and all of them after a time. Nothing is parsed or written while
//! the store is locked.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::body::Bytes;
use serde_json::Value;

use super::stored_item::{ItemsSize, StoredItem};
use crate::server::{
    openai::{MAX_MESSAGES, MAX_VALUES},
    tenant::{Client, Tenant},
};

/// Most bytes of stored answers and their input, as JSON.
const BUDGET: usize = 64 << 20;
/// How long an answer is stored after its last use.
const TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// Bytes of an entry besides its text.
const OVERHEAD: usize = 512;
/// Most that one request takes of the store: what a body may hold, the text of a context of two
/// million tokens, and half of the store in images.
pub const MAX_TAKEN: ItemsSize =
    ItemsSize { items: MAX_MESSAGES, values: MAX_VALUES, bytes: 8 << 20, image_bytes: BUDGET / 2 };

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

#[derive(Debug)]
struct Entry {
    /// May continue it.
    tenant: Tenant,
    previous: Option<String>,
    /// Of this turn alone.
    input: Arc<[StoredItem]>,
    output: Arc<[StoredItem]>,
    /// The response with its output, as it is read.
    response: Bytes,
    last_use: u64,
    expires: Instant,
}

/// A stored answer, by its response's id, and what it continues.
#[derive(Clone, Copy)]
pub struct Turn<'a> {
    pub id: &'a str,
    pub previous: Option<&'a str>,
    pub tenant: &'a Tenant,
    pub input: &'a Arc<[StoredItem]>,
}

/// No answer with this id is stored for the client.
#[derive(Debug, PartialEq, Eq)]
pub struct NotStored(pub String);

/// Why a request does not get its stored items.
#[derive(Debug, PartialEq, Eq)]
pub enum TakeError {
    NotStored(String),
    /// They exceed [`MAX_TAKEN`].
    TooMuch,
}

/// Counts what one request takes of the store.
#[derive(Debug, Default)]
pub struct Taken(ItemsSize);

impl Taken {
    /// # Errors
    /// Together with all before it, it is too much.
    fn add(&mut self, item: &StoredItem) -> Result<(), TakeError> {
        self.0 += item.size();
        let ItemsSize { items, values, bytes, image_bytes } = self.0;
        let is_small = items <= MAX_TAKEN.items && values <= MAX_TAKEN.values;
        let is_within = is_small && bytes <= MAX_TAKEN.bytes && image_bytes <= MAX_TAKEN.image_bytes;
        is_within.then_some(()).ok_or(TakeError::TooMuch)
    }

    pub fn bytes(&self) -> usize {
        self.0.bytes + self.0.image_bytes
    }
}

type Found = (Arc<[StoredItem]>, usize);

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
        let output = response["output"].as_array().map_or(&[][..], Vec::as_slice);
        let (output, response) = (StoredItem::all(output).into(), response.to_string().into());
        let mut entries = self.lock();
        entries.clock += 1;
        let entry = Entry {
            tenant: turn.tenant.clone(),
            previous: turn.previous.map(str::to_owned),
            input: turn.input.clone(),
            output,
            response,
            last_use: entries.clock,
            expires: Instant::now() + self.ttl,
        };
        entries.remove(turn.id);
        entries.bytes += entry.bytes();
        entries.by_id.insert(turn.id.to_owned(), entry);
        entries.shrink(self.budget);
    }

    /// The response of this id, as JSON.
    pub fn response(&self, id: &str, client: &Client) -> Result<Bytes, NotStored> {
        self.read(id, |tenant| tenant.client == *client, |entry| entry.response.clone())
    }

    /// The input items of this turn alone.
    pub fn input(&self, id: &str, client: &Client) -> Result<Arc<[StoredItem]>, NotStored> {
        self.read(id, |tenant| tenant.client == *client, |entry| entry.input.clone())
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
    /// One of them is not stored any more, or they are too much.
    pub fn history(&self, id: &str, tenant: &Tenant, taken: &mut Taken) -> Result<Vec<Value>, TakeError> {
        let (mut turns, mut next) = (vec![], Some(id.to_owned()));
        while let Some(id) = next {
            let turn = self.read(
                &id,
                |owner| owner == tenant,
                |entry| (entry.previous.clone(), [entry.input.clone(), entry.output.clone()]),
            );
            let (previous, items) = turn.map_err(|NotStored(id)| TakeError::NotStored(id))?;
            items.iter().flat_map(|items| items.iter()).try_for_each(|item| taken.add(item))?;
            turns.push(items);
            next = previous;
        }
        let items = turns.iter().rev().flatten().flat_map(|items| items.iter());
        Ok(items.map(StoredItem::parse).collect())
    }

    /// Input or output items of any of the tenant's stored answers, by their ids.
    ///
    /// # Errors
    /// One of them is not stored any more, or they are too much.
    pub fn items(&self, ids: &[&str], tenant: &Tenant, taken: &mut Taken) -> Result<Vec<Value>, TakeError> {
        let found = self.find(ids, tenant);
        let mut items = Vec::with_capacity(ids.len());
        for id in ids {
            let Some(Some((list, at))) = found.get(id) else {
                return Err(TakeError::NotStored((*id).to_owned()));
            };
            taken.add(&list[*at])?;
            items.push(&list[*at]);
        }
        Ok(items.into_iter().map(StoredItem::parse).collect())
    }

    /// The list that has each item, and its place there.
    fn find<'a>(&self, ids: &[&'a str], tenant: &Tenant) -> HashMap<&'a str, Option<Found>> {
        let mut found: HashMap<&str, Option<Found>> = ids.iter().map(|id| (*id, None)).collect();
        let mut missing = found.len();
        let entries = self.lock();
        let own = entries.by_id.values().rev().filter(|entry| entry.tenant == *tenant);
        for list in own.flat_map(|entry| [&entry.output, &entry.input]) {
            if missing == 0 {
                break;
            }
            for (at, item) in list.iter().enumerate() {
                if let Some(place @ None) = found.get_mut(&*item.id) {
                    *place = Some((list.clone(), at));
                    missing -= 1;
                }
            }
        }
        found
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
        let mut freed = 0;
        entries.by_id.retain(|_, entry| {
            let expired = entry.expires <= now;
            freed += if expired { entry.bytes() } else { 0 };
            !expired
        });
        entries.bytes -= freed;
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
        let items = self.input.iter().chain(self.output.iter());
        OVERHEAD + self.response.len() + items.map(StoredItem::bytes).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn insert(store: &ResponseStore, id: &str, previous: Option<&str>, text: &str) {
        insert_for(&Tenant::default(), store, id, previous, text);
    }

    fn insert_for(tenant: &Tenant, store: &ResponseStore, id: &str, previous: Option<&str>, text: &str) {
        let input = StoredItem::all(&[message(&format!("in-{id}"), text)]).into();
        let response = json!({ "id": id, "output": [message(&format!("out-{id}"), text)] });
        store.insert(Turn { id, previous, tenant, input: &input }, &response);
    }

    fn message(id: &str, text: &str) -> Value {
        json!({ "type": "message", "id": id, "role": "user", "content": text })
    }

    fn history(store: &ResponseStore, id: &str, tenant: &Tenant) -> Result<Vec<Value>, TakeError> {
        store.history(id, tenant, &mut Taken::default())
    }

    fn item(store: &ResponseStore, id: &str, tenant: &Tenant) -> Result<Value, TakeError> {
        store.items(&[id], tenant, &mut Taken::default()).map(|mut items| items.remove(0))
    }

    fn missing(id: &str) -> TakeError {
        TakeError::NotStored(id.into())
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
        let (history, client) = (|id| history(&store, id, &tenant), &tenant.client);
        assert_eq!(texts(&history("c").unwrap()), "in-a out-a in-b out-b in-c out-c");
        let response: Value = serde_json::from_slice(&store.response("b", client).unwrap()).unwrap();
        assert_eq!(response["id"], "b");
        assert_eq!(store.input("b", client).unwrap()[0].parse(), message("in-b", "y"));
        assert_eq!(item(&store, "out-b", &tenant).unwrap()["content"], "y");
        assert_eq!(item(&store, "nothing", &tenant), Err(missing("nothing")));
        assert_eq!(store.remove("b", client), Ok(()));
        assert_eq!(store.remove("b", client), Err(NotStored("b".into())));
        assert_eq!(history("c"), Err(missing("b")));
        assert_eq!(texts(&history("other").unwrap()), "in-a out-a in-other out-other");
    }

    #[test]
    fn answers_of_another_key_or_salt_are_not_stored() {
        let store = ResponseStore::default();
        let client = |key: &str| Client { key: Some(key.into()), shares_prefixes: false };
        let tenant = |key: &str, salt: Option<&str>| Tenant::new(client(key), salt);
        insert_for(&tenant("ann", Some("s")), &store, "a", None, "x");
        let not_stored = |id: &str| Err(NotStored(id.into()));
        for other in [tenant("ann", None), tenant("ann", Some("t")), tenant("bob", Some("s"))] {
            assert_eq!(history(&store, "a", &other), Err(missing("a")), "{other:?}");
            assert_eq!(item(&store, "out-a", &other), Err(missing("out-a")), "{other:?}");
        }
        assert_eq!(store.response("a", &client("bob")), not_stored("a"));
        assert!(store.input("a", &client("bob")).is_err());
        assert_eq!(store.remove("a", &client("bob")), Err(NotStored("a".into())));
        let own = tenant("ann", Some("s"));
        assert_eq!(texts(&history(&store, "a", &own).unwrap()), "in-a out-a");
        assert!(store.response("a", &client("ann")).is_ok());
        assert_eq!(store.remove("a", &client("ann")), Ok(()));
    }

    #[test]
    fn least_recently_used_answers_are_evicted() {
        let text = "t".repeat(1000);
        let store = ResponseStore::new(3 * (OVERHEAD + 3 * 1200), TTL);
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
        insert(&store, "e", None, &"t".repeat(20_000));
        assert!(!known("e"));
    }

    #[test]
    fn expired_answers_are_gone() {
        let store = ResponseStore::new(BUDGET, Duration::ZERO);
        insert(&store, "a", None, "x");
        assert_eq!(store.response("a", &Client::default()), Err(NotStored("a".into())));
        assert_eq!(store.lock().bytes, 0);
    }

    #[test]
    fn stored_items_beyond_the_limits_are_not_taken() {
        let (store, tenant) = (ResponseStore::default(), Tenant::default());
        insert(&store, "large", None, &"t".repeat(MAX_TAKEN.bytes / 4));
        let take = |count: usize, id| store.items(&vec![id; count], &tenant, &mut Taken::default());
        assert_eq!(take(3, "in-large").unwrap().len(), 3);
        assert_eq!(take(4, "in-large"), Err(TakeError::TooMuch));
        insert(&store, "small", None, "x");
        assert_eq!(take(MAX_TAKEN.items, "in-small").unwrap().len(), MAX_TAKEN.items);
        assert_eq!(take(MAX_TAKEN.items + 1, "in-small"), Err(TakeError::TooMuch));
        // A chain counts like references, and together with them.
        insert(&store, "next", Some("large"), "x");
        insert(&store, "last", Some("next"), &"t".repeat(MAX_TAKEN.bytes / 4));
        assert_eq!(history(&store, "last", &tenant), Err(TakeError::TooMuch));
        let mut taken = Taken::default();
        assert_eq!(store.history("next", &tenant, &mut taken).unwrap().len(), 4);
        assert_eq!(store.items(&["in-large"; 2], &tenant, &mut taken), Err(TakeError::TooMuch));
    }
}
