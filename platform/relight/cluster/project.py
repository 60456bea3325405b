"""A function's folder, read and checked without running any of it.

Looked at: func.yaml, pyproject.toml, relight.yaml where there is one, and the package ``function/`` (as a syntax tree:
importing it here would run a stranger's module level in the deployer). All mistakes of all files are reported at once,
each as ``FILE: field path: what was expected``.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from relight.base.errors import BadInput, NotFound, Problem, Unprocessable
from relight.decide.canary import read_policy
from relight.wire import funcyaml

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_PATCH_KEYS = {"apiVersion", "kind", "metadata", "spec"}
_DEPTH = 5
"""Modules that are followed from ``function/__init__.py`` to the definition of ``new``."""


@dataclass(frozen=True)
class Project:
    """What a function's folder says."""

    folder: Path
    """Absolute."""
    function: funcyaml.FuncYaml
    patch: Mapping[str, Any] = field(default_factory=dict)
    """relight.yaml without ``policy``: a strategic-merge patch of the Service."""
    policy: Mapping[str, Any] = field(default_factory=dict)
    preload: tuple[str, ...] = ()
    """Modules to have imported before a replica is forked (pyproject.toml, ``[tool.relight] preload``)."""
    backing: tuple[str, ...] = ()
    """Backing services that the function needs (``[tool.relight] backing``), such as ``milvus``."""


def read_project(folder: Path) -> Project:
    """The function in a folder. NotFound: there is no such folder; Unprocessable: every mistake in it."""
    if not folder.is_dir():
        raise NotFound(f"{folder}: no such folder")
    folder = folder.resolve()
    problems: list[Problem] = []
    function = _function(folder, problems)
    patch, policy = _relight_yaml(folder, function, problems)
    preload, backing = _pyproject(folder, problems)
    problems += _package(folder)
    if function is None or problems:
        raise Unprocessable.of(problems)
    return Project(folder, function, patch, policy, preload, backing)


def _read(folder: Path, name: str, problems: list[Problem], otherwise: str) -> str | None:
    try:
        return (folder / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        problems.append(Problem(name, otherwise))
    except UnicodeDecodeError:
        problems.append(Problem(name, "it is not UTF-8 text"))
    except OSError as error:
        problems.append(Problem(name, f"it cannot be read: {error.strerror}"))
    return None


def _function(folder: Path, problems: list[Problem]) -> funcyaml.FuncYaml | None:
    text = _read(folder, "func.yaml", problems, "missing; `relight new step NAME` writes a folder that has one")
    if text is None:
        return None
    try:
        function = funcyaml.decode(text)
    except BadInput as error:
        inner = error.problems or (Problem("", error.message.removeprefix("func.yaml: ")),)
        problems += (Problem("func.yaml", str(problem)) for problem in inner)
        return None
    if function.runtime != "python":
        problems.append(Problem("func.yaml", f"runtime: {function.runtime!r}: only python functions run here"))
    if function.kafka:
        problems.append(
            Problem("func.yaml", "run.kafka: not carried out here; use a KafkaSource with this function as sink")
        )
    return function


def _relight_yaml(
    folder: Path, function: funcyaml.FuncYaml | None, problems: list[Problem]
) -> tuple[dict[str, Any], dict[str, Any]]:
    if not (folder / "relight.yaml").exists():
        return {}, {}
    text = _read(folder, "relight.yaml", problems, "missing")
    try:
        value = yaml.safe_load(text or "")
    except yaml.YAMLError as error:
        problems.append(Problem("relight.yaml", f"it is not YAML: {funcyaml.describe(error)}"))
        return {}, {}
    if value is None:
        return {}, {}
    if not isinstance(value, dict):
        problems.append(Problem("relight.yaml", "expected a mapping: a patch of the Service, and policy"))
        return {}, {}

    def wrong(path: str, message: str) -> None:
        problems.append(Problem("relight.yaml", f"{path}: {message}"))

    policy = value.pop("policy", None) or {}
    if not isinstance(policy, dict):
        wrong("policy", "expected a mapping")
        policy = {}
    try:
        read_policy(policy)
    except BadInput as error:
        for problem in error.problems:
            wrong(problem.path, problem.message)
    for key in value.keys() - _PATCH_KEYS:
        wrong(str(key), "unknown key; expected metadata, spec or policy")
    for key, expected in (("apiVersion", "serving.knative.dev/v1"), ("kind", "Service")):
        if value.pop(key, expected) != expected:
            wrong(key, f"expected {expected}, for it patches the function's Service")
    for key in ("metadata", "spec"):
        if not isinstance(value.get(key, {}), dict):
            wrong(key, "expected a mapping")
            value.pop(key)
    name = value.get("metadata", {}).get("name")
    if function is not None and name not in (None, function.name):
        wrong("metadata.name", f"{name!r}: the function's name is {function.name!r} (func.yaml)")
    return value, policy


def _pyproject(folder: Path, problems: list[Problem]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    text = _read(folder, "pyproject.toml", problems, 'missing; expected a project with name = "function"')
    if text is None:
        return (), ()

    def wrong(path: str, message: str) -> None:
        problems.append(Problem("pyproject.toml", f"{path}: {message}" if path else message))

    try:
        value = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        wrong("", f"it is not TOML: {error}")
        return (), ()
    project = value.get("project")
    name = project.get("name") if isinstance(project, dict) else None
    if name != "function":
        wrong("project.name", f'expected "function", for that is what Knative\'s scaffolding installs; got {name!r}')
    own = value.get("tool", {}).get("relight", {})
    if not isinstance(own, dict):
        wrong("tool.relight", "expected a table")
        return (), ()
    for key in own.keys() - {"preload", "backing"}:
        wrong(f"tool.relight.{key}", "unknown key; expected preload or backing")
    lists: list[tuple[str, ...]] = []
    for key, rule, expected in (
        ("preload", _MODULE, 'a list of modules such as ["onnxruntime"]'),
        ("backing", funcyaml.NAME, 'a list of backing services such as ["milvus"]'),
    ):
        items = own.get(key, [])
        if isinstance(items, list) and all(isinstance(item, str) and rule.fullmatch(item) for item in items):
            lists.append(tuple(items))
        else:
            wrong(f"tool.relight.{key}", f"expected {expected}")
            lists.append(())
    return lists[0], lists[1]


def _package(folder: Path) -> list[Problem]:
    """What is wrong with ``function/``: it must export ``new``, defined by a real ``def new``.

    Knative's scaffolding picks the mode by that name, and a lambda or an alias is taken for something else.
    """
    if not (folder / "function" / "__init__.py").is_file():
        return [
            Problem("function/__init__.py", "missing; expected a package that exports new, as `from .func import new`")
        ]
    module = folder / "function" / "__init__.py"
    for _ in range(_DEPTH):
        where = module.relative_to(folder).as_posix()
        try:
            tree = ast.parse(module.read_bytes(), filename=where)
        except SyntaxError as error:
            return [Problem(f"{where}:{error.lineno}", f"it is not Python: {error.msg}")]
        except (OSError, ValueError) as error:
            return [Problem(where, f"it cannot be read: {error}")]
        found = _binding(tree)
        if isinstance(found, ast.FunctionDef):
            return []
        if found is None:
            return [Problem(where, "expected `def new():`, which returns the function, or an import of it")]
        if not isinstance(found, ast.ImportFrom):
            return [Problem(f"{where}:{found.lineno}", "new must be a plain `def new():`, not another kind of value")]
        target = _module(folder, module, found)
        if target is None:
            return [Problem(f"{where}:{found.lineno}", "new must be imported from a module of this package")]
        module = target
    return [Problem("function/__init__.py", f"new is imported through more than {_DEPTH} modules")]


def _binding(tree: ast.Module) -> ast.stmt | None:
    """The last statement at module level that gives ``new`` a value."""
    found: ast.stmt | None = None
    for statement in tree.body:
        match statement:
            case ast.FunctionDef(name="new") | ast.AsyncFunctionDef(name="new") | ast.ClassDef(name="new"):
                found = statement
            case ast.ImportFrom(names=names) if any((alias.asname or alias.name) == "new" for alias in names):
                aliased = any(alias.asname == "new" and alias.name != "new" for alias in names)
                found = ast.copy_location(ast.Pass(), statement) if aliased else statement
            case ast.Assign(targets=targets) if any(isinstance(at, ast.Name) and at.id == "new" for at in targets):
                found = statement
            case ast.AnnAssign(target=ast.Name(id="new")):
                found = statement
    return found


def _module(folder: Path, module: Path, statement: ast.ImportFrom) -> Path | None:
    """The file of the module that a statement imports from, if it belongs to the function's package."""
    parts = (statement.module or "").split(".") if statement.module else []
    if statement.level:
        base = module.parent
        for _ in range(statement.level - 1):
            base = base.parent
    elif parts[:1] == ["function"]:
        base = folder
    else:
        return None
    path = base.joinpath(*parts)
    for candidate in (path.with_name(path.name + ".py"), path / "__init__.py"):
        if candidate.is_file() and candidate.resolve().is_relative_to(folder):
            return candidate
    return None
