//! Our own templates, one per group of Jinja features, compared with transformers.

use lanner_chat::{Error, RenderInput, Template, conversation};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn goldens() -> Value {
    serde_json::from_str(include_str!("../data/goldens.json")).unwrap()
}

fn source(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/templates/");
    std::fs::read_to_string(format!("{folder}{name}")).unwrap()
}

fn render(template: &Template, case: &Value) -> lanner_chat::Result<String> {
    let mut kwargs = case.as_object().unwrap().clone();
    kwargs.retain(|name, _| {
        !["messages", "tools", "add_generation_prompt", "continue_final_message"].contains(&name.as_str())
    });
    let messages = conversation::prepare(case["messages"].as_array().unwrap(), template)?;
    template.render(&RenderInput {
        messages: &messages,
        tools: case["tools"].as_array().map(Vec::as_slice),
        documents: None,
        add_generation_prompt: case["add_generation_prompt"] == true,
        continue_final_message: case["continue_final_message"] == true,
        kwargs,
    })
}

fn check(name: &str) {
    let goldens = goldens();
    let special_tokens = goldens["special_tokens"].as_object().unwrap().clone();
    let template = Template::new(&source(name), special_tokens).unwrap();
    let template = template.at("2026-03-07T15:04:05".parse().unwrap());
    let own = goldens["goldens"].as_array().unwrap().iter().filter(|g| g["template"] == name);
    let mut count = 0;
    for golden in own {
        let case = &goldens["cases"][golden["case"].as_str().unwrap()];
        match (render(&template, case), golden["expected"].as_str()) {
            (Ok(text), Some(expected)) => {
                for (ours, theirs) in text.lines().zip(expected.lines()) {
                    assert_eq!(ours, theirs, "{name}, {}", golden["case"]);
                }
                assert_eq!(text, expected, "{name}, {}", golden["case"]);
            }
            (Err(Error::Refused(message)), None) => {
                assert_eq!(golden["error"], format!("TemplateError: {message}"));
            }
            (outcome, _) => panic!("{name}, {}: {outcome:?}", golden["case"]),
        }
        count += 1;
    }
    assert!(count >= 3);
}

#[test]
fn whitespace_control_equals_transformers() {
    check("whitespace.jinja");
}

#[test]
fn tojson_equals_transformers() {
    check("json.jinja");
}

#[test]
fn python_methods_and_operators_equal_transformers() {
    check("python.jinja");
}

#[test]
fn printing_equals_transformers() {
    check("printing.jinja");
}

#[test]
fn control_flow_equals_transformers() {
    check("control.jinja");
}

#[test]
fn filters_equal_transformers() {
    check("filters.jinja");
}

#[test]
fn refusal_is_request_error() {
    check("refuse.jinja");
}

#[test]
fn strftime_now_equals_transformers() {
    check("time.jinja");
}

#[test]
fn whole_chat_template_equals_transformers() {
    check("assistant.jinja");
}

fn fails(source: &str) -> Error {
    let template = Template::new(source, Map::new()).unwrap();
    template
        .render(&RenderInput { messages: &[json!({"role": "user"})], ..RenderInput::default() })
        .unwrap_err()
}

#[test]
fn endless_template_runs_out_of_fuel() {
    let nested = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
    assert!(matches!(fails(nested), Error::OutOfFuel(_)));
    let in_macro = format!("{{% macro f() %}}{nested}{{% endmacro %}}{{% set x = f() %}}");
    assert!(matches!(fails(&in_macro), Error::OutOfFuel(_)));
}

#[test]
fn endless_prompt_is_too_long() {
    let big = "{% set big = 'x' * 1000000 %}{% for a in range(9999) %}{{ big }}{% endfor %}";
    assert!(matches!(fails(big), Error::PromptTooLong(_)));
}

#[test]
fn endless_recursion_fails() {
    let recursion = "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}";
    assert!(matches!(fails(recursion), Error::TemplateRender(_)));
}

#[test]
fn missing_method_is_named_in_error() {
    assert!(fails("{{ messages[0].role.nothing() }}").to_string().contains("nothing"));
}

#[test]
fn from_dir_finds_template_in_each_file() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    let render = |tools: Option<&[Value]>| {
        Template::from_dir(dir.path())?.render(&RenderInput { tools, ..RenderInput::default() })
    };
    assert!(matches!(render(None), Err(Error::NoTemplate(_))));
    let named = json!({"bos_token": {"content": "<s>"}, "chat_template": [
        {"name": "default", "template": "{{ bos_token }}plain"}, {"name": "tool_use", "template": "with tools"}]});
    write("tokenizer_config.json", &named.to_string());
    assert_eq!(render(None).unwrap(), "<s>plain");
    assert_eq!(render(Some(&[])).unwrap(), "with tools");
    write("chat_template.json", &json!({"chat_template": "from json"}).to_string());
    assert_eq!(render(None).unwrap(), "from json");
    write("chat_template.jinja", "from jinja {{ bos_token }}");
    assert_eq!(render(None).unwrap(), "from jinja <s>");
    write("tokenizer_config.json", "{");
    assert!(matches!(render(None), Err(Error::Json { .. })));
}

#[test]
fn prepare_converts_messages() {
    let template = Template::new("{{ messages }}", Map::new()).unwrap();
    let prepare = |message: Value| conversation::prepare(&[message], &template);
    let check = |message: Value, expected: Value| assert_eq!(prepare(message).unwrap(), [expected]);
    check(
        json!({"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
        json!({"role": "system", "content": "a\nb"}),
    );
    let call = |arguments: Value| json!([{"id": "1", "function": {"name": "f", "arguments": arguments}}]);
    check(
        json!({"role": "assistant", "tool_calls": call(json!("{\"x\": 1}"))}),
        json!({"role": "assistant", "content": null, "tool_calls": call(json!({"x": 1}))}),
    );
    check(
        json!({"role": "assistant", "content": "", "tool_calls": call(json!("not json"))}),
        json!({"role": "assistant", "content": "", "tool_calls": call(json!("not json"))}),
    );
    let image = json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]});
    let error = prepare(image).unwrap_err();
    assert!(error.is_request_error());
    assert_eq!(error.to_string(), "messages[0]: content of type image_url is not supported: send text");
    for invalid in [json!(1), json!({}), json!({"role": 1}), json!({"role": "user", "content": 1})] {
        prepare(invalid).unwrap_err();
    }
}

proptest! {
    #[test]
    fn random_template_does_not_panic(source in "(\\{%|\\{\\{|\\{#|%\\}|\\}\\}|#\\}|for|if|set|in|x|generation|end|\\||'|\\(|\\)|[ -~\\n]|\\PC){0,40}") {
        if let Ok(template) = Template::new(&source, Map::new()) {
            let _ = template.render(&RenderInput::default());
        }
    }

    #[test]
    fn rendered_text_is_unchanged(text in "\\PC{0,60}") {
        let template = Template::new("{% for m in messages %}{{ m.content }}{% endfor %}", Map::new()).unwrap();
        let messages = [json!({"role": "user", "content": text})];
        let prompt = template.render(&RenderInput { messages: &messages, ..RenderInput::default() });
        prop_assert_eq!(prompt.unwrap(), text);
    }
}
