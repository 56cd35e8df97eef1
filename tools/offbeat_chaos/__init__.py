"""Faults on purpose, drawn from a seed: runs are killed and resumed, messages are lost, doubled, late and damaged.

Nothing in the other rooms knows of this one.
"""
