//! Models on disk, and the folders of the caches: who may use them, and free space.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use super::{Check, Scope};
use crate::{
    host::HostInfo,
    hub::{CachedModel, HubCache, LastUsed, megabytes, scan},
};

/// Less is no room for another model.
const MODEL_SPACE: u64 = 8 << 30;
/// The default size of the prefix cache on disk.
const PREFIX_SPACE: u64 = 3 << 30;

pub(super) fn checks(machine: &HostInfo, scope: &Scope) -> Vec<Check> {
    let mut checks = match scope.hub {
        Err(fault) => vec![Check::error("models", fault.clone(), "correct or unset the variable")],
        Ok(hub) => hub.cache.iter().flat_map(|cache| models(machine, cache)).collect(),
    };
    checks.extend(scope.prefixes.map(|folder| prefixes(machine, folder)));
    checks
}

fn models(machine: &HostInfo, cache: &Path) -> Vec<Check> {
    let found = scan(&HubCache::new(machine.see(cache)), &LastUsed(None));
    let (complete, partial): (Vec<_>, Vec<_>) = found.into_iter().partition(|model| model.missing.is_none());
    vec![downloaded(machine, &complete, &partial), folder(machine, "model folder", cache, MODEL_SPACE)]
}

fn downloaded(machine: &HostInfo, complete: &[CachedModel], partial: &[CachedModel]) -> Check {
    let size = |models: &[CachedModel]| megabytes(models.iter().map(|model| model.size).sum());
    let found = match complete.len() {
        0 => "merlin, which is built in".into(),
        1 => format!("1 downloaded, {}", size(complete)),
        count => format!("{count} downloaded, {}", size(complete)),
    };
    if let Some(model) = partial.first() {
        let found = format!("{found}; {} not complete: {}", partial.len(), model.repo);
        return Check::warn("models", found, format!("lanner pull {}", model.repo));
    }
    let memory = machine.usable_memory();
    let large = complete.iter().filter(|model| memory.is_some_and(|memory| model.size > memory));
    match large.map(|model| model.repo.to_string()).collect::<Vec<_>>() {
        large if large.is_empty() => Check::ok("models", found),
        large => Check::warn(
            "models",
            format!("{found}; larger than the memory: {}", large.join(", ")),
            "load smaller ones; lanner rm removes these",
        ),
    }
}

fn prefixes(machine: &HostInfo, path: &Path) -> Check {
    let mode = fs::metadata(machine.see(path)).map_or(0, |metadata| metadata.permissions().mode());
    if mode & 0o077 != 0 {
        return Check::warn(
            "prefix cache",
            format!("other users can read {}, which holds users' texts", path.display()),
            format!("chmod 700 {}", path.display()),
        );
    }
    folder(machine, "prefix cache", path, PREFIX_SPACE)
}

/// Whether a folder, or the nearest one above it that exists, can be written and has space.
fn folder(machine: &HostInfo, name: &'static str, path: &Path, least: u64) -> Check {
    let seen = path.ancestors().map(|folder| machine.see(folder)).find(|folder| folder.exists());
    let Some(seen) = seen else {
        return Check::error(name, format!("there is no {}", path.display()), "create it");
    };
    let (existing, shown) = (seen.display().to_string(), path.display());
    if !seen.is_dir() || !machine.succeeds("test", &["-w", &existing]) {
        let hint = "choose another folder (lanner paths names the variables), or change its owner";
        return Check::error(name, format!("{shown} cannot be written"), hint);
    }
    let Some(free) = free_space(machine, &existing) else {
        return Check::warn(name, format!("{shown}, free space unknown"), "df does not answer");
    };
    let found = format!("{shown}, {} free", megabytes(free));
    match free < least {
        true => Check::warn(name, found, "free space on this disk, or choose a folder on another"),
        false => Check::ok(name, found),
    }
}

/// By `df`, in POSIX's format.
fn free_space(machine: &HostInfo, path: &str) -> Option<u64> {
    let text = machine.output("df", &["-Pk", path])?;
    let kilobytes = text.lines().nth(1)?.split_whitespace().nth(3)?;
    Some(kilobytes.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn missing_folder_is_judged_by_the_one_above() {
        let root = tempfile::tempdir().unwrap();
        let machine = |free: u64, writable: bool| HostInfo {
            root: root.path().into(),
            run: Box::new(move |program, _| match program {
                "df" => {
                    Some(format!("Filesystem 1024-blocks Used Available\n/dev/x 1 1 {} 1% /", free >> 10))
                }
                _ => writable.then(String::new),
            }),
            ..HostInfo::here()
        };
        fs::create_dir(root.path().join("home")).unwrap();
        let path = PathBuf::from("/home/cache/models");
        let check = |machine: &HostInfo| folder(machine, "model folder", &path, MODEL_SPACE).status.name();
        assert_eq!(check(&machine(20 << 30, true)), "ok");
        assert_eq!(check(&machine(1 << 30, true)), "warn");
        assert_eq!(check(&machine(20 << 30, false)), "error");
    }
}
