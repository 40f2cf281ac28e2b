"""Runs a student's Python without tensors: its process has only handles; this one holds the tensors.

    module = module_of(root, "task3", "attention", with_kernels=False)      starts its process if needed
    module.flash_attention(query, key, value)   runs in that process; every operation is executed here

This module decides which functions exist: an operation that is not in ALLOWED is rejected by name. So student code has
no attention function to call, neither PyTorch's nor any other library's. It can read at most MOST_READ tensor elements
per call. Implicit leaks count too: each operation runs a second time on tensors without data (device "meta"); if the
shapes or errors differ, they depend on the data. An operation gets no object of the other process, so none can call
back.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves

from common.compiling.operators import Operators
from common.course.grading.torch_handles import DTYPES, DUNDERS, PROPERTIES
from common.measure.allocations import AllocationRecorder
from common.testing.calling import CallFailed
from common.testing.case import ERROR, NOT_IMPLEMENTED

VIEWS = """
    view view_as reshape reshape_as transpose permute movedim moveaxis swapaxes swapdims t unsqueeze squeeze expand
    expand_as broadcast_to flatten unflatten chunk split tensor_split narrow select unbind detach contiguous clone
    stack cat concat hstack vstack repeat repeat_interleave tile flip roll diagonal index_select gather
    take_along_dim copy_ stride is_contiguous nelement element_size is_floating_point to cpu type type_as float
    double half bfloat16 int long bool byte char short numel ravel meshgrid diag broadcast_tensors split_with_sizes
    adjoint atleast_1d atleast_2d atleast_3d nonzero masked_select index_put
"""
MADE = """
    tensor as_tensor asarray arange zeros ones full empty eye linspace zeros_like ones_like full_like empty_like
    rand randn randint randperm rand_like randn_like new_zeros
    new_ones new_full new_empty new_tensor fill_ zero_ tril triu tril_indices triu_indices finfo iinfo item tolist
"""
SIMPLE = """
    add sub subtract mul multiply div divide true_divide neg negative eq ne lt le gt ge masked_fill where linear
    isfinite isnan any all isclose allclose bitwise_and bitwise_or bitwise_xor bitwise_not floor_divide remainder
"""
NUMBERS = """
    abs exp exp2 expm1 log log2 log1p sqrt rsqrt square pow reciprocal sign floor ceil round maximum minimum max min
    fmax fmin clamp clamp_min clamp_max clip isinf isneginf nan_to_num logical_and logical_or
    logical_not addcmul lerp logaddexp sum amax amin mean logsumexp softmax log_softmax cumsum prod argmax
    argmin norm matmul mm bmm mv dot inner outer baddbmm addmm addbmm einsum tensordot pad masked_scatter index_fill
    index_copy scatter index_add std var std_mean var_mean median nansum quantile histc count_nonzero sort argsort topk
    unique isposinf isin addcdiv layer_norm
"""
WITH_KERNELS = frozenset(f"{VIEWS} {MADE} {SIMPLE}".split())
ALLOWED = WITH_KERNELS | frozenset(NUMBERS.split())
IN_PLACE = frozenset(f"{SIMPLE} {NUMBERS} tril triu".split())
MOST_BYTES = 1 << 22  # size limit of a request
MOST_READ = 500  # elements per call
MOST_BITS = 2500  # per call, in sizes and errors that depend on data: not enough for the queries of a measured call
TOO_MANY = f"graded code may read {MOST_READ} numbers out of tensors in a call"
FROM_LISTS = ("tensor", "as_tensor", "asarray", "new_tensor")
NUMBERS_OF = ("item", "tolist", "__bool__", "__float__", "__int__", "__index__")
ALIAS = re.compile(r"^Alias (?:for|of) :func:`torch\.(\w+)`\.$", re.MULTILINE)
PLAIN = {name: x for name, x in vars(torch).items() if name[0] != "_" and (x is None or type(x) in (bool, int, float))}
FIELDS = [name for name in dir(Tensor) if not callable(getattr(Tensor, name))]
ABOUT_TORCH = json.dumps([{**PLAIN, "__version__": torch.__version__}, FIELDS])
SPACES = {"torch": torch, "functional": F, "linalg": torch.linalg, "Tensor": Tensor}
ENVIRONMENT = {"LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}  # no NumPy threads
CODE = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from common.course.grading.torch_handles import main; main(*sys.argv[1:])"
)


class Far(nn.Module):
    """A proxy for something in the other process: a function, a class, or a layer with its weights."""

    def __init__(self, server: Server, number: int, weights: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self.__dict__.update(_server=server, _far=number)
        for i, weight in enumerate(weights):
            self.register_parameter(f"_weight{i}", nn.Parameter(weight, requires_grad=False))

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._server.ask({"of": self._far, "what": name})

    def __call__(self, *given: object, **named: object) -> object:
        return self._server.ask({"of": self._far}, given, named)


Far.__name__ = "object"  # the name that PyTorch's errors print


class Hollow(dict):
    """Maps each handle to a data-free ("meta") counterpart of its tensor."""

    def __init__(self, tensors: Mapping[int, Tensor]) -> None:
        super().__init__()
        self._tensors = tensors

    def __missing__(self, number: int) -> Tensor:
        x = self._tensors[number]
        self[number] = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
        return self[number]


class Server:
    """The other process and the tensors behind its handles.

    Args:
        root: the tree.
        task, name: it imports taskN/<name>.py.
        allowed: the functions it may call.

    Raises:
        CallFailed: the file cannot be imported.
    """

    def __init__(self, root: str, task: str, name: str, allowed: frozenset[str]) -> None:
        self._allowed, self._tensors, self._last, self._read, self._bits = allowed, {}, 0, 0, 0
        self._operators: list[Operators] = []
        self.line, self.place = 0, f"{task}/{name}.py"
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", CODE, root, task, name, str(theirs.fileno()), ABOUT_TORCH],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                cwd=root,
                env={**ENVIRONMENT, "HOME": os.environ.get("HOME", "/")},
            )
        self._connection = Connection(ours.detach())
        self._answered()

    def ask(self, request: dict, given: tuple = (), named: dict | None = None) -> object:
        """Gets an attribute, or with `named` makes a call. CallFailed: it raised, or the process ended."""
        self._read = self._bits = 0
        if named is not None:
            request |= {"given": self._encoded(given), "named": {name: self._encoded(x) for name, x in named.items()}}
        with suppress(OSError):  # it has ended: reported below
            self._connection.send_bytes(json.dumps(request).encode())
        return self._answered()

    def _end(self) -> None:
        self._connection.close()
        self._process.kill()

    def is_alive(self) -> bool:
        """Whether it can serve requests."""
        return not self._connection.closed and self._process.poll() is None

    def _answered(self) -> object:
        while True:
            try:
                told = json.loads(self._connection.recv_bytes(MOST_BYTES))
                if "call" not in told:
                    if "returned" in told:
                        return self._decoded(told["returned"])
                    break
                answer = self._operation(told)
                self._connection.send_bytes(json.dumps(answer).encode())
            except (OSError, EOFError):
                self._end()
                raise CallFailed(ERROR, [f"The process that runs {self.place} has ended."]) from None
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                self._end()
                words = f"{self.place} sent what is no request: {type(error).__name__}: {error}"
                raise CallFailed(ERROR, [words[:1000]]) from None
        kind, words, where = str(told["failed"]), str(told["words"]), f"{self.place}:{told['line']}"
        if kind == "NotImplementedError":
            words = words or f"{told['function']} is not implemented yet: {where}"
            raise CallFailed(NOT_IMPLEMENTED, [words], where)
        if kind not in ("RuntimeError", "ValueError"):
            words = f"{kind}: {words}"
        raise CallFailed(ERROR, words.splitlines() or [kind], where)

    def _operation(self, told: dict) -> dict:
        """Calls a function for the other process: {"value": ...} or {"raised": ...}."""
        for number in told["released"]:
            self._tensors.pop(number, None)
        space, name = map(str, told["call"])
        self.line = int(told["line"])
        value = self._outcome(space, name, told, self._tensors)
        if not space.startswith("operators ") and name not in NUMBERS_OF:
            with torch._C._DisableTorchDispatch():  # disables modes that record allocations
                hollow = self._outcome(space, name, told, hollows := Hollow(self._tensors))
            _follow([self._tensors[one] for one in hollows], value)
            shown = json.dumps(self._answer(value, kept=False))
            if hollows and shown != json.dumps(self._answer(hollow, kept=False)):
                # the numbers shown, or one of each tensor, such as those in a list that torch.tensor is given
                found = re.findall(r"\d+", shown)
                self._read += max(len(found), len(hollows)) if value is not None else 0
                self._bits += sum(int(one).bit_length() for one in found)
                if self._bits > MOST_BITS:
                    _show_read(self._tensors[one] for one in hollows)
                value = ValueError(TOO_MANY) if self._read > MOST_READ else value
        return self._answer(value)

    def _outcome(self, space: str, name: str, told: dict, tensors: Mapping[int, Tensor]) -> object:
        """The result of a function, or the error it raised."""
        try:
            given = [self._decoded(one, tensors) for one in told["given"]]
            named = {str(key): self._decoded(one, tensors) for key, one in told["named"].items()}
            if isinstance(tensors, Hollow):
                if not tensors:  # nothing to leak
                    return None
                if name in FROM_LISTS:  # with device "meta", PyTorch doesn't look at the tensors in a list
                    lists = [one for one in (*given, *named.values()) if isinstance(one, list | tuple)]
                    for one in filter(torch.is_tensor, tree_leaves(lists)):
                        one.item()
            return self._function(space, name)(*given, **named)
        except Exception as error:
            return error

    def _answer(self, value: object, kept: bool = True) -> dict:
        if value is NotImplemented:
            value = TypeError("a tensor and this object can't be combined")
        if isinstance(value, Exception):
            return {"raised": type(value).__name__, "words": str(value)}
        return {"value": self._encoded(value, kept)}

    def _function(self, space: str, name: str):
        if space.startswith("operators "):
            operators = self._operators[int(space.split()[1])]
            operators.library_of(name)  # raises if it is not an operator
            return getattr(operators, name)
        if name in PROPERTIES:
            return getattr(Tensor, name).__get__
        base = name.removesuffix("_")
        if name in NUMBERS_OF:
            return partial(self._number, name)
        if (
            name in self._allowed
            or (base in IN_PLACE and base in self._allowed)
            or self._is_operator(space, name)
            or self._is_alias(name)
        ):
            return getattr(SPACES[space], name)
        raise RuntimeError(f"{space}.{name} can't be used in graded code")

    def _is_alias(self, name: str) -> bool:
        """Whether PyTorch's documentation calls it an alias of something allowed, as less is of lt."""
        alias = ALIAS.search(getattr(vars(torch).get(name), "__doc__", None) or "")
        return alias is not None and alias[1] in self._allowed

    def _is_operator(self, space: str, name: str) -> bool:
        """Whether it is a Python operator such as + or []."""
        number = "matmul" in name or "pow" in name
        return space == "Tensor" and name in DUNDERS and (not number or self._allowed is ALLOWED)

    def _number(self, name: str, x: Tensor) -> object:
        if not isinstance(x, Tensor):  # otherwise the other process would choose its element count
            raise TypeError(f"{name} is for a tensor")
        self._read += x.numel()
        if self._read > MOST_READ:
            raise ValueError(TOO_MANY)
        _show_read([x])
        return getattr(Tensor, name)(x)

    def _encoded(self, value: object, kept: bool = True) -> object:
        if isinstance(value, Tensor):
            self._last += kept
            if kept:
                self._tensors[self._last] = value
            return {"tensor": [self._last * kept, list(value.shape), str(value.dtype).removeprefix("torch.")]}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return {"named": {name: self._encoded(getattr(value, name), kept) for name in value._fields}}
        if isinstance(value, tuple) and type(value).__module__ == "torch.return_types":
            return {"named": dict(zip(("values", "indices"), self._encoded([*value], kept), strict=True))}
        if isinstance(value, list | tuple):
            return [self._encoded(one, kept) for one in value]
        if isinstance(value, torch.finfo | torch.iinfo):
            names = [
                one
                for one in ("min", "max", "eps", "tiny", "smallest_normal", "resolution", "bits")
                if hasattr(value, one)
            ]
            return {"named": {name: getattr(value, name) for name in names}}
        if isinstance(value, Operators):
            self._operators.append(value)
            return {"operators": len(self._operators) - 1}
        if isinstance(value, nn.Module):
            plain = {name: one for name, one in vars(value).items() if not name.startswith("_") and not callable(one)}
            return {"module": {name: self._encoded(one) for name, one in {**plain, **_parts(value)}.items()}}
        if isinstance(value, torch.dtype | torch.device):
            return {type(value).__name__: str(value).removeprefix("torch.")}
        return value

    def _decoded(self, value: object, tensors: Mapping[int, Tensor] | None = None) -> object:
        """The inverse of _encoded; tensors: those of an operation's arguments; None: a call returned it."""
        if isinstance(value, list):
            return tuple(self._decoded(one, tensors) for one in value)
        if not isinstance(value, dict):
            return "meta" if value == "cpu" and isinstance(tensors, Hollow) else value
        ((kind, one),) = value.items()
        if kind == "tensor":
            return (self._tensors if tensors is None else tensors)[one]
        if kind == "list":
            return [*self._decoded(one, tensors)]
        if kind == "slice":
            return slice(*self._decoded(one, tensors))
        if kind == "object":
            return Far(self, int(one[0]), self._decoded(one[1])) if tensors is None else object()
        if kind == "array":
            data, shape, name = one
            where = "meta" if isinstance(tensors, Hollow) else "cpu"
            return torch.tensor(data, dtype=self._decoded({"dtype": name}), device=where).reshape(shape)
        if kind == "dtype":
            if one not in DTYPES:
                raise ValueError(f"dtype {one} can't be used in graded code")
            return getattr(torch, one)
        return ... if kind == "ellipsis" else torch.device("meta" if isinstance(tensors, Hollow) else one)


def _show_read(tensors: Iterable[Tensor]) -> None:
    """Reads an element of each with an operator, so that memory-recording modes see it."""
    for x in tensors:
        if x.numel():
            x[(0,) * x.dim()].item()


def _follow(given: Sequence[Tensor], value: object) -> None:
    """Tells the modes that record allocations that an operation computed `value` from `given`."""
    values = given[:1] if value is None or isinstance(value, Exception) else tree_leaves(value)  # None: it wrote
    for mode in _get_current_dispatch_mode_stack():
        if isinstance(mode, AllocationRecorder):
            mode.follow(given, [x for x in values if isinstance(x, Tensor)])


def _parts(module: nn.Module) -> dict[str, object]:
    """The module's parameters and submodules by name."""
    return {**module._parameters, **module._modules}


_started: dict[tuple[str, str], ModuleType] = {}


def module_of(root: str, task: str, name: str, with_kernels: bool) -> ModuleType:
    """A proxy for taskN/<name>.py in its process, which is started if needed. CallFailed: see Server.

    Args:
        root: the tree.
        with_kernels: the part computes in kernels; its Python may not compute.
    """
    module = _started.get((task, name))
    if not module or not module.server.is_alive():
        server = Server(root, task, name, WITH_KERNELS if with_kernels else ALLOWED)
        module = _started[task, name] = ModuleType(f"{task}.{name}")
        vars(module).update(server=server, __file__=f"{root}/{server.place}", __getattr__=Far(server, 0).__getattr__)
        module.calling_line = lambda: f"{server.place}:{server.line}"
    return module
