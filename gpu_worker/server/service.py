"""What every API does with a call: make inputs ready, give them to the loop, wait, say where the time went."""

import asyncio
import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from gpu_worker.clock import Clock
from gpu_worker.engines.interface import InputError, Prepared
from gpu_worker.metrics.meter import Meter
from gpu_worker.scheduling.interface import Request, Waits
from gpu_worker.server.errors import ApiError, Code, from_answer, invalid, unavailable
from gpu_worker.server.exchange import Call, ClientGone
from gpu_worker.server.group import Group
from gpu_worker.server.loop import NotServing, ServingLoop
from gpu_worker.server.options import Options
from gpu_worker.server.texts import Texts
from tailkeeper.api.settings import Settings

INLINE_CHARACTERS = 2048
"""Shorter calls are tokenised on the event loop (about 1 us a character); a hop to a thread costs 100 us and more."""
MOST_TOKENISED_AT_ONCE = 2
"""Calls; the others wait. Each takes a CPU from the forward pass, and all of them would take the threads that everybody
else needs."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one call may ask for."""

    body_bytes: int
    inputs: int


@dataclass(frozen=True, slots=True)
class Served:
    """A call that was served: one output for each input, in order."""

    outputs: list[Any]
    timing: bytes
    """Value of the `Server-Timing` header."""


class Service:
    """Serves the inputs of calls."""

    def __init__(self, model: str, loop: ServingLoop, meter: Meter, limits: Limits, clock: Clock) -> None:
        self.model = model
        self.limits = limits
        self.clock = clock
        self._loop = loop
        self._meter = meter
        self._numbers = itertools.count(1)
        self._tokenising = ThreadPoolExecutor(MOST_TOKENISED_AT_ONCE, "tokenise")

    def settings(self) -> Settings:
        """The applied settings. Raises ApiError 503 before the first."""
        if self._meter.settings is None:
            raise unavailable("no settings yet")
        return self._meter.settings

    def must_be(self, model: object) -> None:
        """Raises ApiError 404 when another model is asked for, 400 when none is."""
        if model is None:
            raise invalid(f"model is missing; this worker serves {self.model}", "model")
        if model != self.model:
            raise ApiError(404, Code.MODEL_NOT_FOUND, f"the model {model!r} does not exist; {self.model} does", "model")

    async def prepare(
        self,
        inputs: Sequence[Any],
        characters: int,
        make: Callable[[Any], Prepared],
        options: Options,
        arrival_s: float,
        param: str = "input",
    ) -> list[Prepared]:
        """Makes each input ready for the engine. Raises ApiError 400 that names the bad one, 504 when the caller is
        gone before all of them are ready."""
        if not self._loop.serving:
            raise unavailable(self._loop.trouble or "starting")
        if len(inputs) > self.limits.inputs:
            raise invalid(f"{len(inputs)} inputs, {self.limits.inputs} at most", param)
        if characters <= INLINE_CHARACTERS:
            return _each(inputs, make, param, threading.Event())
        left_s = arrival_s + self._patience_s(options) - self.clock()
        gone = threading.Event()
        try:
            async with asyncio.timeout(left_s):
                return await asyncio.get_running_loop().run_in_executor(
                    self._tokenising, _each, inputs, make, param, gone
                )
        except TimeoutError:
            message = f"the deadline passed after {(self.clock() - arrival_s) * 1000:.0f} ms, before it was tokenized"
            raise ApiError(504, Code.EXPIRED, message) from None
        finally:
            gone.set()

    def _patience_s(self, options: Options) -> float:
        """Seconds from arrival until the caller is gone. The scheduler, which knows how long a batch takes, waits for
        that where no file says; a call on its way to it gets as long as one gets before the first batch."""
        if options.deadline_s is not None:
            return options.deadline_s
        tier = self.settings().tier(options.tier)
        return (3 * tier.deadline_ms if tier.timeout_ms is None else tier.timeout_ms) / 1000

    async def serve(self, call: Call, inputs: Sequence[Prepared], options: Options, arrival_s: float) -> Served:
        """Waits for all. Raises ApiError, and ClientGone when nobody waits any more."""
        group = Group(self._loop)
        self._submit(group, inputs, options, arrival_s)
        watch = asyncio.create_task(call.gone())
        watch.add_done_callback(lambda task: None if task.cancelled() else group.cancel())
        try:
            outputs = await group.wait()
        except asyncio.CancelledError:
            group.cancel()
            raise
        finally:
            watch.cancel()
        if group.failure is not None:
            raise from_answer(group.failure, group.error, timing(group.failure.waits))
        if outputs is None or group.slowest is None:
            raise ClientGone
        return Served(outputs, timing(group.slowest.waits))

    def texts(self, inputs: Sequence[Prepared], options: Options, arrival_s: float) -> Texts:
        """Takes texts in that are to be made. Raises ApiError."""
        texts = Texts(self._loop)
        self._submit(texts, inputs, options, arrival_s)
        return texts

    def _submit(self, to: Group | Texts, inputs: Sequence[Prepared], options: Options, arrival_s: float) -> None:
        deadline_s = None if options.deadline_s is None else arrival_s + options.deadline_s
        try:
            to.submit([(self._request(given, options, arrival_s, deadline_s), given.content) for given in inputs])
        except NotServing as error:
            raise unavailable(str(error)) from None
        except KeyError:  # the tiers changed between reading the options and now
            raise invalid(f"unknown tier {options.tier!r}", "tier") from None

    def _request(self, given: Prepared, options: Options, arrival_s: float, deadline_s: float | None) -> Request:
        return Request(
            id=f"{next(self._numbers):x}",
            tier=options.tier,
            arrival_s=arrival_s,
            deadline_s=deadline_s,
            tenant=options.tenant,
            prompt_tokens=given.tokens,
            max_output_tokens=given.output_tokens,
            priority=options.priority,
        )


def timing(waits: Waits) -> bytes:
    """`Server-Timing` with each wait cause in milliseconds: anyone can see why a request was slow."""
    return (
        f"hold;dur={waits.hold_s * 1e3:.2f}, busy;dur={waits.busy_s * 1e3:.2f}, "
        f"slot;dur={waits.slot_s * 1e3:.2f}, exec;dur={waits.exec_s * 1e3:.2f}"
    ).encode()


def _each(inputs: Sequence[Any], make: Callable[[Any], Prepared], param: str, gone: threading.Event) -> list[Prepared]:
    """As many as there are before the caller is `gone`."""
    prepared = []
    for index, given in enumerate(inputs):
        if gone.is_set():
            break
        try:
            prepared.append(make(given))
        except InputError as error:
            raise invalid(f"input {index}: {error}" if len(inputs) > 1 else str(error), param) from None
    return prepared
