"""Variant: whose kernels."""

from __future__ import annotations

from enum import Enum


class Variant(str, Enum):
    """Whose kernels: the student's files, the reference solution, or the tuned versions in common/kernels.

    A Variant is also a string: "student", "solution" or "tuned".
    """

    STUDENT = "student"
    SOLUTION = "solution"
    TUNED = "tuned"

    __str__ = str.__str__

    @property
    def words(self) -> str:
        """Its title: "your files"."""
        return {"student": "your files", "solution": "reference solution", "tuned": "tuned versions"}[self.value]

    @classmethod
    def of(cls, name: str) -> Variant:
        """The variant with this name. ValueError if there is none."""
        try:
            return cls(name)
        except ValueError:
            raise ValueError(f"variant is {name!r}; allowed: {', '.join(repr(one.value) for one in cls)}") from None
