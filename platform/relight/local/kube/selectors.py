"""Label and field selectors: text to a test of an object."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from relight.local.kube.failures import bad_request
from relight.local.kube.kinds import Kind

Labels = Mapping[str, str]
LabelTest = Callable[[Labels], bool]
FieldTest = Callable[[dict[str, Any]], bool]

_SET = re.compile(r"(?P<key>[^\s!=,()]+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)")
_EQUAL = re.compile(r"(?P<key>[^\s!=,()]+)\s*(?P<op>==|=|!=)\s*(?P<value>[^\s!=,()]*)")
_EXISTS = re.compile(r"(?P<not>!\s*)?(?P<key>[^\s!=,()]+)")

_INVOLVED = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_FIELDS = {
    "events": (*(f"involvedObject.{field}" for field in _INVOLVED), "reason", "reportingComponent", "source", "type"),
    "pods": ("spec.nodeName", "spec.restartPolicy", "status.phase", "status.podIP"),
    "secrets": ("type",),
    "namespaces": ("status.phase",),
}


def label_test(text: str) -> LabelTest:
    """``a=b,c!=d,e in (f,g),h,!i``: all must hold. Failure 400 says what cannot be parsed."""
    tests = [_requirement(part) for part in _split(text)]
    return lambda labels: all(test(labels) for test in tests)


def _split(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for index, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    return [part.strip() for part in (*parts, text[start:]) if part.strip()]


def _requirement(text: str) -> LabelTest:
    if match := _SET.fullmatch(text):
        values = {value.strip() for value in match["values"].split(",")}
        return _within(match["key"], values, match["op"] == "in")
    if match := _EQUAL.fullmatch(text):
        return _within(match["key"], {match["value"]}, match["op"] != "!=")
    if match := _EXISTS.fullmatch(text):
        key, wanted = match["key"], match["not"] is None
        return lambda labels: (key in labels) is wanted
    raise bad_request(f'unable to parse requirement: found "{text}", expected: !, identifier, or operator')


def _within(key: str, values: set[str], wanted: bool) -> LabelTest:
    # a label that is not there is not one of any values: "notin" and "!=" hold
    return lambda labels: (labels.get(key) in values) is wanted


def field_test(kind: Kind, text: str) -> FieldTest:
    """``metadata.name=a,status.phase!=Running``. Failure 400 for a field that the kind cannot be selected by."""
    allowed = ["metadata.name", "metadata.namespace", *(_FIELDS.get(kind.plural, ()) if not kind.custom else ())]
    tests: list[FieldTest] = []
    for part in _split(text):
        match = re.fullmatch(r"([^=!]+?)\s*(==|=|!=)\s*(.*)", part)
        if not match:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        name, operator, value = match.groups()
        if name not in allowed:
            raise bad_request(f"field label not supported: {name}")
        tests.append(_equals(name.split("."), value, operator != "!="))
    return lambda obj: all(test(obj) for test in tests)


def _equals(path: list[str], value: str, wanted: bool) -> FieldTest:
    def test(obj: dict[str, Any]) -> bool:
        found: Any = obj
        for step in path:
            found = found.get(step) if isinstance(found, dict) else None
        return ((found or "") == value) is wanted

    return test
