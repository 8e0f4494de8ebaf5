//! Search in conversations: which have all words of a query, in their titles and messages.
//!
//! A row of the index has words of one conversation that its earlier rows lack, so a word is found
//! once for each conversation that has it. The words of a query are looked up one by one.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashSet},
};

use rusqlite::{OptionalExtension, Transaction, params};

use crate::{
    Cursor, Page, Scope, StoreError, Summary,
    history::{SUMMARY, page, summary},
    words::{QueryWord, folded, query_words, words},
};

/// Bits of a row's number that count the rows of a conversation.
const ROW_BITS: u32 = 20;
/// After this many rows a conversation is indexed anew, in one row.
const MOST_ROWS: i64 = 1000;
/// Up to this many matches are looked up one by one and sorted; for more, the list is walked.
const FEW: usize = 500;
/// Characters on either side of a match that a result shows.
const AROUND: usize = 40;
/// Bytes of a message that are searched for the text around a match.
const SHOWN_BYTES: usize = 256 << 10;

/// Conversations after the cursor that have all words, latest first.
pub(crate) fn search(
    state: &Transaction,
    scope: &Scope,
    query: &str,
    after: Cursor,
    limit: usize,
) -> Result<Page<Summary>, StoreError> {
    let words = query_words(query);
    let found = matches(state, &words)?;
    let mut rows = match found.len() <= FEW {
        true => sorted(state, scope, &found, after, limit + 1)?,
        false => walked(state, scope, &found, after, limit + 1)?,
    };
    for (cursor, summary) in rows.iter_mut().take(limit) {
        summary.snippet = snippet(state, cursor.number, &words)?;
    }
    Ok(page(rows, limit))
}

/// Numbers of the conversations that have all words, ascending.
fn matches(state: &Transaction, words: &[QueryWord]) -> Result<Vec<i64>, StoreError> {
    let mut statement =
        state.prepare("SELECT rowid >> ?2 FROM search WHERE search MATCH ?1 ORDER BY rowid")?;
    let mut found: Option<Vec<i64>> = None;
    for QueryWord { word, is_prefix } in words {
        // A word has letters and digits only.
        let pattern = format!("\"{word}\"{}", if *is_prefix { "*" } else { "" });
        let mut rows = statement.query(params![pattern, ROW_BITS])?;
        let mut numbers: Vec<i64> = vec![];
        while let Some(row) = rows.next()? {
            let number = row.get(0)?;
            if numbers.last() != Some(&number) {
                numbers.push(number);
            }
        }
        let both = match found {
            None => numbers,
            Some(found) => found.into_iter().filter(|number| numbers.binary_search(number).is_ok()).collect(),
        };
        if both.is_empty() {
            return Ok(both);
        }
        found = Some(both);
    }
    Ok(found.unwrap_or_default())
}

/// The first matches after the cursor, all of which are looked up.
fn sorted(
    state: &Transaction,
    scope: &Scope,
    found: &[i64],
    after: Cursor,
    most: usize,
) -> Result<Vec<(Cursor, Summary)>, StoreError> {
    let mut place = state.prepare("SELECT updated, owner FROM conversation WHERE number = ?1")?;
    let mut cursors = vec![];
    for &number in found {
        let found = place.query_row([number], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?)));
        let Some((updated, owner)) = found.optional()? else { continue };
        let is_before = (updated, number) < (after.updated, after.number);
        if is_before && scope.owner().is_none_or(|wanted| wanted == owner) {
            cursors.push((updated, number));
        }
    }
    cursors.sort_unstable_by_key(|place| Reverse(*place));
    read_all(state, cursors.into_iter().take(most).map(|(_, number)| number))
}

/// The first matches in the list after the cursor.
fn walked(
    state: &Transaction,
    scope: &Scope,
    found: &[i64],
    after: Cursor,
    most: usize,
) -> Result<Vec<(Cursor, Summary)>, StoreError> {
    let found: HashSet<i64> = found.iter().copied().collect();
    let owned = if scope.owner().is_some() { "owner = ?1 AND" } else { "?1 IS NULL AND" };
    let mut list = state.prepare(&format!(
        "SELECT number FROM conversation WHERE {owned} (updated, number) < (?2, ?3)
         ORDER BY updated DESC, number DESC"
    ))?;
    let mut rows = list.query(params![scope.owner(), after.updated, after.number])?;
    let mut numbers = vec![];
    while let Some(row) = rows.next()?.filter(|_| numbers.len() < most) {
        let number: i64 = row.get(0)?;
        if found.contains(&number) {
            numbers.push(number);
        }
    }
    read_all(state, numbers.into_iter())
}

fn read_all(
    state: &Transaction,
    numbers: impl Iterator<Item = i64>,
) -> Result<Vec<(Cursor, Summary)>, StoreError> {
    let mut statement = state.prepare(&format!("SELECT {SUMMARY} FROM conversation WHERE number = ?1"))?;
    numbers.map(|number| Ok(statement.query_row([number], summary)?)).collect()
}

/// The text around the first match of a word in a message.
fn snippet(state: &Transaction, number: i64, words: &[QueryWord]) -> Result<Option<String>, StoreError> {
    let mut statement =
        state.prepare("SELECT substr(text, 1, ?2) FROM message WHERE conversation = ?1 ORDER BY number")?;
    let mut rows = statement.query(params![number, SHOWN_BYTES as i64])?;
    while let Some(row) = rows.next()? {
        let text: String = row.get(0)?;
        if let Some(shown) = words.iter().find_map(|word| around(&text, &word.word)) {
            return Ok(Some(shown));
        }
    }
    Ok(None)
}

/// The text around a word, in one line.
fn around(text: &str, word: &str) -> Option<String> {
    let word: Vec<char> = word.chars().collect();
    let chars: Vec<char> = text.chars().collect();
    let is_here = |at: usize| {
        let mut letters = chars[at..].iter().flat_map(|c| folded(*c));
        word.iter().all(|c| letters.next() == Some(*c))
    };
    let starts = |at: &usize| *at == 0 || !chars[at - 1].is_alphanumeric() || !word[0].is_ascii();
    let at = (0..chars.len()).filter(starts).find(|at| is_here(*at))?;
    let (from, to) = (at.saturating_sub(AROUND), (at + word.len() + AROUND).min(chars.len()));
    let shown: String = chars[from..to].iter().collect();
    let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    let [before, after] = [from > 0, to < chars.len()].map(|is_cut| if is_cut { "…" } else { "" });
    Some(format!("{before}{shown}{after}"))
}

/// Adds words of new messages to the index; made before they are stored.
pub(crate) struct Indexer<'a> {
    transaction: &'a Transaction<'a>,
    number: i64,
    known: BTreeSet<String>,
}

impl<'a> Indexer<'a> {
    pub(crate) fn new(
        transaction: &'a Transaction<'a>,
        number: i64,
        is_new: bool,
    ) -> Result<Indexer<'a>, StoreError> {
        let known = if is_new { BTreeSet::new() } else { all_words(transaction, number)? };
        Ok(Indexer { transaction, number, known })
    }

    pub(crate) fn add<'t>(mut self, texts: impl Iterator<Item = &'t str>) -> Result<(), StoreError> {
        let mut new = BTreeSet::new();
        texts.for_each(|text| new.extend(words(text)));
        new.retain(|word| !self.known.contains(word));
        self.known.clear();
        let query = "SELECT indexed FROM conversation WHERE number = ?1";
        let rows: i64 = self.transaction.query_row(query, [self.number], |row| row.get(0))?;
        match rows {
            _ if new.is_empty() => Ok(()),
            0..MOST_ROWS => add_row(self.transaction, self.number, rows, &new),
            _ => reindex(self.transaction, self.number),
        }
    }
}

/// Indexes a conversation anew, in one row.
pub(crate) fn reindex(transaction: &Transaction, number: i64) -> Result<(), StoreError> {
    unindex(transaction, number)?;
    let words = all_words(transaction, number)?;
    if words.is_empty() { Ok(()) } else { add_row(transaction, number, 0, &words) }
}

/// Removes the words of a conversation.
pub(crate) fn unindex(transaction: &Transaction, number: i64) -> Result<(), StoreError> {
    let query = "SELECT indexed FROM conversation WHERE number = ?1";
    let rows: i64 = transaction.query_row(query, [number], |row| row.get(0))?;
    let mut statement = transaction.prepare("DELETE FROM search WHERE rowid = ?1")?;
    for row in 0..rows {
        statement.execute([(number << ROW_BITS) | row])?;
    }
    transaction.execute("UPDATE conversation SET indexed = 0 WHERE number = ?1", [number])?;
    Ok(())
}

/// Indexes all conversations of a file that had no index.
pub(crate) fn index_all(transaction: &Transaction) -> Result<(), StoreError> {
    let mut statement = transaction.prepare("SELECT number FROM conversation")?;
    let numbers: Vec<i64> = statement.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    numbers.iter().try_for_each(|number| reindex(transaction, *number))
}

fn add_row(
    transaction: &Transaction,
    number: i64,
    row: i64,
    words: &BTreeSet<String>,
) -> Result<(), StoreError> {
    let words = words.iter().map(String::as_str).collect::<Vec<_>>().join(" ");
    transaction.execute(
        "INSERT INTO search (rowid, words) VALUES (?1, ?2)",
        params![(number << ROW_BITS) | row, words],
    )?;
    transaction
        .execute("UPDATE conversation SET indexed = ?2 WHERE number = ?1", params![number, row + 1])?;
    Ok(())
}

/// The words of a conversation's title and messages.
fn all_words(state: &Transaction, number: i64) -> Result<BTreeSet<String>, StoreError> {
    let mut found = BTreeSet::new();
    let mut statement = state.prepare(
        "SELECT title FROM conversation WHERE number = ?1
         UNION ALL SELECT text FROM message WHERE conversation = ?1",
    )?;
    let mut rows = statement.query([number])?;
    while let Some(row) = rows.next()? {
        found.extend(words(row.get_ref(0)?.as_str().unwrap_or_default()));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn around_shows_the_match_in_one_line() {
        assert_eq!(around("An owl\nhunts  at night.", "hun").as_deref(), Some("An owl hunts at night."));
        assert_eq!(around("the Éclair", "eclair").as_deref(), Some("the Éclair"));
        assert_eq!(around("snowland", "owl"), None);
        assert_eq!(around("今天天气很好", "天气").as_deref(), Some("今天天气很好"));
        let long = format!("{} needle {}", "a".repeat(100), "b".repeat(100));
        let shown = around(&long, "needle").unwrap();
        assert!(shown.starts_with("…a") && shown.ends_with("b…") && shown.chars().count() <= 88, "{shown}");
    }
}
