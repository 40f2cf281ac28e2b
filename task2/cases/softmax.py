"""Cases for task 2's softmax kernel."""

from functools import partial

from common.testing.case import Case
from common.testing.cases.softmax import softmax_case, with_high_end, with_masks, with_offsets, with_peaks

LOST = 4e-4  # lost_terms of rows of 65,536 numbers 4 N(0, 1), see common.reference.bounds


def softmax_cases() -> list[Case]:
    """One case for each kind of difficult row."""

    case = partial(softmax_case, "softmax", "softmax")
    return [
        case("one warp wide", 5, 32, points=0.1, required=True),
        case("1023 x 1024", 1023, 1024, points=0.1, required=True),
        case("one element", 1, 1, points=0.1),
        case("7 x 31", 7, 31),
        case("113 x 203", 113, 203, points=0.1),
        case("1023 columns", 2, 1023, with_high_end),
        case("1025 columns", 2, 1025, with_high_end, points=0.1),
        case("large offsets", 6, 300, with_offsets, size=1000.0, points=0.1, required=True),
        case("a peak in the columns of each thread", 256, 1024, with_peaks, size=200.0, required=True),
        case("masked entries, a masked row", 9, 130, with_masks, points=0.1),
        case("65,536 columns", 1, 65536, with_high_end, points=0.1),
        case("100,000 rows", 100_000, 3, gpu_only=True),
        case("512 rows of 65,536", 512, 65536, lost=LOST, gpu_only=True, draws=1),
    ]
