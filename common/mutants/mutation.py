"""One mistake made by rule: where it is in a solution's text, and what stands there instead."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

# What the rules do, in the order of the table
KINDS = {
    "barrier": "a barrier or __syncwarp dropped",
    "bound": "a bound dropped or off by one",
    "indices": "indices exchanged",
    "operands": "operands exchanged, another size",
    "offset": "a stride or offset dropped",
    "assigned": "= for +=",
    "sign": "a sign",
    "extremum": "min for max",
    "initial": "an initial value or constant",
    "guard": "a guard dropped",
    "cast": "a cast dropped",
    "launch": "a launch dimension",
    "head": "a wrong head or batch entry",
    "loop": "a loop's beginning, bound or step",
    "rescale": "a rescale or factor dropped",
    "store": "a result not kept",
    # those of the set "fresh" besides
    "variable": "another integer",
    "pointer": "another array",
    "value": "another number of the same type",
    "shifted": "an index off by one",
    "rounding": "a division rounded the other way",
    "begin": "a loop that begins too late",
    "step": "a loop's step doubled or halved",
    "comparison": "a comparison turned round",
    "negated": "a condition negated",
    "connective": "or for and, and back",
    "branches": "the branches of a condition exchanged",
    "either": "one side of a maximum or minimum alone",
    "reduction": "another reduction, or none",
    "thread": "another thread's number",
    "arguments": "arguments exchanged",
    "function": "another function, or none",
    "constant": "1 for 0 and the like",
    "factor": "a factor twice, or divided by",
    "brackets": "brackets left out",
    "size": "another compile-time size",
    "vector": "a wrong component",
    "bits": "another operation on bits",
    "operator": "another operator in an index",
    "order": "statements in the wrong order",
    "moved": "a barrier in another place",
    "branch": "a barrier that not all threads wait at",
    "leaving": "a return or break too early",
    "alone": "a store by one thread only",
    "added": "+= for =, = for *=",
    "twice": "a statement twice",
    "reset": "an accumulator reset in each turn",
    "call": "a call left out",
    "jump": "break for continue and back",
}


@dataclass(frozen=True)
class Mutation:
    """text[start:end] of a solution's file becomes another text.

    Attributes:
        kind: a key of KINDS.
        start, end: the place.
        old, new: what stands there, and what will.
        line: its number in the file.
        statement: the whole statement, or head of a statement, that it is in, on one line.
    """

    kind: str
    start: int
    end: int
    old: str
    new: str
    line: int
    statement: str


@dataclass(frozen=True)
class Mutant:
    """A mutation in a gap.

    Attributes:
        task, file: "task2", "attention_kernel.cu".
        gap: its number in the file.
        function: that the gap is in.
        first_line, last_line: of the gap's code.
        mutation: what changes.
    """

    task: str
    file: str
    gap: int
    function: str
    first_line: int
    last_line: int
    mutation: Mutation

    @property
    def key(self) -> str:
        """Names it by its text alone, so that it survives edits elsewhere in the file."""
        one = self.mutation
        old, new = (" ".join(text.split()) for text in (one.old, one.new))
        return f"{self.task}/{self.file} | {self.function} | {one.kind} | {one.statement} | {old} -> {new or 'nothing'}"

    def share(self, seed: int) -> float:
        """A number in 0 ... 1 that its text and the seed decide: what samples and halves are chosen by."""
        return int(hashlib.sha256(f"{seed} {self.key}".encode()).hexdigest()[:12], 16) / 16**12
