"""Reading manifests: what is found where, in which order it is applied, and mistakes by file and document."""

from __future__ import annotations

from pathlib import Path

import pytest

from relight.base.errors import BadInput, NotFound, Unsupported
from relight.cluster import documents
from relight.cluster.documents import ordered, read_documents


def thing(kind: str, name: str, group: str = "example.com/v1") -> str:
    return f"apiVersion: {group}\nkind: {kind}\nmetadata: {{name: {name}}}\n"


def lay(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def names(paths: list[str], stdin: str | None = None) -> list[str]:
    return [f"{read.value['kind']}/{read.value['metadata']['name']}" for read in read_documents(paths, stdin)]


def test_a_file_of_many_documents_and_places(tmp_path: Path) -> None:
    lay(tmp_path, {"a.yaml": f"{thing('A', 'a')}---\n---\n{thing('B', 'b')}"})
    read = read_documents([str(tmp_path / "a.yaml")])
    assert [document.place for document in read] == [f"{tmp_path}/a.yaml", f"{tmp_path}/a.yaml (document 3)"]
    assert [document.name for document in read] == ["a.example.com/a", "b.example.com/b"]


def test_a_folder_is_its_files_in_order_not_those_below(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            "b.yml": thing("B", "b"),
            "a.yaml": thing("A", "a"),
            "c.json": '{"apiVersion":"v1","kind":"C","metadata":{"name":"c"}}',
            "x.txt": "x",
            "d/d.yaml": thing("D", "d"),
        },
    )
    assert names([str(tmp_path)]) == ["A/a", "B/b", "C/c"]


def test_standard_input_and_lists() -> None:
    items = [f"- {{apiVersion: v1, kind: {kind}, metadata: {{name: x}}}}\n" for kind in ("A", "B")]
    text = "apiVersion: v1\nkind: List\nitems:\n" + "".join(items)
    assert names(["-"], text) == ["A/x", "B/x"]


def test_what_others_refer_to_is_applied_first() -> None:
    kinds = ["Trigger", "Service", "Sequence", "Broker", "Other", "ConfigMap", "Namespace", "PingSource", "Secret"]
    read = read_documents(["-"], "---\n".join(thing(kind, "x") for kind in kinds))
    assert [document.value["kind"] for document in ordered(read)] == [
        *("Namespace", "Secret", "ConfigMap", "Service", "Broker", "Other", "Trigger", "Sequence", "PingSource")
    ]


WRONG = [
    ("no object", {"a.yaml": "- 1\n"}, ["a.yaml: expected an object"]),
    ("no kind", {"a.yaml": "apiVersion: v1\nmetadata: {name: x}\n"}, ["a.yaml: expected text in kind"]),
    ("no name", {"a.yaml": "apiVersion: v1\nkind: A\n"}, ["a.yaml: expected text in metadata.name"]),
    ("no YAML in the second", {"a.yaml": f"{thing('A', 'a')}---\nb: [\n"}, ["a.yaml (document 2): it is not YAML"]),
    ("an item of a list", {"a.yaml": "kind: List\nitems: [1]\n"}, ["a.yaml items[0]: expected an object"]),
    (
        "every file at once",
        {"a.yaml": "1\n", "b.yaml": thing("B", "b"), "c.yaml": f"{thing('C', 'c')}---\nkind: X\n"},
        ["a.yaml: expected an object", "c.yaml (document 2): expected text in apiVersion, metadata.name"],
    ),
]


@pytest.mark.parametrize(("files", "says"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_mistakes_are_named_by_file_and_document(tmp_path: Path, files: dict[str, str], says: list[str]) -> None:
    lay(tmp_path, files)
    with pytest.raises(BadInput) as caught:
        read_documents([str(tmp_path)])
    problems = [str(problem).removeprefix(f"{tmp_path}/") for problem in caught.value.problems]
    assert len(problems) == len(says), problems
    assert all(problem.startswith(start) for problem, start in zip(problems, says, strict=True)), problems


@pytest.mark.parametrize("path", ["gone.yaml", "empty"])
def test_nothing_to_read(tmp_path: Path, path: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match=path):
        read_documents([str(tmp_path / path)])


def test_no_objects_is_an_error(tmp_path: Path) -> None:
    lay(tmp_path, {"a.yaml": "---\n# nothing\n"})
    with pytest.raises(BadInput, match="no objects"):
        read_documents([str(tmp_path)])


@pytest.fixture(params=["kubectl", "without"])
def kustomize(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With kubectl's own kustomize, and without kubectl on the machine."""
    way: str = request.param
    if way == "without":
        monkeypatch.setattr(documents, "kubectl", lambda: None)
    elif documents.kubectl() is None:
        pytest.skip("kubectl is not installed")
    return way


def test_a_kustomization_of_resources(tmp_path: Path, kustomize: str) -> None:
    lay(
        tmp_path,
        {
            "base/kustomization.yaml": "resources: [a.yaml, sub/b.yaml]\n",
            "base/a.yaml": thing("A", "a"),
            "base/sub/b.yaml": thing("B", "b"),
            "base/ignored.yaml": thing("X", "x"),
            "top/kustomization.yaml": "resources:\n- ../base\n- c.yaml\n",
            "top/c.yaml": thing("C", "c"),
        },
    )
    assert sorted(names([str(tmp_path / "top")])) == ["A/a", "B/b", "C/c"]
    assert sorted(names([str(tmp_path / "top" / "kustomization.yaml")])) == ["A/a", "B/b", "C/c"]


def test_a_kustomization_may_not_read_files_elsewhere(tmp_path: Path, kustomize: str) -> None:
    lay(tmp_path, {"k/kustomization.yaml": "resources: [../a.yaml]\n", "a.yaml": thing("A", "a")})
    with pytest.raises(BadInput, match=r"a\.yaml"):
        read_documents([str(tmp_path / "k")])


def test_a_kustomization_that_patches(tmp_path: Path, kustomize: str) -> None:
    lay(tmp_path, {"kustomization.yaml": "resources: [a.yaml]\nnamePrefix: x-\n", "a.yaml": thing("A", "a")})
    if kustomize == "kubectl":
        assert names([str(tmp_path)]) == ["A/x-a"]
    else:
        with pytest.raises(Unsupported, match="namePrefix"):
            read_documents([str(tmp_path)])
