"""A launch's recording checked against the kernel's inputs and output; the tiles in dynamic shared memory."""

import numpy as np
import pytest
from checked_findings import recorded
from kernel_mistakes import TASK2, TASK4

import task2.cases
import task4.cases
from common.inspect.replay.packing import offset_steps, types_of
from common.inspect.replay.recording import READ, WARP_OPERATION, WRITE, Array, Entry, Launch
from common.inspect.replay.tiles import shape_of, with_tiles

SOFTMAX = {f"{case.part}: {case.name}": case for case in task2.cases.cases()}["softmax: 7 x 31"]
FULL = next(case for case in task4.cases.cases() if case.name == "scores far below 0" and case.part == "full")


@pytest.fixture(scope="module")
def softmax():
    launches, findings, inputs, out = recorded(TASK2.operators(None, "simulator", checked=True), SOFTMAX)
    assert len(launches) == 1 and not findings
    return launches[0], inputs, out


def array_called(launch: Launch, name: str) -> int:
    return [array.name for array in launch.arrays].index(name)


def events_of(launch: Launch, array: int, kind: int) -> np.ndarray:
    wanted = [number for number, e in enumerate(launch.entries) if (e.array, e.kind) == (array, kind)]
    return np.flatnonzero(np.isin(launch.entry_of, wanted))


def values_of(launch: Launch, events: np.ndarray) -> np.ndarray:
    """The floats that these writes leave in memory."""
    sizes = np.array([0 if e.kind in (READ, WARP_OPERATION) else e.bytes for e in launch.entries])[launch.entry_of]
    begins = np.cumsum(sizes) - sizes
    return np.array([np.frombuffer(launch.values, "<f4", 1, begins[i])[0] for i in events])


def test_arrays_have_name_shape_and_what_they_held(softmax):
    launch, inputs, _ = softmax
    assert [(a.name, a.space, a.shape) for a in launch.arrays] == [
        ("x", "global", (7, 31)),
        ("partial", "shared", (256,)),
        ("y", "global", (7, 31)),
    ]
    assert (np.frombuffer(launch.arrays[0].initial, "<f4").reshape(7, 31) == inputs["x"].numpy()).all()
    assert launch.arrays[0].initialized and not launch.arrays[2].initialized
    assert types_of(launch) == ["f4", "f4", "f4"]


def test_every_access_is_recorded_with_its_thread(softmax):
    launch, inputs, out = softmax
    read = events_of(launch, array_called(launch, "x"), READ)
    assert len(read) == 3 * inputs["x"].numel()  # three passes
    assert (launch.thread_of[read] == launch.offset_of[read] // 4 % 31).all()  # thread i handles column i
    written = events_of(launch, array_called(launch, "y"), WRITE)
    y = np.zeros(7 * 31, dtype=np.float32)
    y[launch.offset_of[written] // 4] = values_of(launch, written)
    assert (y.reshape(7, 31) == out.numpy()).all()


def test_values_of_a_row_can_be_followed(softmax):
    """Thread 0 writes its row's maximum at the end of the first reduction's tree."""
    launch, inputs, _ = softmax
    partial = array_called(launch, "partial")
    written = events_of(launch, partial, WRITE)
    row = next(segment for segment in launch.segments if segment.block == 3)
    nine = [segment for segment in launch.segments if segment.block == 3][9]  # written once, then eight steps
    own = written[(written >= row.first) & (written < nine.first) & (launch.thread_of[written] == 0)]
    assert values_of(launch, own[-1:])[0] == inputs["x"][3].max().item()


def test_segments_end_at_barriers(softmax):
    launch, _, _ = softmax
    of_first = [segment for segment in launch.segments if segment.block == 0]
    assert [segment.end for segment in of_first] == ["barrier"] * 19 + ["end"]  # 9 + 1 + 9
    assert "__syncthreads();" in of_first[0].at.text and of_first[-1].at is None
    assert sorted({segment.block for segment in launch.segments}) == list(range(7))
    assert [segment.first for segment in launch.segments] == sorted(segment.first for segment in launch.segments)


def test_steps_add_up_to_the_offsets(softmax):
    launch, _, _ = softmax
    last = np.zeros(len(launch.entries), dtype=np.int64)
    for entry, step, offset in zip(launch.entry_of, offset_steps(launch), launch.offset_of, strict=True):
        last[entry] += step
        assert last[entry] == offset


@pytest.mark.slow
def test_tiles_of_dynamic_shared_memory():
    launches, _, inputs, _ = recorded(TASK4.operators(None, "simulator", checked=True), FULL)
    launch = with_tiles(launches[0])
    shared = {a.name: a for a in launch.arrays if a.space == "shared"}
    assert {name: a.shape for name, a in shared.items()} == {
        "q_tile": (64, 32),
        "k_tile": (96, 36),
        "v_tile": (96, 32),
        "p_tile": (64, 96),
    }
    first_block = slice(0, launch.segments[1].first)
    rows = events_of(launch, array_called(launch, "v_tile"), WRITE)
    rows = rows[rows < first_block.stop]
    tile = np.zeros((96, 32), dtype=np.float32)
    tile.reshape(-1)[launch.offset_of[rows] // 4] = values_of(launch, rows)
    assert (tile == inputs["value"][0, 0, :96].numpy()).all()
    assert {one.label for one in launch.entries if one.kind == WARP_OPERATION} >= {"__shfl_xor_sync", "__syncwarp"}


@pytest.mark.parametrize(
    ("touched", "said", "values", "shape"),
    [
        ([1] * 12, ("A", "B"), {"A": 3, "B": 4}, (3, 4)),
        ([1] * 12, ("A", "B"), {"A": 3}, (3, 4)),
        ([1] * 12, ("A", "B"), {"A": 5}, (12,)),
        ([1, 1, 1, 0] * 3, ("A", "STRIDE"), {"A": 3}, (3, 4)),
        (([1, 1, 1, 0] * 3)[:-1], (), {}, (3, 4)),
        ([1] * 12, (), {}, (12,)),
        ([1] * 12, ("2", "6"), {}, (2, 6)),
    ],
)
def test_shape_of_a_tile(touched, said, values, shape):
    assert shape_of(np.array(touched, dtype=bool), said, values) == shape


def launch_of(values: np.ndarray, size: int) -> Launch:
    array = Array("a", "shared", size, (len(values),), values.nbytes, False, b"")
    entry = Entry(0, WRITE, size, None)
    n = len(values)
    offsets = (np.arange(n) * size).astype("<u4")
    runs, entries = np.array([[0, n]], dtype="<u2"), np.zeros(n, "<u2")
    one = (1, 1, 1)
    return Launch("k", None, one, one, n, (array,), (entry,), (), runs, entries, offsets, values.tobytes())


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (np.array([0.5, -3.25, 1e-6, 0.0], "<f4"), "f4"),
        (np.array([1, 2, 700, -5], "<i4"), "i4"),
        (np.array([0, 0, 0], "<i4"), "f4"),  # no clue to the type
        (np.array([0.5, -3.25, 8.0], "<f2"), "f2"),
        (np.array([-np.inf, 0.5, np.nan], "<f4"), "f4"),
        (np.array([0.1, 2e5], "<f8"), "f8"),
        (np.array([3, 9, 1 << 20], "<i8"), "i8"),
        (np.array([3, 9], "u1"), "u1"),
    ],
)
def test_types_from_values(values, kind):
    assert types_of(launch_of(values, values.itemsize)) == [kind]
