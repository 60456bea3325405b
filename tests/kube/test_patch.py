"""Patches as functions: JSON patch, merge patch, strategic merge, and ownership under server-side apply."""

from __future__ import annotations

from typing import Any

import pytest

from relight.base.errors import BadInput, Unprocessable
from relight.local.kube.fields import from_v1, leaves, to_v1
from relight.local.kube.kinds import POD, SERVICE
from relight.local.kube.merging import ApplyConflict, apply, record
from relight.local.kube.patch import json_patch, merge_patch, strategic_merge_patch

NOW = "2027-01-15T08:00:00Z"

# RFC 6902, appendix A, and the corners that implementations get wrong
JSON_PATCHES: list[Any] = [
    pytest.param({"a": 1}, [{"op": "add", "path": "/b", "value": 2}], {"a": 1, "b": 2}, id="add"),
    pytest.param({"a": [1, 3]}, [{"op": "add", "path": "/a/1", "value": 2}], {"a": [1, 2, 3]}, id="insert"),
    pytest.param({"a": [1]}, [{"op": "add", "path": "/a/-", "value": 2}], {"a": [1, 2]}, id="append"),
    pytest.param({"a": 1}, [{"op": "remove", "path": "/a"}], {}, id="remove"),
    pytest.param({"a": [1, 2]}, [{"op": "remove", "path": "/a/0"}], {"a": [2]}, id="remove-item"),
    pytest.param({"a": 1}, [{"op": "replace", "path": "/a", "value": None}], {"a": None}, id="replace-by-null"),
    pytest.param({"a": 1}, [{"op": "replace", "path": "", "value": {"b": 2}}], {"b": 2}, id="replace-all"),
    pytest.param({"a": {"b": 1}}, [{"op": "move", "from": "/a/b", "path": "/c"}], {"a": {}, "c": 1}, id="move"),
    pytest.param({"a": [1]}, [{"op": "copy", "from": "/a", "path": "/b"}], {"a": [1], "b": [1]}, id="copy"),
    pytest.param({"a/b": 1}, [{"op": "replace", "path": "/a~1b", "value": 2}], {"a/b": 2}, id="escaped-slash"),
    pytest.param({"~1": 1}, [{"op": "remove", "path": "/~01"}], {}, id="escaped-tilde"),
    pytest.param({"": 1}, [{"op": "remove", "path": "/"}], {}, id="empty-name"),
    pytest.param({"a": 1}, [{"op": "test", "path": "/a", "value": 1}], {"a": 1}, id="test"),
]


@pytest.mark.parametrize(("before", "patch", "after"), JSON_PATCHES)
def test_json_patch(before: Any, patch: Any, after: Any) -> None:
    kept = repr(before)
    assert json_patch(before, patch) == after
    assert repr(before) == kept


@pytest.mark.parametrize(
    "operation",
    [
        pytest.param({"op": "replace", "path": "/spec/nope/x", "value": 1}, id="missing-parent"),
        pytest.param({"op": "replace", "path": "/nope", "value": 1}, id="replace-missing"),
        pytest.param({"op": "remove", "path": "/nope"}, id="remove-missing"),
        pytest.param({"op": "add", "path": "/list/2", "value": 1}, id="past-the-end"),
        pytest.param({"op": "add", "path": "/list/-1", "value": 1}, id="negative"),
        pytest.param({"op": "add", "path": "/list/01", "value": 1}, id="leading-zero"),
        pytest.param({"op": "add", "path": "/name/x", "value": 1}, id="into-a-string"),
        pytest.param({"op": "test", "path": "/name", "value": "b"}, id="test-fails"),
        pytest.param({"op": "move", "from": "/spec", "path": "/spec/x"}, id="into-itself"),
        pytest.param({"op": "frob", "path": "/name"}, id="unknown-op"),
        pytest.param({"op": "add", "path": "/name"}, id="no-value"),
        pytest.param({"op": "add", "path": "name", "value": 1}, id="no-slash"),
    ],
)
def test_json_patch_that_cannot_be_done(operation: dict[str, Any]) -> None:
    with pytest.raises(Unprocessable, match="operation 1 of the patch cannot be done"):
        json_patch({"spec": {}, "list": [1], "name": "a"}, [{"op": "add", "path": "/spec/ok", "value": 1}, operation])


def test_json_patch_must_be_a_list() -> None:
    with pytest.raises(BadInput, match="a list of operations"):
        json_patch({}, {"op": "add"})


@pytest.mark.parametrize(
    ("before", "patch", "after"),
    [
        pytest.param({"a": "b"}, {"a": "c"}, {"a": "c"}, id="replace"),
        pytest.param({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}, id="null-removes"),
        pytest.param({"a": ["b"]}, {"a": ["c"]}, {"a": ["c"]}, id="lists-are-replaced"),
        pytest.param({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}, id="nested"),
        pytest.param({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}, id="null-in-new-objects-is-dropped"),
        pytest.param({"e": None}, {"a": 1}, {"e": None, "a": 1}, id="nulls-that-were-there-stay"),
    ],
)
def test_merge_patch(before: Any, patch: Any, after: Any) -> None:
    assert merge_patch(before, patch) == after


@pytest.mark.parametrize(
    ("patch", "after"),
    [
        pytest.param(
            {"containers": [{"name": "a", "image": "2"}]},
            [{"name": "a", "image": "2", "env": [{"name": "E", "value": "1"}]}, {"name": "b"}],
            id="by-name",
        ),
        pytest.param({"containers": [{"name": "b", "$patch": "delete"}]}, "only-a", id="delete-item"),
        pytest.param(
            {"$setElementOrder/containers": [{"name": "a"}], "containers": [{"name": "c"}]},
            "appended",
            id="order-directives-are-dropped",
        ),
        pytest.param({"containers": [{"$patch": "replace"}, {"name": "z"}]}, [{"name": "z"}], id="replace-list"),
    ],
)
def test_strategic_merge_patch(patch: Any, after: Any) -> None:
    first = {"name": "a", "image": "1", "env": [{"name": "E", "value": "1"}]}
    named = {"only-a": [first], "appended": [first, {"name": "b"}, {"name": "c"}]}
    merged = strategic_merge_patch(POD, {"containers": [first, {"name": "b"}]}, patch)
    assert merged == {"containers": named[after] if isinstance(after, str) else after}


def service(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "a"}, "spec": spec}


def test_apply_removes_what_its_manager_no_longer_applies() -> None:
    live = apply(SERVICE, None, service(x={"a": 1, "b": 2}, y=1), "me", NOW, force=False)
    live["spec"]["defaulted"] = True
    live = apply(SERVICE, live, service(x={"a": 1}), "me", NOW, force=False)
    assert live["spec"] == {"x": {"a": 1}, "defaulted": True}


def test_apply_keeps_what_others_own_too() -> None:
    live = apply(SERVICE, None, service(x=1, y=1), "me", NOW, force=False)
    live = apply(SERVICE, live, service(x=1), "you", NOW, force=False)
    live = apply(SERVICE, live, service(y=1), "me", NOW, force=False)
    assert live["spec"] == {"x": 1, "y": 1}
    live = apply(SERVICE, live, service(z=1), "you", NOW, force=False)
    assert live["spec"] == {"y": 1, "z": 1}


def test_apply_conflicts_unless_forced() -> None:
    live = apply(SERVICE, None, service(x=1, y=1), "me", NOW, force=False)
    with pytest.raises(ApplyConflict, match=r'^Apply failed with 1 conflict: conflict with "me": \.spec\.x$'):
        apply(SERVICE, live, service(x=2), "you", NOW, force=False)
    forced = apply(SERVICE, live, service(x=2), "you", NOW, force=True)
    assert forced["spec"] == {"x": 2, "y": 1}
    again = apply(SERVICE, forced, service(y=1), "me", NOW, force=False)
    assert again["spec"] == {"x": 2, "y": 1}


def test_updates_own_what_they_change() -> None:
    live = apply(SERVICE, None, service(x=1, y=1), "me", NOW, force=False)
    live = record(SERVICE, live, {**live, "spec": {"x": 2, "y": 1}}, "editor", NOW)
    with pytest.raises(ApplyConflict, match="editor"):
        apply(SERVICE, live, service(x=1, y=1), "me", NOW, force=False)
    owners = {entry["manager"]: entry["fieldsV1"] for entry in live["metadata"]["managedFields"]}
    assert owners == {"me": {"f:spec": {"f:y": {}}}, "editor": {"f:spec": {"f:x": {}}}}


def test_an_equal_apply_changes_nothing() -> None:
    live = apply(SERVICE, None, service(x=1), "me", NOW, force=False)
    assert apply(SERVICE, live, service(x=1), "me", "2028-01-01T00:00:00Z", force=False) == live


def test_lists_are_atomic_in_knative_kinds_and_keyed_in_native_ones() -> None:
    first = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "a", "image": "1"}]}}
    second = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "b", "image": "2"}]}}
    pod = apply(POD, apply(POD, None, first, "me", NOW, force=False), second, "you", NOW, force=False)
    assert [container["name"] for container in pod["spec"]["containers"]] == ["a", "b"]
    gone = apply(POD, pod, {"metadata": {"name": "a"}, "spec": {}}, "me", NOW, force=False)
    assert [container["name"] for container in gone["spec"]["containers"]] == ["b"]
    with pytest.raises(ApplyConflict, match=r"\.spec\.containers$"):
        apply(SERVICE, apply(SERVICE, None, first, "me", NOW, force=False), second, "you", NOW, force=False)


def test_field_sets_survive_their_wire_form() -> None:
    pod = {"spec": {"containers": [{"name": "a", "ports": [{"containerPort": 1}], "args": []}], "x": {}}}
    fields = frozenset(leaves(POD, pod))
    assert from_v1(to_v1(fields)) == fields
    assert to_v1(fields)["f:spec"]["f:containers"]['k:{"name":"a"}'] == {
        ".": {},
        "f:args": {},
        "f:name": {},
        "f:ports": {'k:{"containerPort":1,"protocol":"TCP"}': {".": {}, "f:containerPort": {}}},
    }
