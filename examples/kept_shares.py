# %% [markdown]
# # What is kept of a document
# Needs `pip install .[plot]`. Run it cell by cell in an editor that knows `# %%`, or as a script:
# `python examples/kept_shares.py [DOCUMENT] [PICTURE]`

# %%
import sys

import matplotlib.pyplot as plt
import numpy as np

import holdfast

document = open(sys.argv[1] if len(sys.argv) > 1 else "examples/saltmere.txt", encoding="utf-8").read()
picture = sys.argv[2] if len(sys.argv) > 2 else "kept_shares.png"

# %% Two methods at the same budget: the first gives every head as much, the second whatever it needs
model = holdfast.Model()
methods = ["snapkv", "layer-defensive"]
contexts = [holdfast.Context.compress(model, document, method, "20%") for method in methods]

# %% Share of the document that each head keeps, and where in the document the kept tokens are
figure, axes = plt.subplots(2, 2, figsize=(11, 7), height_ratios=[2, 1], layout="constrained")
for context, method, (heads, places) in zip(contexts, methods, axes.T):
    shares = context.kept_counts / context.tokens
    image = heads.imshow(shares.T, aspect="auto", vmin=0, vmax=1, cmap="viridis")
    heads.set(title=f"{method}, {context.budget}", xlabel="layer", ylabel="KV head")
    figure.colorbar(image, ax=heads, label="kept share")
    kept = np.concatenate(
        [context.kept(layer, head) for layer in range(model.layers) for head in range(model.kv_heads)]
    )
    places.hist(kept, bins=60, range=(0, context.tokens), weights=np.full(kept.size, 1 / (shares.size * context.tokens / 60)))
    places.set(xlabel="position in the document", ylabel="kept share", ylim=(0, 1))
figure.savefig(picture, dpi=120)
print(f"{picture}: {contexts[0].tokens} tokens; kept by head: " + ", ".join(
    f"{method} {(context.kept_counts / context.tokens).min():.0%} to {(context.kept_counts / context.tokens).max():.0%}"
    for context, method in zip(contexts, methods)))
