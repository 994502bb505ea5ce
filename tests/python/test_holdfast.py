"""The Python package as its users meet it."""
import ast
import gc
import pathlib
import subprocess
import sys
import threading

import numpy as np
import pytest

import holdfast

ROOT = pathlib.Path(__file__).parents[2]
DOCUMENT = (
    "The harbour of Saltmere has one lighthouse. The name of the keeper is Ottoline Finch. The light is white.\n" * 3
)
QUESTION = "What is the name of the keeper?"


@pytest.fixture(scope="module")
def model():
    return holdfast.Model(threads=2)


@pytest.fixture(scope="module")
def context(model):
    return holdfast.Context.compress(model, DOCUMENT, budget="70%")


# Breaks if pieces are lost, or an answer isn't that of the same question asked at once.
def test_generate(context):
    whole = context.session().ask(QUESTION, 20)
    assert len(whole) > 20
    pieces = context.session().generate(QUESTION, 20)
    first = next(pieces)
    assert first and whole.startswith(first) and first != whole
    assert first + "".join(pieces) == whole
    session = context.session()
    old = session.generate(QUESTION, 20)
    next(old)
    session.ask(QUESTION, 20)
    assert list(old) == [], "another question was asked since"
    before = session.tokens
    session.ask("And the light?", 5)
    assert session.tokens > before


# Breaks if what is kept is copied, can be written to, dies with its context, or is counted wrongly.
def test_views(model):
    context = holdfast.Context.compress(model, DOCUMENT, "layer-defensive", "50%")
    counts = context.kept_counts
    assert counts.shape == (model.layers, model.kv_heads)
    assert abs(counts.mean() / context.tokens - 0.5) < 0.01
    view = context.kept(3, 1)
    assert view.dtype == np.uint32 and len(view) == counts[3, 1]
    assert (np.diff(view.astype(int)) > 0).all() and view[-1] == context.tokens - 1
    assert not view.flags.owndata and not view.flags.writeable
    assert np.shares_memory(view, context.kept(3, 1))
    expected = view.copy()
    ids = context.ids
    del context
    gc.collect()
    assert (view == expected).all()
    assert "Ottoline Finch" in model.text(ids.tolist())


# Breaks if a saved context answers otherwise, its model isn't found, or a second compression adds something.
def test_files(context, tmp_path):
    path = str(tmp_path / "book.hfkv")
    context.save(path)
    loaded = holdfast.Context.load(path)
    assert loaded.model.fingerprint == context.model.fingerprint
    assert loaded.session().ask(QUESTION, 12) == context.session().ask(QUESTION, 12)
    context.save(path, "q8_0")
    assert holdfast.Context.load(path, context.model).tokens == context.tokens
    less = context.compressed("snapkv", 40, settings={"window": 8})
    assert less.kept_counts.max() == 40 and less.bytes < context.bytes
    assert set(less.kept(5, 0)) <= set(context.kept(5, 0))


# Breaks if a conversation's limit isn't kept, or its errors aren't Python's.
def test_limit_and_errors(model, context):
    session = context.session()
    session.limit(64)
    session.ask(QUESTION, 40)
    assert session.kept_mean <= 64 + 32
    for wrong in [
        lambda: holdfast.Context.compress(model, DOCUMENT, "magic"),
        lambda: holdfast.Context.compress(model, DOCUMENT, budget="120%"),
        lambda: holdfast.Context.compress(model, DOCUMENT, settings={"beta": 3}),
        lambda: context.kept(99, 0),
        lambda: context.compressed("h2o"),
        lambda: session.ask("boat " * 9000),
    ]:
        with pytest.raises(holdfast.UsageError) as caught:
            wrong()
        assert isinstance(caught.value, ValueError) and len(str(caught.value)) > 20
    with pytest.raises(holdfast.Error, match="nowhere.gguf"):
        holdfast.Model("nowhere.gguf")


# Breaks if a callback can't stop a reading, or what it raises gets lost.
def test_progress(model):
    shares = []
    holdfast.Context.compress(model, DOCUMENT, progress=shares.append)
    assert shares == sorted(shares) and shares[-1] == 1
    with pytest.raises(KeyboardInterrupt):
        holdfast.Context.compress(model, DOCUMENT, progress=lambda share: share < 0.5)
    with pytest.raises(ZeroDivisionError):
        holdfast.Context.compress(model, DOCUMENT, progress=lambda share: 1 / 0)


# Breaks if Ctrl-C waits for the end of what is computed.
def test_interrupt():
    program = f"""
import os, signal, threading, time, holdfast
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it for what runs in the background
model = holdfast.Model(threads=2)
threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
start = time.time()
try:
    holdfast.Context.compress(model, "boat " * 8000)
except KeyboardInterrupt:
    print("stopped", time.time() - start)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout.startswith("stopped"), result.stderr
    assert float(result.stdout.split()[1]) < 5  # of about 20 seconds


# Breaks if threads disturb one another, or wait for the interpreter's lock while others compute.
def test_threads(context):
    questions = [QUESTION, "What colour is the light?", "Where is the lighthouse?"]
    expected = [context.session().ask(question, 8) for question in questions]
    answers = [""] * 3

    def ask(i):
        answers[i] = context.session(threads=1).ask(questions[i], 8)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == expected


def test_methods():
    names = [method["name"] for method in holdfast.methods()]
    assert "layer-defensive" in names and "critical-adakv" in names
    assert holdfast.__version__.count(".") == 2


# Breaks if the type hints name something that isn't there, or lack something that is.
def test_type_hints():
    stub = ast.parse((ROOT / "python" / "holdfast" / "_core.pyi").read_text())
    for node in stub.body:
        if isinstance(node, ast.ClassDef) and node.name in holdfast.__all__:
            described = {item.name for item in node.body if isinstance(item, ast.FunctionDef)} - {"__init__"}
            present = {name for name in vars(getattr(holdfast, node.name)) if not name.startswith("_")}
            assert described == present, node.name
        elif isinstance(node, ast.FunctionDef):
            assert callable(getattr(holdfast, node.name))


# Breaks if the example doesn't run.
def test_example(tmp_path):
    picture = tmp_path / "kept.png"
    result = subprocess.run(
        [sys.executable, "examples/kept_shares.py", "examples/saltmere.txt", str(picture)],
        cwd=ROOT, capture_output=True, text=True, env={**__import__("os").environ, "MPLBACKEND": "Agg"},
    )
    assert result.returncode == 0, result.stderr
    assert "snapkv 20% to 20%" in result.stdout and picture.stat().st_size > 10000
