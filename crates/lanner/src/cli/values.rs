//! Values of flags and config keys that have a notation of their own.

use std::{
    net::{IpAddr, Ipv4Addr},
    str::FromStr,
};

use clap::ValueEnum;
use serde::{Deserialize, Deserializer};

/// Values of the config file are written as those of flags.
macro_rules! written_as_flags {
    ($($name:ident),*) => {
        $(
            impl TryFrom<String> for $name {
                type Error = String;

                fn try_from(text: String) -> Result<$name, String> {
                    text.parse()
                }
            }
        )*
    };
}
written_as_flags!(SpeculateArg, HostAddress, CorsOrigin, ToolDialect, ModelAlias);

/// Speculative decoding, in the engine's notation.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct SpeculateArg(pub engine::Speculate);

impl FromStr for SpeculateArg {
    type Err = String;

    fn from_str(text: &str) -> Result<SpeculateArg, String> {
        text.parse().map(SpeculateArg)
    }
}

/// One text or a list of them, in the config file.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a string or an array of strings")]
pub(super) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    /// # Errors
    /// The value is neither.
    pub(super) fn deserialize_list<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<String>, D::Error> {
        Ok(match OneOrMany::deserialize(deserializer)? {
            OneOrMany::One(text) => vec![text],
            OneOrMany::Many(texts) => texts,
        })
    }
}

/// An address to listen on, or of a server: an IP address or `localhost`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct HostAddress(pub IpAddr);

impl FromStr for HostAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<HostAddress, String> {
        let address = match text.eq_ignore_ascii_case("localhost") {
            true => IpAddr::V4(Ipv4Addr::LOCALHOST),
            false => text.parse().map_err(|_| {
                format!("`{text}` is no IP address; write localhost, 0.0.0.0 for all networks, or an address")
            })?,
        };
        Ok(HostAddress(address))
    }
}

/// The origin of web pages, as browsers send it, or `*` for every one.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum CorsOrigin {
    Any,
    One(String),
}

impl FromStr for CorsOrigin {
    type Err = String;

    fn from_str(text: &str) -> Result<CorsOrigin, String> {
        let is_host =
            |host: &str| !host.is_empty() && host.bytes().all(|b| b.is_ascii_graphic() && b != b'/');
        match text.split_once("://") {
            _ if text == "*" => Ok(CorsOrigin::Any),
            Some((scheme, host)) if !scheme.is_empty() && is_host(host) => {
                Ok(CorsOrigin::One(text.to_ascii_lowercase()))
            }
            _ => Err(format!("`{text}` is no origin; write one as https://app.example:8443, or * for all")),
        }
    }
}

/// A syntax of tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ToolDialect(pub chat::tools::Dialect);

impl FromStr for ToolDialect {
    type Err = String;

    fn from_str(text: &str) -> Result<ToolDialect, String> {
        text.parse().map(ToolDialect)
    }
}

/// Another name for a model, as `NAME=MODEL`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ModelAlias {
    pub name: String,
    /// In the words of `--model`.
    pub model: String,
}

impl FromStr for ModelAlias {
    type Err = String;

    fn from_str(text: &str) -> Result<ModelAlias, String> {
        match text.split_once('=') {
            Some(("default", _)) => Err("`default` is the model of --model; choose another alias".into()),
            Some((name, model)) if !name.is_empty() && !model.is_empty() => {
                Ok(ModelAlias { name: name.into(), model: model.into() })
            }
            _ => Err(format!("`{text}` is not NAME=MODEL")),
        }
    }
}

/// A number of bytes: a number, a number with K, M, G or T (powers of 1024), or `off` for 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "NumberOrText")]
pub struct Bytes(pub usize);

#[derive(Deserialize)]
#[serde(untagged, expecting = "a number of bytes, or text such as \"4G\" or \"off\"")]
enum NumberOrText {
    Number(usize),
    Text(String),
}

impl TryFrom<NumberOrText> for Bytes {
    type Error = String;

    fn try_from(given: NumberOrText) -> Result<Bytes, String> {
        match given {
            NumberOrText::Number(bytes) => Ok(Bytes(bytes)),
            NumberOrText::Text(text) => text.parse(),
        }
    }
}

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Bytes, String> {
        if text == "off" {
            return Ok(Bytes(0));
        }
        let wrong = || format!("`{text}` is not a number of bytes; write one, 500M, 4G or off");
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = text[digits.len()..].to_ascii_uppercase();
        let shift = match unit.trim_end_matches("IB").trim_end_matches('B') {
            "" => 0,
            "K" => 10,
            "M" => 20,
            "G" => 30,
            "T" => 40,
            _ => return Err(wrong()),
        };
        let number: usize = digits.parse().map_err(|_| wrong())?;
        number.checked_mul(1 << shift).map(Bytes).ok_or_else(wrong)
    }
}

/// How weights are quantised.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum QuantizationMode {
    /// Integers with a scale and a bias per group.
    Affine,
    /// 4-bit floats with a power of two per 32.
    Mxfp4,
    /// 8-bit floats with a power of two per 32.
    Mxfp8,
    /// 4-bit floats with an 8-bit float per 16.
    Nvfp4,
}

#[derive(Clone, Copy, Debug, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Text,
    /// One object for each line.
    Json,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origin_has_a_scheme_and_a_host_and_no_path() {
        for text in ["https://app.example", "http://localhost:3000", "app://obsidian.md", "HTTPS://A.example"]
        {
            assert_eq!(text.parse(), Ok(CorsOrigin::One(text.to_ascii_lowercase())));
        }
        assert_eq!("*".parse(), Ok(CorsOrigin::Any));
        for text in
            ["", "app.example", "https://", "://a", "https://a/", "https://a/b", "https://a b", "null"]
        {
            assert!(text.parse::<CorsOrigin>().is_err(), "{text}");
        }
    }

    #[test]
    fn bytes_parse_with_and_without_units() {
        let check = |text: &str, expected: Option<usize>| {
            assert_eq!(text.parse().ok(), expected.map(Bytes), "{text}");
        };
        check("off", Some(0));
        check("0", Some(0));
        check("1000", Some(1000));
        check("4G", Some(4 << 30));
        check("4GiB", Some(4 << 30));
        check("500mb", Some(500 << 20));
        check("2k", Some(2048));
        check("many", None);
        check("-1", None);
        check("4X", None);
        check("99999999T", None);
        check("", None);
    }
}
