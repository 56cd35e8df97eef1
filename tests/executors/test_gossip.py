"""Clients that exchange models with each other."""

from __future__ import annotations

import copy
import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import offbeat as ob
from offbeat.algorithms import Algorithm
from offbeat.algorithms.network import Network
from offbeat.algorithms.optimizers import AMSGrad
from offbeat.algorithms.topology import Complete, Given, RandomRegular, Ring, Topology, Torus, UnbalancedComplete
from offbeat.client.context import TrainingContext
from offbeat.client.runtime import ClientRuntime
from offbeat.compression import TopK
from offbeat.data import Digits, PartitionedDataset
from offbeat.executors.gossip import Gossip
from offbeat.messages import Job
from offbeat.models import LR, MLP

N, STEPS = 12, 6
WORK: dict[str, Any] = {"steps": STEPS, "batch_size": 16}


def run(algorithm: Algorithm, **more: Any) -> ob.Result:
    settings: dict[str, Any] = {
        "data": Digits(),
        "clients": N,
        "partition": ob.partitions.Dirichlet(alpha=0.1),
        "model": LR(),
        "client": ob.SGD(lr=0.1, steps=STEPS, batch_size=16),
        "scheduler": ob.Rounds(concurrency=4),
        "rounds": 15,
        "evaluation": 5,
    }
    return ob.run(algorithm=algorithm, **(settings | more))


def test_without_gossip_and_resampling_afga_is_fedamsgrad() -> None:
    plain = run(ob.algorithms.FedAMSGrad(eta=0.01), executor="vectorized")
    torch.testing.assert_close(run(ob.algorithms.AFGA(gossip=False, resample=False)).x, plain.x, rtol=0, atol=1e-6)


def test_cafga_with_one_cluster_is_afga() -> None:
    assert torch.equal(run(ob.algorithms.CAFGA(clusters=1)).x, run(ob.algorithms.AFGA()).x)


def test_dsgd_on_the_complete_graph_is_minibatch_sgd() -> None:
    """Every client has the mean after every step, so the network does SGD with the mean of N gradients."""
    result = run(
        ob.algorithms.DSGD(topology=Complete()),
        scheduler=ob.schedulers.Available(),
        rounds=3,
        client=ob.SGD(lr=0.1, steps=2, batch_size=16),
    )
    averaged = run(
        ob.FedAvg(),
        scheduler=ob.schedulers.Available(),
        rounds=6,
        client=ob.SGD(lr=0.1, steps=1, batch_size=16),
        executor="sequential",
    )
    # The batches differ (another seed per round), so the results agree in distribution, not in bytes.
    assert abs(result.evaluations[-1]["loss"] - averaged.evaluations[-1]["loss"]) < 0.1
    exact = _dsgd_by_hand(rounds=2)
    torch.testing.assert_close(exact[0], exact[1], rtol=0, atol=1e-10)


def _dsgd_by_hand(rounds: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the executor's x̄ and the result of mini-batch SGD on the same batches."""
    work, executor = _network(Network(topology=Complete(), restarts=False))
    x = expected = work.context.layout.read(work.context.module)
    for number in range(rounds):
        jobs = [Job(i, i, number, x, 3, seed=1000 * number + i) for i in range(N)]
        plans = [work.context.plan(job) for job in jobs]
        for t in range(3):
            grads = []
            for batches, counts in plans:
                index = torch.from_numpy(batches[t][: counts[t]])
                weight = torch.full((1, len(index)), 1 / len(index), dtype=torch.float64)
                grads.append(executor.stack.gradient(expected[None], index[None], weight)[0][0])
            expected = expected - 0.1 * torch.stack(grads).mean(dim=0)
        x = x + torch.stack([u.delta for u in executor.train(jobs)]).mean(dim=0)
    return x, expected


def _network(network: Network) -> tuple[ClientRuntime, Gossip]:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((120, 7), dtype=np.float32), rng.integers(3, size=120)
    dataset = ob.from_arrays(x, y, x[:9], y[:9], classes=3)
    object.__setattr__(dataset, "x", dataset.x.double())
    data = PartitionedDataset.of(dataset, np.array_split(np.arange(120), N))
    torch.manual_seed(0)
    work = ClientRuntime(
        TrainingContext(LR().build((7,), 3).double(), data, ob.SGD(lr=0.1, steps=3, batch_size=4), torch.device("cpu"))
    )
    return work, Gossip(work, network, seed=5)


def test_a_round_against_a_plain_transcription_of_the_box() -> None:
    """AFGA, Algorithm 1, lines 4–17, with loops over clients and the executor's own draws."""
    work, executor = _network(Network(topology=Ring(), resample=True))
    x = work.context.layout.read(work.context.module)
    jobs = [Job(i, c, 0, x, 5, seed=40 + c) for i, c in enumerate((1, 4, 7))]
    updates = executor.train(jobs)
    twin = _network(Network(topology=Ring(), resample=True))[1]
    twin.rounds = 1
    own: dict[int, Job] = {job.client: job for job in jobs}
    plans: dict[int, Any] = {}
    w = Ring().matrix(N, 0)
    models = [x.clone() for _ in range(N)]
    used = [0] * N
    for t in range(5):
        chosen = twin._chosen(t, own)
        assert len(chosen) == 3
        for client in map(int, chosen):
            if client not in plans:
                seed = own[client].seed if client in own else peer_seed(client)
                plans[client] = work.context.plan(Job(0, client, 0, x, 5, seed))
            batches, counts = plans[client]
            index = torch.from_numpy(batches[used[client]][: counts[used[client]]])
            weight = torch.full((1, len(index)), 1 / len(index), dtype=torch.float64)
            models[client] = (
                models[client] - 0.1 * executor.stack.gradient(models[client][None], index[None], weight)[0][0]
            )
            used[client] += 1
        models = [sum(float(w[i, j]) * models[j] for j in range(N)) for i in range(N)]  # type: ignore[misc]
    for update in updates:
        torch.testing.assert_close(update.delta, models[update.client] - x, rtol=0, atol=1e-10)


def peer_seed(client: int) -> int:
    from offbeat.random import key

    return key(5, "peer", client, 1)


def _float32_network(network: Network, clients: int = N) -> tuple[Gossip, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a network, its model x and statistics b, and which entries of x no gradient reaches.

    The last three inputs are always zero, as at the border of MNIST's images.
    """
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((10 * clients, 7), dtype=np.float32), rng.integers(3, size=10 * clients)
    x[:, 4:] = 0
    data = PartitionedDataset.of(
        ob.from_arrays(x, y, x[:9], y[:9], classes=3), np.array_split(np.arange(10 * clients), clients)
    )
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    rule = ob.SGD(lr=0.1, steps=4, batch_size=4)
    work = ClientRuntime(TrainingContext(module, data, rule, torch.device("cpu")))
    layout = work.context.layout
    start = layout.read(module) + 0.1
    untrained = torch.zeros_like(start)
    layout.unflatten(untrained)["0.weight"][:, 4:] = 1
    return Gossip(work, network, seed=5), start, work.context.buffers.read(module) + 0.3, untrained.bool()


TOPOLOGIES = [Ring(), Complete(), UnbalancedComplete(), RandomRegular(), Torus()]


@pytest.mark.parametrize("restarts", [True, False], ids=["AFGA", "decentralized"])
@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda topology: type(topology).__name__)
def test_entries_without_a_gradient_stay_exactly_zero(topology: Topology, restarts: bool) -> None:
    """A rounding error here would be a gradient to an adaptive server, which divides by the root of its square."""
    network = Network(topology=topology, resample=restarts, restarts=restarts, average_every=0 if restarts else 3)
    executor, x, b, untrained = _float32_network(network)
    for round_ in range(3):
        jobs = [Job(i, i, round_, x, 4, seed=10 * round_ + i, extra={"buffers": b}) for i in range(0, N, 2)]
        deltas = torch.stack([update.delta for update in executor.train(jobs)])
        assert not deltas[:, untrained].any()
        assert deltas[:, ~untrained].all(dim=0).any()
        x = x + deltas.mean(dim=0)


@pytest.mark.parametrize("place", ["inside", "outside"])
def test_an_adaptive_server_with_a_small_epsilon_leaves_untrained_entries_alone(place: Any) -> None:
    """The weights of pixels that are zero in all images."""
    optimizer = AMSGrad(epsilon=1e-8, epsilon_place=place, bias_correction=place == "outside")
    data = Digits()
    short, long = (run(ob.algorithms.AFGA(optimizer=optimizer), data=data, rounds=rounds).x for rounds in (1, 10))
    dark = data.load(pathlib.Path()).x.flatten(1).sum(dim=0) == 0
    assert dark.sum() >= 2
    weights = slice(0, 10 * 64)
    moved = (short != long)[weights].view(10, 64)
    assert not moved[:, dark].any()
    assert moved[:, ~dark].any()


def test_clients_that_nothing_has_reached_are_exactly_where_they_started() -> None:
    """One client of a ring steps: after four exchanges its change has traveled four places to both sides."""
    executor, x, b, _ = _float32_network(Network(topology=Ring(), restarts=False))
    (update,) = executor.train([Job(0, 0, 0, x, 4, seed=1, extra={"buffers": b})])
    assert update.delta.any()
    received = executor.context.received_buffers({"buffers": b})  # counters without a fraction
    assert executor.models is not None
    assert executor.statistics is not None
    assert received is not None
    reached = [0, 1, 2, 3, 4, 8, 9, 10, 11]
    for values, before in ((executor.models, x), (executor.statistics, received)):
        moved = (values != before).any(dim=1)
        assert moved.nonzero().flatten().tolist() == reached


def test_mixing_keeps_the_mean_and_brings_models_together() -> None:
    """W is doubly stochastic: X ← W X keeps x̄ and shrinks the distance to it by ρ at least."""
    from offbeat.algorithms.topology import rho

    for topology in (Ring(), RandomRegular(), Torus()):
        _, executor = _network(Network(topology=topology))
        models = torch.randn((N, 24), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        mixed = executor._mix(models, np.arange(N))
        torch.testing.assert_close(mixed.mean(dim=0), models.mean(dim=0))
        spread = [(m - m.mean(dim=0)).norm() for m in (models, mixed)]
        assert spread[1] <= rho(executor.matrix.numpy()) * spread[0] * (1 + 1e-9)


def test_clusters_are_separate_and_the_adapted_variant_sends_less() -> None:
    _, clustered = _network(Network(topology=Complete(), clusters=3))
    w = clustered.matrix.numpy()
    assert (w[:4, 4:] == 0).all()
    assert (w[4:8, :4] == 0).all()
    whole, adapted = run(ob.algorithms.AFGA()), run(ob.algorithms.AFGA(adapted=True))
    dim = 650
    assert whole.summary["bytes_peer"] == 15 * STEPS * N * 2 * 4 * dim, "two neighbors each, in every step"
    assert adapted.summary["bytes_peer"] == 15 * STEPS * 4 * 2 * 4 * dim, "four clients in a separate ring"


def test_rho_is_reported() -> None:
    ring = 1 / 3 + 2 / 3 * np.cos(2 * np.pi / 12)
    assert run(ob.algorithms.AFGA(), rounds=1).summary["rho"] == pytest.approx(ring)
    assert run(ob.algorithms.AFGA(topology=Complete()), rounds=1).summary["rho"] == pytest.approx(0, abs=1e-12)
    assert run(ob.algorithms.AFGA(gossip=False), rounds=1).summary["rho"] == 1.0
    four = 1 / 3 + 2 / 3 * np.cos(2 * np.pi / 4)  # rings of four: clusters of 12/3, or the four that step
    assert run(ob.algorithms.CAFGA(clusters=3), rounds=1, scheduler=ob.Rounds(concurrency=3)).summary[
        "rho"
    ] == pytest.approx(four)
    assert run(ob.algorithms.AFGA(adapted=True), rounds=1).summary["rho"] == pytest.approx(four)
    assert "rho" not in run(ob.FedAvg(), rounds=1).summary


def test_gossip_takes_time() -> None:
    """The run-time study of the paper: 1.8 s between clients, 18 s to the server."""
    from offbeat.environment import Constant

    environment = ob.Environment(delay=Constant(value=18.0))
    alone = run(ob.algorithms.AFGA(gossip=False, peer_seconds=0.0), environment=environment).summary["virtual_seconds"]
    talking = run(ob.algorithms.AFGA(peer_seconds=1.8), environment=environment).summary["virtual_seconds"]
    assert alone == pytest.approx(15 * 18)
    assert talking == pytest.approx(15 * (18 + STEPS * 1.8))


def test_a_larger_rho_is_slower() -> None:
    """The theory: a sparser network leaves more of the dissimilarity. Mean loss over the rounds and three seeds."""
    losses = {
        kind: np.mean(
            [m["loss"] for seed in range(3) for m in run(ob.algorithms.AFGA(topology=kind), seed=seed).evaluations[1:]]
        )
        for kind in (Complete(), Ring())
    }
    assert losses[Complete()] < losses[Ring()]


@pytest.mark.parametrize(
    "rule",
    [ob.algorithms.DSGD(), ob.algorithms.DAdam(), ob.algorithms.PGA(average_every=6)],
    ids=lambda r: type(r).__name__,
)
def test_decentralized_rules_learn_without_a_server(rule: Algorithm) -> None:
    adam = isinstance(rule, ob.algorithms.DAdam)
    client: ob.ClientRule = ob.Adam(lr=0.005, **WORK) if adam else ob.SGD(lr=0.1, **WORK)
    result = run(
        rule,
        scheduler=ob.schedulers.Available(),
        client=client,
        rounds=25,
        partition=ob.partitions.IID(),
    )
    assert result.accuracy > 0.6


def test_a_network_without_a_server_sends_it_nothing_and_x_is_the_mean() -> None:
    dsgd, pga = (
        run(rule, scheduler=ob.schedulers.Available(), rounds=2)
        for rule in (ob.algorithms.DSGD(), ob.algorithms.PGA(average_every=STEPS))
    )
    assert dsgd.summary["bytes_up"] == dsgd.summary["bytes_down"] == 0
    assert pga.summary["bytes_peer"] == dsgd.summary["bytes_peer"] + 2 * 4 * 650 * N * (N - 1)


def test_clusters_draw_by_weight() -> None:
    from tests.support import Quadratics

    from offbeat.algorithms.workload import Workload
    from offbeat.environment import Constant
    from offbeat.server.loop import Loop
    from offbeat.simulation.transport import SimulatedTransport

    weights = tuple(float(i % 2) for i in range(N))  # only the odd ones
    environment, rule = ob.Environment(delay=Constant()), ob.algorithms.CAFGA(clusters=3)
    rule.start(torch.zeros(2), N)
    trainer = Quadratics(torch.ones((N, 2)), lr=0.1, steps=1)
    scheduler = ob.Rounds(concurrency=3, probabilities=weights)
    loop = Loop(
        algorithm=rule,
        scheduler=scheduler,
        environment=environment,
        transport=SimulatedTransport(environment, trainer, 0),
        clients=N,
        workload=lambda _: Workload(1),
        seed=0,
    )
    loop.start()
    for _ in range(60):
        event = loop.turn().event
        assert event.job.client % 2 == 1  # type: ignore[union-attr]


def test_pga_averages_over_all_clients_every_h_steps() -> None:
    work, executor = _network(
        Network(topology=Given(rows=tuple(map(tuple, np.eye(N)))), restarts=False, average_every=3)
    )
    x = work.context.layout.read(work.context.module)
    updates = executor.train([Job(i, i, 0, x, 3, seed=i) for i in range(N)])
    assert all(torch.allclose(u.delta, updates[0].delta) for u in updates)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"client": ob.SGD(epochs=1)}, "client.steps: gossip needs the same number"),
        ({"client": ob.client_rules.Scaffold(steps=2)}, "client.name: gossip has no server with which this rule"),
        (
            {"scheduler": ob.Rounds(concurrency=5), "algorithm": ob.algorithms.CAFGA(clusters=3)},
            "cannot be divided evenly",
        ),
        ({"scheduler": ob.Buffered(concurrency=4, buffer=2)}, "AFGA does not support 'buffered'"),
        ({"scheduler": ob.Rounds(concurrency=4, deadline=0.5)}, r"scheduler\.deadline: gossip trains all"),
        ({"executor": "sequential"}, "executor: gossip stacks"),
        (
            {"algorithm": ob.algorithms.AFGA(topology=Given(rows=((1.0,),)))},
            r"algorithm\.topology\.rows: 1 rows for 12 clients",
        ),
        (
            {"algorithm": ob.algorithms.DSGD(eta=0.5), "scheduler": ob.schedulers.Available()},
            r"algorithm\.eta: there is no server",
        ),
        (
            {
                "algorithm": ob.algorithms.DSGD(),
                "scheduler": ob.schedulers.Available(),
                "compression": ob.Compression(upload=TopK()),
            },
            "compression: there is no server",
        ),
        (
            {
                "algorithm": ob.algorithms.DAdam(),
                "scheduler": ob.schedulers.Available(),
                "client": ob.client_rules.Prox(steps=2),
            },
            r"client\.name: DAdam requires the client rule 'adam'",
        ),
    ],
)
def test_what_a_network_cannot_do_is_refused(more: dict[str, Any], expected: str) -> None:
    with pytest.raises(ob.ConfigError, match=expected):
        run(more.pop("algorithm", ob.algorithms.AFGA()), **more)


def test_a_network_is_resumed_exactly(tmp_path: Any) -> None:
    from tests.support import interrupt_after

    for rule, scheduler, client in (
        (ob.algorithms.AFGA(), ob.Rounds(concurrency=4), ob.SGD(lr=0.1, **WORK)),
        (ob.algorithms.DAdam(), ob.schedulers.Available(), ob.Adam(**WORK)),
        (ob.algorithms.DSGD(), ob.schedulers.Available(), ob.SGD(lr=0.1, momentum=0.9, **WORK)),
    ):
        out = tmp_path / type(rule).__name__
        settings: dict[str, Any] = {"scheduler": scheduler, "model": MLP(hidden=(8,)), "client": client}
        whole = run(rule, **settings)
        with pytest.raises(KeyboardInterrupt):
            run(rule, **settings, out=out, watch=interrupt_after(6))
        assert torch.equal(ob.resume(out).x, whole.x)


def test_batch_norm_in_a_network_against_one_client_after_the_other() -> None:
    """Every client has its own statistics; models and statistics are mixed alike after every step."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((6 * N, 7)), rng.integers(3, size=6 * N)
    dataset = ob.from_arrays(x, y, x[:9], y[:9], classes=3)
    object.__setattr__(dataset, "x", torch.from_numpy(x))
    data = PartitionedDataset.of(dataset, np.array_split(np.arange(6 * N), N))
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).double()
    rule = ob.SGD(lr=0.1, steps=3, batch_size=4)  # batches of four and two
    work = ClientRuntime(TrainingContext(copy.deepcopy(module), data, rule, torch.device("cpu")))
    executor = Gossip(work, Network(topology=Ring()), seed=5)
    layout, buffers = work.context.layout, work.context.buffers
    start, b = layout.read(module), buffers.read(module) + 1
    jobs = [Job(i, i, 0, start, 3, seed=i, extra={"buffers": b}) for i in range(N)]
    models, statistics = start.repeat(N, 1), b.repeat(N, 1)
    plans = [work.context.plan(job) for job in jobs]
    for t in range(3):
        for i, (batches, counts) in enumerate(plans):
            layout.write(module, models[i])
            buffers.write(module, statistics[i])
            index = torch.from_numpy(batches[t][: counts[t]])
            loss = nn.functional.cross_entropy(module.train()(dataset.x[index]), dataset.y[index])
            g = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(module.parameters()))])
            models[i] = layout.read(module) - 0.1 * g
            statistics[i] = buffers.read(module)
        models, statistics = executor.matrix @ models, executor.matrix @ statistics
    for update in executor.train(jobs):
        torch.testing.assert_close(update.delta, models[update.client] - start, rtol=1e-9, atol=1e-11)
        # The module of the reference counts its batches in integers.
        same = torch.tensor(["tracked" not in name for name in buffers.names]).repeat_interleave(
            torch.tensor(buffers.sizes)
        )
        torch.testing.assert_close(
            update.extra["buffers"][same], statistics[update.client][same], rtol=1e-9, atol=1e-11
        )


def test_afga_learns_with_batch_norm_and_is_resumed_exactly(tmp_path: Any) -> None:
    from tests.support import interrupt_after

    def model() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))

    settings: dict[str, Any] = {"model": model, "client": ob.SGD(lr=0.5, drop_last=True, **WORK)}
    whole = run(ob.algorithms.AFGA(), **settings)
    assert whole.accuracy > 0.5
    with pytest.raises(KeyboardInterrupt):
        run(ob.algorithms.AFGA(), **settings, out=tmp_path / "run", watch=interrupt_after(6))
    again = run(ob.algorithms.AFGA(), **settings, out=tmp_path / "run", resume=True)
    assert torch.equal(again.x, whole.x)
    assert [line["loss"] for line in again.evaluations] == [line["loss"] for line in whole.evaluations]
