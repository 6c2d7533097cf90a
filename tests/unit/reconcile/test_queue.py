"""The work queue, over hours of virtual time."""

import random

from hypothesis import given
from hypothesis import strategies as st

from tailkeeper.reconcile.queue import FIRST_RETRY_S, FLOOR_S, LONGEST_RETRY_S, KeyQueue


def new_queue() -> KeyQueue[str]:
    return KeyQueue(rng=random.Random(7))


def test_news_coalesces() -> None:
    queue = new_queue()
    for _ in range(100):
        queue.add("a", 0.0)
    assert queue.take(0.0) == "a"
    assert queue.take(0.0) is None
    queue.finish("a", 1.0, failed=False)
    assert queue.take(1.0) is None


def test_news_while_it_runs_makes_it_run_once_more_and_never_twice_at_a_time() -> None:
    queue = new_queue()
    queue.add("a", 0.0)
    assert queue.take(0.0) == "a"
    queue.add("a", 0.1)
    queue.add("a", 0.2)
    assert queue.take(0.3) is None
    queue.finish("a", 0.4, failed=False)
    assert queue.take(0.4) == "a"
    queue.finish("a", 0.5, failed=False)
    assert queue.take(0.5) is None


def test_first_come_first_served() -> None:
    queue = new_queue()
    for key in "abc":
        queue.add(key, 0.0)
    assert [queue.take(0.0) for _ in "abc"] == ["a", "b", "c"]


def test_a_delay_is_kept_and_an_earlier_wish_wins() -> None:
    queue = new_queue()
    queue.add("a", 0.0, delay_s=30.0)
    assert queue.take(29.9) is None
    assert queue.next_due_s() == 30.0
    queue.add("a", 1.0)
    assert queue.take(1.0) == "a"
    queue.finish("a", 1.0, failed=False)
    assert queue.take(40.0) is None, "the later wish was for the same thing"


def test_failures_come_back_ever_later_but_within_bounds() -> None:
    queue, now_s, waits = new_queue(), 0.0, []
    queue.add("a", now_s)
    for _ in range(40):
        due_s = queue.next_due_s()
        assert due_s is not None
        waits.append(due_s - now_s)
        now_s = due_s
        assert queue.take(now_s) == "a"
        queue.finish("a", now_s, failed=True)
    assert 0.5 * FIRST_RETRY_S <= waits[1] <= FIRST_RETRY_S
    assert all(0.5 * LONGEST_RETRY_S <= wait <= LONGEST_RETRY_S for wait in waits[-20:])
    assert len(set(waits[-20:])) > 10, "jitter: many failing keys must not come back together"


def test_success_forgets_the_failures() -> None:
    queue = new_queue()
    queue.add("a", 0.0)
    for now_s in (0.0, 10.0, 30.0):
        queue.take(now_s)
        queue.finish("a", now_s, failed=True)
    assert queue.failing == 1
    queue.take(100.0)
    queue.finish("a", 100.0, failed=False)
    assert queue.failing == 0
    queue.add("a", 101.0)
    assert queue.take(101.0) == "a"


def test_news_brings_a_failing_key_forward_but_not_at_once() -> None:
    queue, now_s = new_queue(), 0.0
    queue.add("a", now_s)
    for _ in range(10):
        now_s = queue.next_due_s() or now_s
        queue.take(now_s)
        queue.finish("a", now_s, failed=True)
    attempts = 0
    for step in range(1000):  # a broken object that changes every 10 ms for 10 s
        at_s = now_s + step * 0.01
        queue.add("a", at_s)
        if queue.take(at_s):
            attempts += 1
            queue.finish("a", at_s, failed=True)
    assert 5 <= attempts <= 10 / FLOOR_S


@given(st.data())
def test_nothing_is_lost_and_no_key_runs_beside_itself(data: st.DataObject) -> None:
    queue, now_s = new_queue(), 0.0
    wanted: dict[str, float] = {}
    running: set[str] = set()
    for _ in range(data.draw(st.integers(1, 60))):
        now_s += data.draw(st.floats(0, 50))
        match data.draw(st.sampled_from(["add", "take", "finish"])):
            case "add":
                key, delay_s = data.draw(st.sampled_from("abc")), data.draw(st.sampled_from([0.0, 3.0]))
                queue.add(key, now_s, delay_s)
                wanted[key] = now_s
            case "take":
                key = queue.take(now_s)
                if key is not None:
                    assert key not in running
                    running.add(key)
                    wanted.pop(key, None)
            case "finish" if running:
                key = data.draw(st.sampled_from(sorted(running)))
                running.remove(key)
                failed = data.draw(st.booleans())
                queue.finish(key, now_s, failed)
                if failed:
                    wanted[key] = now_s
    for key in sorted(running):
        queue.finish(key, now_s, failed=False)
    served = set()
    while (key := queue.take(now_s + 2 * LONGEST_RETRY_S)) is not None:
        served.add(key)
    assert wanted.keys() <= served
