"""Splitting: offsets are exact, no word is lost, chunks are bounded and end where a reader would."""

from __future__ import annotations

import random
import re

import pytest

from relight.base.errors import BadInput
from relight.retrieval.splitting import split

ONE, TWO, THREE, FOUR = "One two three.", "Four five six!", "Seven eight?", "Nine ten eleven twelve."
PROSE = " ".join((ONE, TWO, THREE, FOUR))
PARAGRAPHS = "Alpha beta gamma.\n\nDelta epsilon zeta eta.\n\nTheta iota kappa."


@pytest.mark.parametrize(
    ("text", "size", "overlap", "want"),
    [
        pytest.param("", 5, 0, [], id="empty"),
        pytest.param(" \n\t ", 5, 0, [], id="blank"),
        pytest.param("  word  ", 5, 0, ["word"], id="one-word-without-its-space"),
        pytest.param("a b c d e", 2, 0, ["a b", "c d", "e"], id="words"),
        pytest.param("a b c d e", 3, 1, ["a b c", "c d e"], id="overlap"),
        pytest.param("a b c", 3, 2, ["a b c"], id="no-chunk-of-overlap-alone"),
        pytest.param(PROSE, 8, 0, [f"{ONE} {TWO} {THREE}", FOUR], id="sentences"),
        pytest.param(PROSE, 4, 1, [ONE, TWO, THREE, FOUR], id="no-overlap-where-a-sentence-ends"),
        pytest.param(PROSE, 8, 4, [f"{ONE} {TWO} {THREE}", f"{THREE} {FOUR}"], id="overlap-of-whole-sentences"),
        pytest.param(
            PARAGRAPHS, 8, 0, ["Alpha beta gamma.\n\nDelta epsilon zeta eta.", "Theta iota kappa."], id="paragraphs"
        ),
        # The paragraph ends earlier than the sentence behind it, and is the better place all the same.
        pytest.param("A b c d.\n\nE f. G h i.", 7, 0, ["A b c d.", "E f. G h i."], id="paragraph-wins"),
        pytest.param("a b c\nd e f g h", 4, 0, ["a b c", "d e f g", "h"], id="line"),
        pytest.param("今日は。明日も。", 4, 0, ["今日は。", "明日も。"], id="script-without-spaces"),
        pytest.param("x" * 100, 1, 0, ["x" * 40, "x" * 40, "x" * 20], id="a-run-that-never-ends"),
        pytest.param("one 😀 two", 2, 0, ["one 😀", "two"], id="outside-the-basic-plane"),
        pytest.param("He said “go.” Then he went.", 4, 0, ["He said “go.”", "Then he went."], id="quoted-end"),
        pytest.param("a.\r\n\r\nb c d", 3, 0, ["a.\r\n\r\nb c", "d"], id="crlf"),
    ],
)
def test_chunks(text: str, size: int, overlap: int, want: list[str]) -> None:
    assert [chunk.text for chunk in split(text, size, overlap)] == want


@pytest.mark.parametrize("seed", range(60))
def test_what_always_holds(seed: int) -> None:
    chance = random.Random(seed)
    alphabet = [
        "a",
        "word",
        "end.",
        "Why?",
        " ",
        "  ",
        "\n",
        "\n\n",
        "\t",
        "漢",
        "字。",
        "é",
        "😀",
        "\u2028",
        "x" * 95,
        ")",
    ]
    text = "".join(chance.choice(alphabet) for _ in range(chance.randrange(400)))
    size = chance.randrange(1, 30)
    overlap = chance.randrange(size)
    chunks = split(text, size, overlap)
    covered: set[int] = set()
    for chunk in chunks:
        assert text[chunk.start : chunk.end] == chunk.text
        assert chunk.text == chunk.text.strip()
        assert 0 < len(chunk.text.split()) <= size
        covered.update(range(chunk.start, chunk.end))
    assert covered >= {match.start() for match in re.finditer(r"\S", text)}
    starts, ends = [chunk.start for chunk in chunks], [chunk.end for chunk in chunks]
    assert starts == sorted(set(starts))
    assert ends == sorted(set(ends))


@pytest.mark.parametrize(("size", "overlap"), [(0, 0), (-1, 0), (5, 5), (5, -1)])
def test_sizes_that_make_no_sense(size: int, overlap: int) -> None:
    with pytest.raises(BadInput, match=r"size|overlap"):
        split("text", size, overlap)


def test_a_large_text_in_a_line_takes_linear_work() -> None:
    chunks = split("word " * 100_000, 120, 20)
    assert len(chunks) == 1000
