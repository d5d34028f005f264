"""Which block of the output a team of the group-wide unit takes: an estimate of time."""

from __future__ import annotations

# Blocks of the group-wide unit, with the share of its rate that each can reach.
WIDE_BLOCKS = (
    ((128, 256), 1.0),
    ((128, 128), 0.86),
    ((64, 256), 0.8),
    ((64, 128), 0.7),
    ((64, 64), 0.5),
    ((64, 32), 0.3),
)


# Cycles that a stage of a small block takes at least, and bytes a cycle that reach a
# multiprocessor, and all of them together from memory.
STAGE_CYCLES, UNIT_BYTES, MEMORY_BYTES = 130, 48, 2200


def wide_block(units: int, m: int, n: int, k: int, size: int, count: int, narrow: bool,
               least: int = 32, flat: bool = False, plain: bool = True,
               single: bool = False):  # fmt: skip
    """(block, peers, teams of a multiprocessor) with the least estimated time.

    Waves of blocks, each a chain of stages; a stage costs its products or its bytes, whichever is
    more. narrow: two accumulators an element, or a program with many registers, leave room for
    128 x 128 at most; least: columns in a panel's box; flat: one group down only; plain: small
    blocks may share a multiprocessor; single: one group across and down.
    """
    steps = max(1, -(-k * size // 128))
    memory = (m + n) * k * size * count / MEMORY_BYTES
    best = None
    for (bm, bn), share in WIDE_BLOCKS:
        if bn < least or (narrow and bm * bn > 128 * 128) or (single and bm > 64):
            continue
        columns = -(-n // bn)
        small = plain and bm * bn <= 64 * 64
        for peers, teams in ((1, 1), (2, 1), (1, 2)):
            if (peers > 1 and (flat or m <= bm)) or (teams > 1 and not small):
                continue
            blocks = -(-m // (bm * peers)) * peers * columns * count
            if teams > 1 and blocks <= units:
                continue
            waves = -(-blocks // (units * teams))
            beside = min(teams, -(-blocks // units))
            products = bm * bn / 64 / share
            moved = (min(m, bm) + min(n, bn)) * 128 / UNIT_BYTES
            # Peers wait for each other: worth it for long chains of large blocks.
            alone = 1.02 if bm == 128 and steps > 8 else 0.9
            step = max(max(products, moved) * beside, STAGE_CYCLES) * (1 if peers > 1 else alone)
            cost = waves * (steps * step + bm * bn / 24 + 700)
            cost = max(cost, memory) + cost / 16
            if best is None or cost < best[0]:
                best = (cost, ((bm, bn), peers, teams))
    assert best is not None
    return best[1]
