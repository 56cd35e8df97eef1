"""Mixing matrices."""

from __future__ import annotations

import numpy as np
import pytest

from offbeat.algorithms.topology import (
    TOPOLOGIES,
    Complete,
    Given,
    RandomRegular,
    Ring,
    Topology,
    Torus,
    UnbalancedComplete,
    check,
    rho,
)
from offbeat.errors import ConfigError

ALL = [Ring(), Complete(), UnbalancedComplete(), RandomRegular(degree=4), Torus()]


@pytest.mark.parametrize("topology", ALL, ids=lambda t: type(t).__name__)
@pytest.mark.parametrize("n", [1, 2, 3, 5, 10, 24, 50])
def test_every_matrix_is_symmetric_and_doubly_stochastic(topology: Topology, n: int) -> None:
    w = check(topology.matrix(n, seed=3))
    assert np.allclose(w, w.T)
    assert 0 <= rho(w) < 1 + 1e-12
    assert (topology.matrix(n, seed=3) == w).all()


def test_rho_of_the_papers_networks() -> None:
    """AFGA, section 6.3: ρ = 0 and 0.995 for n = 50 complete and ring, 0.873 for a ring of ten."""
    assert rho(Complete().matrix(50, 0)) == pytest.approx(0, abs=1e-12)
    assert rho(Ring().matrix(50, 0)) == pytest.approx(0.995, abs=5e-4)
    assert rho(Ring().matrix(10, 0)) == pytest.approx(0.873, abs=5e-4)
    unbalanced = rho(UnbalancedComplete().matrix(10, 0))
    assert 0 < unbalanced < rho(RandomRegular(degree=2).matrix(10, 0)), "denser mixes faster"
    assert rho(RandomRegular(degree=6).matrix(50, 0)) < rho(Torus().matrix(50, 0)) < rho(Ring().matrix(50, 0))


def test_neighbors_of_ring_and_torus() -> None:
    assert (Ring().matrix(6, 0)[0] > 0).tolist() == [True, True, False, False, False, True]
    w = Torus().matrix(12, 0)  # 3 × 4
    assert sorted(np.flatnonzero(w[0])) == [0, 1, 3, 4, 8]
    assert w[0, 0] == pytest.approx(0.2)


def test_the_users_matrix_is_checked() -> None:
    good = Given(rows=((0.5, 0.5), (0.5, 0.5)))
    assert rho(good.matrix(2, 0)) == pytest.approx(0, abs=1e-12)
    with pytest.raises(ConfigError, match="2 rows for 3 clients"):
        good.matrix(3, 0)
    for rows in (((1.0, 0.5), (0.0, 0.5)), ((1.5, -0.5), (-0.5, 1.5))):
        with pytest.raises(ConfigError, match="not doubly stochastic"):
            Given(rows=rows)
    with pytest.raises(ConfigError, match="rows of equal length"):
        Given(rows=((1.0,), (0.5, 0.5)))
    with pytest.raises(ConfigError, match="3 is odd"):
        RandomRegular(degree=3)
    assert set(TOPOLOGIES) == {"ring", "complete", "unbalanced-complete", "random-regular", "torus", "given"}
