"""What grading gave: an Outcome, as plain data that becomes JSON and comes back."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

VERSION = 1  # of result.json


@dataclass
class CaseOutcome:
    """One case. `points` is what it is worth, whether earned or not; a hidden case is worth none but is required."""

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
        why: why points are missing beyond what the cases say; "" if nothing more is to be said.
        kernel: what was counted in the run with hidden inputs: launches, threads of the largest, bytes
            read_back, the work of all threads, and its largest share of what is allowed (at_work.py); {} if none.
        cases: see there.
    """

    part: str
    earned: float
    possible: float
    why: str = ""
    kernel: dict[str, int] = field(default_factory=dict)
    cases: list[CaseOutcome] = field(default_factory=list)


@dataclass
class TaskOutcome:
    """One task. problem: why nothing of it ran; log: what the compilers said; files: file -> why it was not taken."""

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
        name, source: of the submission.
        tasks: see there.
        problem: why nothing was graded; "" if it was.
        not_graded: "task4 speed" -> (points, why) of what could not be graded on this machine.
        notes: what the student should know of what was taken.
        flags: what a human should look at; no verdict.
        sandbox: the kind, see sandbox.KINDS.
        key: of what was graded with what: the files, the salt, the course.
        left_behind: processes of the submission that are still there; always [].
        cpu_seconds, wall_seconds, peak_bytes: of the grading; the memory is that of the submission's processes.
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
        """Raises KeyError, TypeError or ValueError for anything but what as_json gives."""
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
