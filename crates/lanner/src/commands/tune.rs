//! `lanner tune`: measures this machine, says what fits, and merges settings into the config file
//! if asked. Results on stdout, progress on stderr.

use std::{
    fs,
    io::{self, ErrorKind, Write},
    path::{Path, PathBuf},
};

use engine::Headers;
use serde_json::{Value, json};

use super::CommandError;
use crate::{
    bench::machine::Machine,
    config::{MergedConfig, ModelConfig, TuneConfig, WriteConfig, merge_model_settings},
    host::HostInfo,
    hub::{LastUsed, scan},
    loading::OpenError,
    model_files,
    source::{Purpose, Source},
    terminal::say,
    tune::{self, Effort, NamedHeaders, Setting, TuneError, TuneReport},
};

/// # Errors
/// A model does not load or fails, the config file cannot be merged, or answers with drafts differ
/// from those of plain decoding, which is reported after the results.
pub fn tune(model: &ModelConfig, config: &TuneConfig) -> Result<(), CommandError> {
    let host = HostInfo::here();
    let (options, effort) = (&model.options, if config.quick { Effort::Quick } else { Effort::Full });
    let room = tune::Room::of(&host, options.device).ok_or(TuneError::UnknownMemory)?;
    // A model that is not there is reported before anything is measured.
    let local = [named(model, config)?, local(model)].concat();
    let mut machine = Machine::here();
    let calibration = tune::calibrate(options, &mut machine, effort)?;
    let mut measured = vec![];
    for name in names(model, config) {
        measured.push(tune::measure(&ModelConfig { model: name, ..model.clone() }, effort)?);
    }
    let rows = tune::survey(&without_twins(local), &room, options, &calibration, &measured);
    let path = config.models[0].as_deref().filter(|_| config.is_named);
    let settings = measured
        .first()
        .map(|measured| tune::advice(path, measured, &rows, &room, effort))
        .unwrap_or_default();
    let report = TuneReport {
        effort,
        machine,
        chip: tune::chip(&host),
        room,
        memory_limit: options.memory_limit,
        calibration,
        measured,
        rows,
        settings,
    };
    let written = config.write.as_ref().map(|write| merge(write, &report.settings)).transpose()?;
    if config.json {
        let mut object = report.json();
        object["written"] = written.as_ref().map_or(Value::Null, Written::json);
        writeln!(io::stdout(), "{object:#}")?;
    } else {
        write!(io::stdout(), "{}", report.text())?;
    }
    written.iter().for_each(Written::report);
    let wrong = report.differences();
    if wrong.is_empty() { Ok(()) } else { Err(CommandError::AnswersDiffer(wrong.join("; "))) }
}

/// The models to measure, none twice.
fn names(model: &ModelConfig, config: &TuneConfig) -> Vec<Option<String>> {
    let cached = cached(model).into_iter().filter(|_| config.all).map(Some);
    let mut names: Vec<Option<String>> = vec![];
    for name in config.models.iter().cloned().chain(cached) {
        let location = |name: &Option<String>| {
            Source::locate(name.as_deref(), &model.hub, Purpose::Describe).ok().map(|source| source.location)
        };
        // A model that is not there is reported when it is opened.
        if !names
            .iter()
            .any(|known| *known == name || (location(known) == location(&name) && location(&name).is_some()))
        {
            names.push(name);
        }
    }
    names
}

/// Complete models in the hub's cache.
fn cached(model: &ModelConfig) -> Vec<String> {
    let Ok(cache) = model.hub.cache() else { return vec![] };
    let found = scan(&cache, &LastUsed(None)).into_iter().filter(|model| model.missing.is_none());
    found.map(|model| model.repo.to_string()).collect()
}

/// The built-in model, and those in the cache.
fn local(model: &ModelConfig) -> Vec<NamedHeaders> {
    let names = [None].into_iter().chain(cached(model).into_iter().map(Some));
    names.filter_map(|name| described(name.as_deref(), model).ok()).collect()
}

/// The models that are measured: folders and files too.
fn named(model: &ModelConfig, config: &TuneConfig) -> Result<Vec<NamedHeaders>, CommandError> {
    config.models.iter().map(|name| described(name.as_deref(), model)).collect()
}

fn described(name: Option<&str>, model: &ModelConfig) -> Result<NamedHeaders, CommandError> {
    let source = Source::locate(name, &model.hub, Purpose::Describe).map_err(OpenError::from)?;
    let headers = Headers::Checkpoint(model_files::checkpoint(source.location));
    Ok(NamedHeaders { name: source.name, headers })
}

/// The first of each name.
fn without_twins(models: Vec<NamedHeaders>) -> Vec<NamedHeaders> {
    let mut unique: Vec<NamedHeaders> = vec![];
    for model in models {
        if unique.iter().all(|known| known.name != model.name) {
            unique.push(model);
        }
    }
    unique
}

/// Result of writing the config file.
struct Written {
    file: PathBuf,
    /// The file as it was; `None`: there was none, or nothing has changed.
    backup: Option<PathBuf>,
    changed: bool,
    merged: MergedConfig,
}

impl Written {
    fn json(&self) -> Value {
        let values = |pairs: &[(String, String)]| -> Vec<Value> {
            pairs.iter().map(|(key, old)| json!({ "key": key, "was": old })).collect()
        };
        json!({
            "file": self.file,
            "backup": self.backup,
            "changed": self.changed,
            "added": self.merged.added,
            "kept": values(&self.merged.kept),
            "replaced": values(&self.merged.replaced),
        })
    }

    fn report(&self) {
        let file = self.file.display();
        for (key, old) in &self.merged.kept {
            say(format_args!("lanner: {key} = {old} in {file} stays; --replace changes it"));
        }
        match (self.changed, &self.backup) {
            (false, _) => say(format_args!("lanner: {file} is as it was")),
            (true, None) => say(format_args!("lanner: wrote {file}")),
            (true, Some(backup)) => {
                say(format_args!("lanner: wrote {file}; the old one is {}", backup.display()))
            }
        }
    }
}

fn merge(write: &WriteConfig, settings: &[Setting]) -> Result<Written, CommandError> {
    // The file that a link names, not the link.
    let file = write.file.canonicalize().unwrap_or_else(|_| write.file.clone());
    let old = match fs::read_to_string(&file) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(CommandError::Read { path: file, error }),
    };
    let pairs: Vec<_> = settings.iter().map(|setting| (setting.key, setting.value.toml())).collect();
    let merged = merge_model_settings(old.as_deref().unwrap_or_default(), &pairs, write.replace).map_err(
        |problem| CommandError::NotWritten(format!("{} was not changed: {problem}", file.display())),
    )?;
    let changed = merged.text != old.as_deref().unwrap_or_default();
    let failed = |error| CommandError::Write { path: file.clone(), error };
    let backup = match (changed, &old) {
        (true, Some(_)) => Some(back_up(&file).map_err(failed)?),
        _ => None,
    };
    if changed {
        replace(&file, &merged.text).map_err(failed)?;
    }
    Ok(Written { file, backup, changed, merged })
}

/// Copies the file, with its permissions, to a name that is free.
fn back_up(file: &Path) -> io::Result<PathBuf> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let free = (1..).map(|number| match number {
        1 => file.with_file_name(format!("{name}.bak")),
        number => file.with_file_name(format!("{name}.bak-{number}")),
    });
    let backup = free.into_iter().find(|path| !path.exists()).unwrap_or_default();
    fs::copy(file, &backup)?;
    Ok(backup)
}

/// Writes a new file and moves it over the old one: a crash leaves one of them.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let new = file.with_file_name(format!("{name}.new-{}", std::process::id()));
    let written = fs::write(&new, text).and_then(|()| match fs::metadata(file) {
        Ok(old) => fs::set_permissions(&new, old.permissions()),
        Err(_) => Ok(()),
    });
    written.and_then(|()| fs::rename(&new, file)).inspect_err(|_| _ = fs::remove_file(&new))
}
