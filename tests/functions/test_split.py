"""split: documents to chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from relight.base.errors import BadInput


@pytest.fixture(scope="module")
def split(start: Callable[..., Any]) -> Any:
    return start("split")


def test_a_document_becomes_numbered_chunks(split: Any) -> None:
    text = "  " + " ".join(f"Word{number} ends here." for number in range(100))
    data = {"document": "d", "title": "T", "text": text, "metadata": {"lang": "en"}}
    answer = split.run(data, None)
    chunks = answer.pop("chunks")
    assert answer == {"document": "d", "title": "T", "metadata": {"lang": "en"}}
    assert [chunk["id"] for chunk in chunks] == [str(number) for number in range(len(chunks))]
    assert len(chunks) > 2
    assert all(text[chunk["start"] : chunk["end"]] == chunk["text"] for chunk in chunks)
    assert split.run(data, None)["chunks"] == chunks


def test_an_empty_document_has_no_chunk(split: Any) -> None:
    assert split.run({"document": "d", "text": " \n "}, None) == {"document": "d", "chunks": []}


@pytest.mark.parametrize(
    ("data", "paths"),
    [
        (None, []),
        ([], []),
        ("text", []),
        ({}, ["document", "text"]),
        ({"document": "", "text": 5}, ["document", "text"]),
        ({"document": "d", "text": "", "title": 1, "metadata": []}, ["title", "metadata"]),
        ({"document": "d" * 1025, "text": ""}, ["document"]),
    ],
    ids=lambda value: str(value)[:30],
)
def test_every_mistake_is_named(split: Any, data: Any, paths: list[str]) -> None:
    with pytest.raises(BadInput) as caught:
        split.run(data, None)
    assert [problem.path for problem in caught.value.problems] == paths
