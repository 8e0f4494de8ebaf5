//! `lanner start`: starts a server, and waits until it is ready.

use std::{
    env,
    io::{self, Write},
    net::{SocketAddr, TcpListener},
    path::Path,
    process::Child,
    time::{Duration, Instant},
};

use tokio::runtime::Builder;

use super::{
    CommandError, ServerHealth, ServiceLock, file_error, forget, health, log, managed, plain, process,
    reachable, stop, url,
};
use crate::{
    commands::launch::process::Signals,
    config::StartConfig,
    sampling,
    server::unix_seconds,
    service::{
        Manager, ProgramFile, ServiceDefinition, ServiceError, ServiceFolders, ServiceRecord, VariableDigests,
    },
    terminal::say,
};

const POLL: Duration = Duration::from_millis(100);
/// Lines of the log that an error shows.
const TAIL: usize = 12;

/// Prints the server's address once it is ready.
///
/// # Errors
/// A server that was started otherwise runs already, its address is taken, or it does not get
/// ready; then the error ends with the last lines of its log.
pub fn start(config: &StartConfig) -> Result<(), CommandError> {
    // From here on Ctrl-C ends what was started.
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let mut signals = {
        let _entered = runtime.enter();
        Signals::new()?
    };
    let lock = ServiceLock::acquire(&config.folders)?;
    let (mut starting, is_own) = match running(config)? {
        Some(record) => (Starting { record, child: None }, false),
        None => {
            check_address(config.address)?;
            (Starting::begin(config)?, true)
        }
    };
    // `lanner stop` may end a server that loads for long.
    drop(lock);
    match runtime.block_on(starting.wait(config, &mut signals)) {
        Ok(address) => {
            starting.set_ready(address, &config.folders);
            let (url, about) = (url(address), starting.about());
            if is_own {
                say(format_args!("lanner: a server runs in the background at {url}{about}"));
                say("lanner: lanner status shows it, lanner logs its log; lanner stop ends it");
            }
            Ok(writeln!(io::stdout(), "{url}")?)
        }
        Err(error) => {
            if is_own && !matches!(error, ServiceError::Slow { .. }) {
                starting.abort(&config.folders);
            }
            Err(error.into())
        }
    }
}

/// A server that runs already as it is asked for.
fn running(config: &StartConfig) -> Result<Option<ServiceRecord>, ServiceError> {
    let folders = &config.folders;
    let Some(record) = ServiceRecord::read(&folders.record())? else { return Ok(None) };
    let found = process(&record, folders)?;
    let pid = found.pid.or(record.pid).unwrap_or(0);
    if !found.is_running {
        say(format_args!("lanner: the server before (process {pid}) has ended without lanner stop"));
        return Ok(None);
    }
    let differences = differences(&record, config)?;
    if !differences.is_empty() {
        let url = url(reachable(&record, folders));
        return Err(ServiceError::RunsDifferently { url, pid, what: differences.join(", ") });
    }
    say(format_args!("lanner: the server runs already (process {pid}); lanner status shows it"));
    Ok(Some(record))
}

/// Names of the settings in which the running server differs from the config.
fn differences(record: &ServiceRecord, config: &StartConfig) -> Result<Vec<String>, ServiceError> {
    let here = env::current_dir().map_err(file_error(Path::new(".")))?;
    let is_relative = |argument: &String| {
        let value = argument.split_once('=').map_or(&**argument, |(_, value)| value);
        !Path::new(value).is_absolute()
            && [&here, &record.folder].iter().any(|folder| folder.join(value).exists())
    };
    let differs = [
        ("flags", record.arguments != config.arguments),
        ("--manager", config.manager.is_some_and(|manager| manager != record.manager)),
        ("--at-login", config.at_login != record.at_login),
        (
            "folder of relative paths",
            here != record.folder && config.arguments.iter().skip(1).any(is_relative),
        ),
    ];
    let named = differs.iter().filter(|(_, differs)| *differs).map(|(name, _)| (*name).to_owned());
    Ok(named.chain(record.variables.differing(&config.environment)).collect())
}

/// Whether the server can listen there.
fn check_address(address: SocketAddr) -> Result<(), ServiceError> {
    match TcpListener::bind(address) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => match health(address) {
            ServerHealth::None => Err(ServiceError::PortTaken { address }),
            _ => Err(ServiceError::Foreign { url: url(address) }),
        },
        Err(error) => Err(ServiceError::Address { address, error }),
    }
}

/// A server that is not ready yet.
struct Starting {
    record: ServiceRecord,
    /// Process of a plain server.
    child: Option<Child>,
}

impl Starting {
    fn begin(config: &StartConfig) -> Result<Starting, ServiceError> {
        let StartConfig { folders, at_login, .. } = config;
        let manager = config.manager.unwrap_or_else(managed::default_manager);
        if *at_login && manager == Manager::Plain {
            return Err(ServiceError::NoLogin);
        }
        let here = |error| ServiceError::File { path: "lanner".into(), error };
        let program = env::current_exe().map_err(here)?;
        let folder = env::current_dir().map_err(here)?;
        let definition = ServiceDefinition {
            program: program.clone(),
            arguments: config.arguments.clone(),
            environment: config.environment.clone(),
            folder: folder.clone(),
            log: folders.log(),
            environment_file: folders.environment(),
        };
        log::rotate(folders)?;
        let child = match manager {
            Manager::Plain => Some(plain::spawn(&definition, folders)?),
            Manager::Systemd => managed::start_systemd(&definition, folders, *at_login).map(|()| None)?,
            Manager::Launchd => managed::start_launchd(&definition, folders, *at_login).map(|()| None)?,
        };
        let record = ServiceRecord {
            manager,
            at_login: *at_login,
            pid: child.as_ref().map(Child::id),
            address: config.address,
            is_ready: false,
            started: unix_seconds(),
            program: ProgramFile::read(&program).map_err(file_error(&program))?,
            arguments: config.arguments.clone(),
            variables: VariableDigests::new(format!("{:016x}", sampling::random()), &config.environment),
            folder,
        };
        let starting = Starting { record, child };
        let path = folders.record();
        if let Err(error) = starting.record.write(&path) {
            let failed = file_error(&path)(error);
            Starting::abort(starting, folders);
            return Err(failed);
        }
        Ok(starting)
    }

    /// Waits until the server answers.
    async fn wait(
        &mut self,
        config: &StartConfig,
        signals: &mut Signals,
    ) -> Result<SocketAddr, ServiceError> {
        let (started, folders) = (Instant::now(), &config.folders);
        let tail = || log::last_lines(&folders.log(), TAIL);
        loop {
            if self.has_ended(folders)? {
                return Err(ServiceError::Ended { log: folders.log(), tail: tail() });
            }
            if self.record.is_ready || log::address(&folders.log()).is_some() {
                let address = reachable(&self.record, folders);
                if let ServerHealth::Good(_) = health(address) {
                    return Ok(address);
                }
            }
            if started.elapsed() > config.wait {
                let seconds = config.wait.as_secs();
                return Err(ServiceError::Slow { seconds, log: folders.log(), tail: tail() });
            }
            if signals.within(POLL).await {
                return Err(ServiceError::Interrupted);
            }
        }
    }

    /// Records where the server listens, unless another command changes the record.
    fn set_ready(&mut self, address: SocketAddr, folders: &ServiceFolders) {
        let path = folders.record();
        let Ok(_lock) = ServiceLock::acquire(folders) else { return };
        if !matches!(ServiceRecord::read(&path), Ok(Some(record)) if record == self.record) {
            return;
        }
        // A server on all addresses is told so.
        let listens =
            if self.record.address.ip().is_unspecified() { self.record.address.ip() } else { address.ip() };
        self.record.address = SocketAddr::new(listens, address.port());
        self.record.is_ready = true;
        if let Err(error) = self.record.write(&path) {
            tracing::warn!("cannot write {}: {error}", path.display());
        }
    }

    /// A server that was restarted before it was ready counts as ended: it would crash again.
    fn has_ended(&mut self, folders: &ServiceFolders) -> Result<bool, ServiceError> {
        match &mut self.child {
            Some(child) => Ok(!matches!(child.try_wait(), Ok(None))),
            None => {
                let found = process(&self.record, folders)?;
                Ok(!found.is_running || found.restarts.is_some_and(|restarts| restarts > 0))
            }
        }
    }

    /// Ends what was started; its log stays.
    fn abort(mut self, folders: &ServiceFolders) {
        if let Some(child) = &mut self.child
            && child.try_wait().is_ok_and(|status| status.is_some())
        {
            let _ = forget(folders);
            return;
        }
        if let Err(error) = stop::end(&self.record, folders) {
            say(format_args!("lanner: warning: {error}"));
        }
    }

    /// The server's manager, in words.
    fn about(&self) -> String {
        let login = if self.record.at_login { ", also after each login" } else { "" };
        match (self.record.manager, self.record.pid) {
            (Manager::Plain, Some(pid)) => format!(" as process {pid}; nothing restarts it after a crash"),
            (manager, _) => format!(", restarted by {} after a crash{login}", manager.name()),
        }
    }
}
