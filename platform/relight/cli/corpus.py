"""The demo's documents: what the Python standard library on this machine says of itself.

Several hundred real texts that need no download: the docstrings of each public module, read from source with ``ast``,
so that nothing is imported or run.
"""

from __future__ import annotations

import ast
import re
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_CHARACTERS = 3_000
"""Of one document: a module's own docstring comes first, then the first paragraph of each public name in it."""
_SKIPPED = re.compile(r"(^|\.)(_|test|tests|idlelib|lib2to3|turtledemo|ensurepip|pydoc_data|site-packages|config-)")


@dataclass(frozen=True)
class Document:
    """One module: ``name`` as it is imported, and its text."""

    name: str
    text: str


def documents(library: Path | None = None) -> list[Document]:
    """All modules that have something to say, in order of their names."""
    root = library or Path(sysconfig.get_paths()["stdlib"])
    return sorted(_read(root), key=lambda one: one.name)


def _read(root: Path) -> Iterator[Document]:
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if not name or "site-packages" in parts or _SKIPPED.search(name):
            continue
        try:
            with warnings.catch_warnings():  # old sources have invalid escapes, which is nothing to us
                warnings.simplefilter("ignore")
                tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError):
            continue
        text = _text(name, tree)
        if text:
            yield Document(name, text)


def _text(name: str, tree: ast.Module) -> str:
    own = ast.get_docstring(tree) or ""
    paragraphs = [own.strip()] if own else []
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        said = ast.get_docstring(node)
        if said:
            paragraphs.append(f"{node.name}: {said.strip().partition(chr(10) * 2)[0]}")
    text = "\n\n".join(paragraphs)[:MAX_CHARACTERS]
    return text if len(text) >= 40 else ""


QUESTIONS = (
    "parse command line options",
    "compute a checksum of a file",
    "run a program and read its output",
    "wait for many sockets at once",
    "guess the type of a file from its name",
)
"""What the demo asks."""
