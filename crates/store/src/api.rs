//! What callers ask of a store: conversations, search, and figures of requests.

use crate::{
    Conversation, Cursor, Page, Period, RequestRecord, Scope, Store, StoreError, Summary, Update, UsageSum,
    conversation::{check_id, check_title},
    history, requests, search, usage,
};

impl Store {
    /// Makes a conversation or changes it.
    ///
    /// # Errors
    /// A field is not valid, or the file cannot be written.
    pub fn put(&self, owner: &str, id: &str, update: Update) -> Result<Summary, StoreError> {
        check_id("id", id)?;
        update.check()?;
        let (owner, id) = (owner.to_owned(), id.to_owned());
        self.write(move |transaction| history::put(transaction, &owner, &id, &update))
    }

    /// Adds conversations, and the messages that stored ones lack: all of them or none.
    ///
    /// # Errors
    /// A field is not valid, or the file cannot be written.
    pub fn import(&self, owner: &str, conversations: Vec<Conversation>) -> Result<usize, StoreError> {
        let (owner, count) = (owner.to_owned(), conversations.len());
        self.write(move |transaction| {
            for (at, conversation) in conversations.into_iter().enumerate() {
                let id = conversation.id.clone();
                let update = Update::from(conversation);
                let put = check_id("id", &id)
                    .and_then(|()| update.check())
                    .and_then(|()| history::put(transaction, &owner, &id, &update));
                put.map_err(|error| error.within(&format!("conversations[{at}]")))?;
            }
            Ok(count)
        })
    }

    /// Gives a conversation another title.
    ///
    /// # Errors
    /// There is none with this id, the title is not valid, or the file cannot be written.
    pub fn rename(&self, scope: &Scope, id: &str, title: &str) -> Result<Summary, StoreError> {
        check_title(title)?;
        let (scope, id, title) = (scope.clone(), id.to_owned(), title.to_owned());
        self.write(move |transaction| history::rename(transaction, &scope, &id, &title))
    }

    /// Removes a conversation.
    ///
    /// # Errors
    /// There is none with this id, or the file cannot be written.
    pub fn remove(&self, scope: &Scope, id: &str) -> Result<(), StoreError> {
        let (scope, id) = (scope.clone(), id.to_owned());
        self.write(move |transaction| history::remove(transaction, &scope, &id))?;
        self.checkpoint()
    }

    /// Removes all conversations; returns how many there were.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn remove_all(&self, scope: &Scope) -> Result<usize, StoreError> {
        let scope = scope.clone();
        let removed = self.write(move |transaction| history::remove_all(transaction, &scope))?;
        self.checkpoint()?;
        Ok(removed)
    }

    /// # Errors
    /// There is none with this id, or the file cannot be read.
    pub fn conversation(&self, scope: &Scope, id: &str) -> Result<Conversation, StoreError> {
        self.read(|state| history::read(state, scope, id))
    }

    /// About the bytes of a conversation as JSON.
    ///
    /// # Errors
    /// There is none with this id, or the file cannot be read.
    pub fn conversation_bytes(&self, scope: &Scope, id: &str) -> Result<usize, StoreError> {
        self.read(|state| history::bytes(state, scope, id))
    }

    /// The id of the only conversation whose id begins like this; `None` asks for the latest one.
    ///
    /// # Errors
    /// There is none or several, or the file cannot be read.
    pub fn find(&self, scope: &Scope, start: Option<&str>) -> Result<String, StoreError> {
        self.read(|state| history::find_start(state, scope, start.unwrap_or_default()))
    }

    /// Conversations, latest first.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn list(
        &self,
        scope: &Scope,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<Page<Summary>, StoreError> {
        self.read(|state| history::list(state, scope, after.unwrap_or(Cursor::START), limit))
    }

    /// Conversations that have all words, latest first. Words match from their start; in scripts
    /// without spaces, characters match anywhere.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn search(
        &self,
        scope: &Scope,
        query: &str,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<Page<Summary>, StoreError> {
        self.read(|state| search::search(state, scope, query, after.unwrap_or(Cursor::START), limit))
    }

    /// The latest requests, latest first.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn requests(&self, limit: usize) -> Result<Vec<RequestRecord>, StoreError> {
        self.read(|state| requests::latest(state, limit))
    }

    /// Sums of requests since a time in seconds since the Unix epoch, earliest first. The hour in
    /// which the time lies counts whole.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn usage(&self, period: Period, since: i64) -> Result<Vec<UsageSum>, StoreError> {
        self.read(|state| usage::sums(state, period, since))
    }

    /// Sums of this many days of this machine's time zone, today included, earliest first.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn days(&self, count: u32) -> Result<Vec<UsageSum>, StoreError> {
        self.read(|state| usage::sums(state, Period::Day, usage::start_of_days(state, count)?))
    }
}
