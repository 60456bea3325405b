"""Sentence embeddings: texts to vectors of 384 dimensions and length 1."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from relight import sdk
from relight.retrieval.documents import Pieces
from relight.retrieval.encoder import Encoder, read_tokenizer

DIMENSION = 384


class Embed(sdk.OnnxModel):
    """A sentence encoder from the model repository (``model.onnx`` and ``tokenizer.json``).

    By events, ``dev.relight.chunks.v1`` to ``dev.relight.embedded.v1``: each chunk gets a ``vector``, an array of
    numbers. A document's title is embedded in front of each of its chunks, which alone may not say what they are about.
    """

    inputs = (sdk.TensorSpec("text", "BYTES", [-1]),)
    outputs = (sdk.TensorSpec("embedding", "FP32", [-1, DIMENSION]), sdk.TensorSpec("tokens", "INT32", [-1]))
    max_batch_size = 64
    openai_embeddings = sdk.EmbeddingsMap(input="text", output="embedding", tokens="tokens")
    reply_type = "dev.relight.embedded.v1"

    def load(self) -> None:
        files = self.context.files
        if files is None or not (files / "tokenizer.json").is_file():
            raise sdk.NotFound(f"model {self.context.model!r} version {self.context.version} has no tokenizer.json")
        # Both take about as long and neither holds the interpreter: the tokenizer costs a cold start nothing.
        with ThreadPoolExecutor(1) as beside:
            tokenizer = beside.submit(read_tokenizer, files)
            super().load()
        # To callers it is not the transformer of the file, which takes token ids, but the whole encoder.
        self.inputs, self.outputs = Embed.inputs, Embed.outputs
        self._encoder = Encoder(files, self.session, tokenizer.result())
        if self._encoder.dimension != DIMENSION:
            raise ValueError(f"the encoder has {self._encoder.dimension} dimensions, expected {DIMENSION}")

    def infer(self, inputs: dict[str, sdk.Array]) -> dict[str, sdk.Array]:
        # A byte that is no UTF-8 spoils its own text only, not those of others that are computed with it.
        vectors, tokens = self._encoder.encode([bytes(text).decode(errors="replace") for text in inputs["text"]])
        return {"embedding": vectors, "tokens": tokens}

    def event_inputs(self, event: sdk.Event) -> dict[str, sdk.Array]:
        pieces = Pieces.parse(event.json(), vectors=False)
        texts = np.empty(len(pieces.chunks), dtype=object)
        title = f"{pieces.title}\n" if pieces.title else ""
        texts[:] = [f"{title}{chunk.text}".encode(errors="replace") for chunk in pieces.chunks]
        return {"text": texts}

    def event_reply(self, event: sdk.Event, outputs: dict[str, sdk.Array]) -> dict[str, Any]:
        pieces = Pieces.parse(event.json(), vectors=False)
        vectors = outputs["embedding"].tolist()
        chunks = [{**chunk.fields(), "vector": vector} for chunk, vector in zip(pieces.chunks, vectors, strict=True)]
        return {**pieces.head(), "model": self.context.model, "chunks": chunks}


def new() -> Embed:
    return Embed()
