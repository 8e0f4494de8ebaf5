//! Recorded checkpoints with vision towers, and requests with their images.

use std::{ops::Range, path::Path};

use lanner_engine::{Image, ImageTensor, Request};
use serde::Deserialize;
use serde_json::json;
use tempfile::TempDir;

use super::{
    checkpoint,
    recorded::Case,
    requests::{Random, request},
};

pub(crate) const IMAGE_TOKEN: u32 = 252;
const BREAK_TOKEN: u32 = 253;
const TILE_TOKEN: u32 = 251;

pub(crate) struct Towers {
    seed: u64,
    images: Vec<Picture>,
    pub cases: Vec<PictureCase>,
}

#[derive(Deserialize)]
struct Picture {
    rows: usize,
    columns: usize,
    /// Rows and columns of each tensor, if there are several.
    views: Option<Vec<[usize; 2]>>,
}

pub(crate) struct PictureCase {
    pub text: Case,
    /// Index of each image, and the runs of its positions.
    images: Vec<(usize, Vec<(usize, usize)>)>,
}

impl Towers {
    fn parse(text: &str) -> Towers {
        let golden: serde_json::Value = serde_json::from_str(text).expect("JSON");
        let case = |case: &serde_json::Value| PictureCase {
            text: serde_json::from_value(case.clone()).expect("a case"),
            images: serde_json::from_value(case["images"].clone()).expect("images"),
        };
        Towers {
            seed: golden["seed"].as_u64().expect("a seed"),
            images: serde_json::from_value(golden["images"].clone()).expect("images"),
            cases: golden["cases"].as_array().expect("cases").iter().map(case).collect(),
        }
    }
}

/// A recorded checkpoint, written to a folder.
pub(crate) struct Recorded {
    pub folder: TempDir,
    pub towers: Towers,
    input: Input,
}

/// Input of a tower.
enum Input {
    /// Patches of this many values, merged two by two.
    Patches(usize),
    /// The same, and large images are two tiles and a thumbnail, each after a token of its own.
    Tiles(usize),
    /// Patches of this many values, one for each token.
    Tokens(usize),
    /// Planes of pixels, of which squares with this side become a token; rows end with a break.
    Planes(usize),
    /// Planes of this side, and this many tokens.
    Square(usize, usize),
}

pub(crate) fn names() -> Vec<String> {
    let folder = checkpoint::recorded().join("../towers");
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

impl Recorded {
    pub(crate) fn read(name: &str) -> Recorded {
        let name = format!("../towers/{name}");
        let folder = checkpoint::folder(&name);
        let text = std::fs::read_to_string(checkpoint::recorded().join(&name).join("golden.json"));
        let towers = Towers::parse(&text.expect("golden.json"));
        let config = config(folder.path());
        let vision = &config["vision_config"];
        let number = |key: &str| vision[key].as_u64().expect("a number") as usize;
        let input = match config["model_type"].as_str() {
            Some("mistral3") => Input::Planes(2 * number("patch_size")),
            Some("gemma3") => Input::Square(
                number("image_size"),
                config["mm_tokens_per_image"].as_u64().expect("a number") as usize,
            ),
            Some("gemma4") => Input::Patches(3 * number("patch_size").pow(2)),
            Some("gemma4_unified") => {
                Input::Tokens(3 * (number("patch_size") * number("pooling_kernel_size")).pow(2))
            }
            Some("lfm2_vl") => Input::Tiles(3 * number("patch_size").pow(2)),
            _ => {
                let patch =
                    number("in_channels") * number("temporal_patch_size") * number("patch_size").pow(2);
                Input::Patches(patch)
            }
        };
        Recorded { folder, towers, input }
    }

    /// Image `index` of the golden at these positions.
    pub(crate) fn image(&self, index: usize, positions: Vec<Range<usize>>) -> Image {
        let Picture { rows, columns, views } = &self.towers.images[index];
        let views = views.clone().unwrap_or_else(|| vec![[*rows, *columns]]);
        self.picture(&format!("pixels.{index}"), &views, positions)
    }

    /// `model_type` of its config.json.
    pub(crate) fn model_type(&self) -> String {
        config(self.folder.path())["model_type"].as_str().expect("a name").into()
    }

    /// Whether it has a multi-token prediction head.
    pub(crate) fn has_mtp(&self) -> bool {
        let bytes = std::fs::read(self.folder.path().join("model.safetensors")).expect("weights");
        let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
        tensors.names().iter().any(|name| name.starts_with("mtp."))
    }

    /// The tokens that stand for an image of these rows and columns of tokens.
    fn expansion(&self, [rows, columns]: [usize; 2]) -> Vec<u32> {
        match self.input {
            Input::Patches(_) | Input::Tokens(_) => vec![IMAGE_TOKEN; rows * columns],
            Input::Tiles(_) => {
                let pads = |[rows, columns]: [usize; 2]| vec![IMAGE_TOKEN; rows * columns];
                let views = tiles([rows, columns]).into_iter().map(pads);
                views.collect::<Vec<_>>().join(&TILE_TOKEN)
            }
            Input::Square(_, tokens) => vec![IMAGE_TOKEN; tokens],
            Input::Planes(_) => {
                let row = [vec![IMAGE_TOKEN; columns], vec![BREAK_TOKEN]].concat();
                row.repeat(rows)[..rows * (columns + 1) - 1].to_vec()
            }
        }
    }

    /// Random values for tensors of these rows and columns.
    fn picture(&self, name: &str, views: &[[usize; 2]], positions: Vec<Range<usize>>) -> Image {
        let each = match self.input {
            Input::Patches(values) | Input::Tiles(values) | Input::Tokens(values) => values,
            Input::Planes(_) | Input::Square(..) => 3,
        };
        let sizes = views.iter().map(|[rows, columns]| rows * columns * each);
        let spec =
            json!({"dtype": "F32", "shape": [sizes.clone().sum::<usize>()], "mean": 0.0, "spread": 1.0});
        let bytes = checkpoint::values(name, self.towers.seed, &spec);
        let mut values = bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four));
        let mut digest = [0; 32];
        digest[..name.len()].copy_from_slice(name.as_bytes());
        let tensors = views.iter().zip(sizes).map(|(&[rows, columns], size)| {
            let values = values.by_ref().take(size).collect();
            ImageTensor { rows, columns, values }
        });
        Image { positions, digest, tensors: tensors.collect() }
    }

    /// The request of a case.
    pub(crate) fn request(&self, case: &PictureCase) -> Request {
        let images = case
            .images
            .iter()
            .map(|(index, runs)| self.image(*index, runs.iter().map(|&(start, end)| start..end).collect()));
        Request { images: images.collect(), ..case.text.request() }
    }

    /// A prompt of text and images, which begins like one of those `before` or not, and its images.
    pub(crate) fn random_request(
        &self,
        random: &mut Random,
        before: &[Request],
        max_tokens: usize,
    ) -> Request {
        let (mut prompt, mut images) = (vec![], vec![]);
        if !before.is_empty() && !random.one_in(3) {
            let other = &before[random.below(before.len())];
            let end = match other.images.get(random.below(other.images.len() + 1)) {
                Some(image) => image.positions[0].start,
                None => other.prompt.len(),
            };
            prompt = other.prompt[..end].to_vec();
            images = other.images.iter().filter(|image| image.span().end <= end).cloned().collect();
        }
        for _ in 0..random.below(3) + usize::from(prompt.is_empty()) {
            let length = random.choose(&[1, 4, 30, 90]);
            let more = random.below(length) + 1;
            prompt.extend(random.tokens(more));
            // Few pictures, so that they come again; also two of one size in the same place.
            let grid = random.choose(&[[1, 1], [2, 3], [2, 3], [4, 4], [1, 10]]);
            let name = format!("pixels.{}.{}.{}", random.below(3), grid[0], grid[1]);
            let views = match self.input {
                Input::Patches(_) => vec![grid.map(|tokens| 2 * tokens)],
                Input::Tiles(_) => tiles(grid).iter().map(|view| view.map(|tokens| 2 * tokens)).collect(),
                Input::Tokens(_) => vec![grid],
                Input::Planes(side) => vec![grid.map(|tokens| side * tokens)],
                Input::Square(side, _) => vec![[side; 2]],
            };
            let start = prompt.len();
            prompt.extend(self.expansion(grid));
            images.push(self.picture(&name, &views, runs(&prompt, start)));
        }
        let tail = random.below(20) + 1;
        prompt.extend(random.tokens(tail));
        Request { images, ..request(prompt, max_tokens) }
    }

    /// The same checkpoint in mlx-vlm's layout: other names, and convolutions with channels last.
    pub(crate) fn in_mlx_layout(&self) -> TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let config_json = config(self.folder.path());
        std::fs::write(folder.path().join("config.json"), config_json.to_string()).expect("written");
        let bytes = std::fs::read(self.folder.path().join("model.safetensors")).expect("weights");
        let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
        let mut stored = vec![];
        for (name, view) in tensors.tensors() {
            let (mut shape, mut data) = (view.shape().to_vec(), view.data().to_vec());
            let size = data.len() / shape.iter().product::<usize>();
            let is_expert = name.contains(".mlp.experts.") && self.has_transposed_experts();
            if shape.len() > 3 || is_expert {
                data = channels_last(&data, size, &shape);
                shape[1..].rotate_left(1);
            }
            match mlx_name(&name) {
                name if is_expert && name.ends_with("gate_up_proj") => {
                    let path = name.replace(".experts.gate_up_proj", ".switch_mlp");
                    shape[1] /= 2;
                    let half = shape[1] * shape[2] * size;
                    for (part, of) in ["gate_proj", "up_proj"].into_iter().enumerate() {
                        let halves = data.chunks_exact(half).skip(part).step_by(2);
                        let data = halves.collect::<Vec<_>>().concat();
                        stored.push((format!("{path}.{of}.weight"), view.dtype(), shape.clone(), data));
                    }
                }
                name if is_expert => {
                    let name = name.replace(".experts.down_proj", ".switch_mlp.down_proj.weight");
                    stored.push((name, view.dtype(), shape, data));
                }
                name => stored.push((name, view.dtype(), shape, data)),
            }
        }
        let views = stored.iter().map(|(name, dtype, shape, data)| {
            (name, safetensors::tensor::TensorView::new(*dtype, shape.clone(), data).expect("a view"))
        });
        safetensors::serialize_to_file(views, None, &folder.path().join("model.safetensors"))
            .expect("written");
        folder
    }

    /// Whether it has experts stored transposed, as Qwen3-VL is published.
    fn has_transposed_experts(&self) -> bool {
        let text = &config(self.folder.path())["text_config"];
        text["model_type"] == "qwen3_vl_moe_text" && text["norm_topk_prob"] == true
    }

    /// The same checkpoint without its tower, as mlx-lm writes it.
    pub(crate) fn without_tower(&self) -> TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::copy(self.folder.path().join("config.json"), folder.path().join("config.json"))
            .expect("copied");
        let bytes = std::fs::read(self.folder.path().join("model.safetensors")).expect("weights");
        let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
        let parts =
            [".visual.", "vision_tower.", "vision_embedder.", "embed_vision.", "multi_modal_projector."];
        let is_text = |name: &str| !parts.iter().any(|part| name.contains(part));
        let text = tensors.tensors().into_iter().filter(|(name, _)| is_text(name));
        safetensors::serialize_to_file(text, None, &folder.path().join("model.safetensors"))
            .expect("written");
        folder
    }
}

/// Rows and columns of tokens of the views of an image: of a large one, two tiles and a thumbnail.
fn tiles([rows, columns]: [usize; 2]) -> Vec<[usize; 2]> {
    match rows > 2 {
        true => vec![[rows, columns / 2], [rows, columns / 2], [rows / 2, columns / 2]],
        false => vec![[rows, columns]],
    }
}

/// The name in mlx-vlm's layout of a tensor of the hub.
fn mlx_name(name: &str) -> String {
    if name.starts_with("lm_head") {
        return format!("language_model.{name}");
    }
    let Some(name) = name.strip_prefix("model.") else { return name.into() };
    match (name.strip_prefix("language_model."), name.strip_prefix("visual.")) {
        (Some(rest), _) => format!("language_model.model.{rest}"),
        (_, Some(rest)) => format!("vision_tower.{rest}"),
        _ => name.replace("vision_tower.vision_model.", "vision_tower."),
    }
}

/// The runs of image tokens from position `start`.
fn runs(prompt: &[u32], start: usize) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = vec![];
    for at in (start..prompt.len()).filter(|&at| prompt[at] == IMAGE_TOKEN) {
        match runs.last_mut() {
            Some(last) if last.end == at => last.end += 1,
            _ => runs.push(at..at + 1),
        }
    }
    runs
}

fn config(folder: &Path) -> serde_json::Value {
    let text = std::fs::read_to_string(folder.join("config.json")).expect("config.json");
    serde_json::from_str(&text).expect("JSON")
}

/// `[outputs, channels, rest..]` as `[outputs, rest.., channels]`, elements of `size` bytes.
fn channels_last(data: &[u8], size: usize, shape: &[usize]) -> Vec<u8> {
    let (channels, rest) = (shape[1], shape[2..].iter().product::<usize>());
    let mut out = vec![];
    for output in data.chunks_exact(channels * rest * size) {
        for place in 0..rest {
            (0..channels).for_each(|c| out.extend(&output[(c * rest + place) * size..][..size]));
        }
    }
    out
}
