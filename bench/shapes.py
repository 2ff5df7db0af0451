# SPDX-License-Identifier: Apache-2.0
"""What the scripts here measure, what it costs at least, and statistics. Needs the standard library
alone."""
from dataclasses import dataclass

# name: the ABI's code (attn_types.h), torch's name, bytes of an element
DTYPES = {
    "fp32": (2 | 32 << 8 | 1 << 16, "float32", 4),
    "fp16": (2 | 16 << 8 | 1 << 16, "float16", 2),
    "bf16": (4 | 16 << 8 | 1 << 16, "bfloat16", 2),
    "fp8_e4m3": (10 | 8 << 8 | 1 << 16, "float8_e4m3fn", 1),
    "fp8_e5m2": (12 | 8 << 8 | 1 << 16, "float8_e5m2", 1),
}


class Floor:
    """What a case is timed against: it has `flops` and `bytes`."""

    def floor(self, flops_per_second, bytes_per_second):
        """(seconds, their cause): a lower bound for any version."""
        products, memory = self.flops / flops_per_second, self.bytes / bytes_per_second
        return (products, "products") if products > memory else (memory, "memory")

    @property
    def decode(self):
        return self.phase == "decode"


def causal_pairs(queries, tokens):
    """Of the last `queries` of so many tokens with what each of them sees."""
    return queries * tokens - queries * (queries - 1) // 2


@dataclass(frozen=True)
class Case(Floor):
    """One shape of softmax attention: all sequences have `tokens` keys, all layers are alike.

    prefill: all tokens are new and causal; decode: one query for each sequence; chunk: the last
    `new` tokens are; verify: the same, of drafts."""

    phase: str
    dtype: str
    batch: int
    q_heads: int
    kv_heads: int
    head_dim: int
    tokens: int
    kv_dtype: str = ""  # of the cache; "" = dtype
    shared: int = 0  # of the tokens the first, that all sequences of a decode have in common
    new: int = 0  # chunk, verify

    contenders = "gpu_contenders"  # the module that measures such shapes on a GPU

    def __str__(self):
        kv = f" kv {self.kv_dtype}" if self.kv_dtype else ""
        shared = f" shared {self.shared}" if self.shared else ""
        new = f" q{self.new}" if self.new else ""
        return (f"{self.phase} {self.dtype}{kv} B{self.batch} H{self.q_heads}/{self.kv_heads} "
                f"D{self.head_dim} N{self.tokens}{new}{shared}")

    @property
    def cache_dtype(self):
        return self.kv_dtype or self.dtype

    @property
    def queries(self):
        """Of one sequence."""
        return 1 if self.decode else self.new or self.tokens

    @property
    def flops(self):
        """Of the two products, of the pairs that the causal mask lets through."""
        pairs = causal_pairs(self.queries, self.tokens)
        return 4 * self.batch * self.q_heads * self.head_dim * pairs

    @property
    def kv_bytes(self):
        """Keys and values of all sequences, those that they share once for each."""
        return 2 * self.batch * self.tokens * self.kv_heads * self.head_dim * self.element

    @property
    def element(self):
        return DTYPES[self.cache_dtype][2]

    @property
    def shared_bytes(self):
        """Bytes among them that no request needs to read again."""
        return 2 * (self.batch - 1) * self.shared * self.kv_heads * self.head_dim * self.element

    @property
    def q_bytes(self):
        return (self.batch * self.queries * self.q_heads * self.head_dim * DTYPES[self.dtype][2])

    @property
    def bytes(self):
        """Least traffic: queries and output, keys and values, each once."""
        return 2 * self.q_bytes + self.kv_bytes - self.shared_bytes


@dataclass(frozen=True)
class MlaCase(Floor):
    """One shape of absorbed latent attention over `tokens` latents of each sequence, all cached;
    decode: one query for each sequence, verify: the last `new`."""

    phase: str
    dtype: str
    batch: int
    heads: int
    lora: int
    rope: int
    tokens: int
    new: int = 0
    kv_dtype = ""

    contenders = "gpu_mla"

    def __str__(self):
        new = f" q{self.new}" if self.new else ""
        return (f"mla {self.phase} {self.dtype} B{self.batch} H{self.heads} "
                f"D{self.lora}+{self.rope} N{self.tokens}{new}")

    @property
    def queries(self):
        return self.new or 1

    @property
    def flops(self):
        """Scores over a whole latent, outputs of its first part."""
        pairs = self.batch * self.heads * causal_pairs(self.queries, self.tokens)
        return 2 * pairs * (2 * self.lora + self.rope)

    @property
    def kv_bytes(self):
        return self.batch * self.tokens * (self.lora + self.rope) * DTYPES[self.dtype][2]

    @property
    def q_bytes(self):
        rows = self.batch * self.queries * self.heads
        return rows * (self.lora + self.rope) * DTYPES[self.dtype][2]

    @property
    def bytes(self):
        """Queries and latents read, outputs written."""
        out = self.q_bytes * self.lora // (self.lora + self.rope)
        return self.q_bytes + out + self.kv_bytes


FAMILIES = {"gdn": 0, "mamba2": 1, "kda": 2, "lightning": 3}  # ATTN_LINEAR_*
LINEAR_CHUNK = 64  # tokens; of the operations that are counted


@dataclass(frozen=True)
class LinearCase(Floor):
    """One shape of a recurrence with computed gates and fp32 states; prefill: `tokens` of each
    sequence from no state; decode: one from a state that there is."""

    phase: str
    family: str
    dtype: str
    batch: int
    k_heads: int
    v_heads: int
    k_dim: int
    v_dim: int
    tokens: int
    kv_dtype = ""

    contenders = "gpu_linear"

    def __str__(self):
        return (f"{self.family} {self.phase} {self.dtype} B{self.batch} "
                f"H{self.k_heads}/{self.v_heads} D{self.k_dim}x{self.v_dim} N{self.tokens}")

    @property
    def delta(self):
        return self.family in ("gdn", "kda")

    @property
    def rows(self):
        return self.batch * self.tokens

    @property
    def flops(self):
        return linear_flops(self.rows, self.delta, self.family == "kda", self.k_heads,
                            self.v_heads, self.k_dim, self.v_dim)

    @property
    def channels(self):
        return 2 * self.k_heads * self.k_dim + self.v_heads * self.v_dim

    @property
    def q_bytes(self):
        """Of the output's rows, as large as those of v."""
        return self.rows * self.v_heads * self.v_dim * DTYPES[self.dtype][2]

    @property
    def kv_bytes(self):
        """Bytes that are read: channels and fp32 gates of all rows, and the states of a decode."""
        gates = 0 if self.family == "lightning" else 4 * self.v_heads
        decays = gates * (self.k_dim if self.family == "kda" else 1)
        rows = self.rows * (self.channels * DTYPES[self.dtype][2] + gates + decays)
        return rows + (self.state_bytes if self.decode else 0)

    @property
    def state_bytes(self):
        return 4 * self.batch * self.v_heads * self.k_dim * self.v_dim

    @property
    def bytes(self):
        """The same, with states and outputs written."""
        return self.kv_bytes + self.q_bytes + self.state_bytes


def linear_flops(rows, delta, by_channel, k_heads, v_heads, k_dim, v_dim):
    """Of the chunked form: pairs below the diagonal, rows by state."""
    pair_heads = v_heads if by_channel else k_heads
    pairs = LINEAR_CHUNK // 2 * k_dim * (2 if delta else 1) * pair_heads
    values = LINEAR_CHUNK // 2 * v_dim * (2 if delta else 1) * v_heads
    state = k_dim * v_dim * (3 if delta else 2) * v_heads
    return 2 * rows * (pairs + values + state)


def quantile(values, q):
    values = sorted(values)
    return values[round(q * (len(values) - 1))]


def median(values):
    values = sorted(values)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2


def spread(values):
    """(median, p10, p90)"""
    values = list(values)
    return median(values), quantile(values, .1), quantile(values, .9)


def pause_of(seconds):
    """Rest after a sample of this length, so that a card stays cool."""
    return min(0.05, max(0.001, 3 * seconds))
