//! What `lanner top` shows of two readings.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::reading::Reading;
use crate::{commands::remote, hub::megabytes, terminal::table};

/// Models that are listed.
const MOST_MODELS: usize = 8;

/// Totals of the later reading; speeds and latencies of the time between both.
pub(super) fn frame(url: &str, before: &Reading, now: &Reading) -> String {
    let version = now.info("lanner_build_info");
    let between = Between::new(before, now);
    let rows = [
        ["requests".to_owned(), requests(now)],
        ["speed".to_owned(), between.speed()],
        ["latency".to_owned(), between.latency()],
        ["steps".to_owned(), between.steps()],
        ["prefix cache".to_owned(), prefix_cache(now)],
        ["drafts".to_owned(), drafts(now)],
        ["memory".to_owned(), memory(now)],
    ];
    let models = now.models.iter().take(MOST_MODELS).map(remote::row);
    let models = table(&[remote::HEADER.map(str::to_owned)].into_iter().chain(models).collect::<Vec<_>>());
    format!("lanner {version} at {url}, up {}\n\n{}\n{models}", uptime(now), table(&rows))
}

/// Differences of the counters of two readings.
struct Between<'a> {
    before: Option<&'a Reading>,
    now: &'a Reading,
    seconds: f64,
}

impl<'a> Between<'a> {
    fn new(before: &'a Reading, now: &'a Reading) -> Between<'a> {
        // Another process counts from zero.
        let start = |reading: &Reading| reading.value("process_start_time_seconds");
        let before = Some(before).filter(|before| start(before) == start(now));
        let seconds = before.map_or(0.0, |before| (now.at - before.at).as_secs_f64());
        Between { before, now, seconds }
    }

    fn counted(&self, name: &str) -> f64 {
        self.before.map_or(0.0, |before| self.now.value(name) - before.value(name))
    }

    fn per_second(&self, counted: f64) -> f64 {
        if self.seconds > 0.0 { counted / self.seconds } else { 0.0 }
    }

    /// The mean of what a histogram counted, in milliseconds.
    fn mean_ms(&self, histogram: &str) -> String {
        let count = self.counted(&format!("{histogram}_count"));
        let sum = self.counted(&format!("{histogram}_sum"));
        if count > 0.0 { format!("{:.1} ms", sum / count * 1e3) } else { "-".into() }
    }

    fn speed(&self) -> String {
        let computed =
            self.counted("lanner_prompt_tokens_total") - self.counted("lanner_cached_prompt_tokens_total");
        let prompt = self.per_second(computed);
        let generated = self.per_second(self.counted("lanner_generated_tokens_total"));
        format!("{prompt:.0} prompt tokens/s, {generated:.0} generated tokens/s")
    }

    fn latency(&self) -> String {
        let [first, next] = ["lanner_time_to_first_token_seconds", "lanner_inter_token_latency_seconds"]
            .map(|histogram| self.mean_ms(histogram));
        format!("first token {first}, next token {next}")
    }

    fn steps(&self) -> String {
        let steps: f64 = ["prompt", "decode", "verify"]
            .iter()
            .map(|kind| self.counted(&format!("lanner_steps_total{{kind=\"{kind}\"}}")))
            .sum();
        if steps <= 0.0 || self.seconds <= 0.0 {
            return "none".into();
        }
        let mean = |name: &str| self.counted(name) / steps;
        format!(
            "{:.0} a second, with {:.1} sequences and {:.1} tokens each; computing {:.0} % of the time",
            self.per_second(steps),
            mean("lanner_step_sequences_total"),
            mean("lanner_step_tokens_total"),
            100.0 * self.per_second(self.counted("lanner_step_seconds_total"))
        )
    }
}

fn uptime(now: &Reading) -> String {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs_f64();
    let seconds = (clock - now.value("process_start_time_seconds")).max(0.0) as u64;
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min"),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

/// `3 a, 1 b` of the values that are not zero.
fn nonzero<'a>(values: impl Iterator<Item = (&'a str, f64)>) -> String {
    let shown = values.filter(|(_, value)| *value > 0.0).map(|(name, value)| format!("{value} {name}"));
    let shown = shown.collect::<Vec<_>>().join(", ");
    if shown.is_empty() { "none".into() } else { shown }
}

fn requests(now: &Reading) -> String {
    let [running, waiting] =
        ["lanner_running_sequences", "lanner_waiting_sequences"].map(|stage| now.value(stage));
    let ended = nonzero(now.by_label("lanner_requests_total"));
    format!("{running} running, {waiting} waiting; ended: {ended}")
}

fn prefix_cache(now: &Reading) -> String {
    let bytes = |name: &str| megabytes(now.value(name) as u64);
    format!(
        "{} of {}, {} on the disk; hits: {}; misses: {}",
        bytes("lanner_prefix_cache_bytes"),
        bytes("lanner_prefix_cache_budget_bytes"),
        bytes("lanner_disk_cache_bytes"),
        nonzero(now.by_label("lanner_prefix_cache_hits_total")),
        nonzero(now.by_label("lanner_prefix_cache_misses_total"))
    )
}

fn drafts(now: &Reading) -> String {
    let drafted =
        now.by_label("lanner_speculation_drafted_tokens_total").filter(|(_, drafted)| *drafted > 0.0);
    let shown = drafted.map(|(drafter, drafted)| {
        let name = format!("lanner_speculation_accepted_tokens_total{{drafter=\"{drafter}\"}}");
        format!("{drafter} {:.0} % of {drafted} accepted", 100.0 * now.value(&name) / drafted)
    });
    let shown = shown.collect::<Vec<_>>().join(", ");
    if shown.is_empty() { "none".into() } else { shown }
}

fn memory(now: &Reading) -> String {
    let reserved = now.by_label("lanner_memory_reserved_bytes").filter(|(_, bytes)| *bytes > 0.0);
    let reserved =
        reserved.map(|(class, bytes)| format!("{} {}", class.replace('_', " "), megabytes(bytes as u64)));
    let [active, peak] = ["lanner_memory_active_bytes", "lanner_memory_peak_bytes"]
        .map(|name| megabytes(now.value(name) as u64));
    format!("{}; held {active}, at most {peak}", reserved.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use serde_json::json;

    use super::*;

    const EARLIER: &str = "# HELP x\nlanner_build_info{version=\"1.2.3\"} 1\nprocess_start_time_seconds 5\n\
        lanner_generated_tokens_total 10\nlanner_prompt_tokens_total 100\nlanner_cached_prompt_tokens_total 50\n\
        lanner_time_to_first_token_seconds_sum 1\nlanner_time_to_first_token_seconds_count 1\n";
    const LATER: &str = "lanner_build_info{version=\"1.2.3\"} 1\nprocess_start_time_seconds 5\n\
        lanner_generated_tokens_total 110\nlanner_prompt_tokens_total 400\nlanner_cached_prompt_tokens_total 250\n\
        lanner_time_to_first_token_seconds_sum 1.5\nlanner_time_to_first_token_seconds_count 3\n\
        lanner_requests_total{outcome=\"answered\"} 3\nlanner_requests_total{outcome=\"failed\"} 0\n\
        lanner_running_sequences 2\nlanner_steps_total{kind=\"decode\"} 20\nlanner_step_sequences_total 30\n\
        lanner_step_tokens_total 40\nlanner_step_seconds_total 1\n\
        lanner_prefix_cache_misses_total{reason=\"differs\"} 4\n\
        lanner_speculation_drafted_tokens_total{drafter=\"mtp\"} 8\n\
        lanner_speculation_accepted_tokens_total{drafter=\"mtp\"} 6\n";

    fn readings() -> [Reading; 2] {
        let start = Instant::now();
        let models = vec![json!({ "id": "owl", "state": "loaded", "context_length": 1000 })];
        [Reading::new(EARLIER, vec![], start), Reading::new(LATER, models, start + Duration::from_secs(2))]
    }

    #[test]
    fn frame_shows_what_happened_between_readings() {
        let [before, now] = readings();
        let text = frame("http://h", &before, &now);
        for part in [
            "lanner 1.2.3 at http://h, up ",
            "requests      2 running, 0 waiting; ended: 3 answered\n",
            "speed         50 prompt tokens/s, 50 generated tokens/s\n",
            "latency       first token 250.0 ms, next token -\n",
            "steps         10 a second, with 1.5 sequences and 2.0 tokens each; computing 50 % of the time\n",
            "hits: none; misses: 4 differs\n",
            "drafts        mtp 75 % of 8 accepted\n",
            "owl    loaded  1000     -\n",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
    }

    #[test]
    fn frame_of_a_restarted_server_shows_no_speed() {
        let [before, now] = readings();
        let restarted =
            Reading::new("process_start_time_seconds 9\nlanner_generated_tokens_total 3\n", vec![], now.at);
        let text = frame("http://h", &before, &restarted);
        assert!(text.contains("0 prompt tokens/s, 0 generated tokens/s"), "{text}");
    }
}
