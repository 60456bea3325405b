"""An encoder without weights: four numbers that follow from the bytes of a text."""

from __future__ import annotations

import numpy as np

from relight.sdk import Array, EmbeddingsMap, Model, TensorSpec


class Embedder(Model):
    inputs = (TensorSpec("text", "BYTES", (-1,)),)
    outputs = (TensorSpec("embedding", "FP32", (-1, 4)), TensorSpec("tokens", "INT64", (-1,)))
    openai_embeddings = EmbeddingsMap(input="text", output="embedding", tokens="tokens")
    reply_type = "text.embedded"

    def infer(self, inputs: dict[str, Array]) -> dict[str, Array]:
        texts = inputs["text"].tolist()
        rows = [[len(text), text[0], text[-1], sum(text) % 97] for text in texts]
        tokens = np.array([len(text.split()) for text in texts], dtype=np.int64)
        return {"embedding": np.array(rows, dtype=np.float32).reshape(-1, 4) / 8, "tokens": tokens}


def new() -> Embedder:
    return Embedder()
