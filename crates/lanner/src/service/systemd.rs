//! The unit of the user's systemd.

use std::{collections::BTreeMap, path::Path};

use super::ServiceDefinition;

pub const UNIT: &str = "lanner.service";
/// The first line of units that are ours.
pub const MARK: &str = "# Written by lanner start, and again by the next one.";

/// The text of the unit.
pub fn unit(service: &ServiceDefinition) -> String {
    let ServiceDefinition { program, arguments, folder, log, environment_file, .. } = service;
    let program = program.display().to_string();
    let words = std::iter::once(&program).chain(arguments).map(|word| quoted(word));
    let command = words.collect::<Vec<_>>().join(" ");
    let [folder, log, environment] = [folder, log, environment_file].map(|path| specifiers(path));
    format!(
        "{MARK}\n\
         [Unit]\n\
         Description=Lanner, a server of language models\n\
         # Five crashes within a minute, and it stays down.\n\
         StartLimitIntervalSec=60\n\
         StartLimitBurst=5\n\
         \n\
         [Service]\n\
         Type=exec\n\
         ExecStart={command}\n\
         WorkingDirectory={folder}\n\
         EnvironmentFile={environment}\n\
         StandardOutput=append:{log}\n\
         StandardError=append:{log}\n\
         Restart=on-failure\n\
         RestartSec=2\n\
         # Running requests may end.\n\
         TimeoutStopSec=30\n\
         \n\
         [Install]\n\
         WantedBy=default.target\n"
    )
}

/// The text of the file of variables.
pub fn environment(variables: &BTreeMap<String, String>) -> String {
    let escaped = |value: &str| {
        value.chars().fold(String::new(), |text, c| match c {
            '"' | '\\' | '$' | '`' => text + "\\" + &c.to_string(),
            c => text + &c.to_string(),
        })
    };
    variables.iter().map(|(name, value)| format!("{name}=\"{}\"\n", escaped(value))).collect()
}

/// A word of a command line.
fn quoted(word: &str) -> String {
    let escaped = word.chars().fold(String::new(), |text, c| match c {
        '"' | '\\' => text + "\\" + &c.to_string(),
        '\n' => text + "\\n",
        '$' => text + "$$",
        '%' => text + "%%",
        c => text + &c.to_string(),
    });
    format!("\"{escaped}\"")
}

fn specifiers(path: &Path) -> String {
    path.display().to_string().replace('%', "%%")
}
