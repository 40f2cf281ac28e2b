"""Reads object files and libraries: the sections and symbols that grading needs."""

from __future__ import annotations

import struct
from dataclasses import dataclass

INIT_ARRAY, FINI_ARRAY, PREINIT_ARRAY, SYMTAB, DYNSYM = 14, 15, 16, 2, 11
ALLOCATED, EXECUTABLE = 2, 4  # section flags: SHF_ALLOC (loaded with the program), SHF_EXECINSTR
OBJECT, FUNCTION, IFUNC = 1, 2, 10  # symbol types; the loader calls an IFUNC
LOCAL = 0  # symbol binding


@dataclass(frozen=True)
class Section:
    """A section: name, type, flags, address and contents; the meaning of `info` depends on the type."""

    name: str
    type: int
    flags: int
    address: int
    data: bytes
    info: int = 0


@dataclass(frozen=True)
class Symbol:
    """A symbol; section 0 means it is defined elsewhere."""

    name: str
    type: int
    binding: int
    section: int
    value: int
    size: int


class Elf:
    """A 64-bit ELF file for x86-64.

    Raises:
        ValueError: it is not one.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        try:
            if data[:6] != b"\x7fELF\2\1":
                raise ValueError("no ELF file for 64 bits")
            table, count, names = struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<2H", data, 60)
            heads = [struct.unpack_from("<IIQQQQIIQQ", data, table + 64 * i) for i in range(count)]
            self.sections = [
                Section(self._text(heads[names][4] + head[0]), *head[1:4], data[head[4] : head[4] + head[5]], head[7])
                for head in heads
            ]
            self.symbols = []
            for head in heads:
                if head[1] in (SYMTAB, DYNSYM):
                    strings = heads[head[6]][4]
                    for at in range(head[4], head[4] + head[5], 24):
                        name, info, _, section, value, size = struct.unpack_from("<IBBHQQ", data, at)
                        self.symbols.append(
                            Symbol(self._text(strings + name), info & 15, info >> 4, section, value, size)
                        )
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise ValueError(f"no ELF file that can be read: {error}") from None

    def _text(self, start: int) -> str:
        return self._data[start : self._data.index(b"\0", start)].decode()

    def defined(self) -> set[str]:
        """Names visible to other objects."""
        return {one.name for one in self.symbols if one.section and one.binding != LOCAL}

    def undefined(self) -> set[str]:
        """Names that other objects must define."""
        return {one.name for one in self.symbols if not one.section and one.name}
