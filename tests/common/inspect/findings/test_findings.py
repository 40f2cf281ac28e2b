"""Findings of the checked build in words: every kind, from the JSON that the runtime writes."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from common.inspect.findings.model import Access, Finding, grouped, read_findings, without_strays
from common.inspect.findings.report import may_be_the_index, print_findings
from common.inspect.findings.words import element_of, explained, happened, index_of
from common.inspect.source_lines import Place

KERNEL = """\
__device__ void load(float* tile) {
    tile[threadIdx.x] = 1;
}
__device__ float use(const float* tile) {
    return tile[31 - threadIdx.x];
}
__global__ void kernel(float* out) {
    for (int i = 0; i < 4; ++i) {
        load(tile);
        // __syncthreads() is only spoken of here
        sum += use(tile);
    }
    for (int i = 0; i < 4; ++i) {
        load(tile);
        __syncthreads();
        sum += use(tile);
    }
    out[threadIdx.x] = sum;
}
"""


class Lines:
    """A stand-in for SourceLines: address -> place."""

    def __init__(self, places):
        self._places = places

    def places(self, addresses):
        return {address: self._places[address] for address in addresses}


@pytest.fixture
def kernel(tmp_path):
    """kernel(line, called_from): a place in KERNEL."""
    file = tmp_path / "kernel.cu"
    file.write_text(KERNEL)

    def place(line, called_from=None):
        callers = (Place(str(file), called_from, "kernel"),) if called_from else ()
        function = "kernel" if line > 6 else "use" if line > 3 else "load"
        return Place(str(file), line, function, callers)

    return place


def report(*accesses, **changes) -> dict:
    """The runtime's JSON with one finding; an access is (action, address, block, thread)."""
    finding = {
        "kind": "race",
        "kernel": "kernel",
        "launch": "/course/kernel.cu:40",
        "space": "shared",
        "variable": "tile",
        "shape": [32, 33],
        "element_bytes": 4,
        "byte_offset": 4 * (3 * 33 + 17),
        "count": 37,
        "accesses": [
            {"action": action, "bytes": 4, "pc": pc, "block": list(block), "thread": list(thread)}
            for action, pc, block, thread in accesses
        ],
        "detail": "",
    }
    return {"findings": [finding | changes], "kernels": []}


def read(places, *accesses, **changes) -> Finding:
    (one,) = read_findings(report(*accesses, **changes), Lines(places))
    return one


B0, B1 = (0, 0, 0), (1, 0, 0)
T0, T1, T40 = (0, 0, 0), (1, 0, 0), (40, 0, 0)


def printed(*groups_of_findings) -> str:
    text = io.StringIO()
    print_findings(Console(file=text, width=120), grouped(groups_of_findings))
    return text.getvalue()


def words_of(*groups_of_findings) -> str:
    """The output, with line breaks removed."""
    return " ".join(printed(*groups_of_findings).split())


def test_a_line_is_quoted_once_and_cut_at_the_width(tmp_path):
    long, short = "x[i] = " + " + ".join(f"y[i + {k}]" for k in range(40)) + ";", "z[i] = x[i];"
    (tmp_path / "kernel.cu").write_text(f"{long}\n{short}\n")
    places = {k: Place(str(tmp_path / "kernel.cu"), k, "kernel") for k in (1, 2)}
    said = printed(
        ("a", [read(places, ("write", 1, B0, T0), ("read", 2, B0, T40))]),
        ("b", [read(places, ("write", 1, B0, T0), ("read", 2, B0, T40), kernel="other")]),
    )
    assert "2. race" in said and said.count(short) == 1
    assert said.count("x[i] = y[i + 0]") == 1 and "y[i + 39]" not in said
    assert max(map(len, said.split("\n"))) <= 120
    first, second = (line for line in said.split("\n") if "y[i + " in line)
    assert first.lstrip().startswith("x[i] =") and second.endswith(" ...")


# ---- races


HEAP = {"variable": "the 64 bytes of cudaMalloc at /course/kernel.cu:50", "shape": []}
OUT, TENSOR = {"space": "global", "variable": "out"}, {"space": "global", "variable": "out", "shape": [4, 32]}
LOOPED = {"variable": "the 24 bytes of cudaMalloc at /x.cu:7", "shape": [], "space": "global", "byte_offset": 24}
UNKNOWN = {"variable": "", "shape": [], "space": "global"}
RACE, COPY = "race in kernel: tile[3][17] (shared memory)", "race with an asynchronous copy in kernel: tile[3][17]"
OUTSIDE, FRESH = "out of bounds in kernel", "uninitialized memory in kernel"
# each side's action, line (and the line it is called from), block and thread; other facts about it; what
# happened; the full text, and after a ! what it must not contain
SAID = [
    ((("read", (5, 11), B0, T0), ("write", (2, 9), B0, T40)), {}, RACE,
     "The order of the read and the write is undefined. Put a __syncthreads() between line 9 and line 11. If they "
     "should happen in the other order, swap those lines."),
    ((("write", (2, 14), B0, T0), ("read", (5, 16), B0, T40)), {}, RACE,
     "between lines 14 and 16, but none on the way back|after line 16"),
    ((("write", (2, 9), B0, T0), ("read", (2, 9), B0, T40)), {}, RACE,
     "Both happen in line 2: put a __syncthreads() between one iteration of the"),
    ((("read", 11, B0, T0), ("atomic", 9, B0, T40)), {}, RACE,
     "safe against other atomic operations only.|between line 9 and line 11"),
    ((("read", 11, B0, T0), ("async copy", 9, B0, T40)), {}, RACE,
     "for the copies that the thread started itself|__syncthreads() after the"),
    # two threads write one element
    ((("write", 18, B0, T0), ("write", 18, B0, T1)), OUT, "race in kernel: out",
     "Several threads write this element in line 18|atomicAdd"),
    ((("write", 11, B0, T0), ("write", 9, B0, T1)), {}, RACE,
     "Which of the two values remains is undefined. Line 9 and line 11 should write different elements: check both "
     "indices, and which threads come to each line. Only if both are meant to write this element must the later write "
     "wait for the earlier one."),
    # blocks cannot synchronize with each other
    ((("read", 18, B1, T0), ("write", 18, B0, T0)), OUT, "race in kernel: out",
     "__syncthreads() does not reach beyond a block|a kernel of its own|!Put a __syncthreads()"),
    ((("write", 18, B1, T0), ("write", 18, B0, T0)), OUT, "race in kernel: out", "how blockIdx enters the index"),
    # a copy that may still be in flight
    ((("read", 11, B0, T0), ("async copy", 9, B0, T0)), {"kind": "async_race"}, COPY,
     "started in line 9 may still be under way|cp_async_commit(), a cp_async_wait<N>()"),
    ((("write", 11, B0, T0), ("async copy", 9, B0, T0)), {"kind": "async_race"}, COPY,
     "Before this place is written again there must be a cp_async_wait<N>()"),
    # in a shared array, in memory in a kernel with a loop over tiles, and in unknown memory
    ((("write", 2, B0, T0),), {"kind": "out_of_bounds", "byte_offset": 4 * 32 * 33}, f"{OUTSIDE}: tile[32][0]",
     "tile[32][33] has 1,056 elements; this is the first element past its end."),
    ((("read", 2, B0, T0),), LOOPED | {"kind": "out_of_bounds"}, OUTSIDE,
     "leaves the 24 bytes of cudaMalloc|!if (index >= n) return;"),
    ((("write", 2, B0, T0),), UNKNOWN | {"kind": "out_of_bounds"}, OUTSIDE, "belongs to no array"),
    ((("read", 5, B0, T0),), {"kind": "uninitialized"}, FRESH, "no thread of this block has written it|ragged tile"),
    ((("read", 18, B0, T0),), TENSOR | {"kind": "uninitialized"}, FRESH, "a new tensor is not cleared. What it"),
    ((("atomic", 18, B0, T0),), TENSOR | {"kind": "uninitialized"}, FRESH,
     "It is updated atomically before any kernel has written it"),
    ((("read", 18, B0, T0),), HEAP | {"kind": "uninitialized", "space": "global", "element_bytes": 1},
     f"{FRESH}: byte 464 of the 64 bytes of cudaMalloc at", "cudaMalloc does not clear memory"),
    ((("read", 18, B0, T0),), {"kind": "use_after_free", "detail": "freed at /course/kernel.cu:60"}, "use after free",
     "This memory was freed at /course/kernel.cu:60."),
]  # fmt: skip


@pytest.mark.parametrize(("sides", "changes", "what", "says"), SAID)
def test_what_happened_and_what_it_needs(kernel, sides, changes, what, says):
    places = {n: kernel(*at) if isinstance(at, tuple) else kernel(at) for n, (_, at, *_) in enumerate(sides)}
    finding = read(places, *((action, n, *who) for n, (action, _, *who) in enumerate(sides)), **changes)
    assert happened(finding).startswith(what)
    for one in says.split("|"):
        assert (one.lstrip("!") in explained(finding)) != one.startswith("!"), explained(finding)


def test_a_barrier_behind_a_condition_may_have_been_passed(kernel):
    Path(kernel(9).file).write_text(KERNEL.replace("        __syncthreads();", "        if (i > 1) __syncthreads();"))
    finding = read({1: kernel(2, 14), 2: kernel(5, 16)}, ("write", 1, B0, T0), ("read", 2, B0, T40))
    assert "The barrier between lines 14 and 16 is behind a condition" in explained(finding)
    assert "way back" not in explained(finding)


WITH_IF = """__global__ void kernel(float* out) {
    if (threadIdx.x < 40) {
        tile[threadIdx.x] = 1;
#ifdef FIXED
        __syncthreads();
#endif
        out[threadIdx.x] = tile[threadIdx.x ^ 1];
        __syncwarp();
        tile[threadIdx.x] = 2;
    }
}
"""
WITHOUT_BARRIER = WITH_IF.replace("        __syncthreads();", "")
STENCIL = "__global__ void kernel(float* u) {\n    u[threadIdx.x] = u[threadIdx.x + 1];\n}\n"
TREE = """__global__ void kernel(float* x) {
    for (int n = 16; n > 0; n /= 2) {
        partial[threadIdx.x] += partial[threadIdx.x + 1];
        __syncthreads();
    }
}
"""
PARTS = """__global__ void kernel(float* x) {
    extern __shared__ float shared[];
    float* k_tile = shared;
    float* p_tile = shared + 64;
    x[0] = k_tile[threadIdx.x + 64];
    p_tile[threadIdx.x] = 1.0f;
}
"""
OF_SHARED, OF_GLOBAL = {"variable": "shared", "shape": [128]}, {"space": "global", "variable": "u"}
# the text, each side's action, line and thread, more about the finding, whether it may be an index, and
# the report
IN_A_TEXT = [
    # a barrier that an #if may exclude is assumed to be absent
    (WITH_IF, ("write", 3, T0), ("read", 7, T1), {}, False,
     "The barrier in line 5 is inside an #if. If that leaves it out, it is what is missing"),
    (WITHOUT_BARRIER, ("write", 3, T0), ("read", 7, T1), {}, False,
     "between line 3 and line 7. Both are inside the if of line 2: all threads"),
    # a warp's barrier does not order two warps
    (WITH_IF, ("read", 7, T0), ("write", 9, T40), {}, True,
     "The __syncwarp() between lines 7 and 9 waits for one warp, and these threads are in two"),
    # a line that races with itself, outside a loop, and in a loop that waits
    (STENCIL, ("write", 2, T0), ("read", 2, T40), OF_GLOBAL, True,
     "Both happen in line 2, and no loop of the kernel is around it"),
    (TREE, ("write", 3, T0), ("read", 3, T40), {}, True, "in a loop with a barrier|the index is wrong"),
    # parts of one array are distinguished by name
    (PARTS, ("read", 5, T0), ("write", 6, T40), OF_SHARED, True,
     "goes through p_tile, line 5 through k_tile|an index is wrong and leaves its part"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "noticed", "earlier", "changes", "index", "says"), IN_A_TEXT)
def test_what_a_race_needs_in_its_text(tmp_path, text, noticed, earlier, changes, index, says):
    file = tmp_path / "kernel.cu"
    file.write_text(text)
    places = {line: Place(str(file), line, "kernel") for _, line, _ in (noticed, earlier)}
    sides = [(action, line, B0, thread) for action, line, thread in (noticed, earlier)]
    finding = read(places, *sides, **changes)
    assert all(one in explained(finding) for one in says.split("|"))
    assert may_be_the_index(finding) == index


TILES = """__global__ void kernel(float* x) {
    for (int tile = 0; tile < 4; ++tile) {
        k_tile[threadIdx.x] = x[tile];
        v_tile[threadIdx.x] = x[tile];
        __syncthreads();
        use(k_tile);
        WAIT
        use(v_tile);
        WAIT
    }
}
"""


@pytest.mark.parametrize(
    ("wait", "says"),
    [
        (
            "__syncwarp();",
            "On the way back to line 3 there is only the __syncwarp() in line 9, which waits for one warp",
        ),
        ("", "between lines 3 and 8, but none on the way back to line 3: put a __syncthreads() after line 8."),
    ],
)
def test_a_barrier_on_the_way_back_must_order_all_pairs(tmp_path, wait, says):
    file = tmp_path / "kernel.cu"
    file.write_text(TILES.replace("WAIT", wait))
    places = {line: Place(str(file), line, "kernel") for line in range(1, 10)}
    keys = read(places, ("write", 3, B0, T0), ("read", 6, B0, T40), variable="shared")
    values = read(places, ("write", 4, B0, T0), ("read", 8, B0, T40), variable="shared")
    assert says in words_of(("a case", [keys, values])) and says in words_of(("a case", [values, keys]))
    if not wait:
        assert "put a __syncthreads() after line 6" in words_of(("a case", [keys]))


def test_a_race_at_a_line_that_goes_out_of_bounds_is_not_told(kernel):
    race = read({1: kernel(5, 11), 2: kernel(9)}, ("read", 1, B0, T0), ("write", 2, B0, T40), kernel="kernel<64>")
    other = read({1: kernel(16), 2: kernel(14)}, ("read", 1, B0, T0), ("write", 2, B0, T40), variable="partial")
    outside = read({1: kernel(5)}, ("read", 1, B0, T0), kind="out_of_bounds", kernel="stage_kernel")
    found = {"output": grouped([("a", [outside])]), "full": grouped([("b", [race, other])])}
    told = without_strays(found)
    assert [one.kind for one in told["output"]] == ["out_of_bounds"]
    assert [one.findings for one in told["full"]] == [[other]]
    assert without_strays({"full": grouped([("b", [race])])})["full"]


def test_where_several_threads_write_an_element_no_barrier_is_asked_for(kernel):
    places = {1: kernel(2, 9), 2: kernel(2, 9)}
    reads = read(places, ("write", 1, B0, T0), ("read", 2, B0, T40))
    writes = read(places, ("write", 1, B0, T0), ("write", 1, B0, T40))
    said = words_of(("a", [reads, writes]))
    assert "Several threads write this element in line 2" in said and "put a __syncthreads()" not in said
    elsewhere = read(places, ("write", 1, B0, T0), ("write", 1, B0, T40), variable="other")
    assert "put a __syncthreads() between one iteration" in words_of(("a", [reads, elsewhere]))


def test_without_source_lines_the_advice_remains(kernel):
    finding = read({1: None, 2: None}, ("read", 1, B0, T0), ("write", 2, B0, T40))
    assert explained(finding).endswith("Put a __syncthreads() between the two.")
    assert "source line unknown" in printed(("a case", [finding]))


def test_lanes_of_one_warp_may_use_syncwarp(kernel):
    places = {1: kernel(11), 2: kernel(9)}
    hint = "for every pair, __syncwarp() is enough"
    assert hint in words_of(("case", [read(places, ("read", 1, B0, T0), ("write", 2, B0, T1))]))
    assert hint not in words_of(("case", [read(places, ("read", 1, B0, T0), ("write", 2, B0, T40))]))
    assert hint not in words_of(("case", [read(places, ("read", 1, B0, T0), ("write", 2, B0, (0, 1, 0)))]))
    # no __syncwarp() determines which of two writes comes last: an index is more likely wrong
    both = read(places, ("write", 1, B0, T0), ("write", 2, B0, T1))
    assert hint not in words_of(("case", [both])) and "should write different elements" in explained(both)


# ---- asynchronous copies, bounds, alignment, initialization, allocation


@pytest.mark.parametrize(
    ("offset", "says"),
    [
        (4 * 120, "value[2, 0, 0]|is the first element past its end|guard the access"),
        (4 * 124, "value[2, 0, 4]|is 5 elements past its end|guard the access"),
        (-4, "value[-1, 11, 4]|is 1 element before its start|An index is negative"),
        (4 * 118, "value[1, 11, 3]|the last 8 of the 16 bytes are past its end|single elements"),
        (1 << 30, "value|elements past its end|a product that overflowed 32 bits"),
    ],
)
def test_out_of_bounds_of_a_tensor(kernel, offset, says):
    changes = {"space": "global", "variable": "value", "shape": [2, 12, 5], "byte_offset": offset}
    finding = read({1: kernel(18)}, ("read", 1, B0, T0), kind="out_of_bounds", **changes)
    wide = Finding(**{**vars(finding), "accesses": (Access("read", 16, kernel(18), B0, T0),)})
    element, where, advice = says.split("|")
    assert element in happened(wide) and "out of bounds in kernel" in happened(wide)
    assert "value, shape [2, 12, 5], has 120 elements" in explained(wide)
    assert where in explained(wide) and advice in explained(wide)


def test_a_condition_around_an_access_is_a_guard(tmp_path):
    """`if (i < n) out[i] = ...` as well as `if (i >= n) return;`: no guard is missing."""
    text = "__global__ void kernel(float* out, int n) {{\n    int i = 2 * threadIdx.x;\n{}\n}}\n"
    one = "    if (i < n) out[i] = 0;"
    several = "    if (i < n) {\n        out[i] = 0;\n    }"
    leaves = "    if (i >= n) return;\n    out[i] = 0;"
    none = "    out[i] = 0;"
    says = []
    for number, (body, line) in enumerate(((one, 3), (several, 4), (leaves, 4), (none, 3))):
        file = tmp_path / f"kernel{number}.cu"
        file.write_text(text.format(body))
        changes = {"space": "global", "variable": "out", "shape": [3, 4], "byte_offset": 4 * 13}
        place = Place(str(file), line, "kernel")
        says.append(explained(read({1: place}, ("write", 1, B0, T0), kind="out_of_bounds", **changes)))
    assert all("The access runs where `i < n` holds: that bound is wrong" in one for one in says[:2]), says
    assert "return at `if (i >= n) return;`" in says[2] and "none of them returns" in says[3]


def test_a_misaligned_vector(kernel):
    finding = read({1: kernel(2)}, ("read", 1, B0, T0), kind="misaligned")
    finding = Finding(**{**vars(finding), "accesses": (Access("read", 16, kernel(2), B0, T0),)})
    assert "16 bytes (float4) needs an address that is a multiple of 16 bytes (4 elements)" in explained(finding)


def test_freed_memory():
    host = HEAP | {"space": "host", "kernel": "", "byte_offset": 0, "launch": "/course/kernel.cu:61"}
    name = HEAP["variable"]
    twice = read({}, kind="double_free", detail="freed before at /course/kernel.cu:60", **host)
    assert happened(twice) == f"cudaFree called twice: {name}"
    assert "freed before at /course/kernel.cu:60" in explained(twice)
    leak = read({}, kind="leak", **host)
    assert happened(leak) == f"memory leak: {name}" and "call cudaFree" in explained(leak)
    assert "/course/kernel.cu:61" in printed(("a case", [leak]))


def test_names_of_elements():
    tensor = Finding("race", space="global", variable="value", shape=(2, 3, 40, 16), element_bytes=4)
    at = Finding(**{**vars(tensor), "byte_offset": 4 * (1920 + 640 + 37 * 16 + 5)})
    assert index_of(at) == (1, 1, 37, 5) and element_of(at) == "value[1, 1, 37, 5]"
    half = Finding("race", space="shared", variable="s", shape=(64,), element_bytes=2, byte_offset=10)
    assert element_of(half) == "s[5]"
    assert element_of(Finding("race", space="shared", variable="count", element_bytes=4, byte_offset=0)) == "count"
    assert element_of(Finding("race", space="shared")) == "shared memory"


# ---- several findings


def test_alike_findings_are_told_once_with_their_cases(kernel):
    places = {1: kernel(5, 11), 2: kernel(2, 9)}
    first = read(places, ("read", 1, B0, T0), ("write", 2, B0, T40), kernel="kernel<64>")
    second = read(places, ("read", 1, B1, T0), ("write", 2, B1, T40), kernel="kernel<128>", count=5)
    (group,) = grouped([("full: a", [first]), ("full: b", []), ("full: c", [second])])
    assert group.cases == ["full: a", "full: c"] and group.count == 42 and group.findings == [first]
    text = printed(("full: a", [first]), ("full: c", [second]))
    assert "1. race in kernel<64>: tile[3][17] (shared memory), 42 times" in text
    assert "case full: a (also in: full: c)" in text and "2." not in text


def test_the_same_barrier_missing_for_two_arrays_is_one_finding(kernel):
    a = read({1: kernel(5, 11), 2: kernel(2, 9)}, ("read", 1, B0, T0), ("write", 2, B0, T40), variable="a_tile")
    b = read({1: kernel(5, 11), 2: kernel(2, 10)}, ("read", 1, B0, T0), ("write", 2, B0, T40), variable="b_tile")
    apart = read({1: kernel(16), 2: kernel(14)}, ("read", 1, B0, T0), ("write", 2, B0, T40), variable="partial")
    groups = grouped([("case", [a, b, apart])])
    assert [[one.variable for one in group.findings] for group in groups] == [["a_tile", "b_tile"], ["partial"]]
    assert "the same: b_tile: writes" in printed(("case", [a, b]))


def test_a_later_finding_can_join_two_groups(kernel):
    def between(x, y, **changes):
        return read({1: kernel(x), 2: kernel(y)}, ("read", 1, B0, T0), ("write", 2, B0, T40), **changes)

    found = [between(9, 11, variable="a"), between(14, 16, variable="b"), between(9, 16, variable="c")]
    (group,) = grouped([("case", found)])
    assert len(group.findings) == 3 and group.count == 3 * 37


def test_a_pair_within_one_function_is_the_one_told(kernel):
    across = read({1: kernel(11), 2: kernel(2, 9)}, ("read", 1, B0, T0), ("write", 2, B0, T40))
    within = read({1: kernel(2, 9), 2: kernel(2, 9)}, ("read", 1, B0, T0), ("write", 2, B0, T40))
    (group,) = grouped([("case", [across, within])])
    assert group.first == within


def test_reading_too_early_belongs_to_the_race(kernel):
    race = read({1: kernel(11), 2: kernel(9)}, ("read", 1, B0, T0), ("write", 2, B0, T40))
    early = read({1: kernel(11)}, ("read", 1, B0, T0), kind="uninitialized")
    (group,) = grouped([("a", [early, race])])
    assert group.kind == "race" and group.unwritten
    assert "before any thread had written it" in printed(("a", [early, race]))
    elsewhere = read({1: kernel(16)}, ("read", 1, B0, T0), kind="uninitialized")
    assert [group.kind for group in grouped([("a", [race, elsewhere])])] == ["race", "uninitialized"]


def test_what_is_printed_of_a_race(kernel, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    finding = read({1: kernel(5, 11), 2: kernel(2, 9)}, ("read", 1, B0, T0), ("write", 2, B0, T40))
    assert [line.rstrip() for line in printed(("softmax: 7 x 31", [finding])).splitlines()] == [
        "",
        "1. race in kernel: tile[3][17] (shared memory), 37 times",
        "   -> kernel.cu:2: thread (40,0,0) writes in load, called from line 9",
        "         tile[threadIdx.x] = 1;",
        "   -> kernel.cu:5: thread (0,0,0) reads in use, called from line 11",
        "         return tile[31 - threadIdx.x];",
        "   The order of the read and the write is undefined. Put a __syncthreads() between line 9 and line 11. If "
        "they should",
        "   happen in the other order, swap those lines.",
        "   block (0,0,0); launched at /course/kernel.cu:40; case softmax: 7 x 31",
    ]


def test_accesses_of_two_blocks_name_their_blocks(kernel):
    finding = read({1: kernel(18)}, ("write", 1, B1, T0), ("write", 1, B0, T40), space="global", variable="out")
    text = " ".join(printed(("a case", [finding])).split())
    assert "block (0,0,0) thread (40,0,0) writes" in text and "block (1,0,0) thread (0,0,0) writes" in text


def test_a_race_in_global_memory_is_first_one_of_an_index(kernel):
    places = {1: kernel(2, 9), 2: kernel(5, 11)}
    said = words_of(("a", [read(places, ("write", 1, B0, T0), ("read", 2, B0, T40), space="global")]))
    assert said.index("the index is wrong in line") < said.index("Put a __syncthreads()")


def test_a_race_in_a_kernel_whose_barrier_some_threads_miss_is_not_told(kernel):
    """Threads that return before the barrier: no other barrier is missing."""
    race = read({1: kernel(11), 2: kernel(9)}, ("read", 1, B0, T0), ("write", 2, B0, T40))
    missed = read({1: kernel(10)}, ("read", 1, B0, T0), kind="barrier")
    assert [group.kind for group in grouped([("a", [race]), ("b", [missed])])] == ["barrier"]


@pytest.mark.parametrize(("line", "said"), [("y[i] += x;", "with =, not +="), ("y += x[i];", "written first")])
def test_only_what_adds_to_an_array_should_write_its_first_value(tmp_path, line, said):
    (tmp_path / "kernel.cu").write_text(line)
    places = {1: Place(str(tmp_path / "kernel.cu"), 1, "kernel")}
    assert said in words_of(("a", [read(places, ("read", 1, B0, T0), **TENSOR, kind="uninitialized")]))
