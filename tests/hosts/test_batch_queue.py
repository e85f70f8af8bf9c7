import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest
from torchserve_neuron_lstm.handlers.responses import RawResponse
from torchserve_neuron_lstm.hosts.batch_queue import BatchQueue, QueueFullError


def request(number: int) -> RawRequest:
    return RawRequest({"body": str(number).encode()})


class Engine:
    """Echoes each body, and fails at -1. It computes when `go` is set, and keeps the batches that it saw."""

    def __init__(self, failure: BaseException | None = None) -> None:
        self.failure = failure or ValueError("a batch fails")
        self.go = threading.Event()
        self.go.set()
        self.begun = threading.Event()
        self.batches: list[list[bytes]] = []
        self.waited_ms: list[float] = []

    def handle(self, requests: Sequence[RawRequest]) -> list[RawResponse]:
        bodies = [bytes(one.row["body"]) for one in requests if isinstance(one.row, dict)]
        self.batches.append(bodies)
        self.waited_ms += [one.waited_ms for one in requests]
        self.begun.set()
        assert self.go.wait(20)
        if b"-1" in bodies:
            raise self.failure
        return [RawResponse(200, body) for body in bodies]


async def begun(engine: Engine) -> None:
    assert await asyncio.to_thread(engine.begun.wait, 20)


Scenario = Callable[[Engine, BatchQueue], Coroutine[None, None, None]]


def with_queue(
    most: int = 8, most_waiting: int | None = 100, failure: BaseException | None = None
) -> Callable[[Scenario], Callable[[], None]]:
    """Run a test with an engine and a queue before it, which is closed in the end."""

    def decorated(scenario: Scenario) -> Callable[[], None]:
        async def run() -> None:
            engine = Engine(failure)
            queue = BatchQueue(engine.handle, most, most_waiting=most_waiting)
            await scenario(engine, queue)
            await queue.close()

        return lambda: asyncio.run(run())

    return decorated


async def waiting(
    engine: Engine, queue: BatchQueue, numbers: Iterable[int], first: int = 0
) -> list[asyncio.Task[RawResponse]]:
    """Ask with the first request, and with others while its batch is computed until `go` is set."""
    engine.go.clear()
    tasks = [asyncio.create_task(queue.respond(request(first)))]
    await begun(engine)
    tasks += [asyncio.create_task(queue.respond(request(number))) for number in numbers]
    await asyncio.sleep(0)
    return tasks


@given(st.lists(st.integers(0, 999), max_size=30), st.integers(1, 8))
def test_each_request_gets_its_own_response_in_batches_within_the_bound(numbers: list[int], most: int) -> None:
    engine = Engine()

    async def ask() -> list[RawResponse]:
        queue = BatchQueue(engine.handle, most, most_waiting=100)
        responses = await asyncio.gather(*[queue.respond(request(number)) for number in numbers])
        await queue.close()
        return responses

    responses = asyncio.run(ask())

    assert [response.body for response in responses] == [str(number).encode() for number in numbers]
    assert all(len(batch) <= most for batch in engine.batches)


@with_queue()
async def test_what_came_during_a_batch_is_the_next_batch(engine: Engine, queue: BatchQueue) -> None:
    """The first request is computed at once, and alone: no timer is waited for."""
    tasks = await waiting(engine, queue, (1, 2, 3))
    await asyncio.sleep(0.02)
    engine.go.set()
    await asyncio.gather(*tasks)
    await queue.close()
    assert engine.batches == [[b"0"], [b"1", b"2", b"3"]]
    assert min(engine.waited_ms[1:]) >= 20


@with_queue()
async def test_a_request_whose_client_left_is_not_computed(engine: Engine, queue: BatchQueue) -> None:
    tasks = await waiting(engine, queue, (1, 2))
    tasks[1].cancel()
    engine.go.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(answers[1], asyncio.CancelledError)
    assert answers[2] == RawResponse(200, b"2")
    await queue.close()
    assert engine.batches == [[b"0"], [b"2"]]


@with_queue(most_waiting=2)
async def test_beyond_the_bound_of_waiting_requests_one_is_refused_at_once(engine: Engine, queue: BatchQueue) -> None:
    tasks = await waiting(engine, queue, (1, 2))
    with pytest.raises(QueueFullError):
        await queue.respond(request(3))
    engine.go.set()
    assert [response.body for response in await asyncio.gather(*tasks)] == [b"0", b"1", b"2"]


@with_queue(most_waiting=2)
async def test_a_request_whose_caller_has_gone_away_takes_no_place(engine: Engine, queue: BatchQueue) -> None:
    first, *gone = await waiting(engine, queue, (1, 2))
    for task in gone:
        task.cancel()
    await asyncio.sleep(0)
    last = asyncio.create_task(queue.respond(request(3)))
    await asyncio.sleep(0)
    engine.go.set()
    assert [response.body for response in await asyncio.gather(first, last)] == [b"0", b"3"]
    await queue.close()
    assert engine.batches == [[b"0"], [b"3"]]


@with_queue(most_waiting=None)
async def test_without_a_bound_all_requests_wait(engine: Engine, queue: BatchQueue) -> None:
    """For a server that limits them itself."""
    tasks = await waiting(engine, queue, range(1, 100))
    engine.go.set()
    assert {response.status for response in await asyncio.gather(*tasks)} == {200}


@with_queue()
async def test_a_batch_that_fails_fails_for_its_requests_alone(engine: Engine, queue: BatchQueue) -> None:
    with pytest.raises(ValueError, match="a batch fails"):
        await queue.respond(request(-1))
    assert await queue.respond(request(5)) == RawResponse(200, b"5")


class PanicException(BaseException):
    """An error as extensions written in Rust raise it."""


@with_queue(failure=PanicException())
async def test_an_error_that_is_no_exception_is_told_to_all_that_wait(engine: Engine, queue: BatchQueue) -> None:
    tasks = await waiting(engine, queue, (1,), first=-1)
    engine.go.set()
    done, _ = await asyncio.wait(tasks, timeout=20)
    assert [str(task.exception()) for task in tasks if task in done] == [
        "the batch was given up: PanicException",
        "the batch was given up: PanicException",
    ]
    assert await asyncio.wait_for(queue.respond(request(2)), 20) == RawResponse(200, b"2")


def test_an_engine_that_returns_too_few_responses_fails_for_its_requests_alone() -> None:
    async def ask() -> None:
        queue = BatchQueue(lambda requests: [], 8, most_waiting=100)
        with pytest.raises(ValueError, match="zip"):
            await asyncio.wait_for(queue.respond(request(1)), 20)
        await queue.close()

    asyncio.run(ask())


@with_queue(most=1)
async def test_close_waits_for_what_was_accepted(engine: Engine, queue: BatchQueue) -> None:
    """Nobody who was let in goes without a response."""
    tasks = await waiting(engine, queue, (1, 2))
    closing = asyncio.create_task(queue.close())
    engine.go.set()
    await closing
    assert [task.result().body for task in tasks] == [b"0", b"1", b"2"]
