"""From a problem's size and the machine's facts to block sizes and a team.

Block sizes follow Low et al. (2016), with the roles of A and B for outputs stored by rows: a
micro-panel of A (MR x KC) stays in the first-level cache, a block of B (KC x NC) in the second, a
block of A (MC x KC) in the third. Each is then rebalanced so that the last block of a dimension
is not a sliver.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .kernels import KernelSpec


@dataclass(frozen=True)
class Blocks:
    """mc, kc, nc in elements; band: columns that share the scratch home at a time."""

    mc: int
    kc: int
    nc: int
    band: int


@dataclass(frozen=True)
class Plan:
    """Everything the engine needs to run a problem; `why` says in words how it was chosen."""

    level: str
    spec: KernelSpec
    blocks: Blocks
    team: tuple[int, int, int]
    why: tuple[str, ...] = ()

    @property
    def workers(self) -> int:
        return self.team[0] * self.team[1] * self.team[2]


def illegal(blocks: Blocks, team: tuple[int, int, int], spec: KernelSpec) -> str:
    """Why blocks or team do not suit a kernel, with the numbers; empty when they do."""
    MR, NR = spec.tile.rows, spec.tile.columns
    if min(blocks.mc, blocks.kc, blocks.nc, blocks.band) < 1:
        return f"block sizes must be positive, got {blocks}"
    if blocks.mc % MR:
        return f"MC = {blocks.mc} is not a multiple of MR = {MR}"
    for name, extent in (("NC", blocks.nc), ("band", blocks.band)):
        if extent % NR:
            return f"{name} = {extent} is not a multiple of NR = {NR}"
    unit = spec.units[0] if spec.units is not None and spec.tile.block > 1 else None
    if unit is not None and blocks.kc % unit.group:
        return f"KC = {blocks.kc} is not a multiple of the {unit.group} values of k in a {unit}"
    if min(team) < 1:
        return f"a team needs workers in every direction, got {team}"
    return ""


def round_up(x: int, step: int) -> int:
    return -(-x // step) * step


def balanced(extent: int, largest: int, step: int) -> int:
    """A block size of at most about `largest`, a multiple of `step`, that divides evenly."""
    if extent <= largest:
        return max(step, round_up(extent, step))
    parts = -(-extent // largest)
    return min(round_up(largest, step), round_up(-(-extent // parts), step))


def cache_blocks(tile, caches, unit=None, group: int = 1) -> Blocks:
    """The block sizes of an unbounded problem on a machine with these three caches.

    caches: objects with size (bytes), ways and shared_by. unit: of panels for whole blocks. group:
    values of k in an element of a panel.
    """
    size = tile.dtype.size if unit is None else unit.size // unit.group
    deep = 16 if unit is None else unit.group
    l1, l2, l3 = caches
    MR, NR = tile.rows, tile.columns
    # The narrow panel keeps to a good half of the first level, and a wide one does not sweep it.
    deepest = DEEPEST if unit is None else DEEPEST * 4 // size
    kc = int(min(0.6 * l1.size / (MR * size), 0.67 * l1.size / (NR * size), deepest))
    if unit is not None:
        # Blocks take both panels from the second level as fast, and partial tiles cost more.
        kc = int(1.35 * l1.size / (NR * size))
    if group > 1:
        # A step of the kernel takes a group, so C passes more often; B may stream.
        kc = int(min(0.6 * l1.size / (MR * size), DEEPEST_GROUPS))
    kc = max(deep, kc // deep * deep)
    # Second level: two fifths of it, for A and C pass through and a sibling may share it.
    share = l2.size / max(1, l2.shared_by)
    # Complex panels of B hold two rows for each k (components.py).
    nc = max(NR, min(int(0.4 * share / (kc * size * tile.dtype.components)), 2048) // NR * NR)
    share = l3.size / max(1, l3.shared_by) * max(1, l3.ways - 1) / l3.ways
    mc = max(MR, min(int(share / (kc * size)), 4096) // MR * MR)
    return Blocks(mc, kc * group, nc, 1 << 40)


def unpacked_blocks(blocks: Blocks, tile, caches) -> Blocks:
    """The same where rows of A are read in place: nothing of K keeps to the first level then, and
    a deeper block moves C less often, as long as six panels of B share the second level."""
    _, l2, _ = caches
    size = tile.dtype.size * tile.dtype.components
    share = 0.4 * l2.size / max(1, l2.shared_by)
    kc = max(blocks.kc, min(DEEPEST_UNPACKED, int(share / (6 * tile.columns * size)) // 16 * 16))
    nc = max(tile.columns, min(int(share / (kc * size)), 2048) // tile.columns * tile.columns)
    mc = max(1, blocks.mc // tile.rows) * tile.rows
    return replace(blocks, mc=mc, kc=kc, nc=nc)


def rooms(blocks: Blocks, tile, unpacked_a: bool = False, group: int = 1) -> tuple[int, int]:
    """Bytes of a worker's packed A and packed B; unpacked_a: of A one panel at most is copied;
    group: values of k in an element of a panel."""
    size = tile.dtype.size
    slack = 64 * tile.lanes
    # Panels of 32-bit integers in halves have rows for one and a half times K (halves.py).
    rows = -(-blocks.kc // group) + 1
    if tile.dtype.name == "int32" and group == 1:
        rows = rows * 3 // 2
    # Beside its panels B's room holds the column sums of a dot-product kernel.
    panels = blocks.nc * rows * size * tile.dtype.components
    high = tile.rows if unpacked_a else blocks.mc
    return round_up(high * rows * size + slack, 64), round_up(panels + slack + 2048, 64)


DEEPEST = 384  # KC beyond which C's traffic is small anyway
DEEPEST_UNPACKED = 1024
DEEPEST_GROUPS = 512
BAND = 2048  # columns of a scratch home: each band packs A once more


def fit(blocks: Blocks, tile, m: int, n: int, k: int, scratch_home: bool, unit=None) -> Blocks:
    """Blocks rebalanced for a problem; a scratch home bounds MC and the band of columns."""
    if unit is not None:
        # A B that the second level holds is packed once, and A a few panels at a time.
        kc, wide = round_up(max(k, 1), unit.group), round_up(max(n, 1), tile.columns)
        held = blocks.kc * blocks.nc
        if kc <= blocks.kc and wide * kc <= 1.5 * held:
            return replace(blocks, mc=balanced(m, 64, tile.rows), kc=kc, nc=wide, band=wide)
    mc = balanced(m, min(blocks.mc, 1024) if scratch_home else blocks.mc, tile.rows)
    kc = balanced(k, blocks.kc, 4 if unit is None else unit.group)
    nc = balanced(n, blocks.nc, tile.columns)
    # One block of K rests nowhere.
    rests = scratch_home and k > kc
    band = (
        min(nc * max(1, BAND // nc), round_up(max(n, 1), nc))
        if rests
        else round_up(max(n, 1), tile.columns)
    )
    return replace(blocks, mc=mc, kc=kc, nc=nc, band=band)


def partition(
    batch: int, m: int, n: int, tile, workers: int, splits: tuple[bool, bool] = (True, True)
) -> tuple[int, int, int]:
    """(over batch, over M, over N): batch first, then the split that packs least twice.

    splits: whether M and N may be shared at all.
    """
    if batch >= workers:
        return (workers, 1, 1)
    over_batch = max(d for d in range(1, workers + 1) if workers % d == 0 and d <= batch)
    rest = workers // over_batch
    best = None
    for over_m in range(1, rest + 1):
        if rest % over_m:
            continue
        over_n = rest // over_m
        if (over_m > 1 and not splits[0]) or (over_n > 1 and not splits[1]):
            continue
        rows = round_up(-(-m // over_m), tile.rows)
        columns = round_up(-(-n // over_n), tile.columns)
        # Work of the largest share first, then the elements it packs.
        cost = (rows * columns, rows + columns)
        if best is None or cost < best[0]:
            best = (cost, (over_batch, over_m, over_n))
    return best[1] if best is not None else (over_batch, 1, 1)
