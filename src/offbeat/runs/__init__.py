"""Experiments: described, run, resumed, swept."""
