"""The result of grading: an Outcome, plain data that round-trips through JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

VERSION = 1  # of result.json


@dataclass
class CaseOutcome:
    """One case. `points` is its worth, earned or not; a hidden case is worth 0 but is required."""

    title: str
    status: str
    points: float = 0.0
    required: bool = False
    hidden: bool = False
    diagnosis: list[str] = field(default_factory=list)
    max_error: float | None = None
    bound: float | None = None


@dataclass
class PartOutcome:
    """One part of a task.

    Attributes:
        part, earned, possible: its name and points.
        why: why points are missing, beyond what the cases say; "" if there is nothing to add.
        kernel: counters of the run with hidden inputs: launches, threads of the largest launch, bytes read_back, the
            work of all threads, and the largest share of the allowed work (at_work.py); {} if none.
        cases: see CaseOutcome.
        why_is_hidden: whether `why` tells what happened in hidden cases: it is then for the instructor only.
    """

    part: str
    earned: float
    possible: float
    why: str = ""
    kernel: dict[str, int] = field(default_factory=dict)
    cases: list[CaseOutcome] = field(default_factory=list)
    why_is_hidden: bool = False


@dataclass
class TaskOutcome:
    """One task. problem: why nothing of it ran; log: the compilers' output; files: file -> why it was not accepted."""

    task: str
    parts: list[PartOutcome] = field(default_factory=list)
    problem: str = ""
    log: str = ""
    files: dict[str, str] = field(default_factory=dict)

    @property
    def earned(self) -> float:
        return sum(part.earned for part in self.parts)

    @property
    def possible(self) -> float:
        return sum(part.possible for part in self.parts)


@dataclass
class Outcome:
    """A graded submission.

    Attributes:
        name, source: the submission's.
        tasks: see TaskOutcome.
        problem: why nothing was graded; "" if it was.
        not_graded: "task4 speed" -> (points, why) for parts that could not be graded on this machine.
        notes: remarks for the student on which files were accepted.
        flags: points for a human to check; not a verdict.
        sandbox: the kind, see sandbox.KINDS.
        key: identifies the inputs to grading: the files, the salt, the course.
        left_behind: processes of the submission that are still running; always [].
        cpu_seconds, wall_seconds, peak_bytes: used by grading; the memory is that of the submission's processes.
    """

    name: str
    source: str
    tasks: list[TaskOutcome] = field(default_factory=list)
    problem: str = ""
    not_graded: dict[str, tuple[float, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    sandbox: str = ""
    key: str = ""
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    peak_bytes: int = 0
    left_behind: list[str] = field(default_factory=list)
    version: int = VERSION

    @property
    def earned(self) -> float:
        return round(sum(task.earned for task in self.tasks), 6)

    @property
    def possible(self) -> float:
        return round(sum(task.possible for task in self.tasks), 6)

    def as_json(self) -> dict:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict) -> Outcome:
        """The inverse of as_json; raises KeyError, TypeError or ValueError for anything else."""
        if data["version"] != VERSION:
            raise ValueError(f"result.json has version {data['version']}; this is {VERSION}")
        tasks = []
        for task in data["tasks"]:
            parts = [
                PartOutcome(**{**part, "cases": [CaseOutcome(**case) for case in part["cases"]]})
                for part in task["parts"]
            ]
            tasks.append(TaskOutcome(**{**task, "parts": parts}))
        not_graded = {name: tuple(value) for name, value in data["not_graded"].items()}
        return cls(**{**data, "tasks": tasks, "not_graded": not_graded})
