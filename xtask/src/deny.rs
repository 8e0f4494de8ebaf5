//! `xtask deny`: checks licences, sources and duplicate versions of dependencies against
//! `deny.toml`, offline. `cargo deny check` reads the same file and also checks advisories.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use serde_json::Value;

/// The checked part of `deny.toml`.
struct Rules {
    targets: Vec<String>,
    licences: BTreeSet<String>,
    /// Allowed duplicates, as `name@version`.
    duplicates: BTreeSet<String>,
}

/// A third-party package.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Package {
    name: String,
    version: String,
    licence: String,
    source: String,
}

/// Checks every dependency of the workspace below `root`, for all targets of `deny.toml`.
///
/// # Errors
/// There are faults, or `deny.toml` or Cargo's metadata cannot be read.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    let path = root.join("deny.toml");
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let rules = Rules::parse(&text)?;
    let mut packages = BTreeSet::new();
    for target in &rules.targets {
        packages.extend(dependencies(root, target)?);
    }
    let faults = rules.check(&packages);
    faults.iter().for_each(|fault| println!("{fault}"));
    println!(
        "deny: {} packages for {} targets, {} faults",
        packages.len(),
        rules.targets.len(),
        faults.len()
    );
    if faults.is_empty() { Ok(()) } else { Err("dependencies that deny.toml does not allow".into()) }
}

fn dependencies(root: &Path, target: &str) -> Result<Vec<Package>, String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root).args(["metadata", "--format-version", "1", "--locked", "--offline"]);
    let output =
        cargo.args(["--filter-platform", target]).output().map_err(|e| format!("cargo metadata: {e}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let metadata: Value =
        serde_json::from_slice(&output.stdout).map_err(|e| format!("cargo metadata: {e}"))?;
    let nodes = metadata["resolve"]["nodes"].as_array().into_iter().flatten();
    let used: BTreeSet<&str> = nodes.filter_map(|node| node["id"].as_str()).collect();
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let used = packages.filter(|package| package["id"].as_str().is_some_and(|id| used.contains(id)));
    let text = |package: &Value, key: &str| package[key].as_str().unwrap_or_default().to_owned();
    let package = |package: &Value| Package {
        name: text(package, "name"),
        version: text(package, "version"),
        licence: text(package, "license"),
        source: text(package, "source"),
    };
    Ok(used.map(package).filter(|package| !package.source.is_empty()).collect())
}

impl Rules {
    fn parse(text: &str) -> Result<Rules, String> {
        let table: toml::Table = text.parse().map_err(|error| format!("deny.toml: {error}"))?;
        let list = |section: &str, key: &str| -> Result<Vec<toml::Value>, String> {
            let list =
                table.get(section).and_then(|section| section.get(key)).and_then(toml::Value::as_array);
            list.cloned().ok_or_else(|| format!("deny.toml has no list {section}.{key}"))
        };
        let strings =
            |values: Vec<toml::Value>| values.into_iter().filter_map(|v| Some(v.as_str()?.to_owned()));
        let skipped = list("bans", "skip")?
            .into_iter()
            .filter_map(|entry| Some(entry.get("crate")?.as_str()?.to_owned()));
        Ok(Rules {
            targets: strings(list("graph", "targets")?).collect(),
            licences: strings(list("licenses", "allow")?).collect(),
            duplicates: skipped.collect(),
        })
    }

    /// One sentence for each package that is not allowed.
    fn check(&self, packages: &BTreeSet<Package>) -> Vec<String> {
        let mut faults = vec![];
        let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for Package { name, version, licence, source } in packages {
            if !self.allows(licence) {
                faults.push(format!(
                    "{name} {version}: the licence `{licence}` is not in deny.toml's licenses.allow"
                ));
            }
            if !source.starts_with("registry+") {
                faults.push(format!("{name} {version} comes from {source}, not from a registry"));
            }
            if !self.duplicates.contains(&format!("{name}@{version}")) {
                versions.entry(name).or_default().push(version);
            }
        }
        for (name, versions) in versions.iter().filter(|(_, versions)| versions.len() > 1) {
            let versions = versions.join(" and ");
            faults.push(format!(
                "{name} is there as {versions}: use one, or name the others in deny.toml's bans.skip"
            ));
        }
        faults
    }

    /// Whether an SPDX expression can be met with allowed licences. `/` is an old form of `OR`.
    fn allows(&self, expression: &str) -> bool {
        let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
        let words: Vec<&str> = spaced.split_whitespace().collect();
        let mut rest = &words[..];
        !words.is_empty() && self.any(&mut rest) && rest.is_empty()
    }

    fn any(&self, words: &mut &[&str]) -> bool {
        let mut allowed = self.all(words);
        while let [first, rest @ ..] = *words
            && *first == "OR"
        {
            *words = rest;
            allowed |= self.all(words);
        }
        allowed
    }

    fn all(&self, words: &mut &[&str]) -> bool {
        let mut allowed = self.one(words);
        while let [first, rest @ ..] = *words
            && *first == "AND"
        {
            *words = rest;
            allowed &= self.one(words);
        }
        allowed
    }

    fn one(&self, words: &mut &[&str]) -> bool {
        match **words {
            ["(", ref rest @ ..] => {
                *words = rest;
                let allowed = self.any(words);
                *words = words.strip_prefix(&[")"]).unwrap_or(words);
                allowed
            }
            [licence, "WITH", exception, ref rest @ ..] => {
                *words = rest;
                self.licences.contains(&format!("{licence} WITH {exception}"))
            }
            [licence, ref rest @ ..] => {
                *words = rest;
                self.licences.contains(licence)
            }
            [] => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = "[graph]\ntargets = []\n[licenses]\nallow = [\"MIT\", \"Apache-2.0 WITH LLVM-exception\", \"Unicode-3.0\"]\n\
                         [bans]\nskip = [{ crate = \"syn@1.0.0\", reason = \"old\" }]\n";

    fn rules() -> Rules {
        Rules::parse(RULES).expect("valid rules")
    }

    fn package(name: &str, version: &str, licence: &str, source: &str) -> Package {
        let [name, version, licence, source] = [name, version, licence, source].map(str::to_owned);
        Package { name, version, licence, source }
    }

    #[test]
    fn expression_is_allowed_if_allowed_licences_meet_it() {
        let check = |expression: &str, expected: bool| {
            assert_eq!(rules().allows(expression), expected, "{expression}")
        };
        check("MIT", true);
        check("GPL-3.0", false);
        check("MIT OR GPL-3.0", true);
        check("MIT/GPL-3.0", true);
        check("MIT AND GPL-3.0", false);
        check("(MIT OR GPL-3.0) AND Unicode-3.0", true);
        check("(GPL-2.0 OR GPL-3.0) AND Unicode-3.0", false);
        check("GPL-2.0 AND MIT OR Unicode-3.0", true);
        check("Apache-2.0 WITH LLVM-exception", true);
        check("Apache-2.0", false);
        check("", false);
    }

    #[test]
    fn duplicates_licences_and_sources_are_faults_unless_they_are_named() {
        let registry = "registry+https://example.org";
        let packages = BTreeSet::from([
            package("syn", "1.0.0", "MIT", registry),
            package("syn", "2.0.0", "MIT", registry),
            package("rand", "0.8.0", "MIT", registry),
            package("rand", "0.9.0", "MIT", registry),
            package("viral", "1.0.0", "GPL-3.0", registry),
            package("patched", "1.0.0", "MIT", "git+https://example.org"),
        ]);
        let faults = rules().check(&packages);
        let named: Vec<&str> = faults.iter().filter_map(|fault| fault.split_whitespace().next()).collect();
        assert_eq!(named, ["patched", "viral", "rand"]);
    }
}
