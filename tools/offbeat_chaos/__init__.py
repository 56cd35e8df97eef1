"""Fault injection for offbeat: kill and resume runs, and lose, duplicate, delay and damage their messages.

All faults follow from a seed. The tool starts its own processes and changes only those; the offbeat package itself
contains no code for faults apart from `offbeat.runs.hooks`.
"""
