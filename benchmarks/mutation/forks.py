"""Functions called in processes of their own, forked, so that one that breaks everything breaks nothing else."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

T, R = TypeVar("T"), TypeVar("R")
AHEAD = 16  # calls that may have finished before the first has
MEMORY = 6 << 30  # bytes of data that a process may have


class TooSlow(Exception):
    """What should take a second has no end."""


def forked(function: Callable[[T], R], items: Iterable[T], jobs: int, limit: float) -> Iterator[tuple[T, R | None]]:
    """Each item with what the function makes of it, in order; None where it died or took longer than `limit` seconds.

    Items are taken as they are needed, so there may be more than anybody wants.
    """
    context, running = multiprocessing.get_context("fork"), deque[tuple[T, Any, Connection]]()
    try:
        for item in items:
            mine, its = context.Pipe(duplex=False)
            process = context.Process(target=_call, args=(function, item, its))
            process.start()
            its.close()
            running.append((item, process, mine))
            while len(busy := [pipe for *_, pipe in running if not pipe.poll()]) >= jobs or len(running) > AHEAD:
                if not running[0][2].poll() and len(running) <= AHEAD and wait(busy, limit):
                    continue  # one has finished, though not the first
                yield _finished(*running.popleft(), limit)
        while running:
            yield _finished(*running.popleft(), limit)
    finally:
        for _, process, _ in running:
            process.kill()


def _finished(item: T, process: Any, pipe: Connection, limit: float) -> tuple[T, Any]:
    try:
        return item, pipe.recv() if pipe.poll(limit) else None
    except EOFError:
        return item, None
    finally:
        process.kill()
        process.join()
        pipe.close()


def _call(function: Callable[[T], R], item: T, pipe: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    pipe.send(function(item))


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raises `TooSlow` in what takes longer."""

    def stop(*_: Any) -> None:
        raise TooSlow(f"longer than {seconds:g} s")

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
