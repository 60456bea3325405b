"""Formats: what is read, under which heading, on which page, and that offsets lead back to the source."""

from __future__ import annotations

import base64
import itertools
from pathlib import Path

import pytest

from relight.base.errors import BadInput
from relight.retrieval.chunking import Cutting, RepositoryTokenizer, chunks_of
from relight.retrieval.documents import Document
from relight.retrieval.extracting import extract
from relight.retrieval.splitting import split_sentences, split_tokens

MARKDOWN = """Before any heading.

# Guide

Intro *text*.

## Install

```sh
# no heading, a comment
pip install x
```

Use
===

Setext text.
"""

HTML = """<!doctype html><html><head><title>unseen</title><style>p {color: red}</style></head>
<body><h1>Guide &amp; more</h1><p>First <b>bold</b> words.</p><script>var no = 1;</script>
<h2>Über</h2><ul><li>one</li><li>two &#233;</li></ul><p>last</body></html>"""


def pieces(text: str, kind: str, by: str = "headings", **more: int) -> list[tuple[str | None, str]]:
    found = chunks_of(Document("d", text, format=kind), Cutting.of(by, **more), lambda text: [])
    return [(piece.heading, piece.text) for piece in found]


def test_markdown_by_headings() -> None:
    found = pieces(MARKDOWN, "markdown")
    assert [heading for heading, _ in found] == [None, "Guide", "Guide > Install", "Use"]
    assert found[2][1].startswith("## Install")
    assert "# no heading" in found[2][1]
    assert found[3][1].endswith("Setext text.")


def test_offsets_of_markdown_are_the_sources() -> None:
    for by in ("headings", "words", "sentences"):
        for piece in chunks_of(Document("d", MARKDOWN, format="markdown"), Cutting.of(by, 4), lambda text: []):
            assert MARKDOWN[piece.start : piece.end] == piece.text


def test_html_by_headings() -> None:
    found = pieces(HTML, "html")
    assert [(heading, " ".join(text.split())) for heading, text in found] == [
        ("Guide & more", "Guide & more First bold words."),
        ("Guide & more > Über", "Über one two é last"),
    ]
    text = " ".join(text for _, text in found)
    assert "unseen" not in text
    assert "red" not in text
    assert "var no" not in text


@pytest.mark.parametrize("size", [1, 2, 3, 50])
def test_offsets_of_html_lead_to_its_source(size: int) -> None:
    for piece in chunks_of(Document("d", HTML, format="html"), Cutting.of("words", size, 0), lambda text: []):
        assert piece.start is not None
        assert piece.end is not None
        source = HTML[piece.start : piece.end]
        first, last = piece.text.split()[0], piece.text.split()[-1]
        # An entity begins where its text begins, and ends one character further.
        assert source.startswith(first) or source.startswith("&")
        assert source.endswith(last) or "&" in source


def pdf(*pages: str) -> str:
    """A PDF with a line of text on each page, as small as one can be."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(pages):
        stream = f"BT /F1 12 Tf 72 700 Td ({text}) Tj ET"
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {5 + 2 * number} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>"
        )
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    out, offsets = "%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        offsets.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n"
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    trailer = f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{len(out)}\n%%EOF\n"
    whole = f"{out}xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}{trailer}"
    return base64.b64encode(whole.encode()).decode()


def test_pdf_page_by_page() -> None:
    found = chunks_of(
        Document("d", pdf("First page says this.", "Second page says that."), format="pdf"), Cutting(), lambda text: []
    )
    assert [(piece.page, piece.text) for piece in found] == [
        (1, "First page says this."),
        (2, "Second page says that."),
    ]
    text = extract(pdf("First page says this.", "Second page says that."), "pdf").text
    assert [text[piece.start : piece.end] for piece in found] == [piece.text for piece in found]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("no base64!", "text: expected a PDF's bytes in base64"),
        (base64.b64encode(b"no PDF at all").decode(), "the PDF cannot be read"),
        (pdf("x")[:200], "the PDF cannot be read"),
    ],
    ids=["base64", "other", "torn"],
)
def test_a_pdf_that_cannot_be_read(text: str, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        extract(text, "pdf")


def test_sentences() -> None:
    text = "One. Two! Three? Four.\n\nFive"
    assert [chunk.text for chunk in split_sentences(text, 2, 0)] == ["One. Two!", "Three? Four.", "Five"]
    assert [chunk.text for chunk in split_sentences(text, 3, 1)] == ["One. Two! Three?", "Three? Four.\n\nFive"]
    assert split_sentences("", 2, 0) == []
    assert [chunk.text for chunk in split_sentences("今日は。明日も。", 1, 0)] == ["今日は。", "明日も。"]


def test_tokens() -> None:
    text = "aaa bbb ccc ddd"
    ends = [1, 2, 3, 5, 7, 11, 15]  # the words take three, two, one and one
    assert [chunk.text for chunk in split_tokens(text, ends, 5, 0)] == ["aaa bbb", "ccc ddd"]
    assert [chunk.text for chunk in split_tokens(text, ends, 6, 1)] == ["aaa bbb ccc", "ccc ddd"]
    assert [chunk.text for chunk in split_tokens("xxxxxx", range(1, 7), 4, 0)] == ["xxxx", "xx"]
    assert split_tokens("", [], 4, 0) == []


def test_cutting_by_the_tokens_of_a_model(tmp_path: Path) -> None:
    from relight.cli.encoder import push_encoder

    repository = (tmp_path / "models").as_uri()
    push_encoder(repository, lambda text: None)
    environ = {"RELIGHT_REPOSITORY": repository, "RELIGHT_CACHE": str(tmp_path / "cache")}
    tokenizer = RepositoryTokenizer("minilm", environ)
    text = "Serverless inference platforms tokenise incomprehensibilities. " * 30
    found = chunks_of(Document("d", text), Cutting.of("tokens", 50, 10), tokenizer.ends)
    for piece in found:
        assert text[piece.start : piece.end] == piece.text
        assert len(tokenizer.ends(piece.text)) <= 50
    assert found[0].start == 0
    assert found[-1].end == len(text.rstrip())
    assert all(later.start <= earlier.end + 1 for earlier, later in itertools.pairwise(found))  # type: ignore[operator]
    with pytest.raises(BadInput, match="RELIGHT_REPOSITORY is not set"):
        RepositoryTokenizer("minilm", {}).ends("x")


@pytest.mark.parametrize(
    ("by", "size", "overlap", "path"),
    [("lines", None, None, "by"), ("words", 0, None, "size"), ("tokens", 5, 5, "overlap")],
)
def test_a_cutting_that_cannot_be(by: str, size: int | None, overlap: int | None, path: str) -> None:
    with pytest.raises(BadInput) as caught:
        Cutting.of(by, size, overlap)
    assert path in [problem.path for problem in caught.value.problems]
