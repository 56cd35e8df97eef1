"""A grid without a network: it runs the real client app, one message a node at a time, in threads."""

from __future__ import annotations

import itertools
import queue
import random
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

Fate = Callable[[int, Message], Error | float | None]
"""What becomes of a node's n-th message: an error, seconds that it takes beside the training, or None: no reply."""


_ONE = threading.Lock()  # threads that train at the same time only take the interpreter away from each other


class Double(Grid):
    def __init__(
        self, app: ClientApp, nodes: Iterable[dict[str, Any]], config: dict[str, Any] | None = None,
        fate: Fate = lambda n, message: 0.0, first: int = 1000,
    ) -> None:  # fmt: skip
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1  # as in a server app's process
        self.app, self.fate, self.config = app, fate, config or {}
        self.contexts: dict[int, Context] = {}
        self.replies: dict[str, list[Message]] = {}
        self.pushed: list[Message] = []
        self.online: set[int] = set()
        self.down = False  # every call fails
        self.most = 0  # messages that were ever out at one node at once
        self._numbers, self._ids = itertools.count(1), itertools.count(first)
        self._inboxes: dict[int, queue.Queue[Message | None]] = {}
        self._threads: list[threading.Thread] = []
        self._out: dict[int, int] = {}
        self._lock = threading.Lock()
        for node in nodes:
            self.join(node)

    def join(self, node: dict[str, Any], identity: int | None = None) -> int:
        identity = next(self._ids) if identity is None else identity
        self.contexts[identity] = Context(1, identity, dict(node), RecordDict(), dict(self.config))
        self._inboxes[identity], self._out[identity] = queue.Queue(), 0
        self._threads.append(
            threading.Thread(target=self._serve, args=(identity, self._inboxes[identity]), daemon=True)
        )
        self._threads[-1].start()
        self.online.add(identity)
        return identity

    def leave(self, identity: int) -> None:
        self.online.discard(identity)
        self._inboxes[identity].put(None)

    def close(self) -> None:
        """Nobody trains any more: models are made with torch's global generator, which threads would share."""
        for inbox in self._inboxes.values():
            inbox.put(None)
        for thread in self._threads:
            thread.join(30)

    # What a server app calls -----------------------------------------------------------------------------------

    def get_node_ids(self) -> list[int]:
        self._answer()
        return sorted(self.online)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        self._answer()
        return [self._push(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        self._answer()
        return [reply for identity in message_ids for reply in self.replies.pop(identity, [])]

    def _answer(self) -> None:
        if self.down:
            raise ConnectionError("nobody there")

    def _push(self, message: Message) -> str:
        node = message.metadata.dst_node_id
        if node not in self.online:
            return ""
        identity = f"m{next(self._numbers)}"
        message.metadata.__dict__["_message_id"] = identity
        with self._lock:
            self._out[node] += 1
            self.most = max(self.most, self._out[node])
        self.pushed.append(message)
        self._inboxes[node].put(message)
        return identity

    def _serve(self, node: int, inbox: queue.Queue[Message | None]) -> None:
        for n in itertools.count(1):
            message = inbox.get()
            if message is None:
                return
            fate = self.fate(n, message)
            with self._lock:
                self._out[node] -= 1
            if isinstance(fate, Error):
                self._reply(Message(fate, reply_to=message))
            elif fate is not None:
                time.sleep(fate)
                try:
                    with _ONE:
                        reply = self.app(message, self.contexts[node])
                    self._reply(reply)
                except Exception as error:
                    self._reply(Message(Error(2, f"{type(error).__name__}: {error}"), reply_to=message))

    def _reply(self, reply: Message) -> None:
        self.replies.setdefault(reply.metadata.reply_to_message_id, []).append(reply)

    # What nobody calls -----------------------------------------------------------------------------------------

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """As Flower's own strategies call it."""
        waiting = set(self.push_messages(messages)) - {""}
        end, replies = time.monotonic() + (timeout or 60.0), []
        while waiting and time.monotonic() < end:
            for reply in self.pull_messages(list(waiting)):
                waiting.discard(reply.metadata.reply_to_message_id)
                replies.append(reply)
            time.sleep(0.01)
        return replies


def unreliable(seed: int, share: float, codes: tuple[int, ...] = (2, 3, 5, 8)) -> Fate:
    """A share of the messages fails, each with one of the codes; the others take up to 20 ms more."""
    rng = random.Random(seed)
    return lambda n, message: Error(rng.choice(codes), "by chance") if rng.random() < share else 0.02 * rng.random()
