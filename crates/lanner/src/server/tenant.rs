//! Who sent a request, and which requests may share what the server stores: prefixes, idempotency
//! keys and responses.

use std::sync::Arc;

use engine::CacheSalt;

/// The sender of a request, by the name of its API key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// `None` on a server without several keys: then all clients are the same.
    pub key: Option<Arc<str>>,
    /// Whether prefixes are shared with other keys.
    pub shares_prefixes: bool,
}

/// Requests share what is stored only with those of the same tenant: the same key and `cache_salt`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tenant {
    pub client: Client,
    /// That of the request.
    pub cache_salt: Option<Arc<str>>,
}

impl Tenant {
    pub(crate) fn new(client: Client, cache_salt: Option<&str>) -> Tenant {
        Tenant { client, cache_salt: cache_salt.map(Arc::from) }
    }

    /// Separates the tenant's prefixes from those of others; `None` if they are shared by all that
    /// have none.
    pub(crate) fn prefix_salt(&self) -> Option<CacheSalt> {
        let key = self.client.key.as_deref().filter(|_| !self.client.shares_prefixes);
        let cache_salt = self.cache_salt.as_deref();
        (key.is_some() || cache_salt.is_some()).then(|| CacheSalt::new([key, cache_salt]))
    }

    /// The tenant's idempotency key for a model, which differs from the same key of any other
    /// tenant or model.
    pub(crate) fn scoped(&self, model: &str, idempotency_key: &str) -> String {
        format!("{:?} {:?} {model:?} {idempotency_key}", self.client.key, self.cache_salt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(key: Option<&str>, cache_salt: Option<&str>, shares_prefixes: bool) -> Tenant {
        Tenant::new(Client { key: key.map(Arc::from), shares_prefixes }, cache_salt)
    }

    #[test]
    fn prefix_salt_differs_by_key_and_cache_salt() {
        let names = [None, Some("a"), Some("b")];
        let all: Vec<Tenant> = names
            .iter()
            .flat_map(|key| names.map(|salt| tenant(*key, salt, false)))
            .chain([tenant(Some("a\" Some(\"b"), None, false), tenant(Some("a"), Some(""), false)])
            .collect();
        let salts: Vec<_> = all.iter().map(Tenant::prefix_salt).collect();
        let scoped: Vec<_> = all.iter().map(|tenant| tenant.scoped("m", "k")).collect();
        for i in 0..all.len() {
            assert_eq!(salts.iter().position(|salt| *salt == salts[i]), Some(i), "{:?}", all[i]);
            assert_eq!(scoped.iter().position(|key| *key == scoped[i]), Some(i), "{:?}", all[i]);
        }
        assert_eq!(salts[0], None);
    }

    #[test]
    fn shared_prefixes_leave_the_salt_of_the_request_only() {
        let shared = |key, salt| tenant(key, salt, true).prefix_salt();
        assert_eq!(shared(Some("a"), None), None);
        assert_eq!(shared(Some("a"), Some("x")), shared(Some("b"), Some("x")));
        assert_ne!(shared(Some("a"), Some("x")), shared(Some("a"), Some("y")));
        let scoped = |key, model| tenant(Some(key), None, true).scoped(model, "k");
        assert_ne!(scoped("a", "m"), scoped("b", "m"));
        assert_ne!(scoped("a", "m"), scoped("a", "m\" k"));
    }
}
