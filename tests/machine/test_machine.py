"""Room on a machine: what is found, what is taken and given back, who is told."""

from __future__ import annotations

import os

import pytest

from relight.base.errors import BadInput
from relight.base.settings import Settings
from relight.local.serving.machine import GPU, Capacity, Machine, detect
from relight.local.serving.types import RevisionKey

A, B = RevisionKey("default", "a"), RevisionKey("default", "b")


def machine(gpus: int = 2) -> Machine:
    return Machine(Capacity({"cpu": 2000, GPU: gpus}, {GPU: tuple(map(str, range(gpus)))}))


def test_what_is_found() -> None:
    found = detect({"CUDA_VISIBLE_DEVICES": "3, GPU-7"})
    assert found.amounts["cpu"] == len(os.sched_getaffinity(0)) * 1000
    assert found.amounts["memory"] > 2**27
    assert (found.amounts[GPU], found.devices) == (2, {GPU: ("3", "GPU-7")})
    assert GPU not in detect({"CUDA_VISIBLE_DEVICES": ""}).amounts


def test_what_is_declared_counts_instead() -> None:
    found = detect({"CUDA_VISIBLE_DEVICES": "5"}, {"cpu": 64000, GPU: 2, "nvidia.com/mig-1g.10gb": 4})
    assert (found.amounts["cpu"], found.amounts[GPU], found.amounts["nvidia.com/mig-1g.10gb"]) == (64000, 2, 4)
    assert found.devices == {GPU: ("5", "1")}


def test_settings_name_what_is_wrong() -> None:
    assert Settings.from_environ({"RELIGHT_RESOURCES": "cpu=2"}).resources == {"cpu": 2000}
    assert Settings.from_environ({"RELIGHT_RESOURCES": "cpu=2"}, resources="cpu=3").resources == {"cpu": 3000}
    with pytest.raises(BadInput, match="RELIGHT_RESOURCES") as error:
        Settings.from_environ({"RELIGHT_RESOURCES": "two", "RELIGHT_LIMITS": "none"})
    assert {problem.path for problem in error.value.problems} == {"RELIGHT_RESOURCES", "RELIGHT_LIMITS"}


def test_nobody_has_what_another_has() -> None:
    here = machine()
    first, second = here.take(A, {GPU: 1, "cpu": 500}), here.take(A, {GPU: 1})
    assert first is not None
    assert second is not None
    assert {first.devices, second.devices} == {("0",), ("1",)}
    assert here.environment(second) == {"CUDA_VISIBLE_DEVICES": second.devices[0]}
    assert here.take(B, {GPU: 1}) is None
    assert (here.room({GPU: 1}), here.room({"cpu": 500}), here.room({})) == (0, 3, None)
    assert here.holders((GPU,)) == ["default/a"]
    first.leaving = True
    assert (here.free[GPU], here.soon[GPU]) == (0, 1)
    here.give_back(first)
    here.give_back(first)
    assert (here.free, here.soon[GPU]) == ({"cpu": 2000, GPU: 1}, 1)
    again = here.take(B, {GPU: 1})
    assert again is not None
    assert again.devices == first.devices


def test_who_asks_for_no_gpu_sees_none() -> None:
    grant = machine().take(A, {"cpu": 100})
    assert grant is not None
    assert machine().environment(grant) == {"CUDA_VISIBLE_DEVICES": ""}
    assert Machine(Capacity({"cpu": 100})).environment(grant) == {}, "without GPUs nothing is said"


def test_those_who_wait_are_told_in_order() -> None:
    here, told = machine(1), list[str]()
    held = here.take(A, {GPU: 1})
    assert held is not None
    here.wait(A, lambda: told.append("first"))
    here.wait(B, lambda: told.append("second"))
    here.wait(A, lambda: told.append("never"))
    here.give_back(held)
    assert told == ["first", "second"]
    here.served(A)
    held = here.take(A, {GPU: 1})
    assert held is not None
    here.give_back(held)
    assert told == ["first", "second", "second"]


def test_what_can_never_be() -> None:
    here = machine()
    assert here.take(A, {GPU: 2}) is not None
    assert here.never({GPU: 2}) == ()
    assert here.never({GPU: 3, "cpu": 9000}) == ("cpu", GPU)
    assert here.lacking({GPU: 1}) == (GPU,)
