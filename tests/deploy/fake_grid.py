"""A Flower grid without a network: it runs the real client app in threads, one message per node at a time."""

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

Behavior = Callable[[int, Message], Error | float | None]
"""How a node handles its n-th message: an error, an additional delay in seconds, or None for no reply."""

_TRAINING = threading.Lock()  # threads that train at the same time only slow each other down


class FakeGrid(Grid):
    """A grid whose nodes are threads.

    Args:
        app: The client app.
        nodes: The node configs.
        config: The run config.
        behavior: Failures and delays.
        first_id: Id of the first node.
    """

    def __init__(
        self, app: ClientApp, nodes: Iterable[dict[str, Any]], config: dict[str, Any] | None = None,
        behavior: Behavior = lambda n, message: 0.0, first_id: int = 1000,
    ) -> None:  # fmt: skip
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1  # as in a server app's process
        self.app, self.behavior, self.config = app, behavior, config or {}
        self.contexts: dict[int, Context] = {}
        self.replies: dict[str, list[Message]] = {}
        self.pushed: list[Message] = []
        self.online: set[int] = set()
        self.unreachable = False  # whether every call fails
        self.max_in_flight = 0  # largest number of messages that were in flight at one node
        self._message_numbers, self._node_ids = itertools.count(1), itertools.count(first_id)
        self._inboxes: dict[int, queue.Queue[Message | None]] = {}
        self._threads: list[threading.Thread] = []
        self._in_flight: dict[int, int] = {}
        self._lock = threading.Lock()
        for node in nodes:
            self.join(node)

    def join(self, config: dict[str, Any], node: int | None = None) -> int:
        """Add a node and return its id."""
        node = next(self._node_ids) if node is None else node
        self.contexts[node] = Context(1, node, dict(config), RecordDict(), dict(self.config))
        self._inboxes[node], self._in_flight[node] = queue.Queue(), 0
        self._threads.append(threading.Thread(target=self._serve, args=(node, self._inboxes[node]), daemon=True))
        self._threads[-1].start()
        self.online.add(node)
        return node

    def leave(self, node: int) -> None:
        """Take a node offline."""
        self.online.discard(node)
        self._inboxes[node].put(None)

    def close(self) -> None:
        """Wait until no node is training: initializing a model uses PyTorch's global generator, which threads share."""
        for inbox in self._inboxes.values():
            inbox.put(None)
        for thread in self._threads:
            thread.join(30)

    # Methods that the server calls -------------------------------------------------------------------------------

    def get_node_ids(self) -> list[int]:
        """Return the nodes that are online."""
        self._check_reachable()
        return sorted(self.online)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Hand messages to their nodes."""
        self._check_reachable()
        return [self._push(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that are ready."""
        self._check_reachable()
        return [reply for message_id in message_ids for reply in self.replies.pop(message_id, [])]

    def _check_reachable(self) -> None:
        if self.unreachable:
            raise ConnectionError("the grid is unreachable")

    def _push(self, message: Message) -> str:
        node = message.metadata.dst_node_id
        if node not in self.online:
            return ""
        message_id = f"m{next(self._message_numbers)}"
        message.metadata.__dict__["_message_id"] = message_id
        with self._lock:
            self._in_flight[node] += 1
            self.max_in_flight = max(self.max_in_flight, self._in_flight[node])
        self.pushed.append(message)
        self._inboxes[node].put(message)
        return message_id

    def _serve(self, node: int, inbox: queue.Queue[Message | None]) -> None:
        for n in itertools.count(1):
            message = inbox.get()
            if message is None:
                return
            outcome = self.behavior(n, message)
            with self._lock:
                self._in_flight[node] -= 1
            if isinstance(outcome, Error):
                self._reply(Message(outcome, reply_to=message))
            elif outcome is not None:
                time.sleep(outcome)
                try:
                    with _TRAINING:
                        reply = self.app(message, self.contexts[node])
                    self._reply(reply)
                except Exception as error:
                    self._reply(Message(Error(2, f"{type(error).__name__}: {error}"), reply_to=message))

    def _reply(self, reply: Message) -> None:
        self.replies.setdefault(reply.metadata.reply_to_message_id, []).append(reply)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages and wait for all replies, as Flower's own strategies do."""
        waiting = set(self.push_messages(messages)) - {""}
        deadline, replies = time.monotonic() + (timeout or 60.0), []
        while waiting and time.monotonic() < deadline:
            for reply in self.pull_messages(list(waiting)):
                waiting.discard(reply.metadata.reply_to_message_id)
                replies.append(reply)
            time.sleep(0.01)
        return replies

    # Methods that nobody calls -----------------------------------------------------------------------------------

    def set_run(self, run: Any) -> None:
        """Not needed."""
        raise NotImplementedError

    @property
    def run(self) -> Any:
        """Not needed."""
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Not needed."""
        raise NotImplementedError


def unreliable(seed: int, fraction: float, codes: tuple[int, ...] = (2, 3, 5, 8)) -> Behavior:
    """Let a fraction of the messages fail, each with one of the codes, and delay the others by up to 20 ms."""
    rng = random.Random(seed)
    return lambda n, message: Error(rng.choice(codes), "by chance") if rng.random() < fraction else 0.02 * rng.random()
