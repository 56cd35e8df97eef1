"""The clients to which the test examples belong."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from offbeat.client.context import TrainingContext
from offbeat.data import FederatedData, Population
from offbeat.random import stream
from offbeat.trees import size


def test_owners(context: TrainingContext) -> NDArray[np.int64]:
    """Return the client to which each test example belongs, so that each client's test set resembles its training data.

    The test examples of each label are split among the clients in proportion to their training examples with that
    label; without class labels, in proportion to the sizes of the clients. Where the data has owners of its test
    examples and each client holds whole owners, as with the partition `natural`, they decide.
    """
    dataset, data = context.data.dataset, context.data
    if dataset.test_x is None:
        owners = np.full(len(dataset), -1, dtype=np.int64)
        for client in range(data.clients):
            owners[data.indices(client)] = client
        return owners
    natural = _natural_owners(data)
    if natural is not None:
        return natural
    count = size(dataset.test_y)
    if not dataset.has_class_labels or dataset.reader is not None:
        labels, shares = np.zeros(count, dtype=np.int64), np.asarray(data.sizes, dtype=float)[:, None]
    else:
        labels, shares = dataset.test_y.numpy(), data.label_counts().astype(float)
    owners = np.full(count, -1, dtype=np.int64)
    rng = stream(0, "test-owners")
    for label in range(shares.shape[1]):
        examples, total = rng.permutation(np.flatnonzero(labels == label)), shares[:, label].sum()
        if total and len(examples):
            cuts = np.rint(np.cumsum(shares[:, label]) / total * len(examples)).astype(np.int64)
            owners[examples] = np.searchsorted(cuts, np.arange(len(examples)), side="right")
    return owners


test_owners.__test__ = False  # type: ignore[attr-defined]


def _natural_owners(data: FederatedData) -> NDArray[np.int64] | None:
    """Return the client that holds the training examples of each test example's owner; None where owners are spread."""
    dataset = data.dataset
    if dataset.owners is None or dataset.test_owners is None or isinstance(data, Population):
        return None
    owners, clients = dataset.owners.numpy(), np.repeat(np.arange(data.clients), data.sizes)
    pairs = np.unique(np.stack([owners[data.order], clients]), axis=1)
    known, first = np.unique(pairs[0], return_index=True)
    if len(known) < pairs.shape[1]:
        return None
    tested = dataset.test_owners.numpy()
    place = np.searchsorted(known, tested).clip(max=len(known) - 1)
    return np.where(known[place] == tested, pairs[1][first][place], -1)
