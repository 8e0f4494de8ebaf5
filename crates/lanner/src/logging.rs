//! Log lines on stderr, as text or as JSON.

use std::fmt::{self, Debug, Write};

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
};
use tracing_subscriber::{
    field::RecordFields,
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::{DefaultFields, Writer},
    },
    registry::LookupSpan,
};

use crate::{cli::LogFormat, terminal};

/// The field of an event that holds a request's figures as JSON; its message has them as text.
const REQUEST: &str = "request";

/// Writes events from this level on to stderr.
pub fn start(level: LevelFilter, format: LogFormat) {
    let lines = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => lines.fmt_fields(TextFields).init(),
        LogFormat::Json => {
            terminal::say_in(json_line);
            lines.event_format(JsonLines).init();
        }
    }
}

/// A message of the program itself as a line of JSON.
fn json_line(message: &str) -> String {
    json!({ "time": now(), "level": "INFO", "target": "lanner", "message": message }).to_string()
}

fn now() -> String {
    Timestamp::now().to_string()
}

/// Fields as usual, but those of a request by its message alone.
struct TextFields;

impl<'writer> FormatFields<'writer> for TextFields {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut found = JsonFields::default();
        fields.record(&mut found);
        match found.0.contains_key(REQUEST) {
            true => write!(writer, "{}", found.0["message"].as_str().unwrap_or_default()),
            false => DefaultFields::new().format_fields(writer, fields),
        }
    }
}

/// Events as objects.
struct JsonLines;

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<S, N>, mut writer: Writer, event: &Event) -> fmt::Result {
        let mut fields = JsonFields::default();
        event.record(&mut fields);
        let metadata = event.metadata();
        let line = json!({
            "time": now(),
            "level": metadata.level().as_str(),
            "target": metadata.target(),
            "message": fields.0.remove("message"),
        });
        let Value::Object(mut line) = line else { return Ok(()) };
        if let Some(Value::String(request)) = fields.0.get(REQUEST) {
            let request = serde_json::from_str(request).unwrap_or_default();
            fields.0.insert(REQUEST.into(), request);
        }
        // No field replaces one of these.
        for (name, value) in fields.0 {
            line.entry(name).or_insert(value);
        }
        writeln!(writer, "{}", Value::Object(line))
    }
}

/// Fields by name.
#[derive(Default)]
struct JsonFields(Map<String, Value>);

impl JsonFields {
    fn insert(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().into(), value.into());
    }
}

impl Visit for JsonFields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.insert(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.insert(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.insert(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.insert(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.insert(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = write!(text, "{value:?}");
        self.insert(field, text);
    }
}
