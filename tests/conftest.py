"""The order of the tests."""

from __future__ import annotations

import pytest

LONGEST = ("test_deployments.py", "test_docs.py")  # begin first, or one worker has them left when the other is done


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))
