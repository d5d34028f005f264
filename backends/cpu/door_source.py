"""The door's machine code, in source: CPython built-ins that multiply two plain arrays.

`make_door`: 2-D and 1-D operands, at least one of them 2-D. `make_inner_door`: two vectors. They
read ndarray fields itself, so that a small product costs tens of nanoseconds. What they
do not serve they decline by returning None: other types, other shapes, operands that overlap `out`,
work beyond a limit. Declining costs little, and the Python path answers everything.

Layout relied on (64-bit builds with the GIL; checked by `door.self_test`):
    PyObject: ob_type 8;  ndarray: data 16, nd 24, dimensions 32, strides 40, descr 56, flags 64
    dtype: type_num 28
"""

from __future__ import annotations

from .addresses import call, peek, peek32, poke, scratch

# The table's header, in int64 slots.
(
    NDARRAY,
    NONE,
    INCREF,
    SAVE,
    RESTORE,
    EMPTY,
    SPACE,
    BUSY,
    RELEASE,
    DIMS,
    TEAM,
    FAN_OUT,
    THREADS,
    SCALAR,
    ROWS_IN_PLACE,
) = range(15)
HEADER = 16
# A row for each dtype number.
(DESCR, SMALL, BLOCKED, SIZE, SMALL_LIMIT, LIMIT, MC, KC, NC, MR, NR, A_ROOM, B_ROOM, IN_PLACE,
 GRAIN, SKINNY, INNER_DESCR, INNER, CONJUGATE_INNER, UNPACKED, UNPACKED_MC,
 UNPACKED_KC, UNPACKED_NC, UNPACKED_MR) = range(24)  # fmt: skip
ROW = 24
ROWS = 24
WRITEABLE = 0x400


def make_door():
    """door(self, args, nargs): args are x1, x2, out (an ndarray or None); self holds the table."""

    def overlaps(a, b, size):
        # Byte ranges of two arrays with at least one element each.
        a_low = peek(a + 16)
        a_high = a_low
        b_low = peek(b + 16)
        b_high = b_low
        for axis in range(peek32(a + 24)):
            reach = (peek(peek(a + 32) + 8 * axis) - 1) * peek(peek(a + 40) + 8 * axis)
            a_low += min(reach, 0)
            a_high += max(reach, 0)
        for axis in range(peek32(b + 24)):
            reach = (peek(peek(b + 32) + 8 * axis) - 1) * peek(peek(b + 40) + 8 * axis)
            b_low += min(reach, 0)
            b_high += max(reach, 0)
        return a_low < b_high + size and b_low < a_high + size

    def balanced(extent, largest, step):
        # As gemm.plan.balanced: the last block is no sliver.
        parts = max((extent + largest - 1) // largest, 1)
        each = (extent + parts - 1) // parts
        return min(largest, (each + step - 1) // step * step)

    def door(self, args, nargs):
        table = peek(self + 16)
        none = peek(table + 8 * NONE)
        kind = peek(table + 8 * NDARRAY)
        incref = peek(table + 8 * INCREF)
        x1 = peek(args)
        x2 = peek(args + 8)
        out = peek(args + 16)
        served = 0
        if peek(x1 + 8) == kind and peek(x2 + 8) == kind:
            descr = peek(x1 + 56)
            number = peek32(descr + 28)
            first = peek32(x1 + 24)
            second = peek32(x2 + 24)
            if (
                0 <= number < ROWS
                and descr == peek(x2 + 56)
                and (first == 2 or (first == 1 and second == 2))
                and (second == 2 or second == 1)
            ):
                row = table + 8 * (HEADER + ROW * number)
                size = peek(row + 8 * SIZE)
                # A vector is one row or one column.
                m = 1
                ars = 0
                if first == 2:
                    m = peek(peek(x1 + 32))
                    ars = peek(peek(x1 + 40))
                n = 1
                bcs = size
                if second == 2:
                    n = peek(peek(x2 + 32) + 8)
                    if n > 1:
                        bcs = peek(peek(x2 + 40) + 8)
                k = peek(peek(x1 + 32) + 8 * (first - 1))
                acs = peek(peek(x1 + 40) + 8 * (first - 1))
                brs = peek(peek(x2 + 40))
                work = m * n * k
                if (
                    peek(row + 8 * DESCR) == descr
                    and k == peek(peek(x2 + 32))
                    and 0 < m < 65536
                    and 0 < n < 65536
                    and 0 < k < 65536
                    and work <= peek(row + 8 * LIMIT)
                    and (work <= peek(row + 8 * SKINNY) or (m > 8 and n > 8))
                ):
                    left = first + second - 2  # dimensions of the result
                    alone = peek(table + 8 * THREADS) < 2 or work < 2 * peek(row + 8 * GRAIN)
                    direct = bcs == size and alone and work <= peek(row + 8 * SMALL_LIMIT)
                    space = peek(table + 8 * SPACE)
                    ready = 0
                    if direct or (
                        peek(table + 8 * BUSY) == 0
                        and (peek(row + 8 * IN_PLACE) == 1 or k <= peek(row + 8 * KC))
                    ):
                        if out == none:
                            dims = scratch()
                            poke(dims, m)
                            if second == 2:
                                poke(dims + 8 * (left - 1), n)
                            call(incref, descr, 0, 0, 0, 0)
                            out = call(peek(table + 8 * EMPTY), left, dims, descr, 0, 0)
                            ready = 2
                        elif (
                            peek(out + 8) == kind
                            and peek(out + 56) == descr
                            and peek32(out + 24) == left
                            and (first == 1 or peek(peek(out + 32)) == m)
                            and (first == 1 or m == 1 or peek(peek(out + 40)) != 0)
                            and (second == 1 or peek(peek(out + 32) + 8 * (left - 1)) == n)
                            and (second == 1 or peek(peek(out + 40) + 8 * (left - 1)) == size)
                            and peek32(out + 64) & WRITEABLE
                            and not overlaps(out, x1, size)
                            and not overlaps(out, x2, size)
                        ):
                            ready = 1
                    if ready == 2 and out == 0:
                        return 0
                    if ready > 0:
                        entry = peek(row + 8 * SMALL)
                        workers = 1
                        words = scratch()
                        poke(words, peek(x1 + 16))
                        poke(words + 8, peek(x2 + 16))
                        poke(words + 16, peek(out + 16))
                        rs = peek(peek(out + 40))
                        if direct:
                            poke(words + 24, m)
                            poke(words + 32, n)
                            poke(words + 40, k)
                            poke(words + 48, ars)
                            poke(words + 56, acs)
                            poke(words + 64, brs)
                            poke(words + 72, rs)
                        else:
                            entry = peek(row + 8 * BLOCKED)
                            MRs = peek(row + 8 * MR)
                            mc = peek(row + 8 * MC)
                            kc = peek(row + 8 * KC)
                            nc = peek(row + 8 * NC)
                            workers = min(peek(table + 8 * THREADS), work // peek(row + 8 * GRAIN))
                            workers = max(workers, 1)
                            in_place = workers <= peek(table + 8 * ROWS_IN_PLACE)
                            if acs == size and in_place and peek(row + 8 * UNPACKED) != 0:
                                entry = peek(row + 8 * UNPACKED)
                                MRs = peek(row + 8 * UNPACKED_MR)
                                mc = peek(row + 8 * UNPACKED_MC)
                                kc = peek(row + 8 * UNPACKED_KC)
                                nc = peek(row + 8 * UNPACKED_NC)
                            NRs = peek(row + 8 * NR)
                            high = (m + MRs - 1) // MRs * MRs
                            wide = (n + NRs - 1) // NRs * NRs
                            # The split whose largest share is smaller.
                            tall = ((m + MRs - 1) // MRs + workers - 1) // workers * MRs * n
                            flat = ((n + NRs - 1) // NRs + workers - 1) // workers * NRs * m
                            over_m = 1
                            over_n = workers
                            if tall < flat:
                                over_m = workers
                                over_n = 1
                            room = peek(row + 8 * A_ROOM) + peek(row + 8 * B_ROOM)
                            poke(words + 24, space)
                            poke(words + 32, m)
                            poke(words + 40, n)
                            poke(words + 48, k)
                            poke(words + 56, ars)
                            poke(words + 64, acs)
                            poke(words + 72, brs)
                            poke(words + 80, bcs)
                            poke(words + 88, rs)
                            poke(words + 96, size)
                            poke(words + 104, 0)
                            poke(words + 112, min(high, mc))
                            poke(words + 120, balanced(k, kc, 4))
                            poke(words + 128, balanced(wide, nc, NRs))
                            poke(words + 136, wide)
                            poke(words + 144, peek(row + 8 * A_ROOM))
                            poke(words + 152, peek(row + 8 * B_ROOM))
                            poke(words + 160, room)
                            poke(words + 168, 1)
                            poke(words + 176, table + 8 * DIMS)
                            poke(words + 184, 1)
                            poke(words + 192, over_m)
                            poke(words + 200, over_n)
                            poke(words + 208, 0)
                            poke(table + 8 * BUSY, 1)
                        if work > peek(table + 8 * RELEASE):
                            state = call(peek(table + 8 * SAVE), 0, 0, 0, 0, 0)
                            if workers > 1:
                                fan_out = peek(table + 8 * FAN_OUT)
                                call(fan_out, peek(table + 8 * TEAM), entry, words, workers, 0)
                            else:
                                call(entry, words, 0, 0, 0, 0)
                            call(peek(table + 8 * RESTORE), state, 0, 0, 0, 0)
                        else:
                            call(entry, words, 0, 0, 0, 0)
                        if not direct:
                            poke(table + 8 * BUSY, 0)
                        if ready == 1:
                            call(incref, out, 0, 0, 0, 0)
                        served = out
        if served == 0:
            call(incref, none, 0, 0, 0, 0)
            served = none
        return served

    door.label = "door"
    return door, ("integer",) * 3


def make_inner_door():
    """inner_door(self, args, nargs): args are x and y, and a third to conjugate x."""

    def inner_door(self, args, nargs):
        table = peek(self + 16)
        kind = peek(table + 8 * NDARRAY)
        x = peek(args)
        y = peek(args + 8)
        served = 0
        declined = 1
        if peek(x + 8) == kind and peek(y + 8) == kind:
            descr = peek(x + 56)
            number = peek32(descr + 28)
            if (
                0 <= number < ROWS
                and descr == peek(y + 56)
                and peek32(x + 24) == 1
                and peek32(y + 24) == 1
            ):
                row = table + 8 * (HEADER + ROW * number)
                k = peek(peek(x + 32))
                if peek(row + 8 * INNER_DESCR) == descr and k == peek(peek(y + 32)):
                    entry = peek(row + 8 * INNER)
                    if nargs > 2:
                        entry = peek(row + 8 * CONJUGATE_INNER)
                    words = scratch()
                    result = words + 8 * 32
                    poke(words, peek(x + 16))
                    poke(words + 8, peek(y + 16))
                    poke(words + 16, result)
                    poke(words + 48, k)
                    poke(words + 64, peek(peek(x + 40)))
                    poke(words + 72, peek(peek(y + 40)))
                    poke(words + 168, 1)
                    poke(words + 176, table + 8 * DIMS)
                    poke(words + 184, 1)
                    if k > peek(table + 8 * RELEASE):
                        state = call(peek(table + 8 * SAVE), 0, 0, 0, 0, 0)
                        call(entry, words, 0, 0, 0, 0)
                        call(peek(table + 8 * RESTORE), state, 0, 0, 0, 0)
                    else:
                        call(entry, words, 0, 0, 0, 0)
                    served = call(peek(table + 8 * SCALAR), result, descr, 0, 0, 0)
                    declined = 0
        if declined == 1:
            served = peek(table + 8 * NONE)
            call(peek(table + 8 * INCREF), served, 0, 0, 0, 0)
        return served

    inner_door.label = "inner door"
    return inner_door, ("integer",) * 3
