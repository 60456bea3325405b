"""Cuts a document into chunks that fit the encoder."""

from typing import Any

from relight import sdk
from relight.retrieval.documents import Document
from relight.retrieval.splitting import split

SIZE = 120
"""Words in a chunk: about 160 tokens of English, within the 256 that the encoder reads."""
OVERLAP = 20
"""Words that a chunk repeats of the one before, so that what stands across a border is found."""


class Split(sdk.Step):
    """``dev.relight.document.v1`` to ``dev.relight.chunks.v1``. Chunks are numbered in the order of the text."""

    reply_type = "dev.relight.chunks.v1"

    def run(self, data: Any, event: sdk.Event | None) -> dict[str, Any]:
        document = Document.parse(data)
        chunks = [
            {"id": str(number), "start": chunk.start, "end": chunk.end, "text": chunk.text}
            for number, chunk in enumerate(split(document.text, SIZE, OVERLAP))
        ]
        return {**document.head(), "chunks": chunks}


def new() -> Split:
    return Split()
