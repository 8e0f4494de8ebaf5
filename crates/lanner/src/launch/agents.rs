//! The settings of each agent: variables and flags where it has them, a file of our own where it
//! reads one, and an entry in a file of its own where there is no other way.

use serde_json::{Value, json};

use super::{Agent, Backend, Entry, Folders, Settings};

/// The name of our provider in the settings of agents.
const PROVIDER: &str = "lanner";

pub static AGENTS: &[Agent] = &[
    Agent {
        name: "claude",
        title: "Claude Code",
        program: "claude",
        install: "npm install -g @anthropic-ai/claude-code",
        prompt_tokens: 20_000,
        calls_tools: true,
        settings: claude,
    },
    Agent {
        name: "codex",
        title: "Codex",
        program: "codex",
        install: "npm install -g @openai/codex",
        prompt_tokens: 8_000,
        calls_tools: true,
        settings: codex,
    },
    Agent {
        name: "opencode",
        title: "opencode",
        program: "opencode",
        install: "npm install -g opencode-ai",
        prompt_tokens: 8_000,
        calls_tools: true,
        settings: opencode,
    },
    Agent {
        name: "aider",
        title: "aider",
        program: "aider",
        install: "python3 -m pip install aider-chat",
        prompt_tokens: 3_000,
        calls_tools: false,
        settings: aider,
    },
    Agent {
        name: "goose",
        title: "Goose",
        program: "goose",
        install: "see its documentation: no package registry has its command line",
        prompt_tokens: 8_000,
        calls_tools: true,
        settings: goose,
    },
    Agent {
        name: "crush",
        title: "Crush",
        program: "crush",
        install: "npm install -g @charmland/crush",
        prompt_tokens: 12_000,
        calls_tools: true,
        settings: crush,
    },
    Agent {
        name: "cline",
        title: "Cline",
        program: "cline",
        install: "npm install -g cline",
        prompt_tokens: 6_000,
        calls_tools: true,
        settings: cline,
    },
    Agent {
        name: "pi",
        title: "pi",
        program: "pi",
        install: "npm install -g @mariozechner/pi-coding-agent",
        prompt_tokens: 2_000,
        calls_tools: true,
        settings: pi,
    },
    Agent {
        name: "qwen",
        title: "Qwen Code",
        program: "qwen",
        install: "npm install -g @qwen-code/qwen-code",
        prompt_tokens: 20_000,
        calls_tools: true,
        settings: qwen,
    },
];

fn claude(backend: &Backend, _: &Folders) -> Settings {
    let model = &backend.model;
    let tokens = |name, tokens: Option<usize>| tokens.map(|tokens| (name, tokens.to_string()));
    let mut env = vec![
        ("ANTHROPIC_BASE_URL", backend.url.clone()),
        ("ANTHROPIC_AUTH_TOKEN", backend.key_or_placeholder()),
        // A key of the user's own would be sent in place of the token.
        ("ANTHROPIC_API_KEY", String::new()),
        // For titles and summaries it names other models.
        ("ANTHROPIC_DEFAULT_OPUS_MODEL", model.clone()),
        ("ANTHROPIC_DEFAULT_SONNET_MODEL", model.clone()),
        ("ANTHROPIC_DEFAULT_HAIKU_MODEL", model.clone()),
        ("CLAUDE_CODE_SUBAGENT_MODEL", model.clone()),
        // These two would change the head of every prompt, which the prefix cache could not reuse.
        ("CLAUDE_CODE_ATTRIBUTION_HEADER", "0".into()),
        ("CLAUDE_CODE_TOTAL_TOKENS_REMINDER", "off".into()),
        // Telemetry, updates and surveys.
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".into()),
        ("CLAUDE_CODE_DISABLE_FEEDBACK_SURVEY", "1".into()),
        ("DISABLE_ERROR_REPORTING", "1".into()),
    ];
    env.extend(tokens("CLAUDE_CODE_AUTO_COMPACT_WINDOW", backend.context));
    env.extend(tokens("CLAUDE_CODE_MAX_OUTPUT_TOKENS", backend.output_tokens()));
    Settings { env, args: vec!["--model".into(), model.clone()], ..Settings::default() }
}

fn codex(backend: &Backend, _: &Folders) -> Settings {
    // `-c` takes a path of keys and a value in TOML, whose strings are those of JSON here.
    let text = |value: &str| Value::from(value).to_string();
    let mut options = vec![
        ("model".to_owned(), text(&backend.model)),
        ("model_provider".into(), text(PROVIDER)),
        (format!("model_providers.{PROVIDER}.name"), text("Lanner")),
        (format!("model_providers.{PROVIDER}.base_url"), text(&backend.v1())),
        (format!("model_providers.{PROVIDER}.wire_api"), text("responses")),
        ("check_for_update_on_startup".into(), "false".into()),
        ("analytics.enabled".into(), "false".into()),
    ];
    if let Some(context) = backend.context {
        options.push(("model_context_window".into(), context.to_string()));
        options.push(("model_auto_compact_token_limit".into(), (context / 10 * 8).to_string()));
    }
    let mut env = vec![];
    if let Some(key) = &backend.key {
        options.push((format!("model_providers.{PROVIDER}.env_key"), text("LANNER_API_KEY")));
        env.push(("LANNER_API_KEY", key.clone()));
    }
    let args = options.into_iter().flat_map(|(key, value)| ["-c".to_owned(), format!("{key}={value}")]);
    Settings { env, args: args.collect(), ..Settings::default() }
}

fn opencode(backend: &Backend, _: &Folders) -> Settings {
    let model = &backend.model;
    let mut described = json!({ "name": model });
    if let (Some(context), Some(output)) = (backend.context, backend.output_tokens()) {
        described["limit"] = json!({ "context": context, "output": output });
    }
    if backend.takes_images {
        described["attachment"] = true.into();
        described["modalities"] = json!({ "input": ["text", "image"], "output": ["text"] });
    }
    let provider = json!({
        "npm": "@ai-sdk/openai-compatible",
        "name": "Lanner",
        "options": { "baseURL": backend.v1(), "apiKey": backend.key_or_placeholder() },
        "models": { model: described },
    });
    let name = format!("{PROVIDER}/{model}");
    let config = json!({
        "$schema": "https://opencode.ai/config.json",
        "provider": { PROVIDER: provider },
        "model": name,
        "small_model": name,
        "autoupdate": false,
        "share": "disabled",
    });
    let env = vec![
        ("OPENCODE_CONFIG_CONTENT", config.to_string()),
        ("OPENCODE_DISABLE_AUTOUPDATE", "1".into()),
        ("OPENCODE_DISABLE_MODELS_FETCH", "1".into()),
    ];
    Settings { env, ..Settings::default() }
}

fn aider(backend: &Backend, folders: &Folders) -> Settings {
    let model = format!("openai/{}", backend.model);
    let mut settings = Settings {
        env: vec![
            ("OPENAI_API_BASE", backend.v1()),
            ("OPENAI_API_KEY", backend.key_or_placeholder()),
            ("AIDER_CHECK_UPDATE", "false".into()),
            ("AIDER_ANALYTICS", "false".into()),
            ("AIDER_SHOW_MODEL_WARNINGS", "false".into()),
        ],
        args: vec!["--model".into(), model.clone(), "--weak-model".into(), model.clone()],
        ..Settings::default()
    };
    if let (Some(context), Some(output)) = (backend.context, backend.output_tokens()) {
        let metadata = json!({ model: {
            "max_tokens": output, "max_input_tokens": context, "max_output_tokens": output,
            "input_cost_per_token": 0, "output_cost_per_token": 0,
            "litellm_provider": "openai", "mode": "chat", "supports_vision": backend.takes_images,
        } });
        let file = folders.of("aider").join("model-metadata.json");
        settings.args.extend(["--model-metadata-file".into(), file.display().to_string()]);
        settings.files.push((file, format!("{metadata:#}\n")));
    }
    settings
}

fn goose(backend: &Backend, _: &Folders) -> Settings {
    let mut env = vec![
        ("GOOSE_PROVIDER", "openai".into()),
        ("GOOSE_MODEL", backend.model.clone()),
        // The address and the path are joined by Goose.
        ("OPENAI_HOST", backend.url.clone()),
        ("OPENAI_BASE_PATH", "v1/chat/completions".into()),
        ("OPENAI_API_KEY", backend.key_or_placeholder()),
        ("GOOSE_TELEMETRY_ENABLED", "false".into()),
    ];
    env.extend(backend.context.map(|context| ("GOOSE_CONTEXT_LIMIT", context.to_string())));
    Settings { env, default_args: &["session"], ..Settings::default() }
}

/// Crush has no variables for a provider, but one for the folder of its state, whose crush.json is
/// merged with the user's own.
fn crush(backend: &Backend, folders: &Folders) -> Settings {
    let mut model =
        json!({ "id": backend.model, "name": backend.model, "supports_attachments": backend.takes_images });
    if let (Some(context), Some(output)) = (backend.context, backend.output_tokens()) {
        (model["context_window"], model["default_max_tokens"]) = (context.into(), output.into());
    }
    let provider = json!({
        "name": "Lanner",
        "type": "openai-compat",
        "base_url": format!("{}/", backend.v1()),
        "api_key": "$LANNER_API_KEY",
        "models": [model],
    });
    let selected = json!({ "provider": PROVIDER, "model": backend.model });
    let config = json!({
        "providers": { PROVIDER: provider },
        "models": { "large": selected, "small": selected },
        "options": { "disable_metrics": true, "disable_provider_auto_update": true },
    });
    let folder = folders.of("crush");
    let env = vec![
        ("CRUSH_GLOBAL_DATA", folder.display().to_string()),
        ("LANNER_API_KEY", backend.key_or_placeholder()),
        ("CRUSH_DISABLE_METRICS", "1".into()),
        ("CRUSH_DISABLE_PROVIDER_AUTO_UPDATE", "1".into()),
    ];
    Settings { env, files: vec![(folder.join("crush.json"), format!("{config:#}\n"))], ..Settings::default() }
}

/// Cline takes the address from its own file alone. It drops entries of other names and shapes.
fn cline(backend: &Backend, folders: &Folders) -> Settings {
    const NAME: &str = "openai-compatible";
    let settings = json!({
        "provider": NAME,
        "model": backend.model,
        "baseUrl": backend.v1(),
        "apiKey": backend.key_or_placeholder(),
    });
    let entry = Entry {
        file: folders.cline.join("data/settings/providers.json"),
        new_file: r#"{"version": 1, "modes": {}, "providers": {}}"#,
        keys: &["providers", NAME],
        value: json!({
            "settings": settings,
            "updatedAt": "2026-01-01T00:00:00.000Z",
            "tokenSource": "manual",
        }),
    };
    let args = ["--provider", NAME, "--model", &backend.model].map(str::to_owned).to_vec();
    Settings { args, entry: Some(entry), ..Settings::default() }
}

fn pi(backend: &Backend, folders: &Folders) -> Settings {
    let mut model = json!({ "id": backend.model });
    if let (Some(context), Some(output)) = (backend.context, backend.output_tokens()) {
        (model["contextWindow"], model["maxTokens"]) = (context.into(), output.into());
    }
    if backend.takes_images {
        model["input"] = json!(["text", "image"]);
    }
    let entry = Entry {
        file: folders.pi.join("models.json"),
        new_file: "",
        keys: &["providers", PROVIDER],
        value: json!({
            "baseUrl": backend.v1(),
            "api": "openai-completions",
            // The name of a variable, so that no key is in the file.
            "apiKey": "LANNER_API_KEY",
            "models": [model],
        }),
    };
    let env = vec![
        ("LANNER_API_KEY", backend.key_or_placeholder()),
        ("PI_TELEMETRY", "0".into()),
        ("PI_SKIP_VERSION_CHECK", "1".into()),
    ];
    let args = ["--provider", PROVIDER, "--model", &backend.model].map(str::to_owned).to_vec();
    Settings { env, args, entry: Some(entry), ..Settings::default() }
}

fn qwen(backend: &Backend, folders: &Folders) -> Settings {
    let file = folders.of("qwen").join("system-defaults.json");
    // Without this it guesses from the model's name whether it takes images.
    let mut generation = json!({ "modalities": { "image": backend.takes_images } });
    if let Some(context) = backend.context {
        generation["contextWindowSize"] = context.into();
    }
    let defaults = json!({
        "general": { "disableAutoUpdate": true, "enableAutoUpdate": false },
        "privacy": { "usageStatisticsEnabled": false },
        "model": { "generationConfig": generation },
    });
    let mut env = vec![
        ("OPENAI_BASE_URL", backend.v1()),
        ("OPENAI_API_KEY", backend.key_or_placeholder()),
        ("OPENAI_MODEL", backend.model.clone()),
        ("QWEN_CODE_SYSTEM_DEFAULTS_PATH", file.display().to_string()),
    ];
    env.extend(backend.output_tokens().map(|tokens| ("QWEN_CODE_MAX_OUTPUT_TOKENS", tokens.to_string())));
    let args = ["--auth-type", "openai", "--model", &backend.model].map(str::to_owned).to_vec();
    Settings { env, args, files: vec![(file, format!("{defaults:#}\n"))], ..Settings::default() }
}
