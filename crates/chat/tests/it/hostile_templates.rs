//! Templates that try to exhaust memory, time or the stack fail with an error, not the process.

use lanner_chat::{Error, RenderInput, RenderMemory, Template};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn render(source: &str) -> lanner_chat::Result<String> {
    let messages = [json!({"role": "user", "content": "hello"})];
    let template = Template::new(source, Map::new())?;
    template.render(&RenderInput { messages: &messages, ..RenderInput::default() })
}

/// Checks that loading fails, or that rendering fails with a request error.
fn check_fails(source: &str) {
    let shown: String = source.chars().take(120).collect();
    match render(source) {
        Ok(text) => panic!("{shown}: {} bytes", text.len()),
        Err(Error::TemplateSyntax(_)) => {}
        Err(error) => assert!(error.is_request_error(), "{shown}: {error}"),
    }
}

fn repeated(count: usize, statement: &str) -> String {
    statement.repeat(count)
}

#[test]
fn deeply_nested_source_fails() {
    check_fails(&format!("{{{{ {}1 }}}}", repeated(100_000, "1 + ")));
    check_fails(&format!("{{{{ {}1 }}}}", repeated(100_000, "-")));
    check_fails(&format!("{{{{ {}1 }}}}", repeated(100_000, "not ")));
    check_fails(&format!("{{{{ {}x{} }}}}", repeated(100_000, "("), repeated(100_000, ")")));
    check_fails(&format!("{{{{ {}{} }}}}", repeated(100_000, "["), repeated(100_000, "]")));
    check_fails(&format!("{{{{ x{} }}}}", repeated(100_000, ".a")));
    check_fails(&format!("{{{{ x{} }}}}", repeated(100_000, "|string")));
    check_fails(&repeated(20_000, "{% if x %}"));
    check_fails(&format!("{{% if x %}}{}{{% endif %}}{{{{ 1/0 }}}}", repeated(10_000, "{% elif x %}")));
    check_fails(&repeated(1_000_000, "some text"));
}

#[test]
fn expression_within_limits_renders() {
    assert_eq!(render(&format!("{{{{ {}1 }}}}", repeated(1000, "1 + "))).unwrap(), "1001");
}

#[test]
fn constant_folding_is_bounded() {
    check_fails(&repeated(2000, "{% set a = 'x' * 99999999 %}"));
    check_fails(&repeated(2000, "{% set a = ('x' ~ 'y') * (9999 * 9999) %}"));
    check_fails(&format!("{{{{ {}'x' * 99999999 }}}}", repeated(500, "'x' * 99999999 ~ ")));
    assert_eq!(render("{{ '-' * (10 + 10) }}{{ 3 * 4 }}").unwrap(), "--------------------12");
}

#[test]
fn wide_padding_fails() {
    for call in [
        "'a'|indent(10**10)",
        "'a'|indent(width=10**10)",
        "('a\n' * 60000)|indent(65000)",
        "'%10000000000d'|format(1)",
        "'%*d'|format(1000000000, 1)",
        "'{:1000000000}'.format(1)",
        "'{:{}}'.format('a', 1000000000)",
        "('%60000d' * 4000)|format(1)",
        "'%.1000000000f'|format(1)",
        "[1]|batch(10**12, 'x')",
        "[1]|slice(10**12)",
        "'a'.ljust(10**10)",
        "'a'.ljust(60000, 'x' * 60000)",
        "range(10**10)",
        "range(100000)|join('x' * 100000)",
        "('a' * 100000).replace('', 'x' * 100000)",
        "('a' * 100000)|replace('a', 'x' * 100000)",
        "('x' * 100000).join(range(100000))",
        "('x' * 1000) * 10**12",
        "[1] * 10**12",
        "[[]] * 99999999",
        "messages|tojson(indent=10**10)",
        "strftime_now('%Y' * 100000)",
        "strftime_now('%1000000000Y')",
    ] {
        check_fails(&format!("{{{{ ({call})|length }}}}"));
    }
}

#[test]
fn repeated_doubling_fails() {
    let grown = |start: &str, step: &str, end: &str| {
        check_fails(&format!("{{% set s = {start} %}}{}{{{{ {end} }}}}", repeated(60, step)));
        let looped = format!(
            "{{% set ns = namespace(s={start}) %}}{{% for i in range(60) %}}{}{{% endfor %}}{{% set s = ns.s %}}{{{{ {end} }}}}",
            step.replace("set s =", "set ns.s =")
                .replace("(s", "(ns.s")
                .replace(" s ", " ns.s ")
                .replace("[s, s]", "[ns.s, ns.s]"),
        );
        check_fails(&looped);
    };
    grown("'xx'", "{% set s = s + s %}", "1");
    grown("'xx'", "{% set s = s ~ s %}", "1");
    grown("[1]", "{% set s = s + s %}", "1");
    grown("'xx'", "{% set s = s * 2 %}", "1");
    grown("[1]", "{% set s = s * 2 %}", "1");
    check_fails(&format!("{{% set s = 'xx' %}}{}", repeated(60, "{% set s %}{{ s }}{{ s }}{% endset %}")));
    let raw = repeated(1000, "text of the template itself");
    check_fails(&format!("{{% set s %}}{{% for i in range(99999) %}}{raw}{{% endfor %}}{{% endset %}}"));
    check_fails(&format!(
        "{{% macro m() %}}{raw}{{% endmacro %}}{{% set ns = namespace(l=[]) %}}\
         {{% for i in range(99999) %}}{{% set ns.l = ns.l + [m()] %}}{{% endfor %}}"
    ));
    check_fails(
        "{% set l = range(100000)|list %}{% set ns = namespace(l=[]) %}\
        {% for i in range(99999) %}{% set ns.l = [ns.l] + [l|list] %}{% endfor %}",
    );
    check_fails(
        "{% set l = range(100000)|list %}{{ [*l, *l, *l, *l]|length }}{% for i in l %}{% for j in l %}\
        {% set x = [*l] %}{% endfor %}{% endfor %}",
    );
}

#[test]
fn small_value_with_huge_text_fails() {
    let folded = repeated(60, "{% set s = [s, s] %}");
    for end in [
        "{{ s }}",
        "{{ s ~ '' }}",
        "{{ s == [s, s] }}",
        "{{ {s: 1} }}",
        "{{ s in [s] }}",
        "{{ raise_exception(s) }}",
    ] {
        check_fails(&format!("{{% set s = [1] %}}{folded}{end}"));
    }
}

#[test]
fn deep_nesting_fails_or_is_freed() {
    let nested = |step: &str, end: &str| {
        render(&format!(
            "{{% set ns = namespace(x=[1]) %}}{{% for i in range(1000) %}}{{% for j in range(40) %}}\
             {{% set ns.x = {step} %}}{{% endfor %}}{{% endfor %}}{{{{ {end} }}}}"
        ))
    };
    for step in [
        "[ns.x]",
        "(ns.x,)",
        "{'a': ns.x}",
        "namespace(x=ns.x)",
        "dict(x=ns.x)",
        "ns.x[0:]",
        "ns.x|list",
        "ns.x + []",
    ] {
        // Deep values are created and freed.
        assert!(nested(step, "1").is_ok(), "{step}");
    }
    for (step, end) in [
        ("[ns.x]", "ns.x"),
        ("{'a': ns.x}", "ns.x|tojson"),
        ("[ns.x]", "ns.x == [1]"),
        ("[ns.x]", "{ns.x: 1}"),
    ] {
        assert!(nested(step, end).is_err(), "{step} {end}");
    }
    check_fails(
        "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% for j in range(999) %}\
        {% set ns.x = [ns.x] %}{% endfor %}{% endfor %}",
    );
    check_fails("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}");
    check_fails("{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns|tojson }}");
    check_fails("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}");
    check_fails("{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}");
}

#[test]
fn value_with_maximum_nesting_is_freed() {
    // Enough messages for the largest allowance.
    let messages: Vec<Value> = (0..2000).map(|_| json!({})).collect();
    for step in ["[ns.x]", "(ns.x,)", "{'a': ns.x}", "namespace(x=ns.x)"] {
        let source = format!(
            "{{% set ns = namespace(x=[1]) %}}{{% for i in range(400) %}}{{% for j in range(1000) %}}\
             {{% set ns.x = {step} %}}{{% endfor %}}{{% endfor %}}done"
        );
        let template = Template::new(&source, Map::new()).unwrap();
        let text = template.render(&RenderInput { messages: &messages, ..RenderInput::default() });
        assert_eq!(text.unwrap(), "done", "{step}");
    }
}

#[test]
fn repeated_scans_of_large_values_fail() {
    let often = |what: &str| {
        check_fails(&format!(
            "{{% set s = 'x' * 16000000 %}}{{% set l = range(100000)|list %}}\
             {{% for i in range(99999) %}}{{% set x = {what} %}}{{% endfor %}}"
        ));
    };
    for what in ["'y' in s", "s.count('y')", "s|length", "l == l + []", "l|sort", "l[5:]"] {
        often(what);
    }
    check_fails(
        "{% set l = range(100000)|list %}{% for i in l %}{% for j in l %}{% break %}{% endfor %}{% endfor %}\
        {{ loop }}{{ 1/0 }}",
    );
}

#[test]
fn repeated_message_content_fails() {
    let messages = [json!({"role": "user", "content": "x".repeat(1 << 20)})];
    let source = "{% for i in range(9999) %}{{ messages[0].content }}{% endfor %}";
    let template = Template::new(source, Map::new()).unwrap();
    let error = template.render(&RenderInput { messages: &messages, ..RenderInput::default() }).unwrap_err();
    assert!(matches!(error, Error::PromptTooLong(_)) && error.is_request_error(), "{error}");
    let source = "{% set ns = namespace(all='') %}{% for i in range(9999) %}{% set ns.all = ns.all + messages[0].content %}{% endfor %}";
    let template = Template::new(source, Map::new()).unwrap();
    let error = template.render(&RenderInput { messages: &messages, ..RenderInput::default() }).unwrap_err();
    assert!(matches!(error, Error::TooCostly(_)) && error.is_request_error(), "{error}");
}

#[test]
fn renderings_share_a_bound_of_memory() {
    let memory = RenderMemory::new(1 << 20, 8 << 20);
    let source = "{% set n = messages[0].content|int %}{% set ns = namespace(all='') %}\
        {% for i in range(n) %}{% set ns.all = ns.all + 'x' * 1000 %}{% endfor %}{{ ns.all|length }}";
    let templates = [0, 1].map(|_| Template::new(source, Map::new()).unwrap().within(memory.clone()));
    let render = |template: &Template, n: usize| {
        let messages = [json!({"role": "user", "content": n.to_string()})];
        template.render(&RenderInput { messages: &messages, ..RenderInput::default() })
    };
    // A rendering returns what it took, also after an error: 5 MB each time, then 500 MB.
    for _ in 0..3 {
        assert_eq!(render(&templates[0], 100).unwrap(), "100000");
        assert!(matches!(render(&templates[1], 1000), Err(Error::TooCostly(_))));
    }
    let unbounded = Template::new(source, Map::new()).unwrap();
    assert_eq!(render(&unbounded, 600).unwrap(), "600000", "180 MB");
}

#[test]
fn long_conversation_collected_by_message_renders() {
    let messages: Vec<Value> =
        (0..2000).map(|n| json!({"role": "user", "content": format!("{n} ").repeat(200)})).collect();
    let source = "{% set ns = namespace(text='', list=[]) %}{% for m in messages %}\
        {% set ns.text = ns.text + m.content|trim + '\n' %}{% set ns.list = ns.list + [m] %}{% endfor %}\
        {{ ns.text }}{{ ns.list|length }}";
    let template = Template::new(source, Map::new()).unwrap();
    let text = template.render(&RenderInput { messages: &messages, ..RenderInput::default() }).unwrap();
    assert!(text.ends_with("1999\n2000"), "{}", &text[text.len() - 20..]);
}

#[test]
fn long_refusal_is_truncated() {
    let Err(Error::Refused(words)) = render("{{ raise_exception('é' * 1000000) }}") else { panic!() };
    assert!(words.len() < 5000 && words.ends_with('…'));
}

#[test]
fn template_renders_on_several_threads() {
    let template = Template::new("{% for m in messages %}{{ m.content }}{% endfor %}", Map::new()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let template = &template;
            scope.spawn(move || {
                for round in 0..50 {
                    let text = format!("{thread} {round}");
                    let messages = [json!({"role": "user", "content": text})];
                    let prompt =
                        template.render(&RenderInput { messages: &messages, ..RenderInput::default() });
                    assert_eq!(prompt.unwrap(), text);
                }
            });
        }
    });
}

const FILTERS: &[&str] = &[
    "upper",
    "list",
    "tojson",
    "tojson(indent=60)",
    "string",
    "sort",
    "unique",
    "join(s)",
    "batch(3)",
    "slice(3)",
    "indent(60000)",
    "replace('a', s)",
    "map('string')",
    "map('upper')",
    "dictsort",
    "items",
    "reverse",
    "trim(s)",
    "split('a')",
    "lines",
    "pprint",
    "format(s, l)",
    "groupby('a')",
    "sum",
    "sum(start=[])",
    "zip(l)",
    "chain(l)",
    "first",
    "last",
    "length",
    "min",
    "max",
    "escape",
    "safe",
    "round(400)",
    "int",
    "float",
    "default(s)",
    "attr('x')",
    "select('eq', s)",
    "selectattr('a')",
    "title",
    "abs",
];
const METHODS: &[&str] = &[
    "join(l)",
    "split('a')",
    "rsplit()",
    "replace('a', s)",
    "format(s, x=l)",
    "strip(s)",
    "count('a')",
    "items()",
    "values()",
    "keys()",
    "get(s)",
    "index(s)",
    "ljust(60000)",
    "partition('a')",
    "splitlines()",
    "title()",
    "startswith(l)",
    "find('b')",
    "copy()",
    "changed(l)",
    "cycle()",
    "cycle(s, l)",
];

/// Expressions that create, grow and read values.
fn expression() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("s".to_owned()),
        Just("l".to_owned()),
        Just("ns".to_owned()),
        Just("ns.x".to_owned()),
        Just("messages".to_owned()),
        Just("'ab'".to_owned()),
        Just("range(50000)".to_owned()),
        Just("10**9".to_owned()),
        Just("-3".to_owned()),
        Just("loop".to_owned()),
        Just("1.5".to_owned()),
    ];
    leaf.prop_recursive(4, 24, 3, |inner| {
        let filter = prop::sample::select(FILTERS);
        let method = prop::sample::select(METHODS);
        let operator = prop::sample::select(vec![
            "+", "~", "*", "==", "<", "in", "and", "or", "-", "//", "%", "**", "is eq",
        ]);
        prop_oneof![
            (inner.clone(), filter).prop_map(|(e, f)| format!("({e})|{f}")),
            (inner.clone(), method).prop_map(|(e, m)| format!("({e}).{m}")),
            (inner.clone(), operator, inner.clone()).prop_map(|(a, o, b)| format!("({a}) {o} ({b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("[{a}, {b}]")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{{{a}: {b}}}")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a})[{b}]")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a})[{b}:]")),
            inner.clone().prop_map(|e| format!("({e})[::-1]")),
            inner.clone().prop_map(|e| format!("m({e})")),
            inner.clone().prop_map(|e| format!("dict(a={e})")),
            inner.clone().prop_map(|e| format!("namespace(x={e})")),
            inner.prop_map(|e| format!("[*({e})]")),
        ]
    })
}

fn statement() -> impl Strategy<Value = String> {
    prop_oneof![
        expression().prop_map(|e| format!("{{% set s = {e} %}}")),
        expression().prop_map(|e| format!("{{% set l = {e} %}}")),
        expression().prop_map(|e| format!("{{% set ns.x = {e} %}}")),
        expression().prop_map(|e| format!("{{{{ {e} }}}}")),
        expression().prop_map(|e| format!("{{% set s %}}{{{{ {e} }}}}{{{{ s }}}}{{% endset %}}")),
        expression().prop_map(|e| format!("{{% if {e} %}}{{% set l = l + l %}}{{% endif %}}")),
        expression().prop_map(|e| format!("{{% for a in {e} %}}{{% set ns.x = [ns.x, a] %}}{{% endfor %}}")),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("LANNER_FUZZ").ok().and_then(|cases| cases.parse().ok()).unwrap_or(48)
    ))]

    #[test]
    fn generated_template_renders_or_fails(statements in prop::collection::vec(statement(), 1..6), rounds in 1usize..200) {
        let body: String = statements.concat();
        let source = format!(
            "{{% set ns = namespace(x='x') %}}{{% set s = 'abc' %}}{{% set l = [1, 'a', messages] %}}\
             {{% macro m(x) %}}{{{{ x }}}}{{{{ x }}}}{{% endmacro %}}\
             {body}{{% for i in range({rounds}) %}}{body}{{% endfor %}}"
        );
        if let Err(error) = render(&source) {
            prop_assert!(error.is_request_error() || matches!(error, Error::TemplateSyntax(_)), "{error}");
        }
    }
}
