"""Which node is which client.

Algorithms know clients 0 … N − 1; Flower knows node ids, which come and go.  A node that is seen for the first time
becomes the next client; when all N are given away, it takes the place of one that has gone (a node that is restarted
without a key of its own comes back under a new id).  While there is none it has to wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from offbeat.environment import Environment
from offbeat.environment.availability import Availability, Span


class Nodes:
    def __init__(self, clients: int) -> None:
        self.clients = clients
        self.client_of: dict[int, int] = {}  # by node
        self.online: frozenset[int] = frozenset()  # clients
        self.reserved: frozenset[int] = frozenset()  # clients that are busy with something else than training
        self.waiting: list[int] = []  # nodes without a place

    def adopt(self, seen: Iterable[int], busy: Iterable[int] = ()) -> bool:
        """Take over who is there; True when that has changed.  Clients that are `busy` keep their places."""
        present = sorted(set(seen))
        taken = {client for node, client in self.client_of.items() if node in present} | set(busy)
        for node in [n for n in present if n not in self.client_of]:
            free = next((c for c in range(self.clients) if c not in self.client_of.values()), None)
            if free is None:
                free = next((c for c in range(self.clients) if c not in taken), None)
            if free is None:
                continue
            self.client_of = {n: c for n, c in self.client_of.items() if c != free} | {node: free}
            taken.add(free)
        online = frozenset(client for node, client in self.client_of.items() if node in present)
        self.waiting = [node for node in present if node not in self.client_of]
        changed, self.online = online != self.online, online
        return changed

    @property
    def available(self) -> frozenset[int]:
        """Whom the loop may draw, unless they are busy."""
        return self.online - self.reserved

    def node_of(self, client: int) -> int | None:
        """None while nobody has the place."""
        return next((node for node, place in self.client_of.items() if place == client), None)

    def state_dict(self) -> dict[str, Any]:
        return {"client_of": [[str(node), client] for node, client in self.client_of.items()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.client_of = {int(node): client for node, client in state["client_of"]}


@dataclass(kw_only=True, frozen=True)
class Online(Availability):
    """Who is connected, as of the last event."""

    nodes: Nodes

    def span(self, client: int, client_key: int, now: float) -> Span:
        return client in self.nodes.available, now

    def next_change(self, now: float) -> float:
        """A transport reports changes by itself: look again whenever there is an event."""
        return now


def live_environment(nodes: Nodes) -> Environment:
    """The world as a loop sees it: no laws but who is there."""
    return Environment(availability=Online(nodes=nodes))
