"""The part of ``relight doctor`` that looks at a cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from relight.cli import exits
from relight.cli.kube import Connection
from relight.cli.output import Format, print_json, print_table, waiting

if TYPE_CHECKING:
    from relight.cluster.documents import Document
    from relight.cluster.verdicts import Check


def examine(link: Connection, given: Sequence[Document] | None, *, inside: float | None, output: Format) -> int:
    """Check a cluster for ``given``, or for what relight has deployed in the namespace; 1 if something failed.

    ``inside``: seconds that a pod may take to tell what it reaches; None: none is started.
    """
    from relight.cluster.checks import check
    from relight.cluster.deployed import deployed

    documents = list(given) if given is not None else deployed(link.kube, link.namespace)
    found = check(link.kube, documents, link.namespace)
    if inside is not None:
        found += _inside(link, documents, inside)
    if output == "json":
        print_json([vars(one) for one in found])
    else:
        _print(found)
    return exits.FAILED if any(one.verdict == "failed" for one in found) else exits.OK


def _inside(link: Connection, documents: list[Document], timeout: float) -> list[Check]:
    from relight.cluster.inside import look_inside
    from relight.cluster.verdicts import Check
    from relight.store.reaching import look

    if link.target.platform is not None:
        # Functions of local mode run on this machine, with its model repository.
        environ = dict(os.environ) | {"RELIGHT_REPOSITORY": link.target.platform.repository}
        return [Check(one.name, "ok" if one.ok else "failed", one.finding) for one in look(environ)]
    if not any(one.value["kind"] == "Service" for one in documents):
        return [Check("inside", "unknown", "no function is deployed or named: there is no image to look with")]
    with waiting("looking from inside the cluster") as progress:
        return look_inside(link.kube, documents, link.namespace, timeout=timeout, on_progress=progress.show)


def _print(found: Sequence[Check]) -> None:
    print_table(("verdict", "what", "finding"), [(one.verdict, one.name, one.finding) for one in found], wrap=True)
    mends = list(dict.fromkeys(one.mend for one in found if one.mend and one.verdict != "ok"))
    if mends:
        print("\nto mend:")
        for mend in mends:
            print(f"  {mend}")
