"""The verbs of the API on stored objects: create, replace, patch, apply, delete, status.

Everything between a decoded request and the store: namespaces, names, admission, field managers, dry runs. Knows no
HTTP; a refusal is a ``Failure``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from relight.base.errors import RelightError, Unprocessable
from relight.base.ids import new_id, suffix
from relight.local.kube import configs, failures, kinds, merging, patch
from relight.local.kube.admission import Admission, Admitted, FieldValidation, admit
from relight.local.kube.cascades import Object, copied
from relight.local.kube.configs import Configs
from relight.local.kube.failures import Cause, Failure, bad_request
from relight.local.kube.kinds import Kind
from relight.local.kube.serving_rules import Rules
from relight.local.kube.store import ObjectStore, timestamp

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

_PATCH_OPTIONS = Kind("meta.k8s.io", "v1", "PatchOptions", "")

NAMESPACES = ("default", configs.NAMESPACE, "knative-eventing")
PROTECTED = ("default",)
"""Namespaces that cannot be deleted."""


@dataclass(frozen=True)
class Options:
    """How a write is meant."""

    manager: str = "unknown"
    validation: FieldValidation = "Warn"
    dry_run: bool = False
    force: bool = False
    orphan: bool = False
    repeated: tuple[str, ...] = ()
    """Keys that the body holds twice, as the API server complains of them."""
    grace: int | None = None
    """Seconds that something may take to end; 0: now; None: as long as it is meant to."""


@dataclass(frozen=True)
class Outcome:
    """What a write answers: HTTP status, the object (or a ``Status``), warnings for the client."""

    status: int
    object: dict[str, Any]
    warnings: tuple[str, ...] = field(default=())


class Resources:
    """See the module. ``user`` is who all requests come from: local mode has one."""

    def __init__(self, store: ObjectStore, user: str = "admin", now: Callable[[], float] = time.time) -> None:
        self._store = store
        self._user = user
        self._now = now
        self._configs = Configs(store)

    def ensure_cluster(self) -> None:
        """What every cluster has from its start: its namespaces, and Knative's ConfigMaps, empty. Idempotent."""
        for name in NAMESPACES:
            if self._store.get(kinds.NAMESPACE, None, name) is None:
                self.create(kinds.NAMESPACE, None, {"metadata": {"name": name}}, Options(manager="relight"))
        for name in configs.ALL:
            if self._store.get(kinds.CONFIG_MAP, configs.NAMESPACE, name) is None:
                self.create(
                    kinds.CONFIG_MAP, configs.NAMESPACE, {"metadata": {"name": name}}, Options(manager="relight")
                )

    def read(self, kind: Kind, namespace: str | None, name: str) -> Object:
        found = self._store.get(kind, namespace, name)
        if found is None:
            raise failures.not_found(kind, name)
        return found

    def create(self, kind: Kind, namespace: str | None, obj: Object, options: Options) -> Outcome:
        self._may_write(kind)
        obj = self._placed(kind, namespace, obj)
        metadata = obj["metadata"]
        if not metadata.get("name") and isinstance(metadata.get("generateName"), str):
            metadata["name"] = self._generated(kind, namespace, metadata["generateName"])
        metadata.pop("resourceVersion", None)
        if kind.status:
            obj.pop("status", None)
        self._check_namespace(kind, namespace, str(metadata.get("name") or ""))
        if kind is kinds.POD:
            raise failures.forbidden(
                kind, str(metadata.get("name")), "local mode runs functions, not containers; create a Knative Service"
            )
        self._complete_namespace(kind, obj)
        admitted = admit(kind, obj, None, self._admission(options))
        managed = merging.record(kind, None, obj, options.manager, timestamp(self._now()))
        return self._created(kind, admitted, managed["metadata"].get("managedFields"), options)

    def replace(self, kind: Kind, namespace: str | None, name: str, obj: Object, options: Options) -> Outcome:
        self._may_write(kind)
        obj = self._placed(kind, namespace, obj)
        given = obj["metadata"].setdefault("name", name)
        if given != name:
            raise bad_request(f"the name of the object ({given}) does not match the name on the URL ({name})")
        old = self.read(kind, namespace, name)
        if kind.custom and not obj["metadata"].get("resourceVersion"):
            why = "Invalid value: 0x0: must be specified for an update"
            raise failures.invalid(kind, name, [Cause("metadata.resourceVersion", why)])
        return self._updated(kind, old, obj, options)

    def patch(
        self, kind: Kind, namespace: str | None, name: str, media_type: str, change: Any, options: Options
    ) -> Outcome:
        """Any of the patch formats but apply."""
        self._may_write(kind)
        old = self.read(kind, namespace, name)
        return self._updated(kind, old, self._patched(kind, old, media_type, change), options)

    def apply(self, kind: Kind, namespace: str | None, name: str, applied: Object, options: Options) -> Outcome:
        """Server-side apply: creates what is not there."""
        self._may_write(kind)
        self._check_manager(applied, options)
        applied = self._placed(kind, namespace, applied)
        given = applied["metadata"].setdefault("name", name)
        if given != name:
            raise bad_request(f"the name of the object ({given}) does not match the name on the URL ({name})")
        if kind.status:
            applied.pop("status", None)
        old = self._store.get(kind, namespace, name)
        if old is None:
            self._check_namespace(kind, namespace, name)
        now = timestamp(self._now())
        merged = merging.apply(kind, old, applied, options.manager, now, force=options.force)
        managed = merged["metadata"].get("managedFields")
        if old is None:
            self._complete_namespace(kind, merged)
            return self._created(kind, admit(kind, merged, None, self._admission(options)), managed, options)
        if applied["metadata"].get("resourceVersion"):
            merged["metadata"]["resourceVersion"] = applied["metadata"]["resourceVersion"]
        admitted = admit(kind, merged, old, self._admission(options))
        return self._stored(kind, old, admitted, managed, options)

    def replace_status(self, kind: Kind, namespace: str | None, name: str, obj: Object, options: Options) -> Outcome:
        self._may_write(kind)
        old = self.read(kind, namespace, name)
        status = obj.get("status") or {}
        if not isinstance(status, dict):
            raise bad_request(f"status of a {kind.kind} is an object")
        new = {**old, "status": status}
        recorded = merging.record(kind, old, new, options.manager, timestamp(self._now()), subresource="status")
        managed = recorded["metadata"].get("managedFields") or []
        if options.dry_run:
            return Outcome(200, recorded)
        version = obj["metadata"].get("resourceVersion")
        written = self._store.set_status(kind, namespace, name, status, version=version, managed=managed)
        return Outcome(200, written or old)

    def apply_status(self, kind: Kind, namespace: str | None, name: str, applied: Object, options: Options) -> Outcome:
        """Server-side apply of the status alone; it creates nothing."""
        self._check_manager(applied, options)
        old = self.read(kind, namespace, name)
        applied = {"status": applied.get("status") or {}, "metadata": {}}
        now = timestamp(self._now())
        merged = merging.apply(kind, old, applied, options.manager, now, force=options.force, subresource="status")
        if options.dry_run:
            return Outcome(200, merged)
        managed = merged["metadata"].get("managedFields") or []
        written = self._store.set_status(kind, namespace, name, merged.get("status") or {}, managed=managed)
        return Outcome(200, written or old)

    def _check_manager(self, applied: Object, options: Options) -> None:
        if not options.manager:
            raise failures.invalid(_PATCH_OPTIONS, "", [Cause.required("fieldManager", "is required for apply patch")])
        if applied["metadata"].get("managedFields"):
            raise bad_request("metadata.managedFields must be nil")

    def patch_status(
        self, kind: Kind, namespace: str | None, name: str, media_type: str, change: Any, options: Options
    ) -> Outcome:
        old = self.read(kind, namespace, name)
        return self.replace_status(kind, namespace, name, self._patched(kind, old, media_type, change), options)

    def delete(
        self, kind: Kind, namespace: str | None, name: str, options: Options, conditions: dict[str, Any]
    ) -> Outcome:
        """``conditions``: uid and resourceVersion that the object must have."""
        self._may_write(kind)
        old = self.read(kind, namespace, name)
        for key, word in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
            if conditions.get(key) and conditions[key] != old["metadata"][key]:
                raise Failure(
                    409,
                    f'Operation cannot be fulfilled on {kind.resource} "{name}": Precondition failed: {word} in '
                    f"precondition: {conditions[key]}, {word} in object meta: {old['metadata'][key]}",
                    details=failures.details(kind, name),
                )
        if kind is kinds.NAMESPACE and name in PROTECTED:
            raise failures.forbidden(kind, name, "this namespace may not be deleted")
        if kind is kinds.POD and options.grace == 0 and not options.dry_run:
            old = self._unbound(old)
        last = old if options.dry_run else self._store.delete(kind, namespace, name, orphan=options.orphan) or old
        if kind in (kinds.POD, kinds.NAMESPACE) or last["metadata"].get("finalizers"):
            return Outcome(200, last)
        details = {**failures.details(kind, name), "uid": old["metadata"]["uid"]}
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
        return Outcome(200, status)

    def delete_all(
        self, kind: Kind, namespace: str | None, selected: Callable[[Object], bool], options: Options
    ) -> list[Object]:
        """Delete a selection; the answer is what was there."""
        self._may_write(kind)
        found, _ = self._store.list(kind, namespace, selected)
        if not options.dry_run and kind is not kinds.NAMESPACE:
            for obj in found:
                metadata = obj["metadata"]
                self._store.delete(kind, metadata.get("namespace"), metadata["name"], orphan=options.orphan)
        return found

    # Steps

    def _may_write(self, kind: Kind) -> None:
        if kind.treatment == "empty":
            raise Failure(405, f"the server does not allow this method on the requested resource: {kind.resource}")

    def _admission(self, options: Options) -> Admission:
        read = self._configs
        rules = Rules(read.features(), read.revisions(), read.scaling())
        return Admission(self._user, options.validation, options.repeated, rules)

    def _placed(self, kind: Kind, namespace: str | None, obj: Object) -> Object:
        """A copy in the namespace of the request."""
        if not isinstance(obj["metadata"], dict):
            raise bad_request("metadata is an object")
        obj = copied(obj)
        if not kind.namespaced:
            obj["metadata"].pop("namespace", None)
        elif obj["metadata"].setdefault("namespace", namespace) != namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        return obj

    def _unbound(self, pod: Object) -> Object:
        """A pod that may go at once: nothing is waited for (``kubectl delete --force --grace-period=0``)."""
        metadata = {key: value for key, value in pod["metadata"].items() if key != "finalizers"}
        return self._store.update(kinds.POD, {**pod, "metadata": metadata})

    def _check_namespace(self, kind: Kind, namespace: str | None, name: str) -> None:
        if not kind.namespaced:
            return
        found = self._store.get(kinds.NAMESPACE, None, namespace or "")
        if found is None:
            raise failures.not_found(kinds.NAMESPACE, namespace or "")
        if found["metadata"].get("deletionTimestamp"):
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise failures.forbidden(kind, name, why)

    def _generated(self, kind: Kind, namespace: str | None, prefix: str) -> str:
        for _ in range(8):
            name = prefix[:58] + suffix()
            if self._store.get(kind, namespace, name) is None:
                return name
        raise Failure(409, f"no free name was found for {prefix}", reason="AlreadyExists")

    def _complete_namespace(self, kind: Kind, obj: Object) -> None:
        if kind is kinds.NAMESPACE:
            metadata = obj["metadata"]
            labels = metadata.get("labels") if isinstance(metadata.get("labels"), dict) else {}
            metadata["labels"] = {**(labels or {}), "kubernetes.io/metadata.name": metadata.get("name") or ""}
            obj["spec"] = {"finalizers": ["kubernetes"]}
            obj["status"] = {"phase": "Active"}

    def _patched(self, kind: Kind, old: Object, media_type: str, change: Any) -> Object:
        if media_type == JSON_PATCH:
            try:
                patched = patch.json_patch(old, change)
            except Unprocessable as error:
                message = "the server rejected our request due to an error in our request"
                raise Failure(422, message, details={}) from error
        elif media_type == MERGE_PATCH:
            patched = patch.merge_patch(old, change)
        elif media_type == STRATEGIC_PATCH and not kind.custom:
            patched = patch.strategic_merge_patch(kind, old, change)
        else:
            strategic = "" if kind.custom else f", {STRATEGIC_PATCH}"
            raise Failure(
                415,
                "the body of the request was in an unknown format - accepted media types include: "
                f"{JSON_PATCH}, {MERGE_PATCH}{strategic}, {APPLY_PATCH}",
            )
        if not isinstance(patched, dict) or not isinstance(patched.get("metadata"), dict):
            raise bad_request(f"the patch leaves no {kind.kind}")
        name, given = old["metadata"]["name"], patched["metadata"].get("name")
        if given != name:
            raise bad_request(f"the name of the object ({given}) does not match the name on the URL ({name})")
        return self._placed(kind, old["metadata"].get("namespace"), patched)

    def _updated(self, kind: Kind, old: Object, new: Object, options: Options) -> Outcome:
        if kind.status:
            new.pop("status", None)
        admitted = admit(kind, new, old, self._admission(options))
        managed = merging.record(kind, old, new, options.manager, timestamp(self._now()))
        return self._stored(kind, old, admitted, managed["metadata"].get("managedFields"), options)

    def _created(self, kind: Kind, admitted: Admitted, managed: list[Any] | None, options: Options) -> Outcome:
        obj = _with_managed(admitted.object, managed)
        if kind is kinds.NAMESPACE:
            obj["status"] = {"phase": "Active"}
        name = obj["metadata"]["name"]
        if options.dry_run:
            if self._store.get(kind, obj["metadata"].get("namespace"), name) is not None:
                message = f'{kind.resource} "{name}" already exists'
                raise Failure(409, message, reason="AlreadyExists", details=failures.details(kind, name))
            metadata = {**obj["metadata"], "uid": new_id(), "creationTimestamp": timestamp(self._now())}
            metadata |= {"generation": 1} if kind.status else {}
            shown = {**obj, "metadata": metadata, "apiVersion": kind.api_version, "kind": kind.kind}
            return Outcome(201, shown, admitted.warnings)
        try:
            return Outcome(201, self._store.create(kind, obj), admitted.warnings)
        except RelightError as error:
            raise failures.of(error, kind, name) from error

    def _stored(
        self, kind: Kind, old: Object, admitted: Admitted, managed: list[Any] | None, options: Options
    ) -> Outcome:
        obj = _with_managed(admitted.object, managed)
        name = old["metadata"]["name"]
        try:
            if options.dry_run:
                return Outcome(200, self._store.preview(kind, obj), admitted.warnings)
            return Outcome(200, self._store.update(kind, obj), admitted.warnings)
        except RelightError as error:
            raise failures.of(error, kind, name) from error


def _with_managed(obj: Object, managed: list[Any] | None) -> Object:
    metadata = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
    return {**obj, "metadata": {**metadata, "managedFields": managed} if managed else metadata}
