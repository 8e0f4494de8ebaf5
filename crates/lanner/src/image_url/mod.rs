//! Fetches images at http and https URLs that requests name, from hosts that the user allows. A
//! request must not reach what only this machine can reach: every address of a host must be public,
//! and the connection goes to an address that was checked.

mod address;
mod allowed;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    io::Read,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use ureq::{
    Agent,
    http::{
        Response, Uri,
        header::{CONTENT_LENGTH, HeaderMap, LOCATION},
    },
    tls::{RootCerts, TlsConfig},
    unversioned::{
        resolver::{ResolvedSocketAddrs, Resolver},
        transport::{DefaultConnector, NextTimeout},
    },
};

pub use self::allowed::AllowedHost;
use self::allowed::Target;
use crate::{hub::redirect_target, image::LIMITS};

const MAX_REDIRECTS: usize = 3;
const TIMEOUT: Duration = Duration::from_secs(10);
/// More addresses of one host are not tried.
const MAX_ADDRESSES: usize = 16;

/// Why a URL's image is not there, in words that do not tell what the host's address is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageUrlError {
    #[error("the URL is not valid: {0}")]
    BadUrl(&'static str),
    #[error("{0} is not among the hosts of --allow-image-urls")]
    NotAllowed(String),
    #[error("{0} has an address that is not public; images are fetched from public addresses only")]
    NotPublic(String),
    #[error("{0} cannot be found")]
    NotFound(String),
    #[error("it was not there in time; send a data: URI")]
    TimedOut,
    #[error("{0} cannot be reached, or its certificate or answer is not valid")]
    Unreachable(String),
    #[error("{host} answered with status {status}; the image must be readable without a login")]
    Status { host: String, status: u16 },
    #[error("it redirects more than {MAX_REDIRECTS} times, or to nowhere")]
    Redirects,
    #[error("it has more than {0} bytes; send a smaller image")]
    TooLarge(u64),
}

/// Fetches images from the hosts of an allow-list. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ImageUrls {
    allowed: Arc<[AllowedHost]>,
    /// For one image, redirects included.
    timeout: Duration,
    network: Arc<dyn Network>,
}

/// Finds hosts; a fake one in tests.
trait Network: fmt::Debug + Send + Sync {
    /// All addresses of a host.
    fn resolve(&self, host: &str) -> std::io::Result<Vec<IpAddr>>;

    /// Where to connect for an address that was checked.
    fn dial(&self, address: SocketAddr) -> SocketAddr {
        address
    }
}

/// The system's resolver.
#[derive(Debug)]
struct System;

impl Network for System {
    fn resolve(&self, host: &str) -> std::io::Result<Vec<IpAddr>> {
        Ok((host, 0).to_socket_addrs()?.map(|address| address.ip()).collect())
    }
}

impl ImageUrls {
    pub fn new(allowed: Vec<AllowedHost>) -> ImageUrls {
        ImageUrls { allowed: allowed.into(), timeout: TIMEOUT, network: Arc::new(System) }
    }

    /// The bytes of the image at a URL. Blocks for at most ten seconds, until `latest` at most.
    ///
    /// # Errors
    /// The host is not allowed or not public, or sends no image of an allowed size in time.
    pub fn fetch(&self, url: &str, latest: Instant) -> Result<Vec<u8>, ImageUrlError> {
        let end = latest.min(Instant::now() + self.timeout);
        let mut url = url.to_owned();
        for _ in 0..=MAX_REDIRECTS {
            let target = Target::parse(&url)?;
            let addresses = self.checked_addresses(&target, end)?;
            let response = get(&url, &target, addresses, end)?;
            match response.status().as_u16() {
                200 => return read(response, &target),
                301 | 302 | 303 | 307 | 308 => {
                    let to = location(response.headers()).ok_or(ImageUrlError::Redirects)?;
                    url = redirect_target(&url, to);
                }
                status => return Err(ImageUrlError::Status { host: target.host, status }),
            }
        }
        Err(ImageUrlError::Redirects)
    }

    /// The addresses of an allowed host, each of them public. Resolved once: an answer that changes
    /// afterwards is not seen.
    fn checked_addresses(&self, target: &Target, end: Instant) -> Result<Vec<SocketAddr>, ImageUrlError> {
        if !self.allowed.iter().any(|allowed| allowed.allows(target)) {
            return Err(ImageUrlError::NotAllowed(target.host.clone()));
        }
        let (sender, receiver) = mpsc::channel();
        let (network, host) = (self.network.clone(), target.host.clone());
        // Resolving has no time limit of its own.
        thread::spawn(move || sender.send(network.resolve(&host)));
        let found = receiver.recv_timeout(left(end)).map_err(|_| ImageUrlError::TimedOut)?;
        let found = found.map_err(|_| ImageUrlError::NotFound(target.host.clone()))?;
        if found.is_empty() {
            return Err(ImageUrlError::NotFound(target.host.clone()));
        }
        if !found.iter().all(|address| address::is_public(*address)) {
            return Err(ImageUrlError::NotPublic(target.host.clone()));
        }
        let addresses = found.into_iter().map(|address| SocketAddr::new(address, target.port));
        Ok(addresses.map(|address| self.network.dial(address)).collect())
    }
}

fn left(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now())
}

/// Answers every question with the addresses that were checked.
#[derive(Debug)]
struct Checked(Vec<SocketAddr>);

impl Resolver for Checked {
    fn resolve(
        &self,
        _: &Uri,
        _: &ureq::config::Config,
        _: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let mut found = self.empty();
        self.0.iter().take(MAX_ADDRESSES).for_each(|address| found.push(*address));
        Ok(found)
    }
}

/// Sends one request, without proxy, cookies or credentials.
fn get(
    url: &str,
    target: &Target,
    addresses: Vec<SocketAddr>,
    end: Instant,
) -> Result<Response<ureq::Body>, ImageUrlError> {
    let config = Agent::config_builder()
        .tls_config(TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build())
        .proxy(None)
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .user_agent(concat!("lanner/", env!("CARGO_PKG_VERSION")))
        .accept("image/png, image/jpeg, image/webp, image/gif")
        .accept_encoding("identity")
        .timeout_global(Some(left(end)))
        .build();
    let agent = Agent::with_parts(config, DefaultConnector::default(), Checked(addresses));
    agent.get(url).call().map_err(|error| match error {
        ureq::Error::Timeout(_) => ImageUrlError::TimedOut,
        error => unreachable(target, &error),
    })
}

fn read(response: Response<ureq::Body>, target: &Target) -> Result<Vec<u8>, ImageUrlError> {
    let limit = LIMITS.max_file_bytes;
    let declared =
        response.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if declared.is_some_and(|declared: u64| declared > limit) {
        return Err(ImageUrlError::TooLarge(limit));
    }
    let mut bytes = vec![];
    let read = response.into_body().into_reader().take(limit + 1).read_to_end(&mut bytes);
    match read {
        Err(error) if error.kind() == std::io::ErrorKind::TimedOut => Err(ImageUrlError::TimedOut),
        Err(error) => Err(unreachable(target, &error)),
        Ok(_) if bytes.len() as u64 > limit => Err(ImageUrlError::TooLarge(limit)),
        Ok(_) => Ok(bytes),
    }
}

/// The reason is logged, not told: it names what the host's certificate does.
fn unreachable(target: &Target, reason: &dyn fmt::Display) -> ImageUrlError {
    tracing::debug!("an image at {} cannot be fetched: {reason}", target.host);
    ImageUrlError::Unreachable(target.host.clone())
}

fn location(headers: &HeaderMap) -> Option<&str> {
    headers.get(LOCATION)?.to_str().ok().filter(|to| !to.is_empty())
}
