"""Printing what the API returns: its tables, whole objects, names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import yaml

from relight.cli.output import print_json, print_table

Format = Literal["table", "wide", "json", "yaml", "name"]


def print_server_table(tables: Sequence[Mapping[str, Any]], *, wide: bool, namespaces: bool) -> None:
    """The API server's own table, as kubectl prints it: its columns of priority 0, or all of them (``wide``)."""
    if not tables:
        return
    columns = tables[0]["columnDefinitions"]
    shown = [at for at, column in enumerate(columns) if wide or not column.get("priority")]
    heads = [str(columns[at]["name"]) for at in shown]
    rows = []
    for table in tables:
        for row in table.get("rows") or ():
            cells = [_cell(row["cells"][at]) for at in shown]
            namespace = row.get("object", {}).get("metadata", {}).get("namespace", "")
            rows.append([namespace, *cells] if namespaces else cells)
    print_table((["namespace", *heads] if namespaces else heads), rows)


def print_objects(values: Sequence[Mapping[str, Any]], form: Format, *, one: bool) -> None:
    """Objects as JSON, YAML or names; several as a ``List``, as kubectl does."""
    if form == "name":
        for value in values:
            group = str(value["apiVersion"]).rpartition("/")[0]
            print(f"{value['kind'].lower()}{'.' if group else ''}{group}/{value['metadata']['name']}")
        return
    whole: Any = values[0] if one else {"apiVersion": "v1", "kind": "List", "items": list(values)}
    if form == "json":
        print_json(whole)
    else:
        print(yaml.safe_dump(whole, sort_keys=True, allow_unicode=True), end="")


def tree(value: Any, indent: int = 0) -> Iterable[str]:
    """A value as indented lines for ``describe``: fields in CamelCase as words, empty ones left out."""
    pad = "  " * indent
    if isinstance(value, Mapping):
        for key, part in value.items():
            if part in (None, "", {}, []):
                continue
            if isinstance(part, Mapping | list):
                yield f"{pad}{key}:"
                yield from tree(part, indent + 1)
            else:
                yield f"{pad}{key}: {_cell(part)}"
    elif isinstance(value, list):
        for part in value:
            if isinstance(part, Mapping | list):
                first, *rest = list(tree(part, indent + 1)) or [f"{pad}  (empty)"]
                yield f"{pad}- {first.lstrip()}"
                yield from rest
            else:
                yield f"{pad}- {_cell(part)}"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
