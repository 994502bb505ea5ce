from collections.abc import Callable, Iterator, Mapping
from typing import TypedDict

import numpy as np
import numpy.typing as npt

__version__: str

class Error(RuntimeError):
    """Says what was wrong, with which input, and what to do about it."""

class UsageError(Error, ValueError):
    """The request can't be meant as written."""

class Model:
    """A GGUF model with its vocabulary and threads."""

    def __init__(self, path: str = "", *, context_length: int = 0, rope_scaling: str = "",
                 rope_scale: float = 0.0, threads: int = 0) -> None:
        """path: a GGUF file; "" is the model that holdfast's set-up fetches. threads: 0 takes all processors."""
    @property
    def name(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def context_length(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def threads(self) -> int: ...
    def tokenize(self, text: str) -> list[int]: ...
    def text(self, tokens: list[int]) -> str: ...

class Context:
    """A document that was read and compressed. It doesn't change."""

    @staticmethod
    def compress(model: Model, document: str, method: str = "layer-defensive", budget: str | int = "20%", *,
                 settings: Mapping[str, object] = {}, question: str = "",
                 progress: Callable[[float], object] | None = None) -> Context:
        """budget: "20%" of the context, or tokens per KV head on average. settings: the method's parameters.
        question: not empty makes the compression question-aware. progress: gets the share that is read, and
        stops with False (KeyboardInterrupt)."""
    @staticmethod
    def load(path: str, model: Model | None = None) -> Context:
        """A context file; without a model, the one that it names is opened."""
    def save(self, path: str, kv_type: str = "f16") -> None:
        """kv_type: "f16", or "q8_0" for about half the size."""
    def compressed(self, method: str = "layer-defensive", budget: str | int = "20%", *,
                   settings: Mapping[str, object] = {}) -> Context:
        """The same, compressed once more."""
    def session(self, *, temperature: float = 0.0, seed: int = 0, threads: int = 0) -> Session:
        """threads: of its own; 0 takes turns with the model's."""
    @property
    def model(self) -> Model: ...
    @property
    def tokens(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def method(self) -> str: ...
    @property
    def budget(self) -> str: ...
    @property
    def note(self) -> str: ...
    @property
    def ids(self) -> npt.NDArray[np.int32]:
        """The tokens that were read: a view."""
    def kept(self, layer: int, kv_head: int) -> npt.NDArray[np.uint32]:
        """Positions of the tokens that a head kept, rising: a view."""
    @property
    def kept_counts(self) -> npt.NDArray[np.uint32]:
        """How many tokens each head kept [layers, kv_heads]."""

class Session:
    """A conversation on a context: each question follows the answers before."""

    def ask(self, question: str, tokens: int = 256) -> str: ...
    def generate(self, question: str, tokens: int = 256) -> Iterator[str]:
        """The answer piece by piece, at most so many tokens; the question is read at once."""
    def limit(self, budget: str | int, method: str = "layer-defensive", *,
              settings: Mapping[str, object] = {}) -> None:
        """From now on the cache stays within the budget, but for one page (32 tokens) a head; "100%" lifts it."""
    def context(self) -> Context:
        """All of it as a context: to be saved, or asked by sessions that part here."""
    @property
    def tokens(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def kept_mean(self) -> float: ...
    @property
    def note(self) -> str: ...

class MethodDescription(TypedDict):
    name: str
    parts: str
    source: str

def methods() -> list[MethodDescription]:
    """The eviction methods that have names."""
