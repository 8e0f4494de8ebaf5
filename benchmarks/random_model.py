"""Writes a small model with random weights and a given tokenizer's vocabulary.

    python3 benchmarks/random_model.py TOKENIZER_FOLDER OUT [--hidden 256] [--layers 4]

Its answers are noise, but a step costs what a vocabulary of that size costs: measures what masks and
sampling cost at vocabularies that the built-in model does not have. It is of the architecture of
Qwen3, in bfloat16, with tied embeddings. Needs nothing but Python.
"""

import argparse
import json
import pathlib
import random

HEAD_DIM = 64
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
# The upper byte of a bfloat16 between 2^-7 and 2^-5 with the sign of a random byte.
SIGNS = bytes(0x3C if byte < 128 else 0xBC for byte in range(256))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "tokenizer", type=pathlib.Path, help="a folder with tokenizer.json, or merges.txt and tokenizer_config.json"
    )
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--hidden", type=int, default=256, help=f"a multiple of {HEAD_DIM}")
    parser.add_argument("--layers", type=int, default=4)
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    vocab_size = copy_tokenizer(options.tokenizer, options.out)
    config = make_config(vocab_size, options.hidden, options.layers)
    (options.out / "config.json").write_text(json.dumps(config, indent=2))
    write_weights(options.out / "model.safetensors", tensors(config))
    print(f"{options.out}: {vocab_size} tokens, {options.layers} layers of {options.hidden}")


def copy_tokenizer(source, out):
    """The number of tokens."""
    settings = source / "tokenizer_config.json"
    settings = json.loads(settings.read_text()) if settings.exists() else {}
    # A tokenizer.json may have been rebuilt from its vocabulary alone.
    files = [source / name for name in ("tokenizer.rebuilt.json", "tokenizer.json")]
    file = next((file for file in files if file.exists()), None)
    tokenizer = json.loads(file.read_text()) if file else from_merges(source / "merges.txt", settings)
    (out / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    ids = [*tokenizer["model"]["vocab"].values(), *(token["id"] for token in tokenizer["added_tokens"])]
    return max(ids) + 1


def from_merges(path, settings):
    """A byte-level tokenizer of these merges. Its ids are not the published ones, their number is."""
    merges = [line for line in path.read_text().splitlines() if line and not line.startswith("#version")]
    vocab = {symbol: index for index, symbol in enumerate(byte_symbols())}
    for merge in merges:
        vocab.setdefault(merge.replace(" ", ""), len(vocab))
    added = settings["added_tokens_decoder"].values()
    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": len(vocab) + index, **token} for index, token in enumerate(added)],
        "normalizer": None,
        "pre_tokenizer": bytes_only,
        "post_processor": None,
        "decoder": bytes_only,
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    }


def byte_symbols():
    """GPT-2's printable stand-ins for the bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + index) for index in range(len(others))]


def make_config(vocab_size, hidden, layers):
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // HEAD_DIM,
        "num_key_value_heads": 1,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "torch_dtype": "bfloat16",
        "eos_token_id": 0,
    }


def tensors(config):
    """Names and shapes."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    yield "model.embed_tokens.weight", [config["vocab_size"], hidden]
    yield "model.norm.weight", [hidden]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        yield f"{at}input_layernorm.weight", [hidden]
        yield f"{at}post_attention_layernorm.weight", [hidden]
        yield f"{at}self_attn.q_proj.weight", [hidden, hidden]
        yield f"{at}self_attn.k_proj.weight", [HEAD_DIM, hidden]
        yield f"{at}self_attn.v_proj.weight", [HEAD_DIM, hidden]
        yield f"{at}self_attn.o_proj.weight", [hidden, hidden]
        yield f"{at}self_attn.q_norm.weight", [HEAD_DIM]
        yield f"{at}self_attn.k_norm.weight", [HEAD_DIM]
        yield f"{at}mlp.gate_proj.weight", [inner, hidden]
        yield f"{at}mlp.up_proj.weight", [inner, hidden]
        yield f"{at}mlp.down_proj.weight", [hidden, inner]


def write_weights(path, named_shapes):
    header, chunks, offset = {"__metadata__": {"format": "pt"}}, [], 0
    rng = random.Random(7)
    for name, shape in named_shapes:
        count = 1
        for length in shape:
            count *= length
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + 2 * count]}
        chunks.append((count, "norm" in name))
        offset += 2 * count
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for count, is_norm in chunks:
            file.write(b"\x80\x3f" * count if is_norm else noise(rng, count))


def noise(rng, count):
    """Random numbers in bfloat16, little-endian."""
    numbers = bytearray(2 * count)
    numbers[0::2] = rng.randbytes(count)
    numbers[1::2] = rng.randbytes(count).translate(SIGNS)
    return numbers


if __name__ == "__main__":
    main()
