"""The order of the tests, and how Triton's kernels are run."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton looks for this when it is imported

LONGEST = ("test_deployments.py", "test_docs.py")  # begin first, or one worker has them left when the other is done


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))
