//! Settings of agents: the address, the model, the key and the context reach each of them.

use super::*;

fn backend() -> Backend {
    Backend {
        url: "http://127.0.0.1:9999".into(),
        key: Some("s3cr3t".into()),
        model: "org/owl \"q\"".into(),
        context: Some(54_321),
        calls_tools: Some(true),
        takes_images: true,
    }
}

fn folders() -> Folders {
    Folders { own: "/own".into(), pi: "/home/.pi/agent".into(), cline: "/home/.cline".into() }
}

/// All texts of the settings.
fn text(settings: &Settings) -> String {
    let env = settings.env.iter().map(|(name, value)| format!("{name}={value}\n"));
    let files = settings.files.iter().map(|(path, text)| format!("{}\n{text}", path.display()));
    let entry = settings.entry.iter().map(|entry| format!("{}\n{}", entry.file.display(), entry.value));
    env.chain(files).chain(entry).chain(settings.args.iter().map(|arg| format!("{arg}\n"))).collect()
}

#[test]
fn every_agent_gets_address_model_key_and_context() {
    for agent in AGENTS {
        let text = text(&(agent.settings)(&backend(), &folders()));
        let name = agent.name;
        for part in ["http://127.0.0.1:9999", "s3cr3t", "org/owl"] {
            assert!(text.contains(part), "{name} lacks {part}:\n{text}");
        }
        // Cline has no setting for it.
        assert!(text.contains("54321") || name == "cline", "{name} lacks the context:\n{text}");
    }
}

#[test]
fn server_without_a_key_gets_a_placeholder_from_every_agent_that_needs_one() {
    for agent in AGENTS.iter().filter(|agent| agent.name != "codex") {
        let settings = (agent.settings)(&Backend { key: None, context: None, ..backend() }, &folders());
        let text = text(&settings);
        assert!(text.contains(NO_KEY) && !text.contains("s3cr3t"), "{}: {text}", agent.name);
        assert!(!text.contains("null"), "{}: {text}", agent.name);
    }
}

#[test]
fn agents_with_a_setting_for_it_are_told_whether_the_model_takes_images() {
    for name in ["opencode", "aider", "crush", "pi", "qwen"] {
        let settings = |takes_images| {
            text(&(Agent::named(name).unwrap().settings)(&Backend { takes_images, ..backend() }, &folders()))
        };
        assert_ne!(settings(true), settings(false), "{name}");
    }
}

#[test]
fn codex_values_are_toml() {
    let settings = (Agent::named("codex").unwrap().settings)(&backend(), &folders());
    let pairs: Vec<&String> = settings.args.iter().filter(|arg| *arg != "-c").collect();
    let text = pairs.iter().map(|pair| format!("{pair}\n")).collect::<String>();
    let table: toml::Table = text.parse().unwrap();
    assert_eq!(table["model"].as_str(), Some("org/owl \"q\""));
    assert_eq!(table["model_providers"]["lanner"]["wire_api"].as_str(), Some("responses"));
    assert_eq!(table["model_context_window"].as_integer(), Some(54_321));
}

#[test]
fn files_with_a_key_of_the_server_are_only_those_of_agents_without_variables() {
    for agent in AGENTS.iter().filter(|agent| agent.name != "cline") {
        let settings = (agent.settings)(&backend(), &folders());
        let files = settings.files.iter().map(|(_, text)| text.clone());
        let entries = settings.entry.iter().map(|entry| entry.value.to_string());
        assert!(files.chain(entries).all(|text| !text.contains("s3cr3t")), "{}", agent.name);
    }
}

#[test]
fn names_of_agents_are_unique() {
    let mut names: Vec<&str> = AGENTS.iter().map(|agent| agent.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), AGENTS.len());
    assert!(AGENTS.iter().all(|agent| std::ptr::eq(Agent::named(agent.name).unwrap(), agent)));
}

#[test]
fn model_that_is_too_small_is_a_problem() {
    let (codex, aider) = (Agent::named("codex").unwrap(), Agent::named("aider").unwrap());
    let small = Backend { context: Some(8192), ..backend() };
    let problem = codex.problem(&small).unwrap();
    assert!(problem.contains("has 8192"), "{problem}");
    assert_eq!(codex.problem(&backend()), None);
    let silent = Backend { calls_tools: Some(false), ..backend() };
    assert!(codex.problem(&silent).unwrap().contains("tool calls"));
    assert_eq!(aider.problem(&silent), None);
    let unknown = Backend { context: None, calls_tools: None, ..backend() };
    assert_eq!(codex.problem(&unknown), None);
}
