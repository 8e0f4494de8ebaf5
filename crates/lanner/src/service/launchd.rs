//! The agent of launchd, as a property list.

use super::ServiceDefinition;

pub const LABEL: &str = "lanner.server";
/// A line of property lists that are ours.
pub const MARK: &str = "<!-- Written by lanner start, and again by the next one. -->";

/// The text of the property list.
pub fn plist(service: &ServiceDefinition) -> String {
    let ServiceDefinition { program, arguments, environment, folder, log, .. } = service;
    let program = program.display().to_string();
    let words = std::iter::once(&program).chain(arguments);
    let words: String = words.map(|word| format!("    <string>{}</string>\n", escaped(word))).collect();
    let variable = |(name, value): (&String, &String)| {
        format!("    <key>{}</key>\n    <string>{}</string>\n", escaped(name), escaped(value))
    };
    let variables: String = environment.iter().map(variable).collect();
    let [folder, log] = [folder, log].map(|path| escaped(&path.display().to_string()));
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <!DOCTYPE plist PUBLIC \"-//Apple//DTD PLIST 1.0//EN\" \"http://www.apple.com/DTDs/PropertyList-1.0.dtd\">\n\
         {MARK}\n\
         <plist version=\"1.0\">\n\
         <dict>\n  \
           <key>Label</key>\n  <string>{LABEL}</string>\n  \
           <key>ProgramArguments</key>\n  <array>\n{words}  </array>\n  \
           <key>EnvironmentVariables</key>\n  <dict>\n{variables}  </dict>\n  \
           <key>WorkingDirectory</key>\n  <string>{folder}</string>\n  \
           <key>StandardOutPath</key>\n  <string>{log}</string>\n  \
           <key>StandardErrorPath</key>\n  <string>{log}</string>\n  \
           <key>RunAtLoad</key>\n  <true/>\n  \
           <key>KeepAlive</key>\n  <dict>\n    <key>SuccessfulExit</key>\n    <false/>\n  </dict>\n  \
           <key>ThrottleInterval</key>\n  <integer>5</integer>\n  \
           <key>ExitTimeOut</key>\n  <integer>30</integer>\n  \
           <key>ProcessType</key>\n  <string>Interactive</string>\n\
         </dict>\n\
         </plist>\n"
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
