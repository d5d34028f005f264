"""A team of native threads, in source: workers parked in machine code, jobs published in memory.

    caller                                     worker i (a native thread, no Python state)
      writes job, bumps GENERATION   ------->    sees GENERATION change: spinning, or woken
      runs share 0                               runs share i
      waits until DONE == workers - 1  <------   adds 1 to DONE

A generation carries the number of workers it is for in its low byte, so a thread decides from
one load whether it takes part. Waiting spins for a bounded window and then sleeps in the
kernel, so an idle team costs no CPU time. Shares run under the caller's rounding and flush mode.

A system may wake a thread on the CPU of the caller, who keeps it: because its CPUs were busy of
late, or because in a virtual machine a CPU that sleeps looks taken. Both would take turns on one
CPU, for seconds. So a worker writes down where it goes to sleep, and a caller about to wake it
takes CPUs out of its affinity: its own, and for one of two workers on a CPU those of all others.
The worker has its affinity back before it starts.
"""

from __future__ import annotations

from dataclasses import dataclass

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
HERE = 704
# Sets of CPUs: a worker's own, without the caller's, without any in use; in use; met so far.
FULL, APART, FREE, TAKEN, MET = 768, 896, 1024, 1152, 1280
PLACES = 1408  # of each worker: 1 + the CPU where it sleeps, 0 awake, -1 to be let go; its thread
SIZE = PLACES + 16 * 256
MASK = 128  # bytes of a set of CPUs
WAIT, WAKE = 128, 129  # private futex operations
EVERYONE = 1 << 20
PATIENCE = 3  # windows that a caller waits awake: were it asleep, the next job would find all so


@dataclass(frozen=True)
class Calls:
    """Numbers of Linux's system calls on a CPU."""

    futex: int
    thread: int  # gettid
    cpu: int  # getcpu
    allow: int  # sched_setaffinity
    allowed: int  # sched_getaffinity


def make_spread(calls: Calls):
    """spread(team, workers): sleeping workers will wake apart from the caller and each other."""
    allow, allowed, cpu_call = calls.allow, calls.allowed, calls.cpu

    def has(mask, cpu):
        return (peek(mask + (cpu >> 6) * 8) >> (cpu & 63)) & 1

    def add(mask, cpu):
        word = mask + (cpu >> 6) * 8
        poke(word, peek(word) | (1 << (cpu & 63)))

    def clear(mask):
        for word in range(0, MASK, 8):
            poke(mask + word, 0)

    def without(target, source, mask):
        # 1 where anything is left.
        left = 0
        for word in range(0, MASK, 8):
            rest = peek(source + word) & (peek(mask + word) ^ -1)
            poke(target + word, rest)
            left = left | rest
        return 1 if left != 0 else 0

    def restrict(team, place, mask, system):
        thread = peek(place + 8)
        call(system, allow, thread, MASK, mask, 0)
        if atomic_exchange(place, -1) <= 0:  # awake by itself meanwhile
            call(system, allow, thread, MASK, team + FULL, 0)
            atomic_store(place, 0)

    def spread(team, workers):
        system = peek(team + SYSCALL)
        sleeper = 0
        clear(team + TAKEN)
        clear(team + MET)
        for worker in range(1, workers):
            place = team + PLACES + worker * 16
            cpu = atomic_load(place) - 1
            if cpu >= 0 and cpu < MASK * 8:
                add(team + TAKEN, cpu)
                sleeper = peek(place + 8)
        clear(team + FULL)
        if sleeper != 0 and call(system, allowed, sleeper, MASK, team + FULL, 0) > 0:
            poke(team + HERE, 0)
            call(system, cpu_call, team + HERE, 0, 0, 0)
            here = peek(team + HERE) & (MASK * 8 - 1)
            add(team + TAKEN, here)
            add(team + MET, here)
            apart = without(team + APART, team + FULL, team + MET)
            free = without(team + FREE, team + FULL, team + TAKEN)
            for worker in range(1, workers):
                place = team + PLACES + worker * 16
                cpu = atomic_load(place) - 1
                if apart == 1 and cpu >= 0 and cpu < MASK * 8:
                    mask = team + APART
                    if has(team + MET, cpu) == 1 and free == 1:
                        mask = team + FREE
                    add(team + MET, cpu)
                    restrict(team, place, mask, system)

    return spread


def make_worker(calls: Calls):
    """worker(start): start holds the team's address, the worker's index, the generation seen, and
    a place for one number."""
    futex, thread_call, cpu_call, allow = calls.futex, calls.thread, calls.cpu, calls.allow

    def worker(start):
        team = peek(start)
        index = peek(start + 8)
        seen = peek(start + 16)
        place = team + PLACES + index * 16
        poke(place + 8, call(peek(team + SYSCALL), thread_call, 0, 0, 0, 0))
        running = 1
        while running == 1:
            spins = peek(team + SPINS)
            while spins > 0 and atomic_load(team + GENERATION) == seen:
                pause()
                spins -= 1
            while atomic_load(team + GENERATION) == seen:
                call(peek(team + SYSCALL), cpu_call, start + 24, 0, 0, 0)
                atomic_store(place, (peek(start + 24) & 0xFFFFFFFF) + 1)
                atomic_add(team + SLEEPERS, 1)
                call(peek(team + SYSCALL), futex, team + GENERATION, WAIT, seen & 0xFFFFFFFF, 0)
                atomic_add(team + SLEEPERS, -1)
                if atomic_exchange(place, 0) < 0:
                    call(peek(team + SYSCALL), allow, 0, MASK, team + FULL, 0)
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


def make_fan_out(calls: Calls):
    """fan_out(team, entry, arguments, workers): runs entry(arguments, i) for i < workers.

    A team that works for another caller leaves every share to this one.
    """
    futex = calls.futex
    spread = make_spread(calls)

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
            spread(team, workers)
            call(peek(team + SYSCALL), futex, team + GENERATION, WAKE, EVERYONE, 0)
        call(entry, arguments, 0, 0, 0, 0)
        spins = PATIENCE * peek(team + SPINS)
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
