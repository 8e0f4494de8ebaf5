//! All servers of a configuration.

use std::{sync::Arc, thread};

use crate::{Cancel, Limits, McpError, Server, ServerList, ToolList};

/// How servers are used.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Limits of each server.
    pub limits: Limits,
    /// For servers on other machines.
    pub proxy: Option<ureq::Proxy>,
}

/// The servers of a configuration, which end when this is dropped.
#[derive(Debug)]
pub struct Servers(Vec<Arc<Server>>);

impl Servers {
    /// Starts none of them yet.
    pub fn new(list: ServerList, options: &Options) -> Servers {
        let server = |config| Arc::new(Server::new(config, options.clone()));
        Servers(list.servers.into_iter().map(server).collect())
    }

    /// In the order of the configuration.
    pub fn all(&self) -> &[Arc<Server>] {
        &self.0
    }

    /// The server of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<Server>> {
        self.0.iter().find(|server| server.name() == name)
    }

    /// The tools of some servers, all asked at the same time.
    pub fn list(servers: &[Arc<Server>], cancel: &Cancel) -> Vec<Result<Arc<ToolList>, McpError>> {
        thread::scope(|scope| {
            let asked: Vec<_> = servers.iter().map(|server| scope.spawn(|| server.tools(cancel))).collect();
            let answers = asked.into_iter().zip(servers).map(|(asked, server)| {
                let reason = "a thread of this client failed".to_owned();
                asked.join().unwrap_or_else(|_| Err(McpError::Start { server: server.name().into(), reason }))
            });
            answers.collect()
        })
    }

    /// Ends all servers, and with them the processes that they started.
    pub fn stop(&self) {
        thread::scope(|scope| {
            self.0.iter().for_each(|server| _ = scope.spawn(|| server.stop()));
        });
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.stop();
    }
}
