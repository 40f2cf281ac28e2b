"""python docs/pictures/decode.py TRACE: draws decode_step.svg next to this file, for common/kernels/gpt2/README.md.

TRACE: the output of `python -m common.run common/kernels/gpt2/benchmarks/step_trace.cu` on a GPU. The picture shows one
layer of the last step: when 16 of the CTAs end each phase, from time stamps by their first threads.
"""

from __future__ import annotations

import sys
from pathlib import Path

from handouts import BLUE, GRAY, GREEN, MINT, ORANGE, PALE, SAND, SKY, Drawing

LEFT, TOP, WIDTH, ROW = 90, 64, 780, 17
CTAS = 16
COLORS = {  # phase: (fill, line, words)
    "norm": (PALE, GRAY, "all-reduce, layernorm"),
    "qkv": (SKY, BLUE, "column-parallel: QKV, FC1"),
    "fc1": (SKY, BLUE, ""),
    "attention": (SAND, ORANGE, "attention"),
    "proj": (MINT, GREEN, "row-parallel: PROJ, FC2"),
    "fc2": (MINT, GREEN, ""),
    "gather_qkv": ("none", GRAY, "all-gather in the cluster"),
    "gather_states": ("none", GRAY, ""),
    "gather_inner": ("none", GRAY, ""),
}

Trace = dict[int, list[tuple[str, int]]]  # CTA -> (phase, nanoseconds at its end)


def traced(text: str) -> Trace:
    """Parses the lines "CTA: phase nanoseconds, ..."; ignores others."""
    found = {}
    for line in text.splitlines():
        cta, colon, stamps = line.partition(": ")
        if colon and cta.isdigit():
            pairs = (one.split() for one in stamps.split(","))
            found[int(cta)] = [(name, int(end)) for name, end in pairs]
    return found


def layer_of(stamps: list[tuple[str, int]], layer: int) -> list[tuple[str, int, int]]:
    """(phase, begin, end) of a layer: from the end of the previous layer's FC2 to the end of its own."""
    ends = [i for i, (name, _) in enumerate(stamps) if name == "fc2"]
    first, last = ends[layer - 1], ends[layer]
    return [(stamps[i][0], stamps[i - 1][1], stamps[i][1]) for i in range(first + 1, last + 1)]


def decode_step(trace: Trace) -> Drawing:
    every = max(len(trace) // CTAS, 1)
    shown = sorted(trace)[::every][:CTAS]
    middle = sum(name == "fc2" for name, _ in trace[shown[0]]) // 2
    layers = {cta: layer_of(trace[cta], middle) for cta in shown}
    start = min(spans[0][1] for spans in layers.values())
    end = max(spans[-1][2] for spans in layers.values())
    d = Drawing(LEFT + WIDTH + 30, TOP + ROW * len(shown) + 44, "One layer of a decode step, by CTA, from timestamps")
    x = LEFT - 60
    for fill, line, words in COLORS.values():
        if words:
            d.box(x, 14, 14, 14, fill, line=line)
            d.text(x + 20, 26, words)
            x += 42 + 7.2 * len(words)
    for row, cta in enumerate(shown):
        y = TOP + ROW * row
        d.text(LEFT - 10, y + 12, f"CTA {cta}", "end", GRAY, 12)
        for name, begin, until in layers[cta]:
            fill, line, _ = COLORS[name]
            scale = WIDTH / (end - start)
            d.box(LEFT + scale * (begin - start), y, scale * (until - begin), ROW - 4, fill, line=line)
    for us in range(int((end - start) / 1000) + 1):
        at = LEFT + WIDTH * us * 1000 / (end - start)
        d.text(at, TOP + ROW * len(shown) + 20, f"{us} us", "middle", GRAY, 12)
    return d


if __name__ == "__main__":
    decode_step(traced(Path(sys.argv[1]).read_text())).write("decode_step")
