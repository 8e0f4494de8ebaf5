//! `lanner stop`: ends the server in the background, or unloads one model.

use std::net::IpAddr;

use super::{CommandError, ServiceLock, forget, managed, plain, process, reachable, url};
use crate::{
    commands::remote,
    config::StopConfig,
    service::{Manager, ServiceError, ServiceFolders, ServiceRecord},
    terminal::say,
};

/// # Errors
/// The server does not end; or, with a model, no server answers or it refuses.
pub fn stop(config: &StopConfig) -> Result<(), CommandError> {
    match config {
        StopConfig::Model(server, model) => remote::unload(server, model),
        StopConfig::Service { folders, host, port } => Ok(stop_service(folders, *host, *port)?),
    }
}

fn stop_service(
    folders: &ServiceFolders,
    host: Option<IpAddr>,
    port: Option<u16>,
) -> Result<(), ServiceError> {
    let Some(record) = ServiceRecord::read(&folders.record())? else {
        say("lanner: no server of lanner start runs");
        return Ok(());
    };
    let _lock = ServiceLock::acquire(folders)?;
    let (found, address) = (process(&record, folders)?, reachable(&record, folders));
    let mut asked = address;
    host.filter(|host| !host.is_unspecified()).into_iter().for_each(|host| asked.set_ip(host));
    port.into_iter().for_each(|port| asked.set_port(port));
    if asked != address {
        return Err(ServiceError::OtherAddress { found: url(address), asked: url(asked) });
    }
    end(&record, folders)?;
    match found.is_running {
        true => say(format_args!("lanner: the server at {} has ended", url(address))),
        false => say("lanner: the server had ended before"),
    }
    Ok(())
}

/// Ends the server if it runs, and forgets it.
pub(super) fn end(record: &ServiceRecord, folders: &ServiceFolders) -> Result<(), ServiceError> {
    match (record.manager, record.pid) {
        (Manager::Plain, Some(pid)) if plain::is_alive(folders)? => plain::stop(folders, pid)?,
        (Manager::Plain, _) => {}
        (Manager::Systemd, _) => managed::stop_systemd()?,
        (Manager::Launchd, _) => managed::stop_launchd(folders, record.at_login)?,
    }
    forget(folders)
}
