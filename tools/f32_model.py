"""Forward pass of a GGUF language model in f32, with numpy: the yardstick for golden outputs.

Weights are dequantized to f32 once; activations, keys and values stay f32; nothing is rounded in between. Engines that
quantize activations differ from this and from each other, so this is what Koudai's exact mode is held against.
Architectures: llama, qwen2, qwen3, gemma3 (with its sliding window). Used by golden.py, stories260k.py and
compare_llama_cpp.py; not a program of its own.

    pip install gguf numpy
"""
import re

import gguf
import numpy as np

F32 = np.float32


class Cache:
    """Keys and values of one sequence, all layers, in f32; grows by doubling."""

    def __init__(self, layers, kv_heads, head_dim):
        self.length = 0
        self._store = np.zeros((layers, 2, kv_heads, 64, head_dim), F32)

    def append(self, layer, keys, values):
        """Adds (kv_heads, n, head_dim) keys and values; returns views of everything so far."""
        end = self.length + keys.shape[1]
        if end > self._store.shape[3]:
            bigger = np.zeros((*self._store.shape[:3], max(end, 2 * self._store.shape[3]), self._store.shape[4]), F32)
            bigger[..., : self.length, :] = self._store[..., : self.length, :]
            self._store = bigger
        self._store[layer, 0, :, self.length : end] = keys
        self._store[layer, 1, :, self.length : end] = values
        return self._store[layer, 0, :, :end], self._store[layer, 1, :, :end]


class Layer:
    """One block's tensors as attributes: layer.attn_q, layer.attn_q_bias, …; absent ones are None."""

    def __init__(self, tensors):
        self.__dict__.update(tensors)

    def __getattr__(self, _absent):
        return None


class Model:
    ROTATES_NEIGHBOURS = {"llama"}  # GGUF orders llama's q and k rows so that channels 2i and 2i+1 form a pair
    KNOWN = {"llama", "qwen2", "qwen3", "gemma3"}

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self._fields = reader.fields
        self.arch = self.field("general.architecture")
        if self.arch not in self.KNOWN:
            raise SystemExit(f"{path}: architecture {self.arch!r} is not among {sorted(self.KNOWN)}")
        self.depth = self.hparam("block_count")
        self.dim = self.hparam("embedding_length")
        self.heads = self.hparam("attention.head_count")
        self.kv_heads = self.hparam("attention.head_count_kv", self.heads)
        self.head_dim = self.hparam("attention.key_length", self.dim // self.heads)
        self.eps = F32(self.hparam("attention.layer_norm_rms_epsilon"))
        if self.hparam("rope.dimension_count", self.head_dim) != self.head_dim:
            raise SystemExit(f"{path}: partial rotary embeddings are not supported")
        self.bos = self.field("tokenizer.ggml.bos_token_id")
        self.eos = self.field("tokenizer.ggml.eos_token_id")

        self.types, blocks, top = {}, [{} for _ in range(self.depth)], {}
        for tensor in reader.tensors:
            shape = [int(n) for n in reversed(tensor.shape)]
            data = np.ascontiguousarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type), F32).reshape(shape)
            kind = re.sub(r"^blk\.\d+\.", "", tensor.name)
            self.types.setdefault(kind, {}).setdefault(tensor.tensor_type.name, 0)
            self.types[kind][tensor.tensor_type.name] += 1
            name = kind.removesuffix(".weight").replace(".", "_")
            at = re.match(r"blk\.(\d+)\.", tensor.name)
            (blocks[int(at[1])] if at else top)[name] = data
        self.layers = [Layer(b) for b in blocks]
        self.embedding, self.final_norm = top["token_embd"], top["output_norm"]
        self.head = top.get("output", self.embedding)
        self.vocab = len(self.head)

        gemma = self.arch == "gemma3"
        self.input_scale = F32(np.sqrt(self.dim)) if gemma else None
        self.window = self.hparam("attention.sliding_window") if gemma else None
        self.activation = gelu if gemma else silu
        self._rates = [self._frequencies(i, top.get("rope_freqs")) for i in range(self.depth)]

    def field(self, name, default=None):
        return self._fields[name].contents() if name in self._fields else default

    def hparam(self, name, default=None):
        value = self.field(f"{self.arch}.{name}", default)
        if value is None:
            raise SystemExit(f"metadata key {self.arch}.{name} is missing")
        return value

    def is_local(self, layer):
        """Gemma 3: five layers with a sliding window, then one which sees everything."""
        return self.window is not None and layer % 6 != 5

    def _frequencies(self, layer, factors):
        base, shrink = self.hparam("rope.freq_base", 10000.0), 1.0
        scaling = self.field(f"{self.arch}.rope.scaling.type")
        if scaling == "linear":
            shrink = self.hparam("rope.scaling.factor", 1.0)
        elif scaling not in (None, "none"):
            raise SystemExit(f"rotary scaling {scaling!r} is not supported")
        if self.is_local(layer):
            base, shrink = self.hparam("rope.local.freq_base", 10000.0), 1.0
        rates = 1.0 / (base ** (np.arange(self.head_dim // 2) * 2.0 / self.head_dim) * shrink)
        return rates if factors is None else rates / factors

    def new_cache(self):
        return Cache(self.depth, self.kv_heads, self.head_dim)

    def _rotate(self, x, turn):
        """x: (heads, n, head_dim); turn: (n, head_dim/2) unit complex numbers."""
        out = np.empty_like(x)
        if self.arch in self.ROTATES_NEIGHBOURS:
            out.view(np.complex64)[...] = np.ascontiguousarray(x).view(np.complex64) * turn
        else:
            half = self.head_dim // 2
            turned = (x[..., :half] + 1j * x[..., half:]).astype(np.complex64) * turn
            out[..., :half], out[..., half:] = turned.real, turned.imag
        return out

    def _attend(self, layer, x, cache, at):
        w, n, first = self.layers[layer], len(x), cache.length

        def heads(weight, bias, norm, count):
            y = x @ weight.T if bias is None else x @ weight.T + bias
            y = y.reshape(n, count, self.head_dim).swapaxes(0, 1)
            return y if norm is None else self.norm(y, norm)

        turn = np.exp(1j * at[:, None] * self._rates[layer]).astype(np.complex64)
        q = self._rotate(heads(w.attn_q, w.attn_q_bias, w.attn_q_norm, self.heads), turn)
        k = self._rotate(heads(w.attn_k, w.attn_k_bias, w.attn_k_norm, self.kv_heads), turn)
        keys, values = cache.append(layer, k, heads(w.attn_v, w.attn_v_bias, None, self.kv_heads))
        ago = at[:, None] - np.arange(first + n)
        hidden = ago < 0
        if self.is_local(layer):
            hidden |= ago >= self.window
        group = self.heads // self.kv_heads
        mixed = np.empty((self.heads, n, self.head_dim), F32)
        for h in range(self.heads):
            score = q[h] @ keys[h // group].T * F32(self.head_dim**-0.5)
            score[hidden] = -np.inf
            score = np.exp(score - score.max(axis=1, keepdims=True))
            mixed[h] = score @ values[h // group] / score.sum(axis=1, keepdims=True)
        y = mixed.swapaxes(0, 1).reshape(n, -1) @ w.attn_output.T
        return y if w.attn_output_bias is None else y + w.attn_output_bias

    def norm(self, x, weight):
        return x * (F32(1) / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + self.eps)) * weight

    def hidden(self, ids, cache):
        """Runs ids after what the cache holds; returns the normalized last hidden states, (n, dim)."""
        at = np.arange(cache.length, cache.length + len(ids))
        x = self.embedding[np.asarray(ids)]
        if self.input_scale is not None:
            x = x * self.input_scale
        for i, w in enumerate(self.layers):
            y = self._attend(i, self.norm(x, w.attn_norm), cache, at)
            x = x + (y if w.post_attention_norm is None else self.norm(y, w.post_attention_norm))
            y = self.norm(x, w.ffn_norm)
            y = (self.activation(y @ w.ffn_gate.T) * (y @ w.ffn_up.T)) @ w.ffn_down.T
            x = x + (y if w.post_ffw_norm is None else self.norm(y, w.post_ffw_norm))
        cache.length += len(ids)
        assert x.dtype == F32
        return self.norm(x, self.final_norm)

    def logits(self, ids, cache):
        """Logits after the last of ids."""
        return self.head @ self.hidden(ids, cache)[-1]

    def greedy(self, ids, steps, stop=None):
        """(token ids, margins between the best two logits, logits after the prompt); stops after a token in stop."""
        cache, chosen, margins = self.new_cache(), [], []
        first = z = self.logits(ids, cache)
        for step in range(steps):
            a, b = np.argsort(-z, kind="stable")[:2]
            chosen.append(int(a))
            margins.append(float(z[a]) - float(z[b]))
            if chosen[-1] in (stop or ()) or step + 1 == steps:
                break
            z = self.logits([chosen[-1]], cache)
        return chosen, margins, first


def silu(x):
    return x / (F32(1) + np.exp(-x))


def gelu(x):
    return F32(0.5) * x * (F32(1) + np.tanh(F32(np.sqrt(2 / np.pi)) * x * (F32(1) + F32(0.044715) * x * x)))


def log_softmax(z):
    """In f64, so that sums over a large vocabulary lose nothing."""
    z = np.asarray(z, np.float64)
    z = z - z.max()
    return z - np.log(np.exp(z).sum())


def best(logp, count):
    return [int(i) for i in np.argsort(-logp, kind="stable")[:count]]
