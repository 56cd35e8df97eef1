"""Forked worker processes: how they start, how they end, and the messages between them and their parent.

Workers are forked. Other start methods launch a fresh interpreter, which runs the user's script again (it has no
`__main__` guard) and does not know the classes of a notebook. A fork has the user's modules, rules and data as they
are, and nothing is pickled or copied. Forking a program with threads has two pitfalls, both handled here:

* OpenMP's threads do not exist in the child, and a parallel region would wait for them forever. So the first thing a
  worker does is to ask for one thread, after which torch and its libraries enter no parallel region (the workers of a
  DataLoader do the same). Measured: 60 of 60 children of a parent that trained a CNN with two threads before each fork
  finish; without this none does.
* autograd refuses to work in a child if the parent has used it on a machine with a GPU. The worker tries, and reports
  an error that explains this.

A worker has nothing to lose, so it is ended by SIGKILL. The kernel also sends SIGKILL when the parent dies (more
precisely: when the thread that started the worker ends; training from another thread then starts new workers).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import torch

from offbeat.errors import ConfigError, OffbeatError

_IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM)  # terminals and batch systems signal the group; the parent reacts
_PR_SET_PDEATHSIG = 1
_MALLOPT = {-4: 0, -1: 2**31 - 1, -2: 2**26}  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD
_FORK_LOCK = threading.Lock()  # a worker must not inherit the other end of another worker's channel

Handler = Callable[[Any], Any]


class ForkedWorker:
    """A child process that answers messages one at a time.

    Attributes:
        idle: Whether it owes no answer.
        exitcode: Its exit status; None while it runs.

    Args:
        handler: Called in the child with each message; returns the answer. An exception that it raises is raised by
            `receive`.
    """

    def __init__(self, handler: Handler) -> None:
        self.idle = True
        self.exitcode: int | None = None
        self._owner = os.getpid()
        with _FORK_LOCK:
            self.channel, child_end = multiprocessing.Pipe()
            self.pid = _fork(handler, self.channel, child_end)
            child_end.close()

    def send(self, message: Any) -> bool:
        """Send a message; return False if the worker is dead."""
        try:
            self.channel.send_bytes(pickle.dumps(message))
        except OSError:
            return False
        self.idle = False
        return True

    def receive(self) -> Any:
        """Return the answer.

        Raises:
            EOFError: The worker died before it answered.
        """
        try:
            succeeded, answer = pickle.loads(self.channel.recv_bytes())
        except OSError as error:
            raise EOFError from error
        self.idle = True
        if not succeeded:
            raise answer
        return answer

    def alive(self) -> bool:
        """Return whether the process still runs."""
        return self.exitcode is None and self._reap(os.WNOHANG) is None

    def kill(self) -> None:
        """End the process, unless this object was inherited by a fork of the process that owns it."""
        if self._owner == os.getpid() and self.alive():
            os.kill(self.pid, signal.SIGKILL)
            self._reap(0)
        self.channel.close()

    def _reap(self, options: int) -> int | None:
        try:
            pid, status = os.waitpid(self.pid, options)
        except ChildProcessError:  # other code has waited for it
            self.exitcode = 0
        else:
            self.exitcode = os.waitstatus_to_exitcode(status) if pid else None
        return self.exitcode


def _fork(handler: Handler, channel: Connection, child_end: Connection) -> int:
    parent, libc = os.getpid(), ctypes.CDLL(None)
    _flush()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED_SIGNALS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: "may lead to deadlocks"; see above
            pid = os.fork()
        if pid == 0:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            _run_child(handler, channel, child_end, parent, mask)
        return pid
    except OSError as error:
        raise OffbeatError(f"cannot start a worker process: {error.strerror}; use executor = 'sequential'") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _run_child(handler: Handler, channel: Connection, child_end: Connection, parent: int, mask: Any) -> NoReturn:
    """Answer messages until the parent is gone; never return into the code of the parent."""
    try:
        torch.set_num_threads(1)
        retain_freed_memory()
        gc.freeze()  # do not collect the parent's garbage: finalizers delete folders
        for number in _IGNORED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        channel.close()
        refusal = _autograd_error()
        while os.getppid() == parent:
            message = pickle.loads(child_end.recv_bytes())
            child_end.send_bytes(_answer(handler, message, refusal))
            _flush()
    except (EOFError, OSError):
        pass  # the parent is gone
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def retain_freed_memory() -> None:
    """Make malloc keep freed memory for the next step.

    By default glibc returns large blocks to the system, which then maps and clears them again at every step (measured
    with 2.2 million parameters: 5 of 31 ms).
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for option, value in _MALLOPT.items():
            libc.mallopt(option, value)


def _answer(handler: Handler, message: Any, refusal: ConfigError | None) -> bytes:
    try:
        if refusal is not None:
            raise refusal
        return pickle.dumps((True, handler(message)))
    except BaseException as error:
        return pickle.dumps((False, portable(error)))


def portable(error: BaseException) -> BaseException:
    """Return an exception that can be pickled, with the worker's traceback as a note.

    That is the error itself where possible, else a `RuntimeError` with its type and message.
    """
    text = "".join(traceback.format_exception(error))
    with contextlib.suppress(Exception):
        copy: BaseException = pickle.loads(pickle.dumps(error))
        if type(copy) is type(error) and str(copy) == str(error):
            copy.add_note(f"In a worker process:\n{text}")
            return copy
    substitute = RuntimeError(f"{type(error).__name__}: {error}")
    substitute.add_note(f"In a worker process:\n{text}")
    return substitute


def _autograd_error() -> ConfigError | None:
    """Return an error if autograd does not work in this child."""
    try:
        torch.ones((), requires_grad=True).backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        return ConfigError(
            "'processes' cannot start: this program has already computed gradients on a machine with a GPU, after "
            f"which its child processes cannot ({str(error).splitlines()[0]}). Use 'sequential', or hide the GPU with "
            "CUDA_VISIBLE_DEVICES= (empty).",
            key="executor",
        )
    return None


def _flush() -> None:
    """Flush the standard streams: what was printed before a fork must not be printed by both processes."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # missing or closed
            stream.flush()
