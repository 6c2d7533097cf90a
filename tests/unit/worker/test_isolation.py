"""A failed step, made as small as it is: a bad request fails alone, a broken engine fails nobody for good."""

from math import log2

from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.clock import monotonic_s
from gpu_worker.engines.interface import Task
from gpu_worker.server.isolation import NotServed, run_step
from tests.unit.worker.doubles import ScriptedEngine


def tasks(count: int) -> list[Task]:
    return [Task(str(index), f"text {index}", 2) for index in range(count)]


def test_one_bad_request_fails_alone_and_cheaply() -> None:
    engine = ScriptedEngine()
    engine.poison = {"text 11"}
    ran = run_step(engine, tasks(16), (), monotonic_s)
    assert ran.crash is None
    assert ran.result.failed.keys() == {"11"}
    assert ran.result.completed == {str(index) for index in range(16)} - {"11"}
    assert len(engine.batches) <= 1 + 2 * log2(16)
    assert not isinstance(ran.result.failed["11"], NotServed)


@given(st.integers(1, 12), st.sets(st.integers(0, 11)))
def test_whoever_is_bad_fails_and_everybody_else_is_served(count: int, bad: set[int]) -> None:
    engine = ScriptedEngine()
    engine.poison = {f"text {index}" for index in bad}
    ran = run_step(engine, tasks(count), (), monotonic_s)
    assert ran.crash is None
    assert ran.result.failed.keys() == {str(index) for index in bad if index < count}
    assert ran.result.completed == {str(index) for index in range(count) if index not in bad}
    assert ran.result.outputs.keys() == ran.result.completed


def test_a_broken_engine_is_told_from_bad_requests_and_nobody_is_to_blame() -> None:
    engine = ScriptedEngine()
    engine.broken = "device lost"
    ran = run_step(engine, tasks(16), (), monotonic_s)
    assert str(ran.crash) == "device lost"
    assert ran.result.failed.keys() == {str(index) for index in range(16)}
    assert all(isinstance(error, NotServed) for error in ran.result.failed.values())
    assert len(engine.batches) <= 1 + log2(16), "a broken engine is not asked again and again"


def test_an_engine_with_state_is_not_asked_twice() -> None:
    engine = ScriptedEngine()
    engine.stateless = False
    engine.poison = {"text 1"}
    ran = run_step(engine, tasks(4), (), monotonic_s)
    assert len(engine.batches) == 1
    assert ran.crash is None
    assert all(isinstance(error, NotServed) for error in ran.result.failed.values())
    assert ran.result.failed.keys() == {"0", "1", "2", "3"}
