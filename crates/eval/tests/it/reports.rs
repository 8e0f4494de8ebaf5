//! Reports as JSON, text and HTML, and two of them compared.

use std::fs;

use lanner_eval::{Report, TestName, compare, page, summary};

use crate::scripted::{Scripted, Step, answer, delta, done, finish};

/// A report with times, verdicts, an error, and an answer that is hostile to HTML.
fn report() -> Report {
    let server = Scripted::start(|body| {
        let text = body.to_string();
        match text {
            text if text.contains("bottle") => {
                vec![
                    delta("content", "<script>"),
                    Step::Sleep(20),
                    delta("content", "&"),
                    finish("stop"),
                    done(),
                ]
            }
            text if text.contains("planet") => vec![Step::Refuse(400, "no <planets>")],
            _ => answer("Paris"),
        }
    });
    let tests = vec![TestName::Generation, TestName::Questions];
    server.eval(|options| options.tests = tests).unwrap()
}

#[test]
fn report_survives_its_json() {
    let (report, folder) = (report(), std::env::temp_dir());
    let path = folder.join(format!("lanner-eval-{}.json", std::process::id()));
    fs::write(&path, report.json()).unwrap();
    let again = Report::read(&path).unwrap();
    assert_eq!(again.json(), report.json());
    for (text, expected) in [
        ("{}", "is no report of lanner eval: missing field"),
        ("", "is no report of lanner eval"),
        (
            &*report.json().replacen("\"format\": 1", "\"format\": 2", 1),
            "its format is 2; this program reads 1",
        ),
    ] {
        fs::write(&path, text).unwrap();
        let error = Report::read(&path).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("lanner-eval-"), "{error}");
    }
    fs::remove_file(&path).unwrap();
    assert!(Report::read(&path).unwrap_err().to_string().starts_with("cannot read the report "));
}

#[test]
fn summary_names_what_ran_and_what_failed() {
    let text = summary(&report());
    for part in [
        "owl at http://127.0.0.1:",
        "Test <CPU>, 2 cores, linux x86_64; load 0.5 before, unknown after",
        "generation: 512 tokens",
        "qa: capital, thinking on",
        "1 of 1  100 %",
        "qa: planet, thinking off: the server answers 400: no <planets>",
        "qa: sum, thinking off: `42` is not in `Paris`",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn page_is_well_formed_and_loads_nothing() {
    let report = report();
    for reports in [&[("one", &report)][..], &[("<one>", &report), ("two", &report)]] {
        let page = page(reports);
        assert!(!page.contains("<script") && page.contains("&lt;script&gt;"), "answers are escaped");
        for reference in ["http-equiv", " src=", " href=", "url(", "@import"] {
            assert!(!page.contains(reference), "{reference}");
        }
        assert!(page.matches("<svg").count() >= 3 && page.contains("class=\"a\""));
        assert_eq!(page.contains("class=\"b\""), reports.len() == 2);
        check_balance(&page);
    }
}

/// Every element is closed, in the right order.
fn check_balance(page: &str) {
    let mut open: Vec<&str> = vec![];
    for part in page.split('<').skip(1).filter(|part| !part.starts_with('!')) {
        let tag = part.split('>').next().unwrap();
        let name = tag.split([' ', '/']).next().unwrap();
        match tag.strip_prefix('/') {
            Some(closed) => assert_eq!(open.pop(), Some(closed), "{part}"),
            None if tag.ends_with('/') => {}
            None => open.push(name),
        }
    }
    assert_eq!(open, Vec::<&str>::new());
}

#[test]
fn comparison_has_ratios_and_notes_differences() {
    let (a, mut b) = (report(), report());
    for (case, other) in b.cases.iter_mut().zip(&a.cases) {
        for (run, one) in case.runs.iter_mut().zip(&other.runs) {
            if let (Some(timing), Some(one)) = (&mut run.timing, &one.timing) {
                timing.ttft_s = 2.0 * one.ttft_s;
            }
        }
    }
    b.cases.remove(0);
    b.settings.long_tokens = 9;
    let text = compare([("a.json", &a), ("b.json", &b)]);
    assert!(text.contains("Note: tokens of long texts differ: 2000 and 9\n"), "{text}");
    assert!(!text.contains("models differ"), "{text}");
    let only = text.lines().find(|line| line.starts_with("generation: 512 tokens")).unwrap();
    assert!(only.ends_with("only in A"), "{only}");
    let line = text.lines().find(|line| line.starts_with("qa: capital, thinking on")).unwrap();
    assert!(line.ends_with("  2"), "{line}");
    assert!(text.contains("1 of 1, 100 %"), "{text}");
}
