"""Inline PTX -> C++: translates the instructions that kernels use.

    translated(template, operands)      the C++ for one asm statement; PtxError for an unknown instruction

Every operand and every .reg becomes a 64-bit Register (include/simulator/ptx.h); an instruction becomes one statement
that reads and writes these. Predicates (@p) become ifs, labels and branches gotos. wgmma accumulators are passed by
address, since they are written after the statement. ptx_hopper.py handles the instructions of compute capability 9.0.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from common.simulator.ptx_hopper import PtxError, hopper, special_registers
from common.simulator.text import spans

TYPES = {
    **{f"{kind}{size}": f"uint{size}_t" for kind in "ub" for size in (8, 16, 32, 64)},
    **{f"s{size}": f"int{size}_t" for size in (8, 16, 32, 64)},
    "f32": "float",
    "f64": "double",
    "f16": "::simulator::ptx::f16",
    "bf16": "::simulator::ptx::bf16",
    "pred": "bool",
}
SPECIAL = {
    **{f"%tid.{c}": f"threadIdx.{c}" for c in "xyz"},
    **{f"%ntid.{c}": f"blockDim.{c}" for c in "xyz"},
    **{f"%ctaid.{c}": f"blockIdx.{c}" for c in "xyz"},
    **{f"%nctaid.{c}": f"gridDim.{c}" for c in "xyz"},
    "%laneid": "::simulator::current_thread()->lane",
    "%warpid": "::simulator::current_thread()->warp",
    "%nwarpid": "(::simulator::ptx::threads_in_block() + 31) / 32",
    "%smid": "0u",
    "%nsmid": "132u",
    "%clock": "static_cast<uint32_t>(clock64())",
    "%clock64": "clock64()",
    "%globaltimer": "clock64()",
    **special_registers(),
    **{
        f"%lanemask_{name}": f"::simulator::ptx::lane_mask('{mark}')"
        for name, mark in {"eq": "=", "lt": "<", "le": "l", "gt": ">", "ge": "g"}.items()
    },
}
SPACES = ("global", "shared", "local", "const", "param")
MATH = {"ex2": "exp2", "lg2": "log2", "sqrt": "sqrt", "sin": "sin", "cos": "cos", "tanh": "tanh"}
COMPARISONS = {
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=", "hi": ">", "hs": ">=",
}  # fmt: skip
ATOMICS = {
    "add": "atomicAdd", "min": "atomicMin", "max": "atomicMax", "and": "atomicAnd", "or": "atomicOr",
    "xor": "atomicXor", "exch": "atomicExch", "inc": "atomicInc", "dec": "atomicDec", "cas": "atomicCAS",
}  # fmt: skip
ATOMIC_TYPES = {
    "b32": "unsigned", "u32": "unsigned", "s32": "int", "b64": "unsigned long long", "u64": "unsigned long long",
}  # fmt: skip
FLOAT_TYPES = {"f32": "float", "f64": "double"}  # of add alone
# Rounding toward zero, up and down: PTX's suffix -> the CUDA functions' suffix.
DIRECTED = {"rz": "rz", "rp": "ru", "rm": "rd"}
INTEGER_NAMES = {"s32": "int", "u32": "uint", "s64": "ll", "u64": "ull"}
P = "::simulator::ptx"
# a1: operand 1 in the instruction's type, u2: operand 2 as u32
EXPRESSIONS = {
    "mov": "{a1}", "cvta": "{a1}", "add": "{a1} + {a2}", "sub": "{a1} - {a2}", "div": "{a1} / {a2}",
    "rem": "{a1} % {a2}", "and": "{a1} & {a2}", "or": "{a1} | {a2}", "xor": "{a1} ^ {a2}", "not": "~{a1}",
    "neg": "-{a1}", "abs": "fabs({a1})", "rcp": "1 / {a1}", "rsqrt": "1 / sqrt{f}({a1})",
    "min": P + "::minimum<{type}>({a1}, {a2})", "max": P + "::maximum<{type}>({a1}, {a2})",
    "shl": P + "::shifted_left<{type}>({a1}, {u2})", "shr": P + "::shifted_right<{type}>({a1}, {u2})",
    "popc": "__builtin_popcountll({a1})", "clz": "__clz{ll}({a1})", "brev": "__brev{ll}({a1})",
    "bfind": "31 - __clz(static_cast<int>({a1}))", "bfe": P + "::extracted<{type}>({a1}, {u2}, {u3})",
    "bfi": P + "::inserted<{type}>({a1}, {a2}, {u3}, {u4})", "prmt": P + "::permuted({a1}, {a2}, {a3})",
    "lop3": P + "::lop3({a1}, {a2}, {a3}, {u4})", "selp": "{p3} ? {a1} : {a2}",
    "sad": "({a1} < {a2} ? {a2} - {a1} : {a1} - {a2}) + {a3}",
}  # fmt: skip
HERE = "::simulator::here()"


@dataclass(frozen=True)
class Operand:
    """One operand of an asm statement: "=r"(x)."""

    constraint: str
    expression: str

    @property
    def is_output(self) -> bool:
        return self.constraint[0] in "=+"


def translated(template: str, operands: list[Operand]) -> str:
    """One C++ statement, without its semicolon."""
    assembler = _Body(operands)
    body = assembler.translate(template)
    if not body:
        return "do { } while (0)"
    before, after = assembler.declarations, []
    for i, one in enumerate(operands):
        if i in assembler.by_address:
            continue
        if one.constraint[0] == "=":
            before.append(f"{P}::Register ptx{i}_ = 0;")
        else:
            before.append(f"{P}::Register ptx{i}_ = {P}::bits({one.expression});")
        if one.is_output:
            after.append(f"{P}::assign({one.expression}, ptx{i}_);")
        before.append(f"(void)ptx{i}_;")
    return "do { " + " ".join([*before, *body, *after]) + " } while (0)"


class _Body:
    def __init__(self, operands: list[Operand]):
        self.operands = operands
        self.names: set[str] = set()
        self.labels: set[str] = set()
        self.by_address: set[int] = set()
        self.registers: list[str] = []
        self.instruction = ""
        self.has_carry = False

    @property
    def declarations(self) -> list[str]:
        """Declarations, placed first so that no branch skips them."""
        if self.has_carry:
            self.registers.append("carry flag")
        labels = [f"__label__ {', '.join(map(_label, sorted(self.labels)))};"] if self.labels else []
        return labels + [f"[[maybe_unused]] {P}::Register {_variable(name)} = 0;" for name in self.registers]

    def translate(self, template: str) -> list[str]:
        text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", template, flags=re.DOTALL)
        text = re.sub(r"%(\d+)", r"$\1", text.replace("%=", "")).replace("%%", "%")
        self.labels = set(re.findall(r"(?<![\w$:.])([A-Za-z_]\w*)\s*:(?!:)", text))
        result: list[str] = []
        for piece in re.split(r";|(?<![\w,\s])\s*\{(?=\s*(?:\.reg|@|[a-z]))|^\s*\{", text):
            statement = " ".join(piece.split())
            while statement.startswith(("{", "}")) and not statement.startswith("{$"):
                statement = statement[1:].strip()
            statement = statement.rstrip("}").strip() if statement.count("}") > statement.count("{") else statement
            if statement:
                result.append(self._statement(statement))
        return [one for one in result if one]

    def _statement(self, text: str) -> str:
        if match := re.fullmatch(r"\.reg\s+\.(\w+)\s+(.*)", text):
            names: list[str] = []
            for name in re.split(r"\s*,\s*", match[2]):
                several = re.fullmatch(r"(%?[\w$]+)<(\d+)>", name)
                names += [f"{several[1]}{i}" for i in range(int(several[2]))] if several else [name]
            self.registers += [name for name in names if name not in self.names]
            self.names |= set(names)
            return ""
        if match := re.match(r"([A-Za-z_]\w*)\s*:(?!:)\s*", text):
            rest = text[match.end() :]
            return f"{_label(match[1])}: __attribute__((unused)); {self._statement(rest) if rest else ''}"
        guard = re.match(r"@(!?)(%?\w+)\s+", text)
        if guard:
            text = text[guard.end() :]
        name, _, rest = text.partition(" ")
        self.instruction = name
        try:
            statement = self._instruction(name.split("."), _split(rest))
        except (IndexError, KeyError):
            raise PtxError(f"cannot read the operands of {text}".replace("$", "%")) from None
        if statement is None:
            raise PtxError(f"the simulator does not know the PTX instruction {name}")
        return f"if ({guard[1]}{self.read(guard[2], 'pred')}) {{ {statement} }}" if guard else statement

    # ---- operands

    def register(self, name: str) -> str:
        """The variable of a register; `_` discards the value."""
        if match := re.fullmatch(r"\$(\d+)", name):
            if int(match[1]) >= len(self.operands):
                raise PtxError(f"{self.instruction} names operand %{match[1]}, but there are {len(self.operands)}")
            return f"ptx{match[1]}_"
        if name in self.names:
            return _variable(name)
        raise PtxError(f"{self.instruction}: {name.replace('$', '%')} is no register that this asm statement declares")

    def address_of(self, name: str) -> str:
        """The address of an operand that is written after this statement."""
        match = re.fullmatch(r"\$(\d+)", name)
        if not match or int(match[1]) >= len(self.operands) or self.operands[int(match[1])].constraint[0] != "+":
            shown = name.replace("$", "%")
            raise PtxError(f'{self.instruction}: {shown} must be an operand of the asm statement, such as "+f"(d[0])')
        self.by_address.add(int(match[1]))
        return f"&{self.operands[int(match[1])].expression}"

    def list_of(self, text: str) -> list[str]:
        """The registers in braces, or a single one."""
        return _split(text[1:-1]) if text.startswith("{") else [text]

    def bits(self, text: str, kind: str) -> str:
        if text in SPECIAL:
            return f"{P}::bits({SPECIAL[text]})"
        if text.startswith("{"):
            parts = [self.bits(part, "b32") for part in _split(text[1:-1])]
            width = {1: 64, 2: 16 if kind.endswith("32") else 32, 4: 8 if kind.endswith("32") else 16}[len(parts)]
            mask = (1 << width) - 1
            return "(" + " | ".join(f"({part} & {mask:#x}ull) << {width * i}" for i, part in enumerate(parts)) + ")"
        if match := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})|0[dD]([0-9a-fA-F]{16})", text):
            return f"0x{match[1] or match[2]}ull"
        if re.fullmatch(r"-?(?:0x[0-9a-fA-F]+|\d+)U?", text):
            number = text.rstrip("U")
            if kind in ("f32", "f64"):
                return f"{P}::bits({TYPES[kind]}({number}))"
            return f"static_cast<uint64_t>({number}ll)"
        if re.fullmatch(r"-?\d*\.\d+(?:[eE]-?\d+)?|-?\d+\.", text):
            return f"{P}::bits({TYPES.get(kind, 'float')}({text}))"
        if text.startswith("!"):
            return f"{P}::bits(!{self.read(text[1:], 'pred')})"
        if text.startswith("-"):
            return f"{P}::bits(-{self.read(text[1:], kind)})"
        return self.register(text)

    def read(self, text: str, kind: str) -> str:
        return f"{P}::as<{TYPES[kind]}>({self.bits(text, kind)})"

    def _write(self, name: str, expression: str, kind: str) -> str:
        if name == "_":
            return f"(void)({expression});"
        return f"{self.register(name)} = {P}::bits(static_cast<{TYPES[kind]}>({expression}));"

    def address(self, text: str, space: str) -> str:
        match = re.fullmatch(r"\[\s*([^\s+\]]+)\s*(?:\+\s*(-?\w+))?\s*\]", text)
        if not match:
            raise PtxError(f"{self.instruction}: cannot read the address {text.replace('$', '%')}")
        offset = f" + {self.bits(match[2], 'b64')}" if match[2] else ""
        where = "shared" if space == "shared" else "global"
        base = self.bits(match[1], "b64")
        return f"{P}::{where}({f'static_cast<uint32_t>({base})' if where == 'shared' else base}{offset})"

    # ---- instructions

    def _instruction(self, parts: list[str], args: list[str]) -> str | None:
        name, kind = parts[0], parts[-1]
        if name == "bra" and args and args[0] in self.labels:
            return f"goto {_label(args[0])};"
        if (statement := hopper(self, name, parts, args)) is not None:
            return statement
        for family in (self._memory, self._warp, self._matrix, self._order):
            if (statement := family(name, parts, args)) is not None:
                return statement
        if name == "cvt":
            return self._convert(parts, args)
        if name == "mov" and args[0].startswith("{"):
            outs = _split(args[0][1:-1])
            width = int(kind[1:]) // len(outs)
            value = self.bits(args[1], kind)
            return " ".join(
                f"{self.register(out)} = ({value} >> {width * i}) & {(1 << width) - 1:#x}ull;"
                for i, out in enumerate(outs)
            )
        if kind not in TYPES:
            return None
        read = [lambda k=kind, a=a: self.read(a, k) for a in args]

        if name in ("addc", "subc", "madc") or "cc" in parts:
            return self._with_carry(name, parts, read, args)
        if (rounding := next((DIRECTED[one] for one in parts if one in DIRECTED), None)) and kind in ("f32", "f64"):
            if name not in ("add", "sub", "mul", "div", "fma", "rcp", "sqrt"):
                return None
            letter = "f" if kind == "f32" else "d"
            function = f"__{letter}{name}" if name != "fma" else {"f": "__fmaf", "d": "__fma"}[letter]
            values = ", ".join(one() for one in read[1:])
            return self._write(args[0], f"{function}_{rounding}({values})", kind)

        if name in ("dp4a", "dp2a") and parts[-2] == parts[-1] and kind in ("s32", "u32"):
            function = "__dp4a" if name == "dp4a" else f"__dp2a_{parts[1]}"
            expression = f"{function}({', '.join(one() for one in read[1:])})"
        elif name == "cvta" and "shared" in parts:
            bits = self.bits(args[1], kind)
            expression = (
                f"{P}::to_shared({bits})" if "to" in parts else f"reinterpret_cast<uint64_t>({P}::shared({bits}))"
            )
        elif name in ("mul", "mad", "fma"):
            expression, kind = self._product(name, parts, read, args)
        elif name == "not" and kind == "pred":
            expression = f"!{read[1]()}"
        elif name == "abs" and kind[0] == "s":
            expression = f"({read[1]()} < 0 ? -{read[1]()} : {read[1]()})"
        elif name == "shf":
            expression = f"__funnelshift_{parts[1]}({read[1]()}, {read[2]()}, {read[3]()})"
        elif name == "setp" and len(parts) >= 3 and parts[1] in COMPARISONS:
            expression, kind = f"{read[1]()} {COMPARISONS[parts[1]]} {read[2]()}", "pred"
        elif name in MATH and kind in ("f32", "f64"):
            expression = f"{MATH[name]}{'f' if kind == 'f32' else ''}({read[1]()})"
        elif name in EXPRESSIONS and (name != "bfind" or kind in ("u32", "b32")):
            value = {"type": TYPES[kind], "ll": "ll" if kind == "b64" else "", "f": "f" if kind == "f32" else ""}
            value |= {f"a{i}": self.read(one, kind) for i, one in enumerate(args) if f"{{a{i}}}" in EXPRESSIONS[name]}
            value |= {f"u{i}": self.read(one, "u32") for i, one in enumerate(args) if f"{{u{i}}}" in EXPRESSIONS[name]}
            value |= {"p3": self.read(args[3], "pred")} if name == "selp" else {}
            expression = EXPRESSIONS[name].format(**value)
            kind = "u32" if name in ("popc", "clz") else kind
        else:
            expression = None
        return None if expression is None else self._write(args[0], expression, kind)

    def _with_carry(self, name: str, parts: list[str], read: list, args: list[str]) -> str | None:
        """add.cc, addc, sub.cc, subc, mad.lo.cc, madc.hi.cc, ...: the carry flag is a variable of the asm statement."""
        kind, takes = parts[-1], name.endswith("c")
        if not re.fullmatch(r"[usb](32|64)", kind) or name.removesuffix("c") not in ("add", "sub", "mad"):
            return None
        if takes and not self.has_carry:
            raise PtxError(
                f"{self.instruction} takes the carry flag, and nothing in this asm statement has set it: from one "
                "statement to the next the flag is undefined. Put the whole chain into one asm statement"
            )
        unsigned = TYPES["u" + kind[1:]]
        first, second = read[1](), read[2]()
        if name.startswith("mad"):
            first, second = self._product("mul", parts, read, args)[0], read[3]()
        self.has_carry = True
        flag = _variable("carry flag")
        values = f"{first}, {second}, {flag if takes else 0}, {flag}, {int('cc' in parts)}"
        return self._write(
            args[0], f"{P}::with_carry<{unsigned}, {str(name.startswith('sub')).lower()}>({values})", "u" + kind[1:]
        )

    def _product(self, name: str, parts: list[str], read: list, args: list[str]) -> tuple[str | None, str]:
        kind = parts[-1]
        if kind[0] == "f" or kind == "bf16":
            if name == "mul":
                return f"{read[1]()} * {read[2]()}", kind
            function = {"f32": "fmaf", "f64": "fma"}.get(kind, "__hfma")
            return f"{function}({read[1]()}, {read[2]()}, {read[3]()})", kind
        if name == "fma":
            return None, kind
        product = f"{read[1]()} * {read[2]()}"
        if "hi" in parts:
            product = f"{P}::high_product<{TYPES[kind]}>({read[1]()}, {read[2]()})"
        if "wide" in parts:
            kind = f"{kind[0]}{2 * int(kind[1:])}"
            product = f"static_cast<{TYPES[kind]}>({read[1]()}) * {read[2]()}"
        return product + (f" + {self.read(args[3], kind)}" if name == "mad" else ""), kind

    def _convert(self, parts: list[str], args: list[str]) -> str | None:
        to, of = parts[-2], parts[-1]
        if to in ("f16x2", "bf16x2") and of == "f32":
            high, low = self.read(args[1], "f32"), self.read(args[2], "f32")
            return f"{self.register(args[0])} = {P}::pair<{TYPES[to[:-2]]}>({high}, {low});"
        if to == "tf32" and of == "f32":
            return f"{self.register(args[0])} = {P}::to_tf32({self.read(args[1], 'f32')});"
        if to not in TYPES or of not in TYPES:
            return None
        value = self.read(args[1], of)
        if rounding := next((DIRECTED[one] for one in parts if one in DIRECTED), None):
            names = {("f32", "f64"): "double2float", ("f16", "f32"): "float2half", ("bf16", "f32"): "float2bfloat16"}
            names |= {("f32", kind): f"{name}2float" for kind, name in INTEGER_NAMES.items()}
            names |= {("f64", kind): f"{INTEGER_NAMES[kind]}2double" for kind in ("s64", "u64")}
            function = names.get((to, of))
            if function is None or "sat" in parts:
                return None
            return self._write(args[0], f"__{function}_{rounding}({value})", to)
        if to[0] in "us" and of[0] in "fb" and of != "b32":
            rounding = next((part for part in parts if part in ("rni", "rzi", "rmi", "rpi")), None)
            how = {"rni": "nearbyint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}.get(rounding or "")
            if how is None:
                return None
            value = f"::simulator::to_integer<{TYPES[to]}>({how}(static_cast<double>({value})))"
        elif "sat" in parts and to == "f32":
            value = f"__saturatef({value})"
        elif "sat" in parts:
            return None
        # Narrow results are extended to 32 bits.
        filled = to if to[0] in "fb" or int(to[1:]) >= 32 else f"{to[0]}32"
        return self._write(args[0], f"static_cast<{TYPES[to]}>({value})", filled)

    def _memory(self, name: str, parts: list[str], args: list[str]) -> str | None:
        kind = parts[-1]
        space = next((part.split("::")[0] for part in parts[1:] if part.split("::")[0] in SPACES), "generic")
        if name in ("ld", "ldu") and kind in TYPES and space not in ("param", "local"):
            address = self.address(args[1], space)
            if args[0].startswith("{"):
                outs = ", ".join(self.register(out) for out in _split(args[0][1:-1]))
                return f"{P}::load_several<{TYPES[kind]}>({address}, {outs});"
            return f"{self.register(args[0])} = {P}::{_access('load', parts)}({address});"
        if name == "st" and kind in TYPES and space not in ("param", "local"):
            address = self.address(args[0], space)
            if args[1].startswith("{"):
                values = ", ".join(self.bits(one, kind) for one in _split(args[1][1:-1]))
                return f"{P}::store_several<{TYPES[kind]}>({address}, {values});"
            return f"{P}::{_access('store', parts)}({address}, {self.bits(args[1], kind)});"
        if name in ("prefetch", "prefetchu", "applypriority", "discard"):
            return ";"
        if name in ("red", "atom"):
            function = next((ATOMICS[part] for part in parts if part in ATOMICS), None)
            of = (ATOMIC_TYPES | FLOAT_TYPES if function == "atomicAdd" else ATOMIC_TYPES).get(kind)
            if function is None or of is None:
                return None
            at = 0 if name == "red" else 1
            address = f"static_cast<{of}*>({self.address(args[at], space)})"
            values = ", ".join(f"{P}::as<{of}>({self.bits(one, kind)})" for one in args[at + 1 :])
            call = f"{function}({address}, {values})"
            return f"{call};" if name == "red" or args[0] == "_" else f"{self.register(args[0])} = {P}::bits({call});"
        if name == "cp" and parts[1] == "async" and len(parts) > 2:
            if parts[2] == "commit_group":
                return "::simulator::commit_async_copies();"
            if parts[2] == "wait_group":
                return f"::simulator::wait_for_async_copies(static_cast<unsigned>({self.bits(args[0], 'u32')}));"
            if parts[2] == "wait_all":
                return "::simulator::wait_for_all_async_copies();"
            if parts[2] in ("ca", "cg") and len(args) in (3, 4):
                size = f"static_cast<unsigned>({self.bits(args[2], 'u32')})"
                inside = f"static_cast<unsigned>({self.bits(args[3], 'u32')})" if len(args) == 4 else size
                to, source = self.address(args[0], "shared"), self.address(args[1], "global")
                return f"{P}::copy_async({to}, {source}, {size}, {inside}, {HERE});"
        return None

    def _warp(self, name: str, parts: list[str], args: list[str]) -> str | None:
        if name == "shfl" and parts[1] == "sync" and parts[2] in ("up", "down", "bfly", "idx"):
            out, _, inside = args[0].partition("|")
            by, control, mask = (self.read(one, "u32") for one in args[2:5])
            predicate = self.register(inside.strip()) if inside else "ptx_inside_"
            value = self.read(args[1], "u32")
            call = f"{P}::shuffle('{parts[2][0]}', {value}, {by}, {control}, {mask}, {predicate}, {HERE})"
            return ("" if inside else f"{P}::Register ptx_inside_; ").join(
                ["{ ", f"{self.register(out.strip())} = {call}; }}"]
            )
        if name == "vote" and parts[1] == "sync":
            predicate, mask = self.read(args[1], "pred"), self.read(args[2], "u32")
            if parts[2] == "ballot":
                return self._write(args[0], f"__ballot_sync({mask}, {predicate})", "u32")
            if parts[2] in ("all", "any"):
                return self._write(args[0], f"__{parts[2]}_sync({mask}, {predicate})", "pred")
        if name == "activemask":
            return self._write(args[0], "__activemask()", "u32")
        if name == "match" and parts[1] == "any":
            kind = "u64" if parts[-1] == "b64" else "u32"
            return self._write(
                args[0], f"__match_any_sync({self.read(args[2], 'u32')}, {self.read(args[1], kind)})", "u32"
            )
        if name == "redux" and parts[2] in ("add", "min", "max", "and", "or", "xor") and parts[-1] in TYPES:
            kind = "u32" if parts[-1] == "b32" else parts[-1]
            call = f"__reduce_{parts[2]}_sync({self.read(args[2], 'u32')}, {self.read(args[1], kind)})"
            return self._write(args[0], call, kind)
        return None

    def _matrix(self, name: str, parts: list[str], args: list[str]) -> str | None:
        if name == "ldmatrix" and "m8n8" in parts and parts[-1] == "b16":
            outs = [self.register(one) for one in _split(args[0].strip("{}"))]
            address = self.address(args[1], "shared")
            transposed = str("trans" in parts).lower()
            assigned = " ".join(f"{out} = ptx_r_[{i}];" for i, out in enumerate(outs))
            return (
                f"{{ {P}::Register ptx_r_[4]; "
                f"{P}::load_matrices({len(outs)}, {transposed}, {address}, ptx_r_, {HERE}); {assigned} }}"
            )
        if (
            name == "mma"
            and parts[1] == "sync"
            and parts[-4:] in (["f32", "f16", "f16", "f32"], ["f32", "bf16", "bf16", "f32"])
        ):
            k = {"m16n8k16": 16, "m16n8k8": 8}.get(next((part for part in parts if part.startswith("m16n8")), ""))
            if k is None:
                return None
            lists = [_split(arg.strip("{}")) for arg in args]
            arrays = [
                ", ".join(self.bits(one, "f32" if i == 2 else "b32") for one in row) for i, row in enumerate(lists[1:])
            ]
            given = " ".join(
                f"const {P}::Register ptx_{n}_[] = {{{row}}};" for n, row in zip("abc", arrays, strict=True)
            )
            outs = " ".join(f"{self.register(out)} = ptx_d_[{i}];" for i, out in enumerate(lists[0]))
            element = TYPES[parts[-3]]
            return (
                f"{{ {given}{P}::Register ptx_d_[4]; "
                f"{P}::multiply_add<{element}, {k}>(ptx_d_, ptx_a_, ptx_b_, ptx_c_, {HERE}); {outs} }}"
            )
        return None

    def _order(self, name: str, parts: list[str], args: list[str]) -> str | None:
        if name in ("bar", "barrier"):
            if "warp" in parts:
                return f"__syncwarp({self.read(args[0], 'u32')});"
            whole = not args or re.fullmatch(r"0|\$\d+", args[0])
            if "sync" in parts and whole and len(args) <= 1:
                return "__syncthreads();"
            return None
        if name in ("membar", "fence"):
            return "__threadfence_block();" if "cta" in parts else "__threadfence();"
        if name == "nanosleep":
            return f"__nanosleep({self.read(args[0], 'u32')});"
        if name == "trap":
            return "__trap();"
        if name in ("brkpt", "pmevent"):
            return ";"
        return None


def _variable(name: str) -> str:
    return "ptx_" + re.sub(r"\W", "_", name.lstrip("%")) + "_"


def _label(name: str) -> str:
    return f"ptx_to_{name}_"


def _access(name: str, parts: list[str]) -> str:
    """The call for a load or store: "load<uint32_t>", or "load_ordered<uint32_t, true>" for one that synchronizes, such
    as ld.acquire.gpu.global.b32."""
    kind = parts[-1]
    ordered = {"acquire", "release", "relaxed"}.intersection(parts)
    if not ordered or kind[-2:] not in ("32", "64"):
        return f"{name}<{TYPES[kind]}>"
    return f"{name}_ordered<{TYPES[kind]}, {'false' if 'relaxed' in ordered else 'true'}>"


def _split(text: str) -> list[str]:
    """Splits at the commas outside of brackets."""
    return [text[a:b].strip() for a, b in spans(text)] if text.strip() else []


def read_asm(text: str) -> tuple[str, list[Operand]]:
    """Template and operands of an asm statement; `text` is what is between its brackets."""
    position, template = 0, ""
    literal = re.compile(r'\s*(?:R"(\w*)\((.*?)\)\1"|"((?:\\.|[^"\\])*)")', re.DOTALL)
    blank = re.compile(r"(?:\s|\\\n|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
    while True:
        position = blank.match(text, position).end()
        match = literal.match(text, position)
        if not match:
            break
        template += match[2] if match[2] is not None else _unescaped(match[3])
        position = match.end()
    rest = text[position:].lstrip()
    if rest and not rest.startswith(":"):
        raise PtxError("cannot read this asm statement: expected strings, then operands after colons")
    operands = []
    for section in _sections(rest)[:2]:
        for one in _split(re.sub(r"//[^\n]*|/\*.*?\*/|\\\n", " ", section)):
            match = re.fullmatch(r'(?:\[\w+\]\s*)?"([^"]*)"\s*\((.*)\)', one, re.DOTALL)
            if not match:
                raise PtxError(f"cannot read the operand {one}")
            operands.append(Operand(match[1], " ".join(f"({match[2]})".split())))
    return template, operands


def _sections(text: str) -> list[str]:
    """The text after each colon: outputs, inputs, clobbers. A :: within an expression does not separate."""
    sections, depth, quoted = [], 0, False
    for i, c in enumerate(text):
        if c == '"':
            quoted = not quoted
        depth += (not quoted) * ((c in "([{") - (c in ")]}"))
        if c == ":" and depth == 0 and not quoted:
            sections.append("")
        elif sections:
            sections[-1] += text[i]
    return sections


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: {"n": "\n", "t": " "}.get(match[1], match[1]), text.replace("\\\n", ""))
