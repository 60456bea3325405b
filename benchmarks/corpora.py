"""Corpora for retrieval that every Debian machine has, with questions whose answers are known.

``packages``: the long descriptions of Debian's packages; the question for each is its one-line synopsis, which the
document does not contain. ``library``: what the standard library's public functions and classes say of themselves; the
question is the first sentence, which is taken out of the document.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sysconfig
import warnings
from dataclasses import dataclass
from pathlib import Path

MIN_CHARACTERS = 80
"""Of a document: shorter ones say nothing beyond their first line."""


@dataclass(frozen=True)
class Corpus:
    """Documents and questions by name; the answer of a question is the document of the same name."""

    name: str
    documents: dict[str, str]
    questions: dict[str, str]


def packages(folder: Path) -> Corpus:
    """Debian's package descriptions. ``folder`` keeps apt's lists, fetched once; the machine's own are not touched."""
    lists = folder / "lists"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    where = ["-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={folder / 'apt'}"]
    if not list(lists.glob("*Translation-en*")):
        command = ["apt-get", *where, "-o", "Acquire::Languages=en", "-o", "APT::Sandbox::User=", "update"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    documents, questions = {}, {}
    for path in sorted(lists.glob("*Translation-en*")):
        text = subprocess.run(["/usr/lib/apt/apt-helper", "cat-file", str(path)], check=True, capture_output=True)
        for stanza in text.stdout.decode().split("\n\n"):
            name = re.search(r"^Package: (.+)$", stanza, re.M)
            said = re.search(r"^Description-en: (.*)\n((?: .*\n?)*)", stanza, re.M)
            if name is None or said is None:
                continue
            body = "\n".join("" if line == " ." else line.strip() for line in said[2].splitlines())
            if len(body) >= MIN_CHARACTERS:
                documents[name[1]] = body
                questions[name[1]] = said[1].strip()
    return Corpus("packages", documents, questions)


def library() -> Corpus:
    """The docstrings of the standard library's public functions, classes and methods."""
    root = Path(sysconfig.get_paths()["stdlib"])
    documents, questions = {}, {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if {"site-packages", "test", "tests", "idlelib", "lib2to3"} & set(parts):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(path.read_bytes())
        except SyntaxError:
            continue
        module = ".".join(parts).removesuffix(".__init__")
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or node.name[:1] == "_":
                continue
            first, _, rest = (ast.get_docstring(node) or "").partition("\n\n")
            if len(rest) >= MIN_CHARACTERS and 3 <= len(first.split()) <= 40:
                key = f"{module}.{node.name}"
                documents.setdefault(key, rest.strip())
                questions.setdefault(key, " ".join(first.split()))
    return Corpus("library", documents, questions)


def asked_once(corpus: Corpus) -> dict[str, str]:
    """The questions that are unlike all others: one that several documents have as theirs has no single answer."""
    seen: dict[str, list[str]] = {}
    for name, question in corpus.questions.items():
        seen.setdefault(question.casefold(), []).append(name)
    return {names[0]: corpus.questions[names[0]] for names in seen.values() if len(names) == 1}
