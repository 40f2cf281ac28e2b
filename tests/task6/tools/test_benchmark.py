"""python -m task6.benchmark: which kernels take part. Nothing is timed."""

from __future__ import annotations

import dataclasses

from common.cli.benchmark import parser_of
from common.compiling.load import load
from task6.tools import benchmark


def test_yours_takes_part_where_it_is_filled_or_named(backend, monkeypatch):
    monkeypatch.setattr(benchmark, "load", lambda request: load(dataclasses.replace(request, backend=backend)))

    def names(*arguments: str, filled: bool) -> dict[str, str]:
        monkeypatch.setattr(benchmark, "is_filled", lambda task: filled)
        found = benchmark.of_the_course(parser_of(benchmark.BENCHMARK).parse_args(arguments))
        return {name: str(ops.variant) for name, ops in found.items()}

    assert names(filled=False) == {"taught": "solution"}
    assert names(filled=True) == {"yours": "student", "taught": "solution"}
    assert names("--versions", "yours", "tuned", filled=False) == {"yours": "student"}
