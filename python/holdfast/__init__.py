"""Runs long-context language models in a fraction of their KV cache.

>>> model = holdfast.Model("model.gguf")
>>> book = holdfast.Context.compress(model, text, budget="20%")
>>> book.save("book.hfkv")
>>> for piece in book.session().generate("Who keeps the lighthouse?"):
...     print(piece, end="")

Contexts can be used by several threads at once, a session by one at a time. Calls that compute release the
interpreter's lock, and Ctrl-C stops them.
"""
from ._core import Context, Error, Model, Session, UsageError, __version__, methods

__all__ = ["Context", "Error", "Model", "Session", "UsageError", "__version__", "methods"]
