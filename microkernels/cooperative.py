"""Words for a team: groups of lanes that share fast memory and compute one block together.

    grid      `workers` teams, each with its own shared memory; neighbours may be `peers`, whose
              memories one fetch can fill at once
    team      `groups` groups; each runs the kernel once, as one program
    group     lanes; hidden inside the words: a group's value may be a whole tile

A stage is a slot of shared memory that holds one panel of A and one of B. A ring of stages
passes between those who fill and those who drain, guarded by two gates each:

        fill:   wait(empty) -> expect(full, bytes) -> fetch ...
        drain:  wait(full)  -> accumulate          -> arrive(empty)

A gate counts arrivals and bytes; when both are complete its phase flips and waiters pass.

The plain bodies run on `Grid` below, one Python thread a group, and are the meaning of each word.
"""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass

import numpy as np

from .dtypes import DType
from .fused import fused_multiply_add
from .vocabulary import Pointer, computed, narrow, shift, storage

ROW = 128  # bytes of a swizzled row: eight chunks of sixteen
CHUNK = 16


@dataclass(frozen=True)
class StageShape:
    """A panel of `rows` x `depth` elements (rows of A, or columns of B, by k) in a stage.

    along 'k':      row r is 128 bytes of adjacent k; chunk c of row r stands at c ^ (r & 7)
    along 'rows':   k after k, `rows` adjacent elements each; where `swizzled`, in boxes of
                    128 bytes by `depth`, chunk c of line k standing at c ^ (k & 7)

    route: who moves the panel: 'box' (one lane, the copy engine), 'async' (all lanes, sixteen
    bytes at a time) or 'held' (all lanes, element by element through registers, widening).
    near: which index is adjacent in memory at the source; neighbouring lanes read along it.
    lanes: how many lanes move it together (all of the team, unless one does).
    """

    rows: int
    depth: int
    dtype: DType
    along: str
    route: str
    swizzled: bool = True
    near: str = "k"
    lanes: int = 128

    @property
    def bytes(self) -> int:
        return self.rows * self.depth * self.dtype.size

    @property
    def row_bytes(self) -> int:
        """Distance from row r to row r + s of a panel is s * row_bytes, s as a tile starts."""
        if self.along == "k":
            return ROW
        return self.dtype.size * (self.depth if self.swizzled else 1)

    def place(self, row: int, k: int) -> int:
        """Byte offset of element (row, k)."""
        size = self.dtype.size
        if self.along == "k":
            chunk, inside = divmod(k * size, CHUNK)
            return row * ROW + ((chunk ^ (row & 7)) * CHUNK) + inside
        if not self.swizzled:
            return (k * self.rows + row) * size
        box, inside = divmod(row * size, ROW)
        chunk, inside = divmod(inside, CHUNK)
        return box * self.depth * ROW + k * ROW + ((chunk ^ (k & 7)) * CHUNK) + inside


@dataclass(frozen=True)
class TeamTile:
    """The tile of one group: `rows` x `columns` accumulators of `dtype`.

    unit: 'lanes' (each lane owns lane_rows x lane_columns), 'matrix' (each warp of lanes feeds
    the matrix unit from registers) or 'wide' (the whole group feeds it from the stage, later).
    a, b: the panels it reads; kind: the matrix unit's name for the element type.
    """

    unit: str
    rows: int
    columns: int
    dtype: DType
    a: StageShape
    b: StageShape
    kind: str = ""
    lane_rows: int = 8
    lane_columns: int = 8

    @property
    def steps(self) -> int:
        """Calls of `team_accumulate` that use up a stage."""
        span = max(1, CHUNK // self.a.dtype.size)
        return self.a.depth // span if self.unit == "lanes" else 1

    @property
    def box_rows(self) -> int:
        """Adjacent rows of the tile that one warp of lanes holds, and writes back, together."""
        return 16 if self.unit == "wide" else self.rows // 4


@functools.lru_cache(maxsize=64)
def _places(stage: StageShape, rows: int) -> np.ndarray:
    """Byte offsets of the elements of the first `rows` rows of a panel."""
    return np.asarray([[stage.place(r, k) for k in range(stage.depth)] for r in range(rows)])


class Gate:
    """A phase barrier of the reference grid."""

    def __init__(self, arrivals: int):
        self.arrivals, self.left, self.bytes, self.phase = arrivals, arrivals, 0, 0

    def turn(self) -> None:
        if self.left == 0 and self.bytes == 0:
            self.left, self.phase = self.arrivals, self.phase ^ 1


class Grid:
    """Runs a kernel for every worker and group on the reference target.

    Each wait gives up after `patience` seconds: a kernel that would hang raises RuntimeError.
    """

    def __init__(self, workers: int, groups: int, peers: int = 1, patience: float = 30.0):
        self.workers, self.groups, self.peers, self.patience = workers, groups, peers, patience
        self.changed = threading.Condition()
        self.memories: list[np.ndarray] = []
        self.gates: dict[tuple[int, int], Gate] = {}
        self.barriers: dict[object, threading.Barrier] = {}
        self.here = threading.local()

    def barrier(self, name, parties: int) -> None:
        with self.changed:
            found = self.barriers.setdefault(name, threading.Barrier(parties))
        found.wait(self.patience)

    def run(self, kernel, arguments, shared: int) -> None:
        global _grid
        failures: list[BaseException] = []
        self.memories = [np.full(shared, 0xFF, np.uint8) for _ in range(self.workers)]

        def program(worker: int, group_index: int) -> None:
            self.here.worker, self.here.group, self.here.held = worker, group_index, {}
            try:
                kernel(*arguments)
            except BaseException as error:
                failures.append(error)
                for waiting in list(self.barriers.values()):
                    waiting.abort()

        with _one_grid:
            _grid = self
            try:
                threads = [
                    threading.Thread(target=program, args=(w, g), daemon=True)
                    for w in range(self.workers)
                    for g in range(self.groups)
                ]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            finally:
                _grid = None
        if failures:
            first = [f for f in failures if not isinstance(f, threading.BrokenBarrierError)]
            raise (first or failures)[0]


_grid: Grid | None = None
_one_grid = threading.Lock()


def _current() -> Grid:
    if _grid is None:
        raise RuntimeError("a word of a team was called outside Grid.run")
    return _grid


# -- who am I ------------------------------------------------------------------------------------


def worker():
    """Index of this team in the grid."""
    return _current().here.worker


def workers():
    """Number of teams in the grid."""
    return _current().workers


def peer():
    """Index of this team among its peers."""
    return _current().here.worker % _current().peers


def group():
    """Index of this group in its team; the same for all lanes of the group."""
    return _current().here.group


def leader():
    """True for the one lane that speaks for its group."""
    return True


def claim_registers(n):
    """This group needs `n` registers a lane from here on."""


def team_raise(p, value):
    """The int32 at p becomes `value` once all that this group wrote is seen by every team."""
    grid = _current()
    with grid.changed:
        p.view(1, np.dtype(np.int32))[0] = int(value)
        grid.changed.notify_all()


def team_await(p, count, value):
    """Waits until each of the `count` int32 from p on is `value`; what was written before they
    were raised is seen. All teams of the grid must be running."""
    grid = _current()
    flags = p.view(int(count), np.dtype(np.int32))
    with grid.changed:
        if not grid.changed.wait_for(lambda: bool((flags == int(value)).all()), grid.patience):
            raise RuntimeError(f"flags {flags} did not all become {value}")


def yield_registers(n):
    """This group keeps only `n` registers a lane from here on."""


def quotient(a, b):
    """a // b for 0 <= a < 2^31, 0 < b < 2^31. Cost: some twenty instructions."""
    return int(a) // int(b)


# -- shared memory and gates ---------------------------------------------------------------------


def team_memory(dtype):
    """The team's shared memory, aligned to 1024 bytes."""
    return Pointer(_current().memories[_current().here.worker], 0, dtype)


def team_sync():
    """All groups of the team meet; writes to shared memory before it are seen after it."""
    grid = _current()
    grid.barrier(("team", grid.here.worker), grid.groups)


def peers_sync():
    """All groups of all peers meet."""
    grid = _current()
    grid.barrier(("peers", grid.here.worker // grid.peers), grid.groups * grid.peers)


def _gate_key(p, rank=None):
    grid = _current()
    owner = grid.here.worker
    if rank is not None:
        owner = owner // grid.peers * grid.peers + rank
    return owner, p.offset


def gate_open(p, arrivals):
    """A new gate at p (8 bytes) that flips after `arrivals` arrivals; before the first `_sync`."""
    with _current().changed:
        _current().gates[_gate_key(p)] = Gate(int(arrivals))


def gates_opened():
    """Makes the gates just opened known to the copy engine and to peers."""


def gate_wait(p, phase):
    """Waits until the phase numbered `phase` (0 or 1) of the gate is complete."""
    grid = _current()
    key = _gate_key(p)
    with grid.changed:
        if not grid.changed.wait_for(lambda: grid.gates[key].phase != phase, grid.patience):
            gate = grid.gates[key]
            raise RuntimeError(
                f"worker {grid.here.worker} group {grid.here.group} waits for gate {key}: "
                f"{gate.left} arrivals and {gate.bytes} bytes are missing"
            )


def gate_expect(p, nbytes):
    """One arrival, and `nbytes` more bytes to come before the gate flips."""
    grid = _current()
    with grid.changed:
        gate = grid.gates[_gate_key(p)]
        gate.bytes += int(nbytes)
        gate.left -= 1
        gate.turn()
        grid.changed.notify_all()


def gate_arrive(p, peers, arrivals, when):
    """Where `when`: this group's `arrivals` arrivals at the gate at p of each of its peers."""
    if not when:
        return
    grid = _current()
    with grid.changed:
        for rank in range(peers):
            gate = grid.gates[_gate_key(p, rank)]
            gate.left -= int(arrivals)
            gate.turn()
        grid.changed.notify_all()


# -- filling -------------------------------------------------------------------------------------


class Box:
    """How the copy engine sees an array: up to four axes, innermost first, and a box of them.

    array: ndarray with axes outermost first; box: its extents innermost first; `swizzled`: the
    inner extent is 128 bytes whose chunks are permuted by the line number.
    """

    def __init__(self, array: np.ndarray, box: tuple[int, ...], swizzled: bool):
        self.array, self.box, self.swizzled = array, box, swizzled

    def content(self, origin):
        """(byte offset in shared memory of each element of the box, the elements or zeros)."""
        size = self.array.itemsize
        outermost = self.box[::-1]
        where = np.indices(outermost).reshape(len(outermost), -1)
        index = where + np.asarray(origin[::-1])[:, None]
        inside = ((index >= 0) & (index < np.asarray(self.array.shape)[:, None])).all(0)
        values = np.zeros(inside.size, self.array.dtype)
        values[inside] = self.array[tuple(index[:, inside])]
        line, byte = np.divmod(np.arange(inside.size) * size, self.box[0] * size)
        if self.swizzled:
            chunk, rest = np.divmod(byte, CHUNK)
            byte = (chunk ^ (line & 7)) * CHUNK + rest
        return line * self.box[0] * size + byte, values


def box_fetch(dst, box, gate, x, y, u, v, peers):
    """The box at (x, y, u, v) into shared memory at dst; its bytes count at the gate.

    What lies outside the array arrives as zeros and counts too. peers > 1: it arrives at the
    same place, and counts at the same gate, of every peer.
    """
    grid = _current()
    origin = tuple(map(int, (x, y, u, v)))[: box.array.ndim]
    first = grid.here.worker // grid.peers * grid.peers if peers > 1 else grid.here.worker
    offsets, values = box.content(origin)
    at = dst.offset + offsets[:, None] + np.arange(values.itemsize)
    for rank in range(peers):
        grid.memories[first + rank][at] = values.view(np.uint8).reshape(at.shape)
    count = values.nbytes
    with grid.changed:
        for rank in range(peers):
            gate_of = grid.gates[(first + rank, gate.offset)]
            gate_of.bytes -= count
            gate_of.turn()
        grid.changed.notify_all()


def memory_ahead(p, nbytes):
    """Asks for `nbytes` from p on to be near when they are read; whole pieces of them."""


def panel_begin(stage, dst, p, row_step, k_step, rows, depth):
    """Starts moving a panel from memory to dst: element (r, k) is at p + r row_step + k k_step.

    Elements with r >= rows or k >= depth (either may be <= 0) become zero and are not read.
    Returns what is held in registers until `panel_end`.
    """
    held = np.zeros((stage.rows, stage.depth), computed(stage.dtype))
    for r in range(min(stage.rows, int(rows))):
        for k in range(min(stage.depth, int(depth))):
            q = shift(p, r * row_step + k * k_step)
            held[r, k] = q.view(1, storage(q.dtype)).astype(held.dtype)[0]
    return held


def panel_end(stage, dst, held):
    """Ends `panel_begin`: what was held is written to the stage."""
    memory = _current().memories[_current().here.worker]
    grid = _current()
    if grid.here.group == 0:
        values = narrow(held, stage.dtype)
        at = dst.offset + _places(stage, stage.rows)[..., None] + np.arange(stage.dtype.size)
        memory[at] = values.reshape(-1).view(np.uint8).reshape(at.shape)


def panel_write(stage, p, row_step, src, rows, depth, part):
    """Writes the panel at src, rows x depth of it, to memory: adjacent k, row_step between rows.

    part: 0 as it is; 1 rounded to the matrix unit's 19-bit float; 2 what part 1 leaves, rounded.
    """
    if _current().here.group == 0:
        values = _panel(stage, src, stage.rows)
        if part:
            big = _round19(values)
            values = big if part == 1 else _round19(values - big)
        for r in range(min(stage.rows, int(rows))):
            count = min(stage.depth, int(depth))
            if count > 0:
                to = shift(p, r * row_step).view(count, storage(p.dtype))
                to[:] = narrow(values[r, :count], p.dtype)


def _round19(values):
    """float32 with 10 stored mantissa bits, to nearest, ties away from zero."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded = ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(values), rounded, values).astype(np.float32)


def panels_seen():
    """What this lane wrote to the stage is seen by a unit that reads the stage by itself, after
    the next `team_sync`."""


def panels_commit():
    """Closes the set of panels begun since the last call."""


def panels_wait(pending):
    """Waits until at most `pending` of the closed sets are still on their way."""


# -- tiles of a group ----------------------------------------------------------------------------


def team_zeros(tile):
    """A tile of +0."""
    return np.zeros((tile.rows, tile.columns), computed(tile.dtype))


def team_tile(tile):
    """A tile of unspecified content: only for `team_accumulate(..., keep=False)`."""
    return np.full((tile.rows, tile.columns), 77, computed(tile.dtype))


def _panel(stage, p, rows):
    memory = _current().memories[_current().here.worker]
    kind = storage(stage.dtype)
    at = p.offset + _places(stage, rows)[..., None] + np.arange(kind.itemsize)
    return memory[at].reshape(rows, -1).view(kind).astype(computed(stage.dtype))


def _chain(t, a, b):
    if t.dtype.kind != "c":
        return fused_multiply_add(a[:, None], b[None], t)
    out = np.empty_like(t)
    re = fused_multiply_add(a.real[:, None], b.real[None], t.real)
    out.real = fused_multiply_add(-a.imag[:, None], b.imag[None], re)
    im = fused_multiply_add(a.real[:, None], b.imag[None], t.imag)
    out.imag = fused_multiply_add(a.imag[:, None], b.real[None], im)
    return out


def team_accumulate(tile, t, a, b, step, keep):
    """t (or +0 unless `keep`) plus the products of step `step` of a stage, ascending in k.

    a, b: the panels where this group's rows and columns start. On a 'wide' unit the result is
    ready only after `team_settle`, and the panels are in use until then.
    """
    if not keep:
        t = np.zeros_like(t)
    left = _panel(tile.a, a, tile.rows).astype(t.dtype)
    right = _panel(tile.b, b, tile.columns).astype(t.dtype)
    count = tile.a.depth // tile.steps
    for k in range(int(step) * count, int(step) * count + count):
        t = _chain(t, left[:, k], right[:, k])
    return t


def team_settle(t, pending):
    """t after all but the last `pending` calls of `team_accumulate` are done."""
    return t


def team_add(total, t):
    """total + t, each element rounded once."""
    return total + t


def team_scale(t, x):
    """t with each element multiplied by the scalar x, rounded once."""
    return (t * t.dtype.type(x)).astype(t.dtype)


def team_send(box, room, t, x, y, u, v, out):
    """Writes tile t, narrowed to `out`, to the box array at (x, y, u, v), clipped to it.

    room: `TeamPlan.room_bytes` of shared memory of this group; boxes are tile.box_rows high.
    """
    grid = _current()
    values = narrow(t, out)
    u, v, x, y = map(int, (u, v, x, y))
    target = box.array[(v, u)] if box.array.ndim == 4 else box.array
    rows, columns = target.shape
    m, n = min(len(values), rows - y), min(values.shape[1], columns - x)
    with grid.changed:
        if m > 0 and n > 0:
            target[y : y + m, x : x + n] = values[:m, :n]


def team_drain():
    """Waits until the writes of `team_send` are done with shared memory."""


def team_write(p, row_step, room, t, m, n):
    """Writes t[:m, :n] (m, n may be <= 0), narrowed to p's type, adjacent columns."""
    values = narrow(t, p.dtype)
    for i in range(min(len(values), int(m))):
        count = min(values.shape[1], int(n))
        if count > 0:
            shift(p, i * row_step).view(count, storage(p.dtype))[:] = values[i, :count]


# -- a tile and the lanes that hold it -----------------------------------------------------------
#
# In plain Python a group is one lane that holds every row.


def lane():
    """Index of this lane among those that read a spilled tile together."""
    return 0


def lanes():
    """How many they are."""
    return 1


def lanes_sync():
    """They meet; what one wrote to memory before it is seen by the others after it."""


def lane_value(x, other):
    """x of lane `other` (modulo `lanes`); all lanes ask."""
    return x


def misalignment(p, n):
    """Bytes from the last multiple of n, a power of two, to the address p."""
    return p.offset % n


def aligned(p, n):
    """p, whose address the caller knows to be a multiple of n bytes."""
    return p


def elements_of(words, dtype):
    """The same bits, lanes of int32, as elements of `dtype`, widened to its compute type."""
    raw = np.asarray(words, np.int32).view(storage(dtype))
    return raw.astype(computed(dtype))


def group_lane():
    """Index of this lane in its group."""
    return 0


def group_lanes():
    """Lanes of a group."""
    return 1


def group_sync():
    """All lanes of this group meet, as in `lanes_sync`."""


def rows_held(tile):
    """Rows of a tile that these lanes hold together."""
    return tile.rows


def row_of(tile, h):
    """The row of the tile that is the h-th they hold."""
    return h


def _chunk_columns(tile):
    return min(ROW // tile.dtype.size, tile.columns)


def _spilled_at(tile, row: int, column: int) -> int:
    byte = column * tile.dtype.size
    return row * ROW + (byte ^ (row & 7) * CHUNK)


def team_spill(tile, t, room, chunk):
    """Writes the `chunk`-th 128 bytes of every row of t to the room, for `spilled` to find."""
    memory = _current().memories[_current().here.worker]
    width, size = _chunk_columns(tile), tile.dtype.size
    for i in range(tile.rows):
        for j in range(width):
            at = room.offset + _spilled_at(tile, i, j)
            memory[at : at + size] = t[i, chunk * width + j : chunk * width + j + 1].view(np.uint8)


def spilled(tile, room, h, column):
    """A pointer to the element in the h-th row held, and in this column of the chunk."""
    return Pointer(room.memory, room.offset + _spilled_at(tile, int(h), int(column)), tile.dtype)


WORDS = (
    worker,
    workers,
    peer,
    group,
    leader,
    claim_registers,
    yield_registers,
    team_raise,
    team_await,
    quotient,
    team_memory,
    team_sync,
    peers_sync,
    gate_open,
    gates_opened,
    gate_wait,
    gate_expect,
    gate_arrive,
    box_fetch,
    memory_ahead,
    panel_begin,
    panel_end,
    panel_write,
    panels_seen,
    panels_commit,
    panels_wait,
    team_zeros,
    team_tile,
    team_accumulate,
    team_settle,
    team_add,
    team_scale,
    team_send,
    team_drain,
    team_write,
    lane,
    lanes,
    lanes_sync,
    lane_value,
    misalignment,
    aligned,
    elements_of,
    group_lane,
    group_lanes,
    group_sync,
    rows_held,
    row_of,
    team_spill,
    spilled,
)
