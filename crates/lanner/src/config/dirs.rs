//! Folders of the user, by the XDG base directory specification.

use std::{env, path::PathBuf};

/// `$variable/lanner`, or `~/fallback/lanner`; `None` if the system has no home folder.
pub(super) fn user_folder(variable: &str, fallback: &str) -> Option<PathBuf> {
    Some(base_folder(variable, fallback)?.join("lanner"))
}

/// Where compiled kernels for GPUs are kept; `None` if the system has no home folder.
pub fn kernel_cache_folder() -> Option<PathBuf> {
    user_folder("XDG_CACHE_HOME", ".cache").map(|folder| folder.join("kernels"))
}

/// `$variable`, or `~/fallback`.
pub(super) fn base_folder(variable: &str, fallback: &str) -> Option<PathBuf> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute(variable).or_else(|| absolute("HOME").map(|home| home.join(fallback)))
}
