"""A problem's plan: level, kernel, blocks, team. The same problem always gets the same plan."""

from __future__ import annotations

import functools

from gemm.microkernels.dtypes import UNITS, DType, TileShape
from gemm.microkernels.selection import unpacked_tile

from . import plan as planning
from .halves import in_halves
from .kernels import KernelSpec
from .plan import Plan
from .targets import (
    accumulator,
    check_level,
    described,
    levels,
    parse_kernel,
    tile_for,
    tile_of_blocks,
    unit_of,
)

SHARE = 10e-6  # seconds of work that pay for waking a worker
CLOCK = 3e9


def grain(level: str, acc: DType) -> int:
    """Multiply-adds of the smallest share worth a worker of its own."""
    unit, _ = unit_of(level)
    return int(SHARE * CLOCK * unit.ports * unit.lanes(acc))


def workers_for(level: str, acc: DType, work: int, threads: int) -> int:
    """Workers for `work` multiply-adds: as many as it pays for, and as the system gives."""
    wanted = max(1, min(threads, work // grain(level, acc)))
    if wanted == 1 or level == "reference":
        return wanted
    from gemm.backends.cpu.team import workers

    return workers(levels()[level], wanted)


SMALL_WORK = 48**3  # multiply-adds up to which packing costs more than it saves
DIRECT_WORK = 120**3  # the same where nothing is widened and no side is skinny
SKINNY_ROWS = 8  # rows up to which B is read in place, along memory
SKINNY_ROWS_ACROSS = 4  # the same where B must be transposed, which each group of rows repeats
NARROW = 16  # columns up to which a tall A is read in place, along its rows


def small_tile(level: str, acc: DType) -> TileShape:
    """The tallest tile an unpacked kernel uses: its rows are addressed one by one."""
    unit, _ = unit_of(level)
    return TileShape(6 if unit.registers < 32 else 8, 2, unit.lanes(acc), acc)


def direct_limit(a: DType, b: DType, acc: DType) -> int:
    """Multiply-adds up to which operands of these types are read in place."""
    return DIRECT_WORK if a.name == b.name == acc.name else SMALL_WORK


def is_narrow(a: DType, b: DType, acc: DType, m: int, n: int, k: int, b_layout: str,
              adjacent: bool, rows_adjacent: bool) -> bool:  # fmt: skip
    """Whether A, its rows adjacent in memory, is tall enough to be read in place (narrow.py)."""
    same = a.name == b.name == acc.name and acc.kind != "c"
    layouts = rows_adjacent and b_layout == "columns" and adjacent
    return same and layouts and SKINNY_ROWS_ACROSS < n <= NARROW < m and m * n * k > SMALL_WORK


def family(a: DType, b: DType, acc: DType, m: int, n: int, k: int, b_layout: str, adjacent: bool,
           workers: int, rows_adjacent: bool = False) -> str:  # fmt: skip
    """Which kernel family a problem takes, its smaller side along M unless A is tall and narrow.

    b_layout: 'columns' or 'rows' of B are adjacent in memory, or 'none'; adjacent: the output's
    columns are; workers: those the work pays for; rows_adjacent: A's rows are.
    """
    if is_narrow(a, b, acc, m, n, k, b_layout, adjacent, rows_adjacent):
        return "narrow"
    work = m * n * k
    wide = min(m, n) > SKINNY_ROWS and workers == 1 and work <= direct_limit(a, b, acc)
    if b_layout == "columns" and adjacent and (work <= SMALL_WORK or wide):
        return "direct"
    deep = m <= SKINNY_ROWS and b_layout == "columns" and work > SMALL_WORK
    across = m <= SKINNY_ROWS_ACROSS and b_layout == "rows" and acc.kind != "c" and n > 1
    return "skinny" if deep or across else "blocked"


@functools.lru_cache(maxsize=4096)
def make_plan(a: DType, b: DType, out: DType, acc: DType, m: int, n: int, k: int, batch: int,
              scratch_home: bool, threads: int, kernel: str | None, isa: str | None,
              program=None, b_layout: str = "columns", adjacent: bool = True,
              resume: bool = False, a_rows: bool = False) -> Plan:  # fmt: skip
    """The plan of a problem; the same arguments give the same plan."""
    level, shape, named = parse_kernel(kernel)
    if kernel is None and isa:
        level = check_level(isa, "GEMM_ISA")
    threads = workers_for(level, acc, m * n * k * batch, threads)
    chosen = "blocked"
    free = shape is None and named is None and not resume
    if free and (program is None or program.suits(b_layout)):
        chosen = family(a, b, acc, m, n, k, b_layout, adjacent, -(-threads // batch),
                        a_rows and program is None)  # fmt: skip
    if acc.kind == "f" and block_units(level, a, b, acc):
        chosen = "blocked"  # the unit's order of additions is its own: every shape takes it
    if chosen == "direct" and program is None:
        return _direct(level, a, b, out, acc, batch, threads)
    if chosen == "narrow":
        return _narrow(level, a, b, out, acc, m, n, threads)
    if chosen == "skinny":
        return _skinny(level, a, b, out, acc, m, n, threads, program)
    return _blocked(level, shape, named, a, b, out, acc, m, n, k, batch, scratch_home, threads,
                    kernel, program, resume, a_rows)  # fmt: skip


def _direct(level, a, b, out, acc, batch, threads) -> Plan:
    tile = small_tile(level, acc)
    why = (
        f"up to {direct_limit(a, b, acc)} multiply-adds: operands are read where they lie,"
        " nothing is packed",
    )
    blocks = planning.Blocks(tile.rows, 1, tile.columns, tile.columns)
    spec = KernelSpec("direct", tile, a, b, out)
    return Plan(level, spec, blocks, (max(1, min(threads, batch)), 1, 1), why)


def _narrow(level, a, b, out, acc, m, n, threads) -> Plan:
    lanes = unit_of(level)[0].lanes(acc)
    while lanes // 2 >= n:
        lanes //= 2
    vectors = -(-n // lanes)
    # Accumulators for the latency of the multiply-adds; a row of B and a copied line beside them.
    rows = max(4, min(16, (unit_of(level)[0].registers - 4 - vectors) // vectors))
    tile = TileShape(rows, vectors, lanes, acc)
    threads = max(1, min(threads, m // (4 * rows)))
    why = (f"{n} columns: A is read once along memory, so its bandwidth decides",)
    blocks = planning.Blocks(rows, 1, tile.columns, tile.columns)
    return Plan(level, KernelSpec("narrow", tile, a, b, out), blocks, (1, threads, 1), why)


def inner_spec(a: DType, b: DType, out: DType, acc: DType, conjugate: bool = False) -> KernelSpec:
    """The kernel of inner products; conjugate: of complex values, A before."""
    from .chains import CHAINS

    family = "conjugate inner" if conjugate else "inner"
    return KernelSpec(family, TileShape(1, 1, CHAINS, acc.real), a, b, out)


@functools.lru_cache(maxsize=256)
def inner_plan(a: DType, b: DType, out: DType, acc: DType, conjugate: bool, batch: int, k: int,
               threads: int, kernel: str | None, isa: str | None) -> Plan:  # fmt: skip
    """The plan of `batch` inner products of length k."""
    level, _, _ = parse_kernel(kernel)
    if kernel is None and isa:
        level = check_level(isa, "GEMM_ISA")
    spec = inner_spec(a, b, out, acc, conjugate)
    # A share of a memory-bound sum does less work for its time.
    threads = max(1, min(batch, workers_for(level, acc, batch * k // 8, threads)))
    why = (f"1-D operands: {spec.tile.lanes} chains over k, added in a fixed order",)
    blocks = planning.Blocks(1, 1, spec.tile.columns, spec.tile.columns)
    return Plan(level, spec, blocks, (threads, 1, 1), why)


def _skinny(level, a, b, out, acc, m, n, threads, program=None) -> Plan:
    from .skinny import DEPTH, WIDTH

    unit, _ = unit_of(level)
    tile = TileShape(4, 2 if unit.registers < 32 else 4, unit.lanes(acc), acc)
    threads = max(1, min(threads, n // (2 * tile.columns)))
    if program is not None and not program.splits[1]:
        threads = 1
    why = (f"{m} rows: B is read once along memory, so its bandwidth decides",)
    spec = KernelSpec("skinny", tile, a, b, out, program=program)
    wide = planning.round_up(WIDTH, tile.columns)
    blocks = planning.Blocks(2 * tile.rows, DEPTH, wide, wide)
    return Plan(level, spec, blocks, (1, 1, threads), why)


EIGHT_BITS = ("int8", "uint8", "bool")


def panel_units(level: str, a: DType, b: DType, out: DType, acc: DType):
    """(units of A's panels, units of B's), or None for values as they are."""
    if level == "reference":
        level = next(iter(levels()), "")
    known = described()[level].units if level in described() else ()
    whole_products = level in described() and described()[level].whole_products
    names = {a.name, b.name}
    if acc.kind == "c":
        # Real factors, in the order of the complex chain (components.py).
        return (acc.real, acc) if names == {acc.name} else None
    if names == {"bfloat16"} and acc.name == "float32" and "bfloat16x2" in known:
        return UNITS["bfloat16x2"], UNITS["bfloat16x2"]
    if acc.name != "int32":
        return None
    # vpdpbusd and its like take an unsigned and a signed side.
    if names in ({"int32"}, {"uint32"}) and "int8x4" in known and not whole_products:
        # In halves (halves.py), where two products of 16 bits are one instruction.
        return UNITS["int16x2"], UNITS["int16x2"]
    mixed = names <= {"int8", "uint8"} and b.name == "int8"
    if (mixed or names == {"bool"}) and "int8x4" in known:
        return UNITS["uint8x4"], UNITS["int8x4"]
    exact = names <= {*EIGHT_BITS, "int16"} or (names == {"uint16"} and out.bits <= 16)
    if exact and "int16x2" in known:
        return UNITS["int16x2"], UNITS["int16x2"]
    return None


def block_units(level: str, a: DType, b: DType, acc: DType):
    """(units of A's panels, units of B's) for whole blocks where the level multiplies them."""
    if level == "reference":
        level = next(iter(levels()), "")
    known = described()[level].units if level in described() else ()
    if {a.name, b.name} == {"bfloat16"} and acc.name == "float32":
        names = ("bfloat16x32", "bfloat16x32")
    elif {a.name, b.name} <= {*EIGHT_BITS} and acc.name == "int32":
        first, second = ("int8x64" if x.name == "int8" else "uint8x64" for x in (a, b))
        names = (first, second)
    else:
        return None
    return (UNITS[names[0]], UNITS[names[1]]) if set(names) <= {*known} else None


def panels(level: str, a: DType, b: DType, out: DType, acc: DType, shape: tuple[int, int] | None,
           pairs: bool = False, plain: bool = True, whole: bool = True):  # fmt: skip
    """(tile, units) of a blocked kernel. shape: MR x NR as named; plain: no program of packing;
    whole: whole blocks may be multiplied."""
    units = block_units(level, a, b, acc) if whole else None
    if units is not None:
        tile = tile_of_blocks(level, acc, shape)
        if tile is not None:
            return tile, units
        if acc.kind == "f" and shape is not None:
            raise ValueError(
                f"kernel tile {shape[0]}x{shape[1]}: {a} on {level} is multiplied in whole blocks;"
                f" tile and operands must fit {unit_of(level)[0].blocks}"
            )
    tile = tile_for(level, acc, shape, pairs)
    return tile, panel_units(level, a, b, out, acc) if plain else None


def rows_in_place(workers: int) -> bool:
    """Whether so many workers may read rows of A where they lie: two that share a first level
    have no ways left in it for the rows of both."""
    from gemm.backends.cpu.machine import machine

    return workers == 1 or machine().caches[0].shared_by == 1


def unpacked_tile_of(level: str, tile: TileShape, a: DType, acc: DType, units) -> TileShape | None:
    """The tile that takes rows of A in place; None where they must be packed."""
    from gemm.backends.cpu.machine import machine

    as_it_is = a.name == acc.name and acc.kind in "fc" and tile.block == 1
    if not as_it_is or (units is not None and units[0] is not acc.real):
        return None
    return unpacked_tile(tile, unit_of(level)[0], machine().caches[0].ways)


def _blocked(level, shape, named, a, b, out, acc, m, n, k, batch, scratch_home, threads, kernel,
             program, resume=False, a_rows=False) -> Plan:  # fmt: skip
    from gemm.backends.cpu.machine import machine

    caches = machine().caches

    plain = program is None or (program.pack_a is None and program.pack_b is None)
    pairs = program is not None and program.needs_pairs
    # A chain that goes on from anywhere is no sum of whole units.
    whole = plain and not (resume and acc.kind == "f")
    tile, units = panels(level, a, b, out, acc, shape, pairs, plain, whole)
    unit = units[0] if units is not None and tile.block > 1 else None
    # Behind one block of K a program takes as long as the product: fewer, taller tiles.
    in_place = a_rows and plain and (program is None or k > planning.DEEPEST)
    in_place = in_place and rows_in_place(threads)
    short = unpacked_tile_of(level, tile, a, acc, units) if in_place else None
    unpacked = False
    if short is not None and (shape is None or short == tile):
        tile, unpacked = short, True
    spec = KernelSpec("blocked", tile, a, b, out, program=program, units=units, resume=resume)
    spec = spec.unpacked() if unpacked else spec
    splits = (True, True) if program is None else program.splits
    blocks = planning.cache_blocks(tile, caches, unit, spec.group)
    blocks = planning.unpacked_blocks(blocks, tile, caches) if unpacked else blocks
    kind = unit_of(level)[0] if unit is None else unit_of(level)[0].blocks
    if in_halves(a, units):
        # Panels of B are half as high again.
        blocks = planning.replace(
            blocks, nc=max(1, blocks.nc * 2 // 3 // tile.columns) * tile.columns
        )
    reason = "the fewest elements moved that fit"
    if unpacked:
        reason = f"rows of A read in place, so many that they and B share a {caches[0].ways}-way L1"
    why = [
        f"tile {tile.rows}x{tile.columns}: {tile.registers} accumulators"
        f" of {kind.registers} registers, {reason}",
        f"L1 {caches[0]}, L2 {caches[1]}, L3 {caches[2]}"
        f" -> MC {blocks.mc}, KC {blocks.kc}, NC {blocks.nc}",
    ]
    if named is not None:
        blocks = planning.Blocks(named[0], named[1], named[2], band=max(named[2], 1))
        reason = planning.illegal(blocks, (1, 1, 1), spec)
        if reason:
            raise ValueError(f"kernel={kernel!r}: {reason}")
        why[-1] = f"MC, KC, NC = {named} as named"
        if not scratch_home:
            blocks = planning.replace(blocks, band=planning.round_up(max(n, 1), tile.columns))
        team = planning.partition(batch, m, n, tile, threads, splits)
    else:
        team = planning.partition(batch, m, n, tile, threads, splits)
        blocks = planning.fit(blocks, tile, -(-m // team[1]), -(-n // team[2]), k, scratch_home,
                              unit)  # fmt: skip
    reason = planning.illegal(blocks, team, spec)
    if reason:
        raise ValueError(reason)
    return Plan(level, spec, blocks, team, tuple(why))


def specs(level: str, dtype: DType) -> list[KernelSpec]:
    """Every kernel that plain products of one dtype may take, for making them ahead."""
    acc = accumulator(dtype, dtype)
    same = (level, dtype, dtype, dtype, acc)
    plans = [
        _direct(*same, 1, 1),
        _skinny(*same, 1, 1, 1),
        *(
            _blocked(level, None, None, *same[1:], 1, 1, 1, 1, False, 1, None, None, a_rows=a_rows)
            for a_rows in (False, True)
        ),
    ]
    both = (False, True) if dtype.kind == "c" else (False,)
    inner = [inner_spec(dtype, dtype, dtype, acc, conjugate) for conjugate in both]
    return [*(plan.spec for plan in plans), *inner]
