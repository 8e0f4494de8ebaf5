//! The hosts from which images may be fetched.

use std::str::FromStr;

use serde::Deserialize;
use ureq::http::Uri;

use super::ImageUrlError;

/// Hosts of `--allow-image-urls`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct AllowedHost {
    /// Whether http is allowed, besides https.
    is_http: bool,
    name: HostName,
    /// `None`: the usual one of the scheme.
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum HostName {
    Any,
    One(String),
    /// Subdomains of this one, which begins with a dot.
    Below(String),
}

/// Where a URL leads.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target {
    is_https: bool,
    /// In lower case; of an address without brackets.
    pub(super) host: String,
    pub(super) port: u16,
}

impl FromStr for AllowedHost {
    type Err = String;

    fn from_str(text: &str) -> Result<AllowedHost, String> {
        let wrong = || {
            format!(
                "`{text}` is no host; write example.com, *.example.com for hosts below it, http://example.com to allow http too, or * for all"
            )
        };
        let lower = text.to_ascii_lowercase();
        let (is_http, rest) = match lower.split_once("://") {
            None => (false, &lower[..]),
            Some(("https", rest)) => (false, rest),
            Some(("http", rest)) => (true, rest),
            Some(_) => return Err(wrong()),
        };
        let (host, port) = match rest.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')) {
            Some((host, port)) => (host, Some(port.parse().map_err(|_| wrong())?)),
            None => (rest, None),
        };
        // Before a dot at the end is removed: `*.` is no pattern.
        let is_any = host == "*";
        let host = host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.');
        let is_name = |host: &str| {
            !host.is_empty()
                && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte))
        };
        let name = match host.strip_prefix("*.") {
            _ if is_any => HostName::Any,
            Some(parent) if is_name(parent) => HostName::Below(format!(".{parent}")),
            None if is_name(host) => HostName::One(host.to_owned()),
            _ => return Err(wrong()),
        };
        Ok(AllowedHost { is_http, name, port })
    }
}

impl TryFrom<String> for AllowedHost {
    type Error = String;

    fn try_from(text: String) -> Result<AllowedHost, String> {
        text.parse()
    }
}

impl AllowedHost {
    pub(super) fn allows(&self, target: &Target) -> bool {
        let is_named = match &self.name {
            HostName::Any => true,
            HostName::One(name) => target.host == *name,
            HostName::Below(parent) => target.host.ends_with(parent),
        };
        let usual = if target.is_https { 443 } else { 80 };
        is_named && (target.is_https || self.is_http) && target.port == self.port.unwrap_or(usual)
    }
}

impl Target {
    pub(super) fn parse(url: &str) -> Result<Target, ImageUrlError> {
        let bad = ImageUrlError::BadUrl;
        let scheme = url.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
        let is_https = match scheme.as_deref() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(bad("it must begin with https://")),
        };
        let uri: Uri = url.parse().map_err(|_| bad("it has no host, or characters that need encoding"))?;
        let authority = uri.authority().ok_or(bad("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(bad("it must not hold a user name or password"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        if host.is_empty() || host.contains('%') {
            return Err(bad("it has no host"));
        }
        let port = match authority.port_u16() {
            Some(port) => port,
            None if authority.as_str().len() != authority.host().len() => {
                return Err(bad("its port is no number"));
            }
            None => {
                if is_https {
                    443
                } else {
                    80
                }
            }
        };
        Ok(Target { is_https, host, port })
    }
}
