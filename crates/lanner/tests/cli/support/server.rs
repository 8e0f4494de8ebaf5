//! A server over a scripted engine. Token ids 0-255 are bytes; the next four are control tokens.

use std::{
    net::SocketAddr,
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use ::chat::{Template, Tokenizer};
use ::store::Store;
use engine::{Memory, ModelInfo, Request, Sampling, WeightSummary, scripted};
use lanner::{
    cli::VolatilePrefix,
    commands::ends_within,
    config::{ApiKeys, CorsOrigin, ModelConfig, RegistryConfig, ServeConfig, Timeouts},
    hub::HubConfig,
    image_url::{AllowedHost, ImageUrls},
    model::Model,
    server::{self, AppState, McpAccess, Server},
    source::ModelLocation,
};
use serde_json::{Map, Value, json};
use tokio::{net::TcpListener, runtime::Runtime};

use super::{
    client::{self, Reply},
    pictures::{self, VISION_TEMPLATE},
    wait::PATIENCE,
};

pub(crate) const CONTEXT: usize = 1000;
pub(crate) const IM_END: u32 = 257;
/// Only in the tokenizer of a model that takes images.
pub(crate) const IMAGE_TOKEN: u32 = 262;
pub(crate) const TEMPLATE: &str = "{#- Calls: <tool_call> -#}{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    {%- if tools %}tools={{ tools | tojson }}\n{% endif %}\
    {%- if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}";

pub(crate) struct TestServer {
    pub address: SocketAddr,
    pub host: AppState,
    requests: Arc<Mutex<Vec<Request>>>,
    /// Taken when dropped.
    runtime: Option<Runtime>,
}

/// Holds answers of a script until it is opened; its clones are the same gate.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    /// Scripts run on a thread for each answer. A failed test never opens its gate.
    pub(crate) fn wait(&self) {
        let (open, changed) = &*self.0;
        drop(changed.wait_timeout_while(open.lock().unwrap(), PATIENCE, |open| !*open).unwrap());
    }

    pub(crate) fn open(&self) {
        let (open, changed) = &*self.0;
        *open.lock().unwrap() = true;
        changed.notify_all();
    }
}

/// Options of a test server.
pub(crate) struct Setup {
    pub name: &'static str,
    pub template: &'static str,
    pub context: usize,
    pub delay: Duration,
    /// Concurrent requests.
    pub capacity: usize,
    pub api_key: Option<&'static str>,
    /// Lines of a file of keys.
    pub api_keys: &'static str,
    pub share_prefixes: bool,
    pub allowed_hosts: Vec<String>,
    pub cors_origins: Vec<CorsOrigin>,
    /// Finds and loads other models.
    pub models: ModelConfig,
    pub body_limit: usize,
    pub admin: bool,
    /// Which models are loaded, and for how long.
    pub registry: RegistryConfig,
    pub max_connections: u32,
    pub timeouts: Timeouts,
    pub store: Option<Store>,
    /// The model takes images.
    pub vision: bool,
    /// Hosts from which images are fetched.
    pub allow_image_urls: Vec<AllowedHost>,
    /// MCP servers that requests may use.
    pub mcp: Option<McpAccess>,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            name: "owl",
            template: TEMPLATE,
            context: CONTEXT,
            delay: Duration::ZERO,
            capacity: 1000,
            api_key: None,
            api_keys: "",
            share_prefixes: false,
            allowed_hosts: Vec::new(),
            cors_origins: Vec::new(),
            models: models(no_hub()),
            body_limit: 2 << 20,
            admin: true,
            registry: RegistryConfig { pin: true, load_by_name: true, ..RegistryConfig::default() },
            max_connections: 512,
            timeouts: Timeouts::default(),
            store: None,
            vision: false,
            allow_image_urls: vec![],
            mcp: None,
        }
    }
}

impl Setup {
    /// A model that takes images, with a context that holds some.
    pub(crate) fn with_vision() -> Setup {
        Setup { vision: true, template: VISION_TEMPLATE, context: 20_000, ..Setup::default() }
    }

    /// The model answers every request with this text and ends its turn.
    pub(crate) fn says(self, text: &'static str) -> TestServer {
        self.script(move |_, n| token(tokens(text).get(n).copied().unwrap_or(IM_END)))
    }

    pub(crate) fn script(
        self,
        script: impl Fn(&Request, usize) -> scripted::Step + Clone + Send + 'static,
    ) -> TestServer {
        let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
        let received = requests.clone();
        let mut info = info(self.context);
        if self.vision {
            info.vocab_size = 263;
            info.vision = engine::Vision::Tower { image_token_id: IMAGE_TOKEN };
        }
        let engine = scripted::scripted(info, self.capacity, self.delay, move |request: &Request, n| {
            if n == 0 {
                received.lock().unwrap().push(request.clone());
            }
            script(request, n)
        });
        let template = Template::new(self.template, Map::new()).unwrap();
        let tokenizer = if self.vision { vision_tokenizer() } else { tokenizer() };
        let mut model = Model::new(self.name.into(), engine, tokenizer, Some(template));
        if self.vision {
            model.vision = Ok(pictures::vision(self.models.max_image_tokens));
        }
        model.volatile_prefix = self.models.volatile_prefix;
        model.tool_dialect = self.models.tool_dialect.or(model.tool_dialect);
        model.thinking = self.models.thinking.defaults(&ModelLocation::Builtin, &self.models.hub);
        self.over(model, requests)
    }

    /// A server whose engine hangs in a step.
    pub(crate) fn stuck(self) -> TestServer {
        let model = Model::new(self.name.into(), scripted::stuck(info(self.context)), tokenizer(), None);
        self.over(model, Arc::default())
    }

    /// The built-in model, served with `models`.
    pub(crate) fn merlin(self) -> TestServer {
        let model = Model::open(&self.models).unwrap();
        self.over(model, Arc::default())
    }

    fn keys(&self) -> ApiKeys {
        let given: Vec<String> = self.api_key.iter().map(|key| (*key).to_owned()).collect();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), self.api_keys).unwrap();
        ApiKeys::new(&given, (!self.api_keys.is_empty()).then(|| file.path())).unwrap()
    }

    fn over(self, model: Model, requests: Arc<Mutex<Vec<Request>>>) -> TestServer {
        let config = ServeConfig {
            address: "127.0.0.1:0".parse().unwrap(),
            api_keys: self.keys(),
            share_prefixes: self.share_prefixes,
            allowed_hosts: self.allowed_hosts,
            cors_origins: self.cors_origins,
            body_limit: self.body_limit,
            allow_image_urls: self.allow_image_urls,
            registry: RegistryConfig { load_by_name: self.admin, ..self.registry },
            admin: self.admin,
            max_connections: self.max_connections,
            timeouts: self.timeouts,
            ..ServeConfig::default()
        };
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind(config.address)).unwrap();
        let address = listener.local_addr().unwrap();
        let host = AppState::new(Server::new(model, None), self.models, config.registry.clone());
        self.store.into_iter().for_each(|store| host.set_store(store));
        if !config.allow_image_urls.is_empty() {
            host.set_image_urls(ImageUrls::new(config.allow_image_urls.clone()));
        }
        self.mcp.into_iter().for_each(|access| host.set_mcp(access));
        let served = host.clone();
        runtime.spawn(async move { server::serve(listener, served, &config).await });
        TestServer { address, host, requests, runtime: Some(runtime) }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        // Without a bound, a request that hangs would hang the test instead of failing it.
        self.runtime.take().into_iter().for_each(|runtime| runtime.shutdown_timeout(PATIENCE));
        // A process that ends while an engine frees its arrays crashes in MLX's destructors. One
        // whose step hangs never stops.
        let host = self.host.clone();
        ends_within(Duration::from_secs(5), move || host.stop());
    }
}

impl TestServer {
    pub(crate) fn chat(&self, body: &Value) -> Reply {
        let mut body = body.clone();
        if body.get("messages").is_none() {
            body["messages"] = json!([{ "role": "user", "content": "hi" }]);
        }
        client::post(self.address, "/v1/chat/completions", &body)
    }

    pub(crate) fn complete(&self, body: &Value) -> Reply {
        client::post(self.address, "/v1/completions", body)
    }

    pub(crate) fn health(&self) -> Value {
        client::get(self.address, "/health").json()
    }

    /// The engine's last request.
    pub(crate) fn last_request(&self) -> Request {
        self.requests.lock().unwrap().last().expect("a request").clone()
    }

    pub(crate) fn last_prompt(&self) -> String {
        vision_tokenizer().decode(&self.last_request().prompt, false).unwrap()
    }

    /// The prompts of all requests to the engine.
    pub(crate) fn prompts(&self) -> Vec<Vec<u32>> {
        self.requests.lock().unwrap().iter().map(|request| request.prompt.clone()).collect()
    }

    /// Number of requests to the engine.
    pub(crate) fn num_requests(&self) -> usize {
        self.requests.lock().unwrap().len()
    }
}

pub(crate) fn token(id: u32) -> scripted::Step {
    scripted::Step::Token(id)
}

/// Token ids of a text by the tests' tokenizer.
pub(crate) fn tokens(text: &str) -> Vec<u32> {
    tokenizer().encode(text, false).unwrap()
}

/// Settings that load models from this hub for the CPU.
pub(crate) fn models(hub: HubConfig) -> ModelConfig {
    let cpu = engine::Options { device: Some(engine::Device::Cpu), ..engine::Options::default() };
    ModelConfig {
        model: None,
        options: cpu,
        hub,
        volatile_prefix: VolatilePrefix::Keep,
        thinking: Default::default(),
        tool_dialect: None,
        ngram_table: None,
        draft_model: None,
        render_memory: Default::default(),
        max_image_tokens: 4096,
        memory_mode: Default::default(),
        is_memory_mode_named: false,
    }
}

pub(crate) fn no_hub() -> HubConfig {
    HubConfig {
        cache: None,
        endpoint: "http://127.0.0.1:9".into(),
        token: None,
        offline: true,
        proxy: None,
        uses: None,
        backoff: Duration::ZERO,
    }
}

fn info(context_length: usize) -> ModelInfo {
    ModelInfo {
        model_type: "scripted".into(),
        vocab_size: 260,
        context_length,
        is_encoder: false,
        vision: engine::Vision::None,
        eos_ids: vec![IM_END],
        drafters: vec!["ngram", "self"],
        speculate: engine::Speculate::Auto,
        default_sampling: Sampling { temperature: 0.7, ..Sampling::default() },
        weight_bytes: 0,
        weights: WeightSummary::default(),
        memory: Memory::default(),
    }
}

pub(crate) fn tokenizer() -> Tokenizer {
    Tokenizer::from_bytes(tokenizer_json().as_bytes(), None).unwrap()
}

/// The same with the tokens of images.
pub(crate) fn vision_tokenizer() -> Tokenizer {
    let mut json: Value = serde_json::from_str(&tokenizer_json()).unwrap();
    let names = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>"];
    for (id, name) in (260..).zip(names) {
        let token = json!({ "id": id, "content": name, "special": true, "single_word": false, "lstrip": false,
                            "rstrip": false, "normalized": false });
        json["added_tokens"].as_array_mut().unwrap().push(token);
    }
    Tokenizer::from_bytes(json.to_string().as_bytes(), None).unwrap()
}

/// A tokenizer.json of single bytes and four control tokens.
pub(crate) fn tokenizer_json() -> String {
    let mut vocab = Map::new();
    for byte in 0..=255u8 {
        vocab.insert(byte_symbol(byte).to_string(), byte.into());
    }
    let added = [
        ("<|im_start|>", 256, true),
        ("<|im_end|>", 257, true),
        ("<think>", 258, false),
        ("</think>", 259, false),
    ];
    let added = added.map(|(content, id, special)| {
        json!({ "id": id, "content": content, "special": special, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false })
    });
    let byte_level =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false });
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": added,
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                   "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                   "vocab": vocab, "merges": [] },
    })
    .to_string()
}

/// GPT-2's printable stand-in for a byte.
pub(crate) fn byte_symbol(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|&other| !printable(other)).count() as u32;
    char::from_u32(256 + rank).unwrap()
}
