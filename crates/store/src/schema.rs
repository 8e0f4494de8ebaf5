//! The layout of the file, and the steps from each version to the next.

use rusqlite::{Connection, Transaction, TransactionBehavior};

use crate::{StoreError, search};

/// Marks the files of this program: `LANR`.
pub(crate) const APPLICATION: i64 = 0x4c41_4e52;
/// The newest layout.
pub(crate) const VERSION: i64 = MIGRATIONS.len() as i64;

/// A step to the next version: statements, and what they cannot do.
struct Migration {
    statements: &'static str,
    finish: fn(&Transaction) -> Result<(), StoreError>,
}

/// Never changed once released: files of every version go through the rest of them.
const MIGRATIONS: [Migration; 4] = [
    Migration { statements: include_str!("schema/1.sql"), finish: mark },
    Migration { statements: include_str!("schema/2.sql"), finish: search::index_all },
    Migration { statements: include_str!("schema/3.sql"), finish: |_| Ok(()) },
    Migration { statements: include_str!("schema/4.sql"), finish: |_| Ok(()) },
];

/// Brings a file to the newest version, each step whole or not at all.
pub(crate) fn migrate(connection: &mut Connection) -> Result<(), StoreError> {
    loop {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Another program may have begun at the same time.
        let version: i64 = transaction.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        let Some(next) = usize::try_from(version).ok().and_then(|version| MIGRATIONS.get(version)) else {
            return Ok(());
        };
        transaction.execute_batch(next.statements)?;
        (next.finish)(&transaction)?;
        transaction.pragma_update(None, "user_version", version + 1)?;
        transaction.commit()?;
    }
}

fn mark(transaction: &Transaction) -> Result<(), StoreError> {
    Ok(transaction.pragma_update(None, "application_id", APPLICATION)?)
}
