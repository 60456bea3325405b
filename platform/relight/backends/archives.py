"""What a file of PyTorch is, and whether reading it runs code that came with it. Nothing here imports torch.

``torch.load`` runs whatever a pickle says. ``torch.export.load`` reads pickles too, where the file says so, and it
evaluates text of the file as Python: expressions over sizes, guards on inputs, the names of what a node calls. So a
file is looked through first: what is not a tensor, an operator, or arithmetic over sizes is refused by name.

That closes the ways by which *loading* runs code; it is no sandbox. A model is a program, and its operators run with
the function's rights: serve what you trust.
"""

from __future__ import annotations

import ast
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from relight.base.errors import CorruptWeights

_ADVICE = "save the model as an exported program (torch.export.save) or its weights as model.safetensors"
_OPERATOR = re.compile(
    r"torch\.ops\.(?!load_library|import_module)_?[a-z]\w*\.(?:_?[a-zA-Z]\w*|__[a-z]+__)(?:\.[a-zA-Z]\w*)?"
)
_ARITHMETIC = re.compile(
    r"_operator\.(?:getitem|add|sub|mul|floordiv|truediv|mod|pow|neg|pos|eq|ne|lt|le|gt|ge|and_|or_|xor|not_|index)"
    r"|math\.[a-z]\w*|torch\.(?:sym_[a-z]\w*|_sym_[a-z]\w*)|#[\w.:]+"
)
_FUNCTIONS = frozenset({
    "Abs", "Add", "And", "CeilDiv", "CeilToInt", "CleanDiv", "Eq", "Equality", "FloatPow", "FloatTrueDiv",
    "FloorDiv", "FloorToInt", "Ge", "GreaterThan", "Gt", "Identity", "IntTrueDiv", "LShift", "Le", "LessThan",
    "Lt", "Max", "Min", "Mod", "ModularIndexing", "Mul", "Ne", "Not", "Or", "Piecewise", "Pow", "PowByNatural",
    "PythonMod", "RShift", "RoundDecimal", "RoundToInt", "StrictGreaterThan", "StrictLessThan", "ToFloat",
    "TruncToFloat", "TruncToInt", "Unequality", "Where", "abs", "bool", "float", "int", "len", "max", "min",
    "round",
})  # fmt: skip
_METHODS = frozenset({"size", "stride", "storage_offset", "dim", "numel", "item", "ceil", "floor", "trunc", "sqrt"})
_MODULES = frozenset({"math", "torch"})
_SAFE = (
    ast.Expression, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Tuple, ast.List,
    ast.Load, ast.boolop, ast.operator, ast.unaryop,
)  # fmt: skip


def is_torchscript(path: Path) -> bool:
    """True for TorchScript; CorruptWeights for a pickle, which is refused, and for what is no archive of PyTorch."""
    names = _names(path)
    if any(name.endswith("/constants.pkl") for name in names) and any("/code/" in name for name in names):
        return True
    if any(name.endswith("/data.pkl") for name in names):
        raise _pickle(path, "it was written by torch.save")
    return False


def check_exported(path: Path) -> None:
    """CorruptWeights unless the file is an exported program that can be loaded without running code of the file.

    The pickled sample inputs are the caller's to check: it takes torch to read them as weights only.
    """
    names = _names(path)
    if any(name.startswith("serialized_") for name in names):
        raise CorruptWeights(
            f"{path} is an exported program of an old format, which keeps its weights as pickles: "
            "save it again by torch.export.save of this version of PyTorch"
        )
    models = [name for name in names if re.fullmatch(r"[^/]+/models/[^/]+\.json", name)]
    if len(models) != 1:
        raise CorruptWeights(f"{path} is no exported program: it holds {len(models)} of models/*.json, expected one")
    for name in names:
        if re.search(r"/constants/[^/]*\.pt$|/opaque_obj", name):
            raise _pickle(path, f"it keeps {name} as one")
    with zipfile.ZipFile(path) as archive:
        for name in names:
            if name.endswith("_config.json"):
                for key, entry in _json(path, archive, name).get("config", {}).items():
                    if entry.get("use_pickle") or str(entry.get("path_name", "")).startswith("opaque_obj"):
                        raise _pickle(path, f"it keeps {key!r} as one")
        program = _json(path, archive, models[0])
    for key, text in _texts(program):
        if key == "target" and not (_OPERATOR.fullmatch(text) or _ARITHMETIC.fullmatch(text)):
            raise CorruptWeights(f"{path}: a node calls {text!r}, which is not an operator of PyTorch")
        if key in ("expr_str", "guards_code") and not _is_arithmetic(text):
            raise CorruptWeights(f"{path}: {text[:200]!r} is not an expression over sizes")


def sample_inputs(path: Path) -> bytes | None:
    """The sample inputs of an exported program, a pickle; None where there are none."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if "/sample_inputs/" in name:
                return archive.read(name)
    return None


def refuse(path: Path, reason: str) -> CorruptWeights:
    """The error for a pickle."""
    return _pickle(path, reason)


def _pickle(path: Path, reason: str) -> CorruptWeights:
    return CorruptWeights(
        f"{path} is a pickle, or needs one: {reason}. "
        f"Loading a pickle runs the code in it, so none is loaded; {_ADVICE}"
    )


def _names(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except zipfile.BadZipFile:
        with path.open("rb") as file:
            start = file.read(2)
        if start[:1] == b"\x80":
            raise _pickle(path, "it begins as one") from None
        raise CorruptWeights(f"{path} cannot be read: it is no archive of PyTorch") from None


def _json(path: Path, archive: zipfile.ZipFile, name: str) -> dict[str, Any]:
    try:
        value = json.loads(archive.read(name))
    except (ValueError, zipfile.BadZipFile) as error:
        raise CorruptWeights(f"{path}: {name} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise CorruptWeights(f"{path}: {name} is no JSON object")
    return value


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """All text of a JSON value with the key it stands under; items of a list stand under the list's."""
    if isinstance(value, dict):
        for inside, item in value.items():
            # What came out of the author's source, for tracebacks, is kept as text by PyTorch too.
            if inside != "metadata":
                yield from _texts(item, inside)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, key)
    elif isinstance(value, str):
        yield key, value


def _is_arithmetic(text: str) -> bool:
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return _is_safe(tree)


def _is_safe(node: ast.AST) -> bool:
    """Arithmetic, comparisons and a few functions. Text is nowhere but as a key, a symbol's name or compared with:
    sympy would evaluate it anew."""
    if isinstance(node, ast.Constant):
        return not isinstance(node.value, str | bytes)
    if isinstance(node, ast.Name):
        return "__" not in node.id
    if isinstance(node, ast.Call):
        return _is_literal(node) or (not node.keywords and _is_callable(node.func) and all(map(_is_safe, node.args)))
    if isinstance(node, ast.Subscript):
        return _is_safe(node.value) and _is_constant_or_safe(node.slice)
    if isinstance(node, ast.Compare):
        return all(map(_is_constant_or_safe, (node.left, *node.comparators)))
    return isinstance(node, _SAFE) and all(map(_is_safe, ast.iter_child_nodes(node)))


def _is_constant_or_safe(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) or _is_safe(node)


def _is_literal(node: ast.Call) -> bool:
    """``Symbol('s0', positive=True)``, ``Integer(2)``, ``Float('1.5', precision=53)``: as PyTorch writes them."""
    if not isinstance(node.func, ast.Name) or node.func.id not in ("Symbol", "Integer", "Float", "Rational"):
        return False
    values = [*node.args, *(keyword.value for keyword in node.keywords)]
    text = r"\w+" if node.func.id == "Symbol" else r"[-+0-9.eE]+|[a-z]{3}"
    return all(
        isinstance(value, ast.Constant)
        and (not isinstance(value.value, str) or re.fullmatch(text, value.value) is not None)
        for value in values
    )


def _is_callable(function: ast.expr) -> bool:
    if isinstance(function, ast.Name):
        return function.id in _FUNCTIONS
    if not isinstance(function, ast.Attribute):
        return False
    if isinstance(function.value, ast.Name) and function.value.id in _MODULES:
        return re.fullmatch(r"(?:_?sym_)?[a-z]+", function.attr) is not None and (
            function.value.id == "math" or function.attr.lstrip("_").startswith("sym_")
        )
    return function.attr in _METHODS and _is_safe(function.value)
