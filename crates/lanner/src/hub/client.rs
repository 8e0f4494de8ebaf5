//! HTTP requests to the hub: which errors are permanent, which are transient, and which hosts get
//! the token.

use std::{
    io::{ErrorKind, Read},
    time::Duration,
};

use ureq::{
    Agent,
    http::{
        Response, Uri,
        header::{AUTHORIZATION, HeaderMap, LOCATION, RANGE, RETRY_AFTER},
    },
    tls::{RootCerts, TlsConfig},
};

use super::{HubConfig, error::HubError, listing::Listing, name::RepoName};

const CONNECT: Duration = Duration::from_secs(15);
/// A connection without data for this long is dead.
const STALLED: Duration = Duration::from_secs(30);
const MAX_REDIRECTS: usize = 10;
/// Listings of the largest repositories have a few megabytes.
const MAX_LISTING: u64 = 64 << 20;

pub(super) struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
}

/// Why a request failed.
#[derive(Debug)]
pub(super) enum FetchError {
    Permanent(HubError),
    /// Another attempt may succeed, after `wait` if the hub asked for one.
    Transient {
        error: HubError,
        wait: Option<Duration>,
    },
}

impl From<HubError> for FetchError {
    fn from(error: HubError) -> FetchError {
        FetchError::Permanent(error)
    }
}

impl Client {
    pub(super) fn new(config: &HubConfig) -> Client {
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
        let agent = Agent::config_builder()
            .tls_config(tls)
            .proxy(config.proxy.clone())
            .http_status_as_error(false)
            // `get` follows redirects and decides which hosts get the token.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("lanner/", env!("CARGO_PKG_VERSION")))
            // Hashes and ranges refer to the uncompressed file.
            .accept_encoding("identity")
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(STALLED))
            .timeout_per_read(Some(STALLED))
            .build()
            .into();
        Client { agent, endpoint: config.endpoint.clone(), token: config.token.clone() }
    }

    /// The files of the repository at its revision.
    ///
    /// # Errors
    /// There is no such repository or revision, access is denied, or the failure is transient.
    pub(super) fn listing(&self, repo: &RepoName) -> Result<Listing, FetchError> {
        let revision = repo.revision().replace('/', "%2F");
        let url = format!("{}/api/models/{}/revision/{revision}?blobs=true", self.endpoint, repo.id());
        let response = self.get(repo, "", &url, 0)?;
        let mut body = Vec::new();
        let read = response.into_body().into_reader().take(MAX_LISTING).read_to_end(&mut body);
        read.map_err(|error| transient(unreachable(&url, &error)))?;
        Ok(Listing::parse(repo, &body)?)
    }

    /// A file's bytes from `from` on; the status says whether the hub started there.
    ///
    /// # Errors
    /// Those of [`listing`](Client::listing).
    pub(super) fn file(
        &self,
        repo: &RepoName,
        commit: &str,
        path: &str,
        from: u64,
    ) -> Result<Response<ureq::Body>, FetchError> {
        let url = format!("{}/{}/resolve/{commit}/{}", self.endpoint, repo.id(), percent_encoded(path));
        self.get(repo, path, &url, from)
    }

    fn get(
        &self,
        repo: &RepoName,
        file: &str,
        url: &str,
        from: u64,
    ) -> Result<Response<ureq::Body>, FetchError> {
        let mut url = url.to_owned();
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send(&url, from).map_err(|error| unsent(&url, &error))?;
            match response.status().as_u16() {
                200 | 206 | 416 => return Ok(response),
                301 | 302 | 303 | 307 | 308 => url = redirected(&url, response.headers())?,
                status => return Err(self.failure(status, response, repo, file, &url)),
            }
        }
        Err(FetchError::Permanent(HubError::Unreachable { url, reason: "too many redirects".into() }))
    }

    fn send(&self, url: &str, from: u64) -> Result<Response<ureq::Body>, ureq::Error> {
        let mut request = self.agent.get(url);
        // Files are on other hosts, with signed URLs: those must not get the token.
        if let Some(token) = self.token.as_ref().filter(|_| origin(url) == origin(&self.endpoint)) {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        if from > 0 {
            request = request.header(RANGE, format!("bytes={from}-"));
        }
        request.call()
    }

    fn failure(
        &self,
        status: u16,
        response: Response<ureq::Body>,
        repo: &RepoName,
        file: &str,
        url: &str,
    ) -> FetchError {
        let code = response.headers().get("x-error-code").and_then(|value| value.to_str().ok());
        let (code, token) = (code.unwrap_or_default().to_owned(), self.token.is_some());
        let (id, revision) = (repo.id(), repo.revision().to_owned());
        let wait = requested_wait(response.headers());
        let other = HubError::Status { url: url.into(), status };
        FetchError::Permanent(match (status, code.as_str()) {
            (401 | 403, "GatedRepo") => HubError::Gated { repo: id, token },
            (401 | 403, _) => HubError::Refused { repo: id, token },
            (404, "RevisionNotFound") => HubError::NoRevision { repo: id, revision },
            (404, "EntryNotFound") => HubError::NoFile { repo: id, file: file.into() },
            (404, _) if file.is_empty() && says_revision(response) => {
                HubError::NoRevision { repo: id, revision }
            }
            (404, _) if file.is_empty() => HubError::NoRepo { repo: id, endpoint: self.endpoint.clone() },
            (404, _) => HubError::NoFile { repo: id, file: file.into() },
            (429, _) => {
                let error = HubError::RateLimited { seconds: wait.map(|wait| wait.as_secs()), token };
                return FetchError::Transient { error, wait };
            }
            (408 | 500..=599, _) => return FetchError::Transient { error: other, wait },
            _ => other,
        })
    }
}

/// Whether the body of a 404 names the revision; older hubs send no error code.
fn says_revision(response: Response<ureq::Body>) -> bool {
    let mut text = String::new();
    let read = response.into_body().into_reader().take(4096).read_to_string(&mut text);
    read.is_ok() && text.contains("Invalid rev")
}

/// TLS errors are permanent; name resolution and connections may recover.
fn unsent(url: &str, error: &ureq::Error) -> FetchError {
    let reached = unreachable(url, error);
    match error {
        ureq::Error::Io(error) if error.kind() == ErrorKind::InvalidData => FetchError::Permanent(reached),
        ureq::Error::Tls(_) | ureq::Error::Rustls(_) | ureq::Error::BadUri(_) => {
            FetchError::Permanent(reached)
        }
        _ => transient(reached),
    }
}

fn transient(error: HubError) -> FetchError {
    FetchError::Transient { error, wait: None }
}

fn unreachable(url: &str, error: &dyn std::fmt::Display) -> HubError {
    HubError::Unreachable { url: url.into(), reason: error.to_string() }
}

/// The target of a redirect; HTTPS never redirects to HTTP.
fn redirected(url: &str, headers: &HeaderMap) -> Result<String, FetchError> {
    let to = headers.get(LOCATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if to.is_empty() {
        let reason = "it redirects to nowhere".into();
        return Err(FetchError::Permanent(HubError::Unreachable { url: url.into(), reason }));
    }
    let to = redirect_target(url, to);
    if url.starts_with("https:") && !to.starts_with("https:") {
        return Err(FetchError::Permanent(HubError::Downgrade { url: url.into(), to }));
    }
    Ok(to)
}

/// The URL that the reference `to` means at `url`.
pub(crate) fn redirect_target(url: &str, to: &str) -> String {
    match to {
        absolute if is_absolute(absolute) => absolute.to_owned(),
        host if host.starts_with("//") => format!("{}:{host}", url.split(':').next().unwrap_or_default()),
        path => format!("{}{}", origin(url).unwrap_or_default(), resolved(url, path)),
    }
}

/// Whether a URL begins with a scheme; the query of a relative URL may hold one too.
fn is_absolute(address: &str) -> bool {
    let scheme = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    address.split_once("://").is_some_and(|(start, _)| scheme(start))
}

/// Path and query of the relative reference `to` at `url`.
fn resolved(url: &str, to: &str) -> String {
    let base = url.parse::<Uri>().map(|uri| uri.path().to_owned()).unwrap_or_default();
    let (path, query) = to.split_at(to.find(['?', '#']).unwrap_or(to.len()));
    let folder = base.rsplit_once('/').map_or("", |(folder, _)| folder);
    let path = match path {
        "" => return format!("{base}{query}"),
        path if path.starts_with('/') => path.to_owned(),
        path => format!("{folder}/{path}"),
    };
    let mut parts = Vec::new();
    for part in path.split('/').skip(1) {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}{query}", parts.join("/"))
}

/// Scheme, host and port.
fn origin(url: &str) -> Option<String> {
    let uri: Uri = url.parse().ok()?;
    let (scheme, authority) = (uri.scheme_str()?, uri.authority()?);
    let port = authority.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
    Some(format!("{scheme}://{}:{port}", authority.host().to_ascii_lowercase()))
}

/// `Retry-After: 7`, or the hub's own `RateLimit: "api";r=0;t=7`.
fn requested_wait(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let retry_after = text(RETRY_AFTER.as_str()).and_then(|value| value.trim().parse().ok());
    let reset =
        || text("ratelimit")?.split(';').find_map(|field| field.trim().strip_prefix("t=")?.parse().ok());
    retry_after.or_else(reset).map(Duration::from_secs)
}

fn percent_encoded(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte);
    let encode = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    path.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origin_has_scheme_host_and_port() {
        assert_eq!(origin("https://Hub.example/a?b"), origin("https://hub.example:443"));
        for other in [
            "http://hub.example",
            "https://hub.example:8443",
            "https://cdn.hub.example",
            "https://hub.example.evil",
        ] {
            assert_ne!(origin("https://hub.example"), origin(other), "{other}");
        }
    }

    #[test]
    fn redirect_resolves_and_never_downgrades() {
        let check = |from: &str, to: &str| {
            let headers = HeaderMap::from_iter([(LOCATION, to.parse().unwrap())]);
            redirected(from, &headers).ok()
        };
        assert_eq!(check("https://a/x", "https://b/y").as_deref(), Some("https://b/y"));
        assert_eq!(check("https://a/x", "//b/y").as_deref(), Some("https://b/y"));
        assert_eq!(check("http://a:8/x", "/y?z").as_deref(), Some("http://a:8/y?z"));
        for (to, expected) in [
            ("y", "http://a:8/x/y"),
            ("./y?z=https://b/../c", "http://a:8/x/y?z=https://b/../c"),
            ("../cdn/y", "http://a:8/cdn/y"),
            ("../../../y", "http://a:8/y"),
            ("/b/../y", "http://a:8/y"),
            ("?q", "http://a:8/x/w?q"),
        ] {
            assert_eq!(check("http://a:8/x/w?v", to).as_deref(), Some(expected), "{to}");
        }
        assert_eq!(check("https://a/x", "http://a/x"), None);
        assert_eq!(check("https://a/x", ""), None);
    }

    #[test]
    fn requested_wait_reads_retry_after_and_ratelimit() {
        let check = |name: &'static str, value: &str| {
            let headers = HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())]);
            requested_wait(&headers).map(|wait| wait.as_secs())
        };
        assert_eq!(check("retry-after", "7"), Some(7));
        assert_eq!(check("ratelimit", "\"api\";r=0;t=55"), Some(55));
        assert_eq!(check("retry-after", "Wed, 21 Oct 2026 07:28:00 GMT"), None);
    }

    #[test]
    fn percent_encoded_encodes_each_byte() {
        assert_eq!(percent_encoded("a b/ü?.json"), "a%20b/%C3%BC%3F.json");
    }
}
