"""Documents of a format to plain text: what is said, under which heading, on which page, and where that stood.

Markdown stays as it is written and is only read for its structure (markdown-it); HTML is read by the standard library's
parser, which knows the position of everything; the text of a PDF is what pypdf reads from it.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import unescape
from html.parser import HTMLParser

from relight.base.errors import BadInput, Problem, TooLarge

FORMATS = ("text", "markdown", "html", "pdf")
MAX_PAGES = 2000
_BLOCK_NAMES = (
    "address article aside blockquote body br dd div dl dt figcaption figure footer form h1 h2 h3 h4 h5 h6 header hr "
    "li main nav ol p pre section table td th tr ul"
)
_BLOCKS = frozenset(_BLOCK_NAMES.split(" "))
_UNSEEN = frozenset(("script", "style", "template", "noscript", "svg", "head"))
_LINE_END = re.compile(r"\r\n?|\n")
_HEADING = re.compile(r"h([1-6])")


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a text: ``text[start:end]``. ``headings``: those above it, the outermost first."""

    start: int
    end: int
    headings: tuple[str, ...] = ()
    page: int | None = None


@dataclass(frozen=True)
class Extracted:
    """The text, its sections in order, and where its characters stood.

    ``runs``: (position in the text, position in the source) of each run that was taken over as it is. None: all of it,
    or a source without positions (PDF), whose positions are then those of the text.
    """

    text: str
    sections: Sequence[Section]
    runs: Sequence[tuple[int, int]] | None = None

    def source(self, start: int, end: int) -> tuple[int, int]:
        """Where ``text[start:end]`` stands in the source."""
        if not self.runs:
            return start, end
        return self._position(start), (self._position(end - 1) + 1 if end > start else self._position(end))

    def _position(self, at: int) -> int:
        here, there = (self.runs or ())[max(0, bisect_right(self._starts, at) - 1)]
        return there + at - here

    @cached_property
    def _starts(self) -> list[int]:
        return [at for at, _ in self.runs or ()]


def extract(text: str, kind: str) -> Extracted:
    """Read a document. ``text``: of a PDF, its bytes in base64. BadInput for one that cannot be read."""
    if kind == "markdown":
        return _markdown(text)
    if kind == "html":
        return _html(text)
    if kind == "pdf":
        return _pdf(text)
    return Extracted(text, (Section(0, len(text)),))


def _markdown(text: str) -> Extracted:
    from markdown_it import MarkdownIt

    starts = [0, *(match.end() for match in _LINE_END.finditer(text))]
    sections: list[Section] = []
    above: list[tuple[int, str]] = []
    begun = 0
    tokens = MarkdownIt("commonmark").parse(text)
    for number, token in enumerate(tokens):
        if token.type != "heading_open" or token.map is None or token.level:
            continue
        at = starts[min(token.map[0], len(starts) - 1)]
        if text[begun:at].strip():
            sections.append(Section(begun, at, tuple(title for _, title in above)))
        level = int(token.tag[1:])
        above = [one for one in above if one[0] < level] + [(level, tokens[number + 1].content.strip())]
        begun = at
    if text[begun:].strip() or not sections:
        sections.append(Section(begun, len(text), tuple(title for _, title in above)))
    return Extracted(text, sections)


class _Reader(HTMLParser):
    """Collects what a reader of the page sees."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=False)
        self._lines = [0]
        for match in re.finditer("\n", source):
            self._lines.append(match.end())
        self.parts: list[str] = []
        self.length = 0
        self.runs: list[tuple[int, int]] = []
        self.sections: list[Section] = []
        self._above: list[tuple[int, str]] = []
        self._begun = self._first = 0
        self._hidden = 0
        self._heading: tuple[int, int] | None = None

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._hidden += tag in _UNSEEN
        if tag in _BLOCKS:
            self._break()
        match = _HEADING.fullmatch(tag)
        if match is not None and not self._hidden:
            self.finish_section()
            self._heading = (int(match[1]), len(self.parts))

    def handle_endtag(self, tag: str) -> None:
        if tag in _UNSEEN:
            self._hidden = max(0, self._hidden - 1)
        if self._heading is not None and _HEADING.fullmatch(tag):
            level, first = self._heading
            title = " ".join("".join(self.parts[first:]).split())
            self._above = [one for one in self._above if one[0] < level] + [(level, title)]
            self._heading = None
        if tag in _BLOCKS:
            self._break()

    def handle_data(self, data: str) -> None:
        self._add(data)

    def handle_entityref(self, name: str) -> None:
        self._add(unescape(f"&{name};"))

    def handle_charref(self, name: str) -> None:
        self._add(unescape(f"&#{name};"))

    def finish_section(self) -> None:
        """End the section that is being read."""
        if any(part.strip() for part in self.parts[self._first :]):
            self.sections.append(Section(self._begun, self.length, tuple(title for _, title in self._above)))
            self._begun, self._first = self.length, len(self.parts)

    def _break(self) -> None:
        if not self._hidden and self.parts and not self.parts[-1].endswith("\n\n"):
            self.parts.append("\n\n")
            self.length += 2

    def _add(self, data: str) -> None:
        if self._hidden or (not data.strip() and (not self.parts or self.parts[-1].endswith("\n\n"))):
            return
        line, column = self.getpos()
        self.runs.append((self.length, self._lines[line - 1] + column))
        self.parts.append(data)
        self.length += len(data)


def _html(text: str) -> Extracted:
    reader = _Reader(text)
    reader.feed(text)
    reader.close()
    reader.finish_section()
    return Extracted("".join(reader.parts), reader.sections or (Section(0, reader.length),), reader.runs)


def _pdf(text: str) -> Extracted:
    from pypdf import PdfReader
    from pypdf.errors import PyPdfError

    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadInput.of([Problem("text", "expected a PDF's bytes in base64")]) from None
    parts, sections, length = [], [], 0
    try:
        pages = PdfReader(io.BytesIO(raw)).pages
        if len(pages) > MAX_PAGES:
            raise TooLarge(f"the PDF has {len(pages)} pages, and at most {MAX_PAGES} are read")
        for number, page in enumerate(pages, 1):
            said = page.extract_text().strip()
            if said:
                sections.append(Section(length, length + len(said), (), number))
                parts.append(said)
                length += len(said) + 2
    except (PyPdfError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError) as error:
        # pypdf raises what it stumbles over; a broken file is the sender's, and no reason for a retry.
        raise BadInput(f"the PDF cannot be read: {type(error).__name__}") from error
    return Extracted("\n\n".join(parts), sections or (Section(0, 0),))
