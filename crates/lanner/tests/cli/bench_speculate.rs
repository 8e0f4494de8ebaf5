//! `bench --speculate` from the command line: every drafter is measured, answers equal those of
//! plain decoding, and figures are consistent.

use std::fs;

use serde_json::Value;

use super::bench::{bench, check_ascending, check_well_formed, json, number, shape};

/// Asserts that figures are consistent.
fn check_line(line: &Value) {
    for spread in ["ttft_s", "decode_tok_s", "ratio"] {
        check_ascending(&line[spread], &["min", "median", "max"]);
    }
    let (drafted, accepted) = (number(&line["drafted"]), number(&line["accepted"]));
    assert!(drafted >= accepted, "{line}");
    assert_eq!(number(&line["tokens_per_step"]) > 1.0, accepted > 0.0, "{line}");
    assert_eq!((&line["identical"], &line["difference"]), (&Value::Bool(true), &Value::Null), "{line}");
    if line["speculation"] == "off" {
        assert_eq!((drafted, number(&line["ratio"]["min"]), number(&line["ratio"]["max"])), (0.0, 1.0, 1.0));
    }
}

fn lines(report: &Value) -> Vec<&Value> {
    let lines: Vec<&Value> = report["speculation"].as_array().unwrap().iter().collect();
    lines.iter().for_each(|line| check_line(line));
    lines
}

#[test]
fn bench_speculate_compares_every_drafter_with_plain_decoding() {
    let args =
        ["--speculate", "--texts", "arithmetic", "--generate", "12", "--batch", "1,8", "--repeats", "1"];
    let report = json(&[&args[..], &["--warmup", "0"]].concat(), &[]);
    let found = lines(&report);
    let of = |name: &str, depths: &[usize]| depths.iter().map(|n| format!("{name}:{n}")).collect::<Vec<_>>();
    let ways = [
        vec!["off".to_owned()],
        of("ngram", &[3, 7, 15]),
        of("mtp", &[1, 2, 3, 5]),
        of("self", &[2, 4, 8]),
        vec!["auto".to_owned()],
    ]
    .concat();
    assert_eq!(found.len(), 4 * ways.len(), "alone and eight at once, greedy and seeded");
    for (case, lines) in found.chunks(ways.len()).enumerate() {
        let (batch, sampling) = ([1, 8][case / 2], ["greedy", "seeded"][case % 2]);
        for (line, way) in lines.iter().zip(&ways) {
            assert_eq!(
                (&line["speculation"], &line["prompts"]),
                (&way.as_str().into(), &"arithmetic".into())
            );
            assert_eq!((line["batch"].as_u64(), line["sampling"].as_str()), (Some(batch), Some(sampling)));
        }
        assert!(number(&lines[5]["drafted"]) > 0.0, "the head always drafts: {}", lines[5]);
    }
}

#[test]
fn scripted_drafter_has_the_requested_acceptance_rate() {
    let folder = tempfile::tempdir().unwrap();
    let chart = folder.path().join("speculation.html");
    let shape = shape();
    let args =
        ["--shape", &shape, "--group-size", "32", "--speculate", "scripted:3,auto", "--scripted", "0,1"];
    let sizes = ["--prompt", "16", "--generate", "33", "--batch", "1,2", "--repeats", "1"];
    let to = ["--chart", chart.to_str().unwrap()];
    let report = json(&[&args[..], &sizes, &to].concat(), &[]);
    let found = lines(&report);
    assert_eq!(found.len(), 2 * 2 * 3);
    for (line, right) in [(found[1], false), (found[4], false), (found[7], true), (found[10], true)] {
        assert_eq!(line["speculation"], "scripted:3");
        let (drafted, accepted) = (number(&line["drafted"]), number(&line["accepted"]));
        // The last draft of an answer may extend beyond its end.
        assert!(if right { accepted >= 0.8 * drafted } else { accepted == 0.0 }, "{line}");
        let tokens_per_step = number(&line["tokens_per_step"]);
        assert!(if right { tokens_per_step > 3.5 } else { tokens_per_step == 1.0 }, "{line}");
        assert_eq!(line["predicted_ratio"].is_null(), line["batch"] == 2, "{line}");
        assert_eq!(line["predicted_ratio_at_load"].is_null(), line["batch"] == 2, "{line}");
    }
    let page = fs::read_to_string(chart).unwrap();
    check_well_formed(&page);
    assert_eq!((page.matches("<tr>").count(), page.matches("<rect class=\"decode\"").count()), (13, 12));
}

#[test]
fn bench_speculate_table_names_what_it_compares() {
    let args = ["--speculate", "auto", "--texts", "chat,json", "--generate", "4", "--batch", "8"];
    let (text, talk) = bench(&[&args[..], &["--repeats", "1"]].concat(), &[]);
    assert!(text.starts_with("merlin: ") && text.contains("identical"), "{text}");
    let rows: Vec<Vec<&str>> = text.lines().skip(4).map(|line| line.split_whitespace().collect()).collect();
    let named: Vec<[&str; 2]> = rows.iter().map(|row| [row[0], row[3]]).collect();
    let [chat, json] = ["chat", "json"].map(|class| [[class, "off"], [class, "auto"]].repeat(2));
    assert_eq!(named, [chat, json].concat(), "{text}");
    assert!(rows.iter().all(|row| row.last() == Some(&"yes")), "{text}");
    assert!(talk.contains("lanner: warm-up: chat, greedy, batch 8: off "), "{talk}");
}
