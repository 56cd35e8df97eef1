"""Assignment of Flower's nodes to clients.

Algorithms number their clients 0 … N − 1; Flower has node ids, which come and go. A new node becomes the next unused
client. When all N clients are assigned, it replaces a node that has left: a node that restarts without a key returns
under a new id. If no node has left, it waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from offbeat.environment import Environment
from offbeat.environment.availability import Availability, Span


class NodeRegistry:
    """The node of each client, and the clients that are online.

    Args:
        clients: Number of clients N.
    """

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self.client_of: dict[int, int] = {}  # by node id
        self.online: frozenset[int] = frozenset()  # clients
        self.reserved: frozenset[int] = frozenset()  # clients with a message other than a job
        self.unassigned: list[int] = []  # ids of nodes that wait for a client

    def update(self, present: Iterable[int], busy: Iterable[int] = ()) -> bool:
        """Assign clients to the nodes that are online.

        Args:
            present: Ids of all nodes that are online.
            busy: Clients that keep their node although it may have left.

        Returns:
            Whether the set of online clients has changed.
        """
        nodes = sorted(set(present))
        occupied = {client for node, client in self.client_of.items() if node in nodes} | set(busy)
        for node in [n for n in nodes if n not in self.client_of]:
            client = next((c for c in range(self.clients) if c not in self.client_of.values()), None)
            if client is None:
                client = next((c for c in range(self.clients) if c not in occupied), None)
            if client is None:
                continue
            self.client_of = {n: c for n, c in self.client_of.items() if c != client} | {node: client}
            occupied.add(client)
        online = frozenset(client for node, client in self.client_of.items() if node in nodes)
        self.unassigned = [node for node in nodes if node not in self.client_of]
        changed, self.online = online != self.online, online
        return changed

    @property
    def available(self) -> frozenset[int]:
        """Clients that the scheduler may sample, unless they are training."""
        return self.online - self.reserved

    def node_of(self, client: int) -> int | None:
        """Return the node of a client, or None if it has none."""
        return next((node for node, assigned in self.client_of.items() if assigned == client), None)

    def state_dict(self) -> dict[str, Any]:
        """Return the assignment."""
        return {"client_of": [[str(node), client] for node, client in self.client_of.items()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the assignment; nodes count as offline until the next update."""
        self.client_of = {int(node): client for node, client in state["client_of"]}


@dataclass(kw_only=True, frozen=True)
class NodeAvailability(Availability):
    """Clients are available while their nodes are online, as of the last event."""

    nodes: NodeRegistry

    def span(self, client: int, client_key: int, now: float) -> Span:
        """Return whether the client is available now."""
        return client in self.nodes.available, now

    def next_change(self, now: float) -> float:
        """Return the current time: the transport reports changes, so the loop checks at every event."""
        return now


def live_environment(nodes: NodeRegistry) -> Environment:
    """Return an environment in which nothing is simulated: availability is that of the nodes."""
    return Environment(availability=NodeAvailability(nodes=nodes))
