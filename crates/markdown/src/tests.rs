use super::*;

/// A terminal that knows only what the renderer may send: text, line breaks, colours, and a line
/// that is removed while it is the last one.
#[derive(Default)]
struct Screen {
    lines: Vec<Vec<(char, String)>>,
    line: Vec<(char, String)>,
    style: String,
}

impl Screen {
    fn write(&mut self, text: &str) {
        let mut rest = text.chars();
        while let Some(c) = rest.next() {
            match c {
                '\n' => self.lines.push(std::mem::take(&mut self.line)),
                '\r' => assert_eq!(rest.by_ref().take(3).collect::<String>(), "\x1b[K", "a line is removed"),
                '\x1b' => {
                    let code: String = rest.by_ref().take_while(|c| *c != 'm').collect();
                    let codes = code.strip_prefix('[').unwrap_or_else(|| panic!("{text:?}"));
                    assert!(codes.bytes().all(|byte| byte.is_ascii_digit() || byte == b';'), "{text:?}");
                    self.style = if codes == "0" { String::new() } else { codes.to_owned() };
                    continue;
                }
                c => {
                    assert!(!c.is_control(), "{text:?}");
                    self.line.push((c, self.style.clone()));
                    continue;
                }
            }
            if c == '\r' {
                self.line.clear();
            }
        }
        assert_eq!(self.style, "", "a style is left on after {text:?}");
    }

    fn text(&self) -> Vec<String> {
        self.lines.iter().map(|line| line.iter().map(|(c, _)| c).collect()).collect()
    }
}

/// The screen after the text has come in pieces of `size` characters.
fn show(source: &str, width: usize, size: usize) -> Screen {
    let (mut renderer, mut screen) = (Renderer::new(width), Screen::default());
    let characters: Vec<char> = source.chars().collect();
    for piece in characters.chunks(size) {
        screen.write(&renderer.push(&piece.iter().collect::<String>()));
    }
    screen.write(&renderer.finish());
    assert!(screen.line.is_empty(), "{source:?} ends with a line break");
    screen
}

fn check(width: usize, source: &str, expected: &[&str]) {
    for size in [1, 3, usize::MAX >> 1] {
        assert_eq!(show(source, width, size).text(), expected, "{source:?} in pieces of {size}");
    }
    assert_eq!(show(&format!("{source}\n"), width, 1).text(), expected, "{source:?} with a line break");
}

#[test]
fn paragraphs_wrap_at_words() {
    check(20, "The quick brown fox jumps over it", &["The quick brown fox", "jumps over it"]);
    check(20, "a\nb\n\n\nc", &["a", "b", "", "c"]);
    check(20, "1234567890123456789 12 345", &["1234567890123456789", "12 345"]);
    check(20, "12345678901234567890 1", &["12345678901234567890", "1"]);
    check(20, "123456789012345678901234", &["12345678901234567890", "1234"]);
    check(20, "a  b", &["a  b"]);
    check(80, "", &[]);
    check(80, "\n\n", &[]);
}

#[test]
fn wide_characters_wrap_at_their_columns() {
    check(20, "猫頭鷹は夜に狩りをする鳥です。", &["猫頭鷹は夜に狩りをす", "る鳥です。"]);
    check(20, "owl 猫頭鷹猫頭鷹猫頭鷹", &["owl 猫頭鷹猫頭鷹猫頭", "鷹"]);
    check(20, "一二三四五六七八九十。", &["一二三四五六七八九", "十。"]);
    check(16, "👩\u{200D}🚀 is one e\u{301}", &["👩\u{200D}🚀 is one e\u{301}"]);
}

#[test]
fn headings_rules_and_quotes_are_set_off() {
    check(
        80,
        "# One\ntext\n## Two #x\n---\n***",
        &["One", "text", "", "Two #x", &"─".repeat(60), &"─".repeat(60)],
    );
    check(80, "Title\n=====\ntext", &["Title", "text"]);
    check(80, "#hash and ####### seven", &["#hash and ####### seven"]);
    check(
        20,
        "> one two three four five\nlazy\n>\n> > six\n\nseven",
        &["│ one two three four", "│ five", "│ lazy", "│", "│ │ six", "", "seven"],
    );
    let bold = show("# A *b*", 80, 1);
    assert_eq!(bold.lines[0][0].1, "1;4");
    assert_eq!(bold.lines[0][2].1, "1;3;4");
}

#[test]
fn lists_are_indented_under_their_markers() {
    check(
        20,
        "- one two three four five six\n  - nested\n    more\n- two\n\n  par",
        &["• one two three four", "  five six", "  • nested", "    more", "• two", "", "  par"],
    );
    check(80, "1. a\n2) b\n   - c\n10. d\n\nend", &["1. a", "2) b", "   • c", "10. d", "", "end"]);
    check(80, "* [ ] a\n* [x] b\n* [link](u)", &["☐ a", "☑ b", "• link (u)"]);
    check(80, "- a\n\n- b\n-\n- > q", &["• a", "", "• b", "•", "• │ q"]);
    check(80, "It was\n2024. Then\n- x", &["It was", "2024. Then", "• x"]);
    check(80, "1. a\n```\nx\n```", &["1. a", &"─".repeat(60), "x", &"─".repeat(60)]);
    check(80, "+1 and -1 * 2", &["+1 and -1 * 2"]);
}

#[test]
fn code_is_shown_as_written() {
    let long = "x".repeat(100);
    let label = format!("── rust {}", "─".repeat(52));
    let rule = "─".repeat(60);
    check(
        80,
        &format!("a\n```rust\nfn *x*() {{\n\n\t{long}\n}}\n```\nb"),
        &["a", &label, "fn *x*() {", "", &format!("    {long}"), "}", &rule, "b"],
    );
    check(80, "~~~\n```\n  ~~~", &[&rule, "```", &rule]);
    check(80, "````md\n```\n````", &[&format!("── md {}", "─".repeat(54)), "```", &rule]);
    check(80, "```\nnever closed", &[&rule, "never closed", &rule]);
    check(
        80,
        "- a\n  ```\n  x\n    y\n  ```\n- b",
        &["• a", &format!("  {rule}"), "  x", "    y", &format!("  {rule}"), "• b"],
    );
    check(80, "> ```\n> x\n> ```\ny", &[&format!("│ {rule}"), "│ x", &format!("│ {rule}"), "y"]);
    check(80, "> ```\n> x\nleft", &[&format!("│ {rule}"), "│ x", &format!("│ {rule}"), "left"]);
    check(80, "```not a fence` x", &["```not a fence` x"]);
}

#[test]
fn tables_appear_when_they_end() {
    check(80, "| a | b |\n|---|---|\n| 1 | 2 |\n\nafter", &["a │ b", "──┼──", "1 │ 2", "", "after"]);
    check(80, "| a | b |\n|---|---|\n| 1 | 2 |\nafter", &["a │ b", "──┼──", "1 │ 2", "after"]);
    check(80, "- | a |\n  |---|\n  | 1 |", &["• a", "  ─", "  1"]);
    check(80, "| no table\nmore\n| x", &["| no table", "more", "| x"]);
    check(80, "| a |\n| b |\n| c |", &["| a |", "| b |", "| c |"]);
}

#[test]
fn unfinished_table_has_a_notice_that_goes_away() {
    let mut renderer = Renderer::new(80);
    let shown = renderer.push("| a |\n|---|\n");
    assert_eq!(shown, "\x1b[2mtable: 0 rows\x1b[0m");
    assert_eq!(renderer.push("| 1"), "");
    assert_eq!(renderer.push(" |\n"), "\r\x1b[K\x1b[2mtable: 1 row\x1b[0m");
    let end = renderer.finish();
    assert!(end.starts_with("\r\x1b[K\x1b[1ma\x1b[0m\n"), "{end:?}");
}

#[test]
fn control_characters_never_reach_the_terminal() {
    let attack = "a\x1b]0;title\x07\x1b[2J`\x1b[1A`\u{9b}31m\r\x08\n```\x1b[H\n\x1b[H\n```\n| \x1b[A |\n|-|\n[x](\x1b[K)";
    for size in [1, 7, 1000] {
        // The screen refuses anything that steers it.
        let text = show(attack, 80, size).text().join("\n");
        assert!(text.starts_with("a\u{FFFD}]0;title\u{FFFD}\u{FFFD}[2J"), "{text}");
    }
}

#[test]
fn width_may_change_within_a_paragraph() {
    let mut renderer = Renderer::new(80);
    let mut shown = renderer.push("one two three four five ");
    renderer.set_width(30);
    shown += &renderer.push("six seven eight nine ten eleven twelve");
    shown += &renderer.finish();
    assert_eq!(shown, "one two three four five six\nseven eight nine ten eleven\ntwelve\n");
}

#[test]
fn text_is_shown_as_soon_as_it_is_certain() {
    let mut renderer = Renderer::new(80);
    for (piece, shown) in [
        ("Hello wor", "Hello"),
        ("ld, ", " world,"),
        ("*it", ""),
        ("* is\n", " \x1b[3mit\x1b[0m is"),
        ("-", ""),
        (" x", "\n"),
        ("\n", "• x"),
        ("```c\n", &format!("\n\x1b[2m── c {}\x1b[0m\n", "─".repeat(55))),
        ("int x", "\x1b[35mint\x1b[0m "),
        (" = 1;", "x = \x1b[33m1\x1b[0m;"),
    ] {
        assert_eq!(renderer.push(piece), shown, "{piece:?}");
    }
}

/// Any text, in any pieces, gives the same screen, and lines of text fit into the terminal.
#[test]
fn any_text_renders_alike_in_any_pieces() {
    let parts = [
        "*", "**", "_", "`", "```", "~~~", "\n", "\n\n", "# ", "- ", "1. ", "> ", "| ", "|-|", "|\n", " ",
        "  ", "word", "猫", "[", "](u)", "!", "<br>", "&amp;", "\\", "$$", "~~", "---", "===", "[ ] ", "\t",
        "rust\n", "é", "\x1b",
    ];
    let mut state = 7_u64;
    let mut next = |most: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % most
    };
    for _ in 0..3000 {
        let source: String = (0..next(40)).map(|_| parts[next(parts.len())]).collect();
        let whole = show(&source, 30, usize::MAX >> 1);
        let size = 1 + next(5);
        assert_eq!(show(&source, 30, size).lines, whole.lines, "{source:?} in pieces of {size}");
    }
}
