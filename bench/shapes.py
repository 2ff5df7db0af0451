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


@dataclass(frozen=True)
class Case:
    """One shape: all sequences have `tokens` keys, all layers are alike."""

    phase: str  # prefill: all tokens are new and causal; decode: one query for each sequence
    dtype: str
    batch: int
    q_heads: int
    kv_heads: int
    head_dim: int
    tokens: int
    kv_dtype: str = ""  # of the cache; "" = dtype
    shared: int = 0  # of the tokens the first, that all sequences of a decode have in common

    def __str__(self):
        kv = f" kv {self.kv_dtype}" if self.kv_dtype else ""
        shared = f" shared {self.shared}" if self.shared else ""
        return (f"{self.phase} {self.dtype}{kv} B{self.batch} H{self.q_heads}/{self.kv_heads} "
                f"D{self.head_dim} N{self.tokens}{shared}")

    @property
    def decode(self):
        return self.phase == "decode"

    @property
    def cache_dtype(self):
        return self.kv_dtype or self.dtype

    @property
    def queries(self):
        """Of one sequence."""
        return 1 if self.decode else self.tokens

    @property
    def flops(self):
        """Of the two products, of the pairs that the causal mask lets through."""
        pairs = self.tokens if self.decode else self.tokens * (self.tokens + 1) // 2
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
        """Of them what nobody has to read once more."""
        return 2 * (self.batch - 1) * self.shared * self.kv_heads * self.head_dim * self.element

    @property
    def q_bytes(self):
        return (self.batch * self.queries * self.q_heads * self.head_dim * DTYPES[self.dtype][2])

    @property
    def bytes(self):
        """Least traffic: queries and output, keys and values, each once."""
        return 2 * self.q_bytes + self.kv_bytes - self.shared_bytes

    def floor(self, flops_per_second, bytes_per_second):
        """Seconds that no version is much below, and what it is that takes them."""
        products, memory = self.flops / flops_per_second, self.bytes / bytes_per_second
        return (products, "products") if products > memory else (memory, "memory")


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
