"""A team of native threads, in source: workers parked in machine code, jobs published in memory.

    caller                                     worker i (a native thread, no Python state)
      writes job, bumps GENERATION   ------->    sees GENERATION change: spinning, or woken
      runs share 0                               runs share i
      waits until DONE == workers - 1  <------   adds 1 to DONE

A generation carries the number of workers it is for in its low byte, so a thread decides from
one load whether it takes part. Waiting spins for a bounded window and then sleeps in the
kernel, so an idle team costs no CPU time. Shares run under the caller's rounding and flush mode.
"""

from __future__ import annotations

from .addresses import (
    atomic_add,
    atomic_exchange,
    atomic_load,
    atomic_store,
    call,
    float_control,
    pause,
    peek,
    poke,
    set_float_control,
)

# Slots of the team's memory in bytes; what different threads write lies on different lines.
GENERATION, DONE, SLEEPERS, CALLER_SLEEPS, OWNER = 0, 128, 256, 384, 512
ENTRY, ARGUMENTS, SYSCALL, SPINS, CONTROL = 640, 648, 656, 664, 672
SIZE = 768
WAIT, WAKE = 128, 129  # private futex operations; the call number depends on the CPU
EVERYONE = 1 << 20


def make_worker(futex: int):
    """worker(start): start holds the team's address, the worker's index, the generation seen."""

    def worker(start):
        team = peek(start)
        index = peek(start + 8)
        seen = peek(start + 16)
        running = 1
        while running == 1:
            spins = peek(team + SPINS)
            while spins > 0 and atomic_load(team + GENERATION) == seen:
                pause()
                spins -= 1
            while atomic_load(team + GENERATION) == seen:
                atomic_add(team + SLEEPERS, 1)
                call(peek(team + SYSCALL), futex, team + GENERATION, WAIT, seen & 0xFFFFFFFF, 0)
                atomic_add(team + SLEEPERS, -1)
            seen = atomic_load(team + GENERATION)
            workers = seen & 255
            if workers == 0:
                running = 0
            elif index < workers:
                set_float_control(peek(team + CONTROL))
                call(peek(team + ENTRY), peek(team + ARGUMENTS), index, 0, 0, 0)
                done = atomic_add(team + DONE, 1) + 1
                if done == workers - 1 and atomic_load(team + CALLER_SLEEPS) != 0:
                    call(peek(team + SYSCALL), futex, team + DONE, WAKE, EVERYONE, 0)
        return 0

    worker.label = "team worker"  # type: ignore[attr-defined]
    return worker, ("integer",)


def make_fan_out(futex: int):
    """fan_out(team, entry, arguments, workers): runs entry(arguments, i) for i < workers.

    A team that works for another caller leaves every share to this one.
    """

    def fan_out(team, entry, arguments, workers):
        if atomic_exchange(team + OWNER, 1) != 0:
            for share in range(workers):
                call(entry, arguments, share, 0, 0, 0)
            return 1
        poke(team + ENTRY, entry)
        poke(team + ARGUMENTS, arguments)
        poke(team + CONTROL, float_control())
        atomic_store(team + DONE, 0)
        count = (peek(team + GENERATION) >> 8) + 1
        atomic_store(team + GENERATION, (count << 8) | workers)
        if atomic_load(team + SLEEPERS) != 0:
            call(peek(team + SYSCALL), futex, team + GENERATION, WAKE, EVERYONE, 0)
        call(entry, arguments, 0, 0, 0, 0)
        spins = peek(team + SPINS)
        while spins > 0 and atomic_load(team + DONE) < workers - 1:
            pause()
            spins -= 1
        done = atomic_load(team + DONE)
        while done < workers - 1:
            atomic_store(team + CALLER_SLEEPS, 1)
            call(peek(team + SYSCALL), futex, team + DONE, WAIT, done, 0)
            atomic_store(team + CALLER_SLEEPS, 0)
            done = atomic_load(team + DONE)
        atomic_store(team + OWNER, 0)
        return 0

    fan_out.label = "team fan-out"  # type: ignore[attr-defined]
    return fan_out, ("integer",) * 4


def make_spin():
    """spin(n): n pauses, to learn what one costs on this machine."""

    def spin(n):
        for _ in range(n):
            pause()
        return 0

    spin.label = "team spin"
    return spin, ("integer",)
