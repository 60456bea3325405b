"""Renaming images in documents, as kustomize's ``images`` does, for those who apply an overlay as it is."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from relight.base.errors import BadInput
from relight.cluster.documents import Document


def parse_images(texts: Iterable[str]) -> dict[str, str]:
    """``NAME=REFERENCE`` pairs: the last part of an image's path, and what stands in its place."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, reference = text.partition("=")
        if not (equals and name and reference) or "/" in name:
            raise BadInput(f"--image {text!r}: expected NAME=REFERENCE, such as relight=registry.example.com/relight:1")
        found[name] = reference
    return found


def rename_images(documents: Sequence[Document], images: Mapping[str, str]) -> list[Document]:
    """Documents with their containers' images renamed. BadInput: a name that no image has, for it is a mistake."""
    if not images:
        return list(documents)
    used: set[str] = set()
    renamed = []
    for document in documents:
        value = copy.deepcopy(dict(document.value))
        _rename(value, images, used)
        renamed.append(Document(document.place, value))
    unused = sorted(images.keys() - used)
    if unused:
        raise BadInput(f"--image {unused[0]}=…: no container has an image of that name")
    return renamed


def base_name(image: str) -> str:
    """``relight`` of ``registry.example.com:5000/team/relight:1@sha256:…``."""
    return image.rpartition("/")[2].partition("@")[0].partition(":")[0]


def _rename(value: Any, images: Mapping[str, str], used: set[str]) -> None:
    if isinstance(value, list):
        for item in value:
            _rename(item, images, used)
    elif isinstance(value, dict):
        for key, part in value.items():
            if key in ("containers", "initContainers") and isinstance(part, list):
                for container in part:
                    name = base_name(str(container.get("image", ""))) if isinstance(container, dict) else ""
                    if name in images:
                        container["image"] = images[name]
                        used.add(name)
            else:
                _rename(part, images, used)
