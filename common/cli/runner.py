"""Runs kernels in the runner (common/testing/runner), student Python in a worker: KernelsApart(task, variant, served).

RunnerOperators are the operators of a runner, just as Operators are those of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

from common.compiling.operators import Library, Operators
from common.compiling.runner import runner_program
from common.testing.calling import POISONED, Around, Called, CallFailed, InProcess
from common.testing.case import ERROR, Case
from common.testing.runner.process import INTEGER, NUMBER, TENSOR, TRUTH, Argument, RunnerProcess, is_available
from common.testing.worker.child import Served
from common.testing.worker.worker import NotLoaded, Worker

KINDS = {"Tensor": TENSOR, "int": INTEGER, "float": NUMBER, "bool": TRUTH}
_TAKES = {TENSOR: Tensor, INTEGER: int, NUMBER: (int, float), TRUTH: bool}


class RunnerOperators(Operators):
    """Operators whose kernels run in a runner; like Operators, they take and return tensors of this process.

    Attributes:
        memory: the runner's process; inputs are best allocated in its memory.
        simulators: counterparts of Simulator, one per library.

    Calling an operator raises CallFailed if the process ends or times out.
    """

    def __init__(self, task: str, variant: str, libraries: list[Library], process: RunnerProcess) -> None:
        self.memory = self._process = process
        self.simulators = [SimpleNamespace(ask=partial(process.ask, number)) for number in range(len(libraries))]
        super().__init__(task, variant, "simulator", libraries)

    def _function(self, operator: str, library: Library) -> Callable:
        name = f"{library.name}::{operator}"

        def call(*args, **kwargs):
            schema = next((_parsed(one) for one in self._process.schemas if one.startswith(f"{name}(")), None)
            if schema is None:
                raise RuntimeError(f"the library does not register {name}")
            outputs = self._process.call(name, arguments_of(schema, args, kwargs), len(schema.returns))
            return tuple(outputs) if len(outputs) > 1 else outputs[0] if outputs else None

        return call


@lru_cache
def _parsed(schema: str) -> torch.FunctionSchema:
    return torch._C.parse_schema(schema)


def arguments_of(schema: torch.FunctionSchema, args: tuple, kwargs: Mapping[str, object]) -> list[Argument]:
    """The arguments in the schema's order, defaults included.

    Raises:
        TypeError: they do not match the schema.
    """
    given = dict(zip((one.name for one in schema.arguments), args, strict=False)) | kwargs
    names = {one.name for one in schema.arguments}
    if len(args) > len(names) or not names.issuperset(given):
        raise TypeError(f"{schema.name} takes {', '.join(one.name for one in schema.arguments)}; got {list(given)}")
    arguments = []
    for one in schema.arguments:
        if one.name not in given and not one.has_default_value():
            raise TypeError(f"{schema.name}: {one.name} is missing")
        value, said = given.get(one.name, one.default_value), str(one.type)
        optional = said.startswith("Optional[")
        kind = KINDS[said.removeprefix("Optional[").removesuffix("]")]
        if not (value is None and optional) and not isinstance(value, _TAKES[kind]):
            raise TypeError(f"{schema.name}: {one.name} is {type(value).__name__}; it must be {said}")
        arguments.append(Argument(kind, value, optional, one.alias_info is not None and one.alias_info.is_write))
    return arguments


def described(ops: Operators) -> dict:
    """A worker's description of the operators that KernelsApart is to run in a runner; {} if it cannot.

    The tuned kernels, which are not student code, stay in the worker: their bindings use more of LibTorch.

    Raises: whatever runner_program raises.
    """
    if ops.backend != "simulator" or ops.variant == "tuned" or not ops.libraries or not is_available():
        return {}
    libraries = [asdict(one) | {"path": str(one.path), "sources": [*map(str, one.sources)]} for one in ops.libraries]
    return {"runner": str(runner_program()), "built": libraries}


class KernelsApart(Worker):
    """A worker that builds and loads the operators and runs Python; in the simulator, kernels run in a runner.

    On a GPU everything runs in the worker: kernels use PyTorch's streams and allocator there.

    Args:
        task, variant: which operators.
        served: the worker's services; its `describe` includes the result of `described`.
        caller: calls the operators, see Served.
    """

    def __init__(
        self, task: str, variant: str, served: Served, caller: Callable[[Operators], InProcess] = InProcess
    ) -> None:
        super().__init__(served)
        self._task, self._variant, self._make_caller = task, variant, caller
        self._runner: RunnerProcess | None = None

    @property
    def ops(self) -> Operators | None:
        """The operators that run in a runner; None if there are none or before they are loaded."""
        return self._kernels.ops if self._runner is not None else None

    def load(self) -> None:
        """See Worker.load."""
        super().load()
        if self._runner is not None or "runner" not in self.about:
            return
        libraries = [
            Library(**one | {"path": Path(one["path"]), "sources": tuple(map(Path, one["sources"]))})
            for one in self.about["built"]
        ]
        self._runner = RunnerProcess(Path(self.about["runner"]), [one.path for one in libraries])
        self._kernels = self._make_caller(RunnerOperators(self._task, self._variant, libraries, self._runner))

    def call(self, case: Case, inputs: dict[str, Tensor], around: Around = POISONED) -> Called:
        """See Caller.call."""
        if self._runner is None:
            self._load_for_call()
        if case.python or self._runner is None:
            return super().call(case, inputs, around)
        self._kernels.more = {}
        try:
            self._runner.begin()
            return self._kernels.call(case, inputs, around)
        except NotLoaded as error:
            raise CallFailed(ERROR, str(error).splitlines(), ended=True) from None
        finally:
            self.more = self._kernels.more

    def close(self) -> None:
        """See Worker.close."""
        super().close()
        if self._runner is not None:
            self._runner.close()
