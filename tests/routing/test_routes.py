from __future__ import annotations

import random
from collections import Counter

import pytest

from relight.local.serving.routes import Routes, origin_allowed, read_host
from relight.local.serving.types import RevisionKey, RouteTarget


def revision(name: str) -> RevisionKey:
    return RevisionKey("default", name)


@pytest.fixture
def routes() -> Routes:
    table = Routes()
    table.set(
        "default",
        "embed",
        (
            RouteTarget(revision("embed-1"), 90),
            RouteTarget(revision("embed-2"), 10, "next"),
            RouteTarget(revision("embed-0"), 0, "old"),
        ),
    )
    table.set("default", "next-split", (RouteTarget(revision("next-split-1"), 100),))
    table.set("default", "split", (RouteTarget(revision("split-1"), 100), RouteTarget(revision("split-2"), 0, "next")))
    return table


@pytest.mark.parametrize(
    ("target", "revisions", "rest"),
    [
        pytest.param(b"/default/embed", {"embed-1", "embed-2"}, b"/", id="no slash behind the name"),
        pytest.param(b"/default/embed/", {"embed-1", "embed-2"}, b"/", id="root"),
        pytest.param(
            b"/default/embed/v2/models/m?x=1", {"embed-1", "embed-2"}, b"/v2/models/m?x=1", id="path and query"
        ),
        pytest.param(b"/default/embed?a=/b", {"embed-1", "embed-2"}, b"/?a=/b", id="a slash in the query"),
        pytest.param(b"/default/embed//x", {"embed-1", "embed-2"}, b"//x", id="the rest is kept as it is"),
        pytest.param(b"/default/embed/%2e%2e/", {"embed-1", "embed-2"}, b"/%2e%2e/", id="nothing is decoded"),
        pytest.param(b"/default/next-embed/x", {"embed-2"}, b"/x", id="tag"),
        pytest.param(b"/default/old-embed/", {"embed-0"}, b"/", id="a tag of 0 percent"),
        pytest.param(b"/default/next-split/", {"next-split-1"}, b"/", id="a function's own name before a tag's"),
        pytest.param(b"/default/nope/", None, b"/", id="unknown function"),
        pytest.param(b"/other/embed/", None, b"/", id="unknown namespace"),
    ],
)
def test_path_form(routes: Routes, target: bytes, revisions: set[str] | None, rest: bytes) -> None:
    found = routes.by_path(target)
    assert found is not None
    assert found.target == rest
    if revisions is None:
        assert found.route is None
        assert found.function == "/".join(target.decode().split("/")[1:3])
    else:
        assert found.route is not None
        drawn = {found.route.pick(at / 100).revision.name for at in range(100)}
        assert drawn == revisions


@pytest.mark.parametrize(
    "target", [b"/", b"/default", b"/default/", b"//", b"//x", b"/default//x", b"/?a/b/c", b"/default/?x"]
)
def test_too_short_for_a_function(routes: Routes, target: bytes) -> None:
    assert routes.by_path(target) is None


def test_what_the_function_is_told(routes: Routes) -> None:
    own, tag = routes.by_path(b"/default/embed/"), routes.by_path(b"/default/next-embed/")
    assert own is not None
    assert own.route is not None
    assert tag is not None
    assert tag.route is not None
    assert (own.route.host, own.route.prefix) == (b"embed.default.localhost", b"/default/embed")
    assert (tag.route.host, tag.route.prefix) == (b"next-embed.default.localhost", b"/default/next-embed")


def test_removal(routes: Routes) -> None:
    routes.remove("default", "embed")
    routes.remove("default", "embed")
    for target in (b"/default/embed/", b"/default/next-embed/"):
        found = routes.by_path(target)
        assert found is not None
        assert found.route is None
    assert routes.by_host(b"embed.default", b"/").route is None
    assert {route.name for route in routes} == {"split", "next-split"}


@pytest.mark.parametrize(
    ("host", "function"),
    [
        pytest.param(b"localhost:8080", b"", id="localhost"),
        pytest.param(b"127.0.0.1", b"", id="loopback"),
        pytest.param(b"127.3.2.1:80", b"", id="all of 127/8"),
        pytest.param(b"[::1]:8080", b"", id="IPv6 loopback"),
        pytest.param(b"LocalHost.", b"", id="case and a trailing dot"),
        pytest.param(b"console.localhost", b"", id="one name below localhost"),
        pytest.param(b"embed.default.localhost:8080", b"embed.default", id="below localhost"),
        pytest.param(b"next-embed.default.localhost", b"next-embed.default", id="a tag"),
        pytest.param(b"embed.default.svc.cluster.local", b"embed.default", id="in-cluster name"),
        pytest.param(b"embed.default.svc", b"embed.default", id="short in-cluster name"),
        pytest.param(b"embed.default.127.0.0.1.sslip.io:8080", b"embed.default", id="sslip.io"),
        pytest.param(b"127.0.0.1.sslip.io", b"", id="sslip.io alone"),
    ],
)
def test_hosts_of_this_machine(routes: Routes, host: bytes, function: bytes) -> None:
    read = read_host(host)
    assert (read.allowed, read.function) == (True, function)
    if function:
        assert routes.by_host(function, b"/a?b").route is not None


@pytest.mark.parametrize(
    "host",
    [
        b"evil.example",
        b"localhost.evil.example",
        b"127.0.0.1.evil.example",
        b"embed.default.127.0.0.2.sslip.io",
        b"embed.default.10.0.0.1.sslip.io",
        b"sslip.io",
        b"svc",
        b"x.svc",
        b"cluster.local",
        b"10.0.0.1",
        b"127.0.0.1.2",
        b"127.0.0.256",
        b"",
        b":80",
        b"localhost:http",
        b"[::1",
        b"notlocalhost",
    ],
)
def test_hosts_of_others(host: bytes) -> None:
    assert not read_host(host).allowed


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (b"http://localhost:3000", True),
        (b"https://console.localhost", True),
        (b"http://127.0.0.1:8080", True),
        (b"https://evil.example", False),
        (b"null", False),
        (b"file://localhost", False),
        (b"", False),
    ],
)
def test_origins(origin: bytes, allowed: bool) -> None:
    assert origin_allowed(origin) is allowed


def test_split_over_a_seeded_draw(routes: Routes) -> None:
    draw = random.Random(11)
    route = routes.get("default", "embed")
    assert route is not None
    counts = Counter(route.pick(draw.random()).revision.name for _ in range(5000))
    assert set(counts) == {"embed-1", "embed-2"}
    assert abs(counts["embed-2"] - 500) < 80
