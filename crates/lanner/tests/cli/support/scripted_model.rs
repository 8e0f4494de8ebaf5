//! A checkpoint whose answers are known: the last character of a message chooses one of some texts.

use std::{collections::HashSet, fs, path::Path};

use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::server::tokenizer_json;

/// Tokens of the tests' tokenizer: bytes and control tokens.
const BYTES: usize = 260;
const END: usize = 257;
/// The last token of a prompt is the last character of the last message.
const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}<|im_start|>\
                        {{ messages[-1].content[-1:] }}";
/// Characters of a token at least.
const PIECE: usize = 3;

/// A folder for `--model`: a message that ends with a character is answered with its text.
pub(crate) fn scripted_model(answers: &[(char, &str)]) -> TempDir {
    scripted_model_with(answers, TEMPLATE)
}

/// [`scripted_model`] with a template of its own, whose last character is that of the message.
pub(crate) fn scripted_model_with(answers: &[(char, &str)], template: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut tokenizer: Value = serde_json::from_str(&tokenizer_json()).unwrap();
    let mut pieces: Vec<String> = vec![];
    // The next token of each.
    let mut next = vec![END; BYTES];
    for (at, (character, text)) in answers.iter().enumerate() {
        if let Some((earlier, _)) = answers[..at].iter().find(|(_, earlier)| earlier == text) {
            next[*character as usize] = next[*earlier as usize];
            continue;
        }
        let own = split(text, &pieces.iter().cloned().collect());
        next[*character as usize] = BYTES + pieces.len();
        pieces.extend(own);
        next.extend(next.len() + 1..=BYTES + pieces.len());
        *next.last_mut().unwrap() = END;
    }
    for (i, piece) in pieces.iter().enumerate() {
        let token = json!({ "id": BYTES + i, "content": piece, "special": false, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false });
        tokenizer["added_tokens"].as_array_mut().unwrap().push(token);
    }
    fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    write_weights(&next, folder.path());
    folder
}

/// Splits a text into tokens that differ from each other and from `known`.
fn split(text: &str, known: &HashSet<String>) -> Vec<String> {
    let (mut pieces, mut piece) = (Vec::<String>::new(), String::new());
    for c in text.chars() {
        piece.push(c);
        if piece.chars().count() >= PIECE && !known.contains(&piece) && !pieces.contains(&piece) {
            pieces.push(std::mem::take(&mut piece));
        }
    }
    if !piece.is_empty() {
        let last = pieces.pop().unwrap_or_default() + &piece;
        assert!(!known.contains(&last) && !pieces.contains(&last), "{text:?} cannot be split");
        pieces.push(last);
    }
    pieces
}

/// Each token has a direction of its own, which leads to the next token; the layer adds nothing.
fn write_weights(next: &[usize], folder: &Path) {
    let (vocab, heads) = (next.len(), 64);
    let hidden = vocab.next_multiple_of(64);
    let one_hot = |rows: &mut dyn Iterator<Item = (usize, usize)>| {
        let mut values = vec![0_f32; vocab * hidden];
        rows.for_each(|(row, column)| values[row * hidden + column] = 1.0);
        (vec![vocab, hidden], values)
    };
    let filled = |shape: [usize; 2], value: f32| (shape.to_vec(), vec![value; shape[0] * shape[1]]);
    let norm = || (vec![hidden], vec![1.0; hidden]);
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), one_hot(&mut (0..vocab).map(|i| (i, i)))),
        ("lm_head.weight".to_owned(), one_hot(&mut next.iter().enumerate().map(|(i, next)| (*next, i)))),
        ("model.norm.weight".to_owned(), norm()),
    ];
    let layer = [
        ("input_layernorm", norm()),
        ("post_attention_layernorm", norm()),
        ("self_attn.q_proj", filled([heads, hidden], 0.0)),
        ("self_attn.k_proj", filled([heads, hidden], 0.0)),
        ("self_attn.v_proj", filled([heads, hidden], 0.0)),
        ("self_attn.o_proj", filled([hidden, heads], 0.0)),
        ("mlp.gate_proj", filled([heads, hidden], 0.0)),
        ("mlp.up_proj", filled([heads, hidden], 0.0)),
        ("mlp.down_proj", filled([hidden, heads], 0.0)),
    ];
    tensors.extend(layer.map(|(name, tensor)| (format!("model.layers.0.{name}.weight"), tensor)));
    let data: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(_, (_, values))| values.iter().flat_map(|v| v.to_le_bytes()).collect())
        .collect();
    let views = tensors.iter().zip(&data).map(|((name, (shape, _)), data)| {
        (name.clone(), TensorView::new(Dtype::F32, shape.clone(), data).unwrap())
    });
    safetensors::serialize_to_file(views, None, &folder.join("model.safetensors")).unwrap();
    let config = json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": hidden,
        "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "num_hidden_layers": 1,
        "intermediate_size": heads, "vocab_size": vocab, "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "eos_token_id": END, "torch_dtype": "float32", "tie_word_embeddings": false,
        "max_position_embeddings": 4096, "rope_theta": 10000.0,
    });
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
}
