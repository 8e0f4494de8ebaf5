//! Unloads models that no request has used for their time.

use std::time::Instant;

use super::registry::Registry;

/// Runs until it is dropped.
pub(crate) async fn unload_expired(registry: Registry) {
    loop {
        let (expired, next) = registry.expire(Instant::now());
        expired.iter().for_each(|server| tracing::info!("unloading {}: it is not used", server.name()));
        // Their engines stop on threads of their own.
        drop(expired);
        let until_next = async {
            match next {
                Some(next) => tokio::time::sleep_until(next.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = until_next => {}
            () = registry.changed() => {}
        }
    }
}
