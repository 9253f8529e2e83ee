"""An independent forward pass for one-layer float32 models of tools/mkmodel, in numpy and double
precision, and its own small GGUF reader. It shares no code and no order of operations with the
engine: what it says of a prompt is what the arithmetic says, with every token in view."""

import struct

import numpy as np

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}


class Gguf:
    """Metadata and float32 tensors of a file; `tensors` are writable views of `data`."""

    def __init__(self, path):
        self.data = np.fromfile(path, dtype=np.uint8)
        self.bytes = self.data.tobytes()
        self.at = 4
        version, tensor_cnt, key_cnt = self._take("<I"), self._take("<Q"), self._take("<Q")
        assert self.bytes[:4] == b"GGUF" and version == 3
        self.meta = {}
        for _ in range(key_cnt):
            key = self._string()
            self.meta[key] = self._value(self._take("<I"))
        infos = []
        for _ in range(tensor_cnt):
            name = self._string()
            dims = [self._take("<Q") for _ in range(self._take("<I"))]
            kind = self._take("<I")
            infos.append((name, dims, kind, self._take("<Q")))
        align = self.meta.get("general.alignment", 32)
        base = (self.at + align - 1) // align * align
        self.tensors = {}
        for name, dims, kind, offset in infos:
            assert kind == 0, f"{name} is not F32"
            count = int(np.prod(dims))
            view = self.data[base + offset:base + offset + 4 * count].view("<f4")
            self.tensors[name] = view.reshape(dims[::-1])

    def _take(self, form):
        value = struct.unpack_from(form, self.bytes, self.at)[0]
        self.at += struct.calcsize(form)
        return value

    def _string(self):
        size = self._take("<Q")
        self.at += size
        return self.bytes[self.at - size:self.at].decode("utf-8", "surrogateescape")

    def _value(self, kind):
        if kind == 8:
            return self._string()
        if kind == 9:
            inner, count = self._take("<I"), self._take("<Q")
            return [self._value(inner) for _ in range(count)]
        return self._take(_SCALARS[kind])

    def save(self, path):
        self.data.tofile(path)


def _norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def _rope(x, positions, factors, base):
    """x [rows, heads, head_dim], interleaved pairs."""
    half = x.shape[-1] // 2
    freq = base ** (-np.arange(half) / half) / factors
    angle = positions[:, None, None] * freq
    even, odd = x[..., 0::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., 0::2] = even * np.cos(angle) - odd * np.sin(angle)
    out[..., 1::2] = even * np.sin(angle) + odd * np.cos(angle)
    return out


def last_logprobs(gguf, ids):
    """Log-probabilities of the token after `ids`, double precision, K and V rounded to float16 as the
    cache holds them."""
    meta, tensors = gguf.meta, {k: v.astype(np.float64) for k, v in gguf.tensors.items()}
    heads, kv_heads = meta["llama.attention.head_count"], meta["llama.attention.head_count_kv"]
    eps = meta["llama.attention.layer_norm_rms_epsilon"]
    base = meta.get("llama.rope.freq_base", 10000.0)
    assert meta["llama.block_count"] == 1
    ids = np.asarray(ids)
    embedding = tensors["token_embd.weight"]
    head_dim = tensors["blk.0.attn_q.weight"].shape[0] // heads
    factors = tensors.get("rope_freqs.weight", np.ones(head_dim // 2)).reshape(-1)

    # K before rotation and V depend on the token alone: once per vocabulary entry.
    x = _norm(embedding, tensors["blk.0.attn_norm.weight"], eps)
    k_all = (x @ tensors["blk.0.attn_k.weight"].T).reshape(-1, kv_heads, head_dim)
    v_all = (x @ tensors["blk.0.attn_v.weight"].T).reshape(-1, kv_heads, head_dim)
    positions = np.arange(len(ids), dtype=np.float64)
    k = _rope(k_all[ids], positions, factors, base).astype(np.float16).astype(np.float64)
    v = v_all[ids].astype(np.float16).astype(np.float64)
    last = ids[-1]
    q = (x[last] @ tensors["blk.0.attn_q.weight"].T).reshape(1, heads, head_dim)
    q = _rope(q, positions[-1:], factors, base)[0]
    out = np.empty((heads, head_dim))
    for h in range(heads):
        g = h // (heads // kv_heads)
        scores = k[:, g] @ q[h] / np.sqrt(head_dim)
        weights = np.exp(scores - scores.max())
        out[h] = weights @ v[:, g] / weights.sum()
    hidden = embedding[last] + out.reshape(-1) @ tensors["blk.0.attn_output.weight"].T
    y = _norm(hidden, tensors["blk.0.ffn_norm.weight"], eps)
    gate = y @ tensors["blk.0.ffn_gate.weight"].T
    up = y @ tensors["blk.0.ffn_up.weight"].T
    hidden = hidden + (gate / (1 + np.exp(-gate)) * up) @ tensors["blk.0.ffn_down.weight"].T
    y = _norm(hidden, tensors["output_norm.weight"], eps)
    logits = y @ tensors.get("output.weight", embedding).T
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
