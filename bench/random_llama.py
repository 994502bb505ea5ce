"""Writes a GGUF file of Llama-3.2-1B's dimensions with random Q4_K weights: for speed, not for sense."""
import os
import pathlib
import random
import struct

LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 16, 2048, 8192, 32, 8, 64, 128256
F32, Q4_K = 0, 12
ALIGNMENT = 32
U32, FLOAT, STRING = 4, 6, 8


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def keys():
    yield "general.architecture", STRING, text("llama")
    yield "general.name", STRING, text("random, of Llama 3.2 1B's size")
    for name, value in [("block_count", LAYERS), ("context_length", 131072), ("embedding_length", HIDDEN),
                        ("feed_forward_length", INNER), ("attention.head_count", HEADS),
                        ("attention.head_count_kv", KV_HEADS), ("rope.dimension_count", HEAD_DIM),
                        ("vocab_size", VOCABULARY)]:
        yield "llama." + name, U32, struct.pack("<I", value)
    yield "llama.rope.freq_base", FLOAT, struct.pack("<f", 500000)
    yield "llama.attention.layer_norm_rms_epsilon", FLOAT, struct.pack("<f", 1e-5)
    yield "tokenizer.ggml.model", STRING, text("no_vocab")


def tensors():  # name, shape as ggml counts it, type
    yield "token_embd.weight", (HIDDEN, VOCABULARY), Q4_K
    yield "output_norm.weight", (HIDDEN,), F32
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        yield block + "attn_norm.weight", (HIDDEN,), F32
        yield block + "ffn_norm.weight", (HIDDEN,), F32
        for name, inputs, outputs in [("attn_q", HIDDEN, HEADS * HEAD_DIM), ("attn_k", HIDDEN, KV_HEADS * HEAD_DIM),
                                      ("attn_v", HIDDEN, KV_HEADS * HEAD_DIM), ("attn_output", HEADS * HEAD_DIM, HIDDEN),
                                      ("ffn_gate", HIDDEN, INNER), ("ffn_up", HIDDEN, INNER), ("ffn_down", INNER, HIDDEN)]:
            yield f"{block}{name}.weight", (inputs, outputs), Q4_K


def size_of(shape, kind):
    elements = 1
    for length in shape:
        elements *= length
    return elements * 4 if kind == F32 else elements // 256 * 144


def write(path):
    """Unless it is there already; returns the path."""
    path = pathlib.Path(path)
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = random.Random(1)
    # 4096 blocks of 256 weights in ±0.02, again and again: scale, offset, 6-bit scales and offsets, codes.
    blocks = b"".join(struct.pack("<ee", 5e-5, 4e-4) + numbers.randbytes(140) for _ in range(4096))
    all_keys, all_tensors = list(keys()), list(tensors())
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(all_tensors), len(all_keys))
    head += b"".join(text(name) + struct.pack("<I", kind) + value for name, kind, value in all_keys)
    offset = 0
    for name, shape, kind in all_tensors:
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
        offset += (size_of(shape, kind) + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    temporary = path.with_suffix(f".{os.getpid()}.new")
    with open(temporary, "wb") as file:
        file.write(head + b"\0" * (-len(head) % ALIGNMENT))
        for _, shape, kind in all_tensors:
            size = size_of(shape, kind)
            if kind == F32:
                file.write(struct.pack("<f", 1) * (size // 4))
            else:
                for begin in range(0, size, len(blocks)):
                    file.write(blocks[:size - begin])
            file.write(b"\0" * (-size % ALIGNMENT))
    os.replace(temporary, path)
    return path
