"""How times are measured and scored, without a GPU: a fake clock that each call advances."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import pytest
import torch
from torch import Tensor

from common.course.grading import speed
from common.course.grading.speed import NotTimed, Timed, Times, implausible, net, part_of, take_times, wrong_outputs
from common.course.grading.timed import NOTHING, serve_rounds
from common.testing.case import Case
from common.testing.judging import make_inputs
from common.testing.worker.messages import receive, send

CPU = torch.device("cpu")
CASE = Case(
    "twice",
    "speed",
    lambda generator: {"x": torch.randn(5, 7, generator=generator)},
    lambda ops, x: 2 * x,
    lambda x: 2 * x,
    floor=1e-6,
    axes=("row", "col"),
)


def inputs(number: int) -> dict[str, Tensor]:
    return make_inputs(CASE, number)


class Clock:
    """Advances only when work() is called."""

    def __init__(self) -> None:
        self.now = 0.0

    def work(self, seconds: float) -> None:
        self.now += seconds


@contextmanager
def served(serve: Callable[[Connection], None]) -> Iterator[Connection]:
    ours, theirs = socket.socketpair()
    other = Connection(theirs.detach())
    thread = threading.Thread(target=lambda: (serve(other), other.close()), daemon=True)
    thread.start()
    with Connection(ours.detach()) as connection:
        yield connection
    thread.join(10)


def serving(prepare) -> Callable[[Connection], None]:
    return lambda connection: serve_rounds(lambda: prepare, connection, CPU)


def by_hand(total: float, factor: float, said: list[str]) -> Callable[[Connection], None]:
    """Code that speaks to the connection without serve_rounds: it tells this sum, and works only when asked to show.

    `said` gets what the grader asks for after each round.
    """

    def serve(connection: Connection) -> None:
        while True:
            try:
                _, tensors = receive(connection)
                send(connection, {"ready": True})
                assert receive(connection)[0] == {"do": "go"}
                send(connection, {"done": True, "sum": total})
                said.append(receive(connection)[0]["do"])
                if said[-1] == "show":
                    send(connection, {"shown": True}, {"out": factor * tensors["x"]})
            except (EOFError, OSError):
                return

    return serve


def timed(prepare, clock: Clock, **more) -> Times:
    with served(serving(prepare)) as connection:
        return take_times(connection, 0, inputs, now=lambda: clock.now, **more)


def test_the_time_is_that_of_the_call_alone_and_the_outputs_are_right() -> None:
    clock, filled = Clock(), []

    def prepare(number, given):
        clock.work(5)  # preparation does not count
        return lambda: (clock.work(0.25), 2 * given["x"])[1]

    times = timed(prepare, clock, rounds=6, warm_up=2, shown=3, before=lambda: (filled.append(1), clock.work(7)))
    assert times.seconds == [0.25] * 6 and times.median == 0.25 and len(filled) == 8
    assert len({number for number, _, _ in times.shown}) == 3
    assert wrong_outputs(times, CASE, inputs, "cpu") == []


def test_which_rounds_are_looked_at_is_chosen_anew_and_said_afterward() -> None:
    asked: list[list[str]] = []
    for _ in range(2):
        asked.append([])
        with served(by_hand(0.0, 1, asked[-1])) as connection:
            take_times(connection, 0, inputs, rounds=40, warm_up=3, shown=10)
    assert [said.count("show") for said in asked] == [10, 10] and asked[0] != asked[1]
    assert "show" not in asked[0][:3]


def test_an_output_kept_from_an_earlier_round_is_wrong() -> None:
    kept = []

    def prepare(number, given):
        def call():
            if not kept:
                kept.append(2 * given["x"])
            return kept[0]

        return call

    wrong = wrong_outputs(timed(prepare, Clock(), rounds=8, shown=4), CASE, inputs, "cpu")
    assert len(wrong) == 4 and all("a timed call: the output errs by" in words for words in wrong)


def test_work_put_off_until_it_is_looked_at_is_done_while_the_clock_runs() -> None:
    clock = Clock()

    class Later(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            clock.work(0.5)
            plain = [one.as_subclass(torch.Tensor) if isinstance(one, Later) else one for one in args]
            return func(*plain, **(kwargs or {}))

    def prepare(number, given):
        return lambda: (2 * given["x"]).as_subclass(Later)

    with torch.no_grad():
        times = timed(prepare, clock, rounds=4, warm_up=0, shown=0)
    assert all(seconds >= 0.5 for seconds in times.seconds)


def test_done_said_early_shows_by_the_sum() -> None:
    with served(by_hand(1.0, 2, [])) as connection:
        times = take_times(connection, 0, inputs, rounds=6, warm_up=0, shown=2)
    wrong = wrong_outputs(times, CASE, inputs, "cpu")
    assert len(wrong) == 2 and all("not the one whose sum was told" in words for words in wrong)


@pytest.mark.parametrize(
    "out, words",
    [
        (lambda x: 2 * x[:4], r"an output \[4, 7\] of torch.float32; \[5, 7\] is right"),
        (lambda x: (2 * x).double(), r"of torch.float64"),
        (lambda x: 2 * x + torch.nan, "errs by"),
    ],
)
def test_outputs_of_another_form_are_wrong(out, words: str) -> None:
    times = timed(lambda number, given: lambda: out(given["x"]), Clock(), rounds=2, shown=1)
    (first, *_) = wrong_outputs(times, CASE, inputs, "cpu")
    assert re.search(words, first)


@pytest.mark.parametrize(
    "serve, seconds, words",
    [
        (lambda connection: None, 60, "no answer that can be read"),
        (lambda connection: (receive(connection), send(connection, {"done": True})), 60, "not 'ready'"),
        (lambda connection: serve_rounds(lambda: 1 // 0, connection, CPU), 60, "ZeroDivisionError"),
        (lambda connection: receive(connection) and connection.poll(None), 0, "no answer within 0 seconds"),
    ],
)
def test_who_ends_or_talks_nonsense_gets_no_time(serve, seconds, words, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "LOAD_SECONDS", seconds)
    with served(serve) as connection, pytest.raises(NotTimed, match=words):
        take_times(connection, 0, inputs, rounds=1, shown=0)


def test_what_the_messages_take_is_taken_off() -> None:
    assert net(Times([3.0, 1.0, 2.0]), 0.5) == 1.5 and net(Times([1.0]), 2.0) == 1e-6
    with served(serving(lambda *_: None)) as connection:
        take_times(connection, NOTHING, lambda _: {"x": torch.zeros(4)}, rounds=2, shown=0)  # nothing is prepared


def test_points_flags_and_a_wrong_output_that_costs_them_all() -> None:
    from task4.cases.speed import POINTS, points_for

    fast, slow = Timed("a", 1.0, 0.7), Timed("b", 1.0, 0.5)
    part = part_of("speed", [fast, slow], lambda speedup: points_for(speedup), 2 * points_for(1.0))
    assert part.earned == points_for(1.0) + points_for(1.0) / 2 and part.possible == POINTS / 2
    assert [case.status for case in part.cases] == ["pass", "FAIL"] and "0.50 times" in part.cases[1].diagnosis[0]
    wrong = part_of("speed", [fast, Timed("b", 1.0, 9.0, ["Round 3: ..."])], lambda speedup: 0.5, 1.0)
    assert wrong.earned == 0 and "a timed call's output is wrong" in wrong.why.lower()
    assert implausible("task4", [fast, Timed("c", 1.0, 2.6)]) == [
        "task4: c: 2.6 times as fast as PyTorch, which is implausible: read the code"
    ]


def test_a_whole_task_peers_before_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """The student's process slows down the peers' second turn: the first counts."""
    clock, turns = Clock(), []
    costs = {"peers 1": 0.5, "ours 2": 0.4, "peers 3": 5.0}

    class Speed:
        CONFIGURATIONS = (type("Configuration", (), {"name": "one"})(),)
        case_of = staticmethod(lambda configuration: CASE)

    @contextmanager
    def process(whose: str):
        turns.append(f"{whose} {len(turns) + 1}")
        cost = costs[turns[-1]]
        with served(serving(lambda number, x: lambda: (clock.work(cost), 2 * x["x"])[1])) as connection:
            yield connection

    monkeypatch.setattr(speed.importlib, "import_module", lambda name: Speed)
    monkeypatch.setattr(speed, "_fill_l2", lambda: lambda: None)
    monkeypatch.setattr(speed, "DEVICE", "cpu")
    monkeypatch.setattr(speed.time, "perf_counter", lambda: clock.now)
    (one,) = speed.time_all("task9", lambda what: len(what), lambda: process("ours"), lambda: process("peers"))
    assert turns == list(costs) and one.wrong == []
    assert one.ours == pytest.approx(0.4) and one.peers == pytest.approx(0.5) and one.speedup == pytest.approx(1.25)
