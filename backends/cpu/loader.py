"""Maps an object file into memory and returns the address of its entry.

Kernels are relocatable ELF objects with no undefined symbol, so a few relocations between their
own sections are all that linking means; neither LLVM nor Numba is needed to start one. Content
is checked before it is mapped: what is not a complete object of this architecture raises
`LoadError` and nothing is executed.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct

ALLOCATED = 0x2
NOBITS, SYMTAB, RELA = 8, 2, 4
MACHINES = {"x86_64": 62, "amd64": 62, "aarch64": 183, "arm64": 183}

_mapped: list[mmap.mmap] = []


class LoadError(ValueError):
    """The bytes are not an object this process can run."""


def _sections(data: bytes):
    if data[:6] != b"\x7fELF\x02\x01" or len(data) < 64:
        raise LoadError("not a 64-bit little-endian ELF object")
    kind, machine = struct.unpack_from("<HH", data, 16)
    expected = MACHINES.get(platform.machine().lower())
    if kind != 1 or machine != expected:
        raise LoadError(f"object of type {kind} for machine {machine}, this one is {expected}")
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    if table + size * count > len(data):
        raise LoadError(
            f"truncated: {len(data)} bytes, section table ends at {table + size * count}"
        )
    keys = ("name", "type", "flags", "addr", "offset", "size", "link", "info", "align", "entsize")
    for i in range(count):
        section = dict(
            zip(keys, struct.unpack_from("<IIQQQQIIQQ", data, table + i * size), strict=True)
        )
        if section["type"] != NOBITS and section["offset"] + section["size"] > len(data):
            raise LoadError(f"truncated: section {i} ends beyond {len(data)} bytes")
        yield section


def _text(data: bytes, table: dict, at: int) -> str:
    start = table["offset"] + at
    return data[start : data.index(b"\0", start)].decode()


def undefined_symbols(data: bytes) -> list[str]:
    """Names the object needs from elsewhere; a loadable one needs none."""
    sections = list(_sections(data))
    names = []
    for table in sections:
        if table["type"] == SYMTAB:
            for at in range(table["offset"] + 24, table["offset"] + table["size"], 24):
                name, _, _, section, _, _ = struct.unpack_from("<IBBHQQ", data, at)
                text = _text(data, sections[table["link"]], name)
                if section == 0 and text and text != "_GLOBAL_OFFSET_TABLE_":
                    names.append(text)
    return names


def _relocate_x86(memory, place: int, kind: int, value: int, at: int):
    """kind 1: 64-bit address; 2, 4: 32-bit relative; 24: PC-relative 64-bit."""
    if kind == 1:
        struct.pack_into("<Q", memory, place, value & (1 << 64) - 1)
    elif kind in (2, 4):
        struct.pack_into("<i", memory, place, value - at)
    elif kind == 24:
        struct.pack_into("<q", memory, place, value - at)
    else:
        raise LoadError(f"relocation type {kind} is not known here")


def _relocate_arm(memory, place: int, kind: int, value: int, at: int):
    """The few relocations of small-model position-independent code."""
    if kind == 257:
        struct.pack_into("<Q", memory, place, value & (1 << 64) - 1)
        return
    if kind in (260, 261):
        struct.pack_into("<i" if kind == 261 else "<q", memory, place, value - at)
        return
    (word,) = struct.unpack_from("<I", memory, place)
    if kind == 275:  # ADR_PREL_PG_HI21
        page = ((value & ~0xFFF) - (at & ~0xFFF)) >> 12
        word |= ((page & 3) << 29) | (((page >> 2) & 0x7FFFF) << 5)
    elif kind in (277, 278, 284, 285, 286, 299):  # low twelve bits, scaled by the access size
        scale = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}[kind]
        word |= ((value & 0xFFF) >> scale) << 10
    elif kind in (282, 283):  # JUMP26, CALL26
        word |= ((value - at) >> 2) & 0x3FFFFFF
    else:
        raise LoadError(f"relocation type {kind} is not known here")
    struct.pack_into("<I", memory, place, word)


def load(data: bytes, name: str) -> int:
    """The address of function `name` of the object `data`, mapped read-and-execute."""
    sections = list(_sections(data))
    missing = undefined_symbols(data)
    if missing:
        raise LoadError(f"undefined symbols: {', '.join(sorted(missing))}")
    total = 0
    for section in sections:
        if section["flags"] & ALLOCATED:
            align = max(1, section["align"])
            section["at"] = total = (total + align - 1) // align * align
            total += section["size"]
    memory = mmap.mmap(-1, max(total, 1), prot=mmap.PROT_READ | mmap.PROT_WRITE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for section in sections:
        if section["flags"] & ALLOCATED and section["type"] != NOBITS:
            start = section["offset"]
            memory[section["at"] : section["at"] + section["size"]] = data[
                start : start + section["size"]
            ]
    entry = None
    symbols = {}
    for index, table in enumerate(sections):
        if table["type"] != SYMTAB:
            continue
        for i, at in enumerate(range(table["offset"], table["offset"] + table["size"], 24)):
            text, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", data, at)
            if 0 < section < len(sections) and "at" in sections[section]:
                symbols[index, i] = base + sections[section]["at"] + value
                if _text(data, sections[table["link"]], text) == name:
                    entry = symbols[index, i]
    relocate = (
        _relocate_arm
        if "aarch64" in platform.machine() or "arm" in platform.machine()
        else _relocate_x86
    )
    for table in sections:
        if table["type"] == RELA and "at" in sections[table["info"]]:
            into = sections[table["info"]]["at"]
            for at in range(table["offset"], table["offset"] + table["size"], 24):
                offset, info, addend = struct.unpack_from("<QQq", data, at)
                symbol = symbols.get((table["link"], info >> 32))
                if symbol is None:
                    raise LoadError(f"relocation to a symbol outside the object ({info >> 32})")
                place = into + offset
                relocate(memory, place, info & 0xFFFFFFFF, symbol + addend, base + place)
    if entry is None:
        raise LoadError(f"no function {name!r} in the object")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(base), ctypes.c_size_t(len(memory)), 5) != 0:
        raise LoadError(f"mprotect failed: errno {ctypes.get_errno()}")
    _mapped.append(memory)
    return entry
