"""Cuts a document into chunks that fit the encoder."""

from __future__ import annotations

from typing import Any

from relight import sdk
from relight.retrieval.chunking import Cutting, RepositoryTokenizer, chunks_of
from relight.retrieval.documents import Document
from relight.retrieval.variables import whole


class Split(sdk.Step):
    """``dev.relight.document.v1`` to ``dev.relight.chunks.v1``. Chunks are numbered in the order of the text.

    A document says its ``format`` (text, markdown, html, pdf), and may say how it is to be cut: ``"split": {"by":
    "headings", "size": 120, "overlap": 20}``. Otherwise the function's environment says so, and then this file.
    """

    reply_type = "dev.relight.chunks.v1"

    def load(self) -> None:
        env = self.context.env
        size, overlap = whole(env, "SPLIT_SIZE", None), whole(env, "SPLIT_OVERLAP", None)
        self._cutting = Cutting.of(env.get("SPLIT_BY") or "words", size, overlap)
        self._tokenizer = RepositoryTokenizer(env.get("SPLIT_MODEL") or "minilm", env)

    def run(self, data: Any, event: sdk.Event | None) -> dict[str, Any]:
        document = Document.parse(data)
        pieces = chunks_of(document, self._asked(data.get("split")), self._tokenizer.ends)
        return {**document.head(), "chunks": [piece.fields() for piece in pieces]}

    def _asked(self, options: Any) -> Cutting:
        if options is None:
            return self._cutting
        if not isinstance(options, dict) or not options.keys() <= {"by", "size", "overlap"}:
            raise sdk.BadInput.of([sdk.Problem("split", "expected an object of by, size and overlap")])
        problems = [
            sdk.Problem(f"split.{name}", "expected a whole number")
            for name in ("size", "overlap")
            if name in options and type(options[name]) is not int
        ]
        if problems:
            raise sdk.BadInput.of(problems)
        by = str(options.get("by", self._cutting.by))
        try:
            return Cutting.of(by, options.get("size"), options.get("overlap"))
        except sdk.BadInput as error:
            wrong = [sdk.Problem(f"split.{one.path}", one.message) for one in error.problems]
            raise sdk.BadInput.of(wrong) from None


def new() -> Split:
    return Split()
