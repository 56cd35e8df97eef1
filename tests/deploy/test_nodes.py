"""Tests of offbeat.flower.nodes: which node is which client."""

from __future__ import annotations

from offbeat.flower.nodes import NodeRegistry


def test_nodes_are_assigned_to_clients() -> None:
    nodes = NodeRegistry(3)
    assert nodes.update([50, 40])
    assert nodes.client_of == {40: 0, 50: 1}
    assert not nodes.update([40, 50])
    assert nodes.update([50, 60, 70])
    assert nodes.online == {1, 2, 0}, "70 replaces 40, which has left"
    assert nodes.node_of(0) == 70
    assert not nodes.update([50, 60, 70, 80])
    assert nodes.unassigned == [80]
    nodes.update([60, 70, 90], busy=[1])
    assert nodes.node_of(1) == 50, "its job is still in flight"
    assert nodes.unassigned == [90]
    restored = NodeRegistry(3)
    restored.load_state_dict(nodes.state_dict())
    assert restored.client_of == nodes.client_of
