"""Inline PTX of compute capability 9.0 -> C++: mbarriers, bulk and tensor copies, wgmma, named barriers, clusters.

    hopper(body, name, parts, args)    the C++ for one instruction (include/simulator/hopper.h); None for any other

`body` is ptx.py's assembler, which knows the operands.
"""

from __future__ import annotations

import re

HERE = "::simulator::here()"
S = "::simulator"
_COMBINATIONS = {
    "add": "add", "min": "min", "max": "max", "inc": "inc", "dec": "dec",
    "and": "bit_and", "or": "bit_or", "xor": "bit_xor",
}  # fmt: skip
_NUMBERS = {
    "b32": "u32", "b64": "u64", "u32": "u32", "s32": "s32", "u64": "u64", "s64": "s64",
    "f16": "f16", "bf16": "bf16", "f32": "f32", "f64": "f64",
}  # fmt: skip
_ELEMENTS = ("f16", "bf16", "tf32", "e4m3", "e5m2")
_STEPS = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32}


class PtxError(ValueError):
    """An unknown instruction, or text that cannot be parsed."""


def special_registers() -> dict[str, str]:
    """The special registers of clusters: %cluster_ctarank etc."""
    place = f"{S}::cluster_place()"
    found = {
        "%cluster_ctarank": f"{place}.rank",
        "%cluster_nctarank": f"{place}.size",
        "%is_explicit_cluster": f"static_cast<uint32_t>({place}.is_explicit)",
    }
    fields = {"cluster_ctaid": "index", "clusterid": "cluster", "cluster_nctaid": "shape", "nclusterid": "clusters"}
    return found | {f"%{name}.{c}": f"{place}.{field}.{c}" for name, field in fields.items() for c in "xyz"}


def hopper(body, name: str, parts: list[str], args: list[str]) -> str | None:
    """The C++ for the instruction, or None."""
    if name == "mbarrier":
        return _mbarrier(body, parts, args)
    if name == "cp" and parts[1] == "reduce":
        return _bulk(body, parts[1:], args)
    if name == "cp" and parts[1] == "async" and len(parts) > 2:
        if parts[2] == "bulk":
            return _bulk(body, parts, args)
        if parts[2] == "mbarrier":  # arrives when this thread's copies are complete, which is now
            barrier = body.address(args[0], "shared")
            count = "1" if "noinc" in parts else "0"
            return (
                f"{S}::wait_for_all_async_copies(); (void){S}::mbarrier_arrive({barrier}, {count}, 0, false, {HERE});"
            )
    if name == "fence":
        if parts[1] == "mbarrier_init":
            return f"{S}::fence_mbarrier_init({HERE});"
        if parts[1] == "proxy":
            return f"{S}::fence_async_proxy({HERE});" if parts[2].startswith("async") else "__threadfence();"
    if name == "wgmma":
        return _wgmma(body, parts, args)
    if name == "setmaxnreg" and parts[1] in ("inc", "dec"):
        return f"{S}::set_registers({_bool(parts[1] == 'inc')}, {body.read(args[0], 'u32')}, {HERE});"
    if name == "griddepcontrol":
        return ";"
    if name == "elect":
        out, _, predicate = args[0].partition("|")
        leader = "" if out.strip() == "_" else f"{body.register(out.strip())} = ptx_leader_;"
        return (
            f"{{ uint32_t ptx_leader_ = 0; {body.register(predicate.strip())} = "
            f"{S}::elect_leader({body.read(args[1], 'u32')}, ptx_leader_, {HERE}); {leader} }}"
        )
    if name in ("bar", "barrier"):
        return _barrier(body, parts, args)
    if name in ("mapa", "getctarank"):
        return _mapped(body, name, parts, args)
    if name == "st" and parts[1] == "async":
        words = body.list_of(args[1])
        size = int(parts[-1][1:]) // 8
        kind = "uint64_t" if size == 8 else "uint32_t"
        values = ", ".join(f"static_cast<{kind}>({body.bits(one, parts[-1])})" for one in words)
        to, barrier = body.address(args[0], "shared"), body.address(args[2], "shared")
        return (
            f"{{ const {kind} ptx_words_[] = {{{values}}}; "
            f"{S}::store_async({to}, ptx_words_, sizeof ptx_words_, {barrier}, {HERE}); }}"
        )
    if name == "stmatrix" and "m8n8" in parts:
        values = [f"static_cast<unsigned>({body.bits(one, 'b32')})" for one in body.list_of(args[1])]
        address = body.address(args[0], "shared")
        transposed = _bool("trans" in parts)
        return (
            f"{{ const unsigned ptx_r_[] = {{{', '.join(values)}}}; "
            f'{S}::store_matrices("stmatrix", {len(values)}, {transposed}, {HERE}, {address}, ptx_r_); }}'
        )
    if name == "createpolicy":
        return f"{body.register(args[0])} = 0;"
    return None


def _bool(value: bool) -> str:
    return str(value).lower()


def _barrier(body, parts: list[str], args: list[str]) -> str | None:
    if "cluster" in parts:
        return f"{S}::cluster_{'arrive' if 'arrive' in parts else 'wait'}({HERE});"
    if "warp" in parts or "red" in parts:
        return None
    if "sync" in parts and len(args) <= 1 and (not args or args[0] == "0"):
        return None  # __syncthreads()
    count = body.read(args[1], "u32") if len(args) > 1 else "0u"
    if "sync" in parts or "arrive" in parts:
        return f"{S}::named_barrier({body.read(args[0], 'u32')}, {count}, {_bool('sync' in parts)}, {HERE});"
    return None


def _mapped(body, name: str, parts: list[str], args: list[str]) -> str:
    kind = parts[-1]
    if name == "getctarank":
        address = body.address(f"[{args[1]}]", "shared" if "shared::cluster" in parts else "generic")
        return f"{body.register(args[0])} = {S}::cluster_rank_of({address});"
    rank = body.read(args[2], "u32")
    if "shared::cluster" in parts:
        return f"{body.register(args[0])} = {S}::cluster_offset({body.read(args[1], 'u32')}, {rank}, {HERE});"
    address = f"reinterpret_cast<const void*>({body.bits(args[1], kind)})"
    return f"{body.register(args[0])} = reinterpret_cast<uint64_t>({S}::cluster_address({address}, {rank}, {HERE}));"


def _mbarrier(body, parts: list[str], args: list[str]) -> str | None:
    what = parts[1]

    def at(i: int) -> str:
        shared = any(part.startswith("shared") for part in parts)
        return body.address(args[i], "shared" if shared else "generic")

    if what == "init":
        return f"{S}::mbarrier_init({at(0)}, {body.read(args[1], 'u32')}, {HERE});"
    if what == "inval":
        return f"{S}::mbarrier_invalidate({at(0)}, {HERE});"
    if what in ("expect_tx", "complete_tx"):
        return f"{S}::mbarrier_{what.split('_')[0]}({at(0)}, {body.read(args[1], 'u32')}, {HERE});"
    if what in ("arrive", "arrive_drop"):
        # An arrival on another block's barrier may omit the returned state.
        first = 0 if args[0].startswith("[") else 1
        amount = body.read(args[first + 1], "u32") if len(args) > first + 1 else None
        count, amount = ("1u", amount) if "expect_tx" in parts else (amount or "1u", "0u")
        call = f"{S}::mbarrier_arrive({at(first)}, {count}, {amount}, {_bool(what == 'arrive_drop')}, {HERE})"
        return f"(void){call};" if first == 0 or args[0] == "_" else f"{body.register(args[0])} = {call};"
    if what in ("test_wait", "try_wait"):
        which = "of_parity" if "parity" in parts else "of_state"
        phase = body.bits(args[2], "u32" if "parity" in parts else "b64")
        patient = _bool(what == "try_wait")
        return (
            f"{body.register(args[0])} = {S}::mbarrier_test({at(1)}, {S}::Phase::{which}, {phase}, {patient}, {HERE});"
        )
    if what == "pending_count":
        return f"{body.register(args[0])} = {S}::mbarrier_pending({body.bits(args[1], 'b64')});"
    return None


def _bulk(body, parts: list[str], args: list[str]) -> str | None:
    """Bulk and tensor copies and reductions; `parts` starts at "cp" or "reduce"."""
    reduces = parts[0] == "reduce"
    rest = [part for part in parts if part not in ("cp", "reduce", "async", "bulk")]
    if rest[:1] == ["commit_group"]:
        return f"{S}::commit_bulk_group();"
    if rest[:1] == ["wait_group"]:
        return f"{S}::wait_for_bulk_groups({body.read(args[0], 'u32')}, {_bool('read' in rest)});"
    if rest[:1] == ["prefetch"]:
        return ";"
    spaces = [part for part in rest if part.split("::")[0] in ("shared", "global")]
    if len(spaces) != 2:
        return None
    to_shared, by_barrier = spaces[0] != "global", any(part.startswith("mbarrier") for part in rest)
    multicast = any(part.startswith("multicast") for part in rest)
    how = next((_COMBINATIONS[part] for part in rest if part in _COMBINATIONS), "copy") if reduces else "copy"

    def place(arg: str, space: str) -> str:
        return body.address(arg, "global" if space == "global" else "shared")

    if rest[0] == "tensor":
        if any(part.startswith("im2col") for part in rest):
            return None
        rank = int(rest[1][0])
        tensor = args[1] if to_shared else args[0]
        match = re.fullmatch(r"\[\s*([^,\]]+),\s*\{(.*)\}\s*\]", tensor)
        if not match:
            return None
        places = body.list_of("{" + match[2] + "}")
        values = ", ".join(f"static_cast<int32_t>({body.read(one, 's32')})" for one in places)
        coordinates = f"const int32_t ptx_at_[] = {{{values}}};"
        tensor_map = f"reinterpret_cast<const void*>({body.bits(match[1].strip(), 'b64')})"
        if to_shared:
            mask = body.read(args[3], "u32") if multicast else "0u"
            return (
                f"{{ {coordinates} {S}::tensor_load({place(args[0], spaces[0])}, {tensor_map}, {rank}, ptx_at_, "
                f"{place(args[2], 'shared')}, {mask}, {_bool(multicast)}, {HERE}); }}"
            )
        return (
            f"{{ {coordinates} {S}::tensor_store({tensor_map}, {rank}, ptx_at_, {place(args[1], spaces[1])}, "
            f"{S}::Combination::{how}, {HERE}); }}"
        )
    number = next((_NUMBERS[part] for part in reversed(rest) if part in _NUMBERS), "bytes")
    barrier = place(args[3], "shared") if by_barrier else "nullptr"
    mask = body.read(args[4], "u32") if multicast else "0u"
    return (
        f"{S}::bulk_copy({place(args[0], spaces[0])}, {place(args[1], spaces[1])}, {body.read(args[2], 'u32')}, "
        f"{barrier}, {mask}, {_bool(multicast)}, {S}::Combination::{how}, {S}::Number::{number}, {HERE});"
    )


def _wgmma(body, parts: list[str], args: list[str]) -> str | None:
    if parts[1] == "fence":
        return f"{S}::warpgroup_fence({HERE});"
    if parts[1] == "commit_group":
        return f"{S}::warpgroup_commit({HERE});"
    if parts[1] == "wait_group":
        return f"{S}::warpgroup_wait({body.read(args[0], 'u32')}, {HERE});"
    shape = next((re.fullmatch(r"m64n(\d+)k(\d+)", part) for part in parts if part.startswith("m64n")), None)
    sums, a, b = parts[-3:]
    if parts[1] != "mma_async" or not shape or "sp" in parts:
        return None
    n, k = int(shape[1]), int(shape[2])
    if a not in _ELEMENTS or b not in _ELEMENTS or sums not in ("f32", "f16") or n % 8 or not 8 <= n <= 256:
        return None
    if k != _STEPS[a] or (a != b and _STEPS[a] != 32):
        return None
    d = body.list_of(args[0])
    expected = n // 2 if sums == "f32" else n // 4
    if len(d) != expected:
        raise PtxError(f"{body.instruction} has {expected} accumulators a thread, not {len(d)}")
    in_registers = args[1].startswith("{")
    left = body.list_of(args[1]) if in_registers else []
    # After the matrices: scale-d, imm-scale-a, imm-scale-b, then the transpose flags of shared-memory operands.
    rest = args[3:]
    accumulate = body.read(rest[0], "pred") if rest else "true"
    signs = [one.strip() == "-1" for one in rest[1:3]] + [False] * 2
    major = [one.strip() == "1" for one in rest[3:]]
    a_mn, b_mn = (False, major[0] if major else False) if in_registers else ([*major, False, False][:2])
    places = ", ".join(body.address_of(one) for one in d)
    values = ", ".join(f"static_cast<uint32_t>({body.bits(one, 'b32')})" for one in left) or "0"
    flags = ", ".join(map(_bool, (in_registers, a_mn, b_mn, signs[0], signs[1])))
    matrix = "0" if in_registers else body.bits(args[1], "b64")
    return (
        f"{{ void* const ptx_d_[] = {{{places}}}; const uint32_t ptx_a_[] = {{{values}}}; "
        f"{S}::warpgroup_multiply({{{S}::Element::{a}, {S}::Element::{b}, {_bool(sums == 'f16')}, {n}, {flags}}}, "
        f"ptx_d_, ptx_a_, {matrix}, {body.bits(args[2], 'b64')}, {accumulate}, {HERE}); }}"
    )
