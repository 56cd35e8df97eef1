"""Folders that tests read."""

from __future__ import annotations

import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"
"""Real data sets, next to the checkout. Tests that need them are skipped where the folder is missing."""
