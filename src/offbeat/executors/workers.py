"""Worker processes: how they start, how they end, and what passes between them and their parent.

A worker is forked.  The other ways start a fresh interpreter, which runs the user's script again (it has no `__main__`
guard) and knows no class of a notebook; a fork has the modules, rules and data of the user as they are, and nothing is
pickled or copied.  Two things can go wrong in a fork of a program that has threads, and are seen to:

* OpenMP's threads do not exist in the child, and a parallel region would wait for them for ever.  The first thing a
  worker does is to ask for one thread, after which torch and the libraries below it enter no parallel region (this is
  what a DataLoader's workers do, too).  Measured: 60 of 60 children of a parent that trained a CNN with two threads
  before each fork finish; without it none does.
* autograd refuses to work in a child when the parent has used it on a machine with a GPU.  The worker tries, and there
  is an error that says so.

A worker holds nothing that could be lost, so it is ended by SIGKILL.  The kernel sends it when the parent dies, too (to
be exact: when the thread that started the worker does; whoever trains next from another thread gets new workers).
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

_QUIET = (signal.SIGINT, signal.SIGTERM)  # sent to all by a terminal or a batch system; the parent sees to them
_PR_SET_PDEATHSIG = 1
_MALLOPT = {-4: 0, -1: 2**31 - 1, -2: 2**26}  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD
_FORKING = threading.Lock()  # a worker must not inherit the other end of another's channel

Serve = Callable[[Any], Any]


class Worker:
    """A child that answers messages by `serve`, one at a time; what `serve` raises is raised by `receive`."""

    def __init__(self, serve: Serve) -> None:
        self.exitcode: int | None = None
        self._owner = os.getpid()
        with _FORKING:
            self.channel, end = multiprocessing.Pipe()
            self.pid = _fork(serve, self.channel, end)
            end.close()

    def send(self, message: Any) -> bool:
        """False when the worker is dead."""
        try:
            self.channel.send_bytes(pickle.dumps(message))
        except OSError:
            return False
        return True

    def receive(self) -> Any:
        """The answer; EOFError when the worker has died over it."""
        try:
            good, answer = pickle.loads(self.channel.recv_bytes())
        except OSError as error:
            raise EOFError from error
        if not good:
            raise answer
        return answer

    def alive(self) -> bool:
        return self.exitcode is None and self._reap(os.WNOHANG) is None

    def kill(self) -> None:
        if self._owner == os.getpid() and self.alive():  # not from a child of the user's that has inherited this object
            os.kill(self.pid, signal.SIGKILL)
            self._reap(0)
        self.channel.close()

    def _reap(self, options: int) -> int | None:
        try:
            pid, status = os.waitpid(self.pid, options)
        except ChildProcessError:  # somebody else has waited for it
            self.exitcode = 0
        else:
            self.exitcode = os.waitstatus_to_exitcode(status) if pid else None
        return self.exitcode


def _fork(serve: Serve, channel: Connection, end: Connection) -> int:
    parent, libc = os.getpid(), ctypes.CDLL(None)
    _flush()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _QUIET)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: "may lead to deadlocks"; see above
            pid = os.fork()
        if pid == 0:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            _child(serve, channel, end, parent, mask, libc)
        return pid
    except OSError as error:
        raise OffbeatError(
            f"no worker process can be started: {error.strerror}; use executor = 'sequential'"
        ) from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _child(serve: Serve, channel: Connection, end: Connection, parent: int, mask: Any, libc: Any) -> NoReturn:
    """Everything a worker ever does; it never returns into what it has inherited."""
    try:
        torch.set_num_threads(1)
        keep_memory()
        gc.freeze()  # the parent's garbage is not the worker's: finalisers delete folders
        for number in _QUIET:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        channel.close()
        refusal = _refusal()
        while os.getppid() == parent:
            message = pickle.loads(end.recv_bytes())
            end.send_bytes(_answer(serve, message, refusal))
            _flush()
    except (EOFError, OSError):
        pass  # the parent is gone
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def keep_memory() -> None:
    """Keep what is freed for the next step.  glibc gives large blocks back to the system, which then has to map and
    clear them anew at every step (measured with 2.2 million parameters: 5 of 31 ms)."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for option, value in _MALLOPT.items():
            libc.mallopt(option, value)


def _answer(serve: Serve, message: Any, refusal: ConfigError | None) -> bytes:
    try:
        if refusal is not None:
            raise refusal
        return pickle.dumps((True, serve(message)))
    except BaseException as error:
        return pickle.dumps((False, portable(error)))


def portable(error: BaseException) -> BaseException:
    """The error with the worker's traceback as a note, as itself if it can be pickled."""
    text = "".join(traceback.format_exception(error))
    with contextlib.suppress(Exception):
        whole: BaseException = pickle.loads(pickle.dumps(error))
        if type(whole) is type(error) and str(whole) == str(error):
            whole.add_note(f"In a worker process:\n{text}")
            return whole
    plain = RuntimeError(f"{type(error).__name__}: {error}")
    plain.add_note(f"In a worker process:\n{text}")
    return plain


def _refusal() -> ConfigError | None:
    """What is wrong when this child cannot differentiate."""
    try:
        torch.ones((), requires_grad=True).backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        return ConfigError(
            "'processes' cannot start: this program has computed gradients on a machine with a GPU before, after which "
            f"its child processes cannot ({str(error).splitlines()[0]})  Use 'sequential', or hide the GPU: "
            "CUDA_VISIBLE_DEVICES= (empty).",
            key="executor",
        )
    return None


def _flush() -> None:
    """What is printed before a fork must not be printed by both, what a worker prints not be lost."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # none, or closed
            stream.flush()
