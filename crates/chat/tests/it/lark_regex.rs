//! Lark grammars as regular expressions.

use lanner_chat::grammar::{Source, lark_to_regex};

use crate::grammars::at_once;

/// A patch as coding agents write it, with short lines.
const PATCH: &str = r#"
// Rules may refer to later ones.
start: "*** Begin Patch" LF file+ "*** End Patch" LF?
file: "*** Add File: " path LF ("+" text LF)+ -> added
    | "*** Delete File: " path LF
    | "*** Update File: " path LF change?
change: (place | line)+ ["*** End of File" LF]
place: ("@@" | "@@ " text) LF
?line: ("+" | "-" | " ") text LF
path: /[a-z]{1,4}\.(rs|md)/
text: /(.{0,5})/
%import common.LF
"#;

#[test]
fn lark_as_a_regular_expression_matches_the_same_texts() {
    let sums = r#"
        start: [sign] NUMBER (("plus" | "MINUS"i) NUMBER)~1..2 tail
        sign: "-" | "+" # a comment
        NUMBER: ("1".."4")+ | /0x[a-f]{2}/i | "\"\\\u00e9/"
        tail: | "!" | WORD "?"~2
        %import common.WORD
    "#;
    let spaced = "start: \"a\" item* \"b\"\nitem: /[0-9]/ \",\"\n%ignore / +/\n";
    let patch = |lines: &str| format!("*** Begin Patch\n{lines}*** End Patch");
    let patches =
        ["*** Add File: a.rs\n+\n", "*** Delete File: a.rs\n", "*** Update File: a.md\n@@\n+12345\n"];
    let wrong = ["", "*** Add File: a.rs\n", "*** Update File: a.md\n+123456\n", "*** Delete File: a.c\n"];
    let patches: Vec<(String, bool)> = patches
        .map(|lines| (patch(lines), true))
        .into_iter()
        .chain(wrong.map(|lines| (patch(lines), false)))
        .collect();
    let patches: Vec<(&str, bool)> = patches.iter().map(|(text, matches)| (&**text, *matches)).collect();
    let of_sums = [
        ("1plus0xAB", true),
        ("-\"\\\u{e9}/minus2plus3!", true),
        ("44PLUS1", false),
        ("1plus1plus1plus1", false),
        ("1plus1word??", true),
        ("1plus1word?", false),
        ("1", false),
    ];
    let of_spaced = [("ab", true), (" a  1 , 2,b ", true), ("a1b", false), ("a 1 2,b", false)];
    let cases: [(&str, &[(&str, bool)]); 3] = [(PATCH, &patches), (sums, &of_sums), (spaced, &of_spaced)];
    for (lark, examples) in cases {
        let pattern = lark_to_regex(lark).unwrap();
        let regex = regex::Regex::new(&pattern).unwrap_or_else(|error| panic!("{error}"));
        // The compiler of grammars knows fewer forms.
        let answers = if lark == sums { vec![] } else { at_once(Source::Lark(lark.into())) };
        for text in answers {
            assert!(regex.is_match(&text), "{text:?} does not match {pattern}");
        }
        for text in at_once(Source::Regex(pattern.clone())) {
            assert!(regex.is_match(&text), "{text:?} was written under {pattern}");
        }
        for (text, matches) in examples {
            assert_eq!(regex.is_match(text), *matches, "{text:?} under {pattern}");
        }
    }
    let with_priority = lark_to_regex("start: A\nA.2: \"x\"").unwrap();
    assert_eq!(with_priority, lark_to_regex("start: A\nA: \"x\"").unwrap());
    let error = lark_to_regex("start: X\n%import common (X)").unwrap_err().to_string();
    assert!(error.contains("%import"), "{error}");
}

#[test]
fn lark_that_no_regular_expression_matches_is_refused() {
    for (lark, message) in [
        ("start: \"(\" start \")\" | \"x\"", "`start` refers to itself"),
        ("start: a\na: b\nb: a?", "`a` refers to itself"),
        ("start: a", "no rule `a`"),
        ("a: \"x\"", "no rule `start`"),
        ("start: \"x", "does not end"),
        ("start: /x", "does not end"),
        ("start: (\"x\"", "not closed"),
        ("start: \"x\")", "not expected"),
        ("start: \"ab\"..\"c\"", "range"),
        ("start: \"x\"~", "number"),
        ("start: %json {}", "`{`"),
        ("start: A\n%import common.NOTHING", "NOTHING"),
        ("start: <[1]>", "`<`"),
        ("start: \"a\"\nstart: \"b\"", "twice"),
    ] {
        let error = lark_to_regex(lark).unwrap_err().to_string();
        assert!(error.contains(message), "{lark}: {error}");
    }
    let doubling: String = (0..40).map(|n| format!("r{n}x: r{}x r{}x\n", n + 1, n + 1)).collect();
    let error = lark_to_regex(&format!("start: r0x\n{doubling}r40x: \"x\"")).unwrap_err().to_string();
    assert!(error.contains("bytes"), "{error}");
}
