"""One experiment: what is trained, by whom, under which rule, in which world."""

from __future__ import annotations

import copy
import functools
import hashlib
import os
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

from offbeat.algorithms import CA2FL, Algorithm, FedAvgIS, FedCompass, FedDyn, FedLuck
from offbeat.algorithms.network import Network
from offbeat.algorithms.optimisers import Plain
from offbeat.clients import CLIENTS, SGD, ClientRule, Dyn
from offbeat.compression import Compression, RandomK, Raw, TopK
from offbeat.data import (
    Dataset,
    Population,
    data_dir,
)
from offbeat.engine import (
    DISPATCHES,
    EXECUTORS,
    Dispatch,
    Evaluator,
    Executor,
    Gate,
    Periodic,
    Terms,
    Work,
    choose,
)
from offbeat.engine.executors import Choice, Gossip, Name, why_not_stackable
from offbeat.engine.executors.probe import worth_compiling
from offbeat.engine.work import Precision
from offbeat.errors import ConfigError
from offbeat.experiments import privacy
from offbeat.experiments.data import Data
from offbeat.models import LR, Model
from offbeat.options import Count, Natural, Options, Positive, Probability
from offbeat.seeds import key
from offbeat.world import Always, AsAsked, Forgery, Poisoning, World


@dataclass(kw_only=True, frozen=True)
class Evaluation(Options):
    """When and how x is tested."""

    every: Count = 10
    """Versions between two evaluations; the first and the last version are always tested."""
    batch_size: Count = 1000
    """Test examples at once; changes nothing but the memory that a test takes."""
    target: Probability | None = None
    """Accuracy whose first reaching is timed."""


@dataclass(kw_only=True, frozen=True)
class Experiment(Options):
    """Everything that determines a run's result."""

    data: Data = field(default_factory=Data)
    """What is learnt, and who has it."""
    model: Model = field(default_factory=LR)
    """What learns."""
    algorithm: Algorithm = field(default_factory=CA2FL)
    """Which way the server steps."""
    client: ClientRule = field(default_factory=SGD)
    """What a client does with a job."""
    dispatch: Dispatch
    """When the server steps, and how many clients it keeps busy."""
    compression: Compression = field(default_factory=Compression)
    """What travels."""
    world: World = field(default_factory=World)
    """How long trips take, who is awake, what is lost."""
    gate: Gate = field(default_factory=Gate)
    """What an update must be like to be let in."""
    evaluation: Evaluation = field(default_factory=Evaluation)
    """When x is tested."""
    rounds: Count = 100
    """Versions to make."""
    virtual_seconds: Positive | None = None
    """Virtual time after which the run ends, if it has not before."""
    seed: Natural = 0
    """Of everything random."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the clients' work and the server's step are done."""
    executor: Choice = "auto"
    """What does the clients' work; in a run of more than seconds `auto` tries those that can and takes the fastest."""
    compile: bool | None = None
    """Whether local steps on a GPU are compiled; left out, where there are enough of them to make up for the time."""
    precision: Precision = "tf32"
    """Of products and convolutions on a GPU: full, with inputs rounded to 10 bits, or bfloat16; a CPU has no TF32."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = type(self.algorithm).__name__
        name = next((name for name, kind in DISPATCHES.items() if type(self.dispatch) is kind), None)
        if name is not None and name not in self.algorithm.dispatches:
            raise ConfigError(
                f"{name!r} makes no sense for {rule}; valid: {', '.join(self.algorithm.dispatches)}.",
                key="dispatch.name",
            )
        if self.algorithm.single_step and self.client.steps != 1:
            raise ConfigError(f"{rule} is defined for one local step: give steps = 1", key="client.steps")
        if (self.algorithm.single_step or self.algorithm.plans) and not isinstance(self.world.effort, AsAsked):
            raise ConfigError(f"{rule} says itself how many steps are done", key="world.effort")
        other = self.algorithm.client_rule
        if other is not None and not isinstance(self.client, CLIENTS[other]):
            raise ConfigError(f"{rule} is the server of the client rule {other!r}", key="client.name")
        if (
            isinstance(self.algorithm, FedDyn)
            and isinstance(self.client, Dyn)
            and self.algorithm.alpha != self.client.alpha
        ):
            raise ConfigError(
                f"{self.algorithm.alpha:g}, but client.alpha is {self.client.alpha:g}", key="algorithm.alpha"
            )
        if isinstance(self.algorithm, FedLuck) and not isinstance(self.compression.upload, TopK | RandomK):
            raise ConfigError("FedLuck chooses a rate of compression: use top-k or random-k", key="compression.upload")
        privacy.check(self)

    def assemble(self, folder: str | os.PathLike[str] | None = None, runs: int = 1) -> Assembly:
        """Load the data, build the model, check that everything fits; nothing is written.

        So many `runs` like this one will be trained together.
        """
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("'cuda' is not available on this machine; valid: cpu.", key="device")
        data = self.data.load(data_dir(folder), self.seed)
        world = replace(self.world, availability=self.world.availability.among(data.label_counts))
        world.check(data.clients)
        attack, attackers = world.attack, world.attackers(self.seed, data.clients)
        if isinstance(attack, Poisoning) and attackers:
            if isinstance(data, Population):
                raise ConfigError(
                    "its clients share their examples: labels cannot be changed for some", key="data.partition"
                )
            data = data.relabelled(attackers, lambda y: attack.labels(y, data.dataset.classes))
        if isinstance(self.algorithm, FedAvgIS) and not all(
            map(world.availability.probability_of, range(data.clients))
        ):
            raise ConfigError(
                "importance sampling needs every client's probability of being awake", key="world.availability"
            )
        busy: int = getattr(self.dispatch, "concurrency", 0)
        if busy > data.clients:
            raise ConfigError(
                f"{busy} busy clients of {data.clients}: at most {data.clients}", key="dispatch.concurrency"
            )
        shares: tuple[float, ...] = getattr(self.dispatch, "probabilities", ())
        if shares and (len(shares) != data.clients or not any(shares)):
            raise ConfigError(
                f"{len(shares)} values, not all 0, for {data.clients} clients", key="dispatch.probabilities"
            )
        if self.client.batch_size > len(data.dataset.y):
            raise ConfigError(
                f"{self.client.batch_size}, but there are {len(data.dataset.y)} training examples in all",
                key="client.batch_size",
            )
        module = self.module(data.dataset)
        work = Work(
            module, data, self.client, torch.device(self.device), self.compression, self.precision, self.data.augment,
            attackers if isinstance(attack, Forgery) else frozenset(),
        )  # fmt: skip
        privacy.check_statistics(self.algorithm, bool(work.buffers.names))
        network = self.algorithm.network()
        if network is None:
            name, rates = choose(self.executor, work, self.together(data.clients), self.rounds)
            evaluator = Evaluator(work, self.evaluation.batch_size)
            executor = EXECUTORS[name](work)
            executor.compiled = executor.compiled and self._compiles(work, runs)
            return Assembly(self, world, name, executor, evaluator, rates)
        self._check_network(network, work)
        try:
            gossip = Gossip(work, network, key(self.seed, "gossip"))
            gossip.rho(busy or data.clients)  # makes every matrix that the network will need
        except ConfigError as error:
            raise error.within("algorithm.topology") from None
        gossip.compiled = gossip.compiled and self._compiles(work, runs)
        return Assembly(self, world, "vectorised", gossip, Evaluator(work, self.evaluation.batch_size))

    def _compiles(self, work: Work, runs: int) -> bool:
        if self.compile is not None:
            return self.compile
        steps = sum(work.steps(client) for client in range(self.together(work.data.clients)))
        return worth_compiling(work, runs * self.rounds * steps)

    def together(self, clients: int) -> int:
        """About how many jobs are trained at once, and at most in a round of most dispatches."""
        return getattr(self.dispatch, "concurrency", 0) or min(clients, 10)

    def _check_network(self, network: Network, work: Work) -> None:
        """Clients that talk to each other step together: as many plain steps of everybody, all models stacked."""
        obstacle = why_not_stackable(work)
        busy: int = getattr(self.dispatch, "concurrency", work.data.clients)
        plain = isinstance(self.client, SGD) and not self.client.weight_decay
        refused = [
            ("model", obstacle, f"gossip stacks all clients' models, which this one does not allow: {obstacle}"),
            (
                "executor",
                self.executor not in ("auto", "vectorised"),
                f"gossip stacks all clients' models: {self.executor!r} cannot",
            ),
            (
                "client.steps",
                self.client.steps is None,
                "gossip needs the same number of steps of everybody: give steps",
            ),
            (
                "client.name",
                bool(self.client.keeps) or bool(getattr(self.client, "momentum", 0)),
                "gossip takes plain steps: sgd without momentum, or prox",
            ),
            (
                "client.name",
                network.local == "adam" and not plain,
                "this rule's clients take Adam steps: sgd without decay",
            ),
            ("world.effort", not isinstance(self.world.effort, AsAsked), "gossip needs as many steps of everybody"),
            ("world.availability", not isinstance(self.world.availability, Always), "a network needs everybody awake"),
            (
                "world.attack",
                bool(work.forgers),
                "attackers forge what they send to a server, and clients of a network talk to each other: "
                "label-flip alone makes sense",
            ),
            ("dispatch.deadline", getattr(self.dispatch, "deadline", None), "a network trains as one: no deadline"),
            (
                "dispatch.concurrency",
                busy % network.clusters or network.clusters > work.data.clients,
                f"{busy} clients a round cannot be divided evenly among {network.clusters} clusters",
            ),
        ]
        if not network.restarts:  # x is the mean of all models, no server's doing
            rule, travels = self.algorithm, self.compression
            plain_x = rule.eta == 1.0 and isinstance(rule.optimiser, Plain)
            coded = not isinstance(travels.upload, Raw) or not isinstance(travels.download, Raw)
            refused += [
                ("algorithm.eta", not plain_x, "there is no server: eta = 1 and no optimiser"),
                ("compression", coded, "there is no server: nothing is sent to one"),
                ("world.loss", self.world.loss, "a network without a server loses no reports"),
            ]
        for where, wrong, message in refused:
            if wrong:
                raise ConfigError(message, key=where)

    def module(self, dataset: Dataset) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key(self.seed, "model") >> 1)
            try:
                module = copy.deepcopy(self.model.build(dataset.shape, dataset.classes, dataset.vocabulary))
            except ConfigError as error:
                raise error.within("model") from None
        check_module(module, dataset)
        return module


def check_module(module: nn.Module, dataset: Dataset) -> None:
    """Refuse a model that cannot be trained on the data."""
    if not any(p.requires_grad for p in module.parameters()):
        raise ConfigError("the model has no trainable parameters", key="model")
    module.eval()
    try:
        with torch.no_grad():
            outputs = module(dataset.prepare(dataset.x[:2]))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"the model does not take inputs of shape {list(dataset.shape)}: {reason}", key="model"
        ) from error
    expected = (min(2, len(dataset.x)), dataset.classes)
    shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    if shape != expected:
        raise ConfigError(
            f"the model's output for {expected[0]} inputs is {shape}, but the labels need {expected}: "
            f"one score for each of {dataset.classes} classes (from_arrays takes classes=… if some are absent)",
            key="model",
        )


@dataclass(frozen=True)
class Assembly:
    """An experiment ready to run."""

    experiment: Experiment
    world: World  # among the clients of the data set
    executor_name: Name
    executor: Executor
    evaluate: Evaluator
    rates: dict[str, float] = field(default_factory=dict)  # client-steps a second of those that were tried
    _chosen: dict[int, Terms] = field(default_factory=dict)  # by client
    _alike: dict[int, Terms] = field(default_factory=dict)  # by steps

    @property
    def work(self) -> Work:
        return self.executor.work

    @functools.cached_property
    def attackers(self) -> frozenset[int]:
        return self.world.attackers(self.experiment.seed, self.work.data.clients)

    @property
    def pool(self) -> object:
        """Equal for runs whose jobs can be trained in one stack; None where nothing is gained by it."""
        if isinstance(self.executor, Gossip) or self.executor_name == "ray" or self.executor.bulk == 1:
            return None
        if isinstance(self.world.attack, Poisoning) and self.attackers:
            return None  # its labels are its own
        work, module = self.work, self.work.module
        fixed = hashlib.sha256()  # what is no part of x must be the same for all
        for name, value in sorted(module.state_dict().items()):
            if name not in work.layout.names + work.buffers.names:
                fixed.update(name.encode() + value.cpu().numpy().tobytes())
        return (
            self.executor_name, str(work.device), work.precision, work.augment, id(work.data.dataset), str(module),
            work.layout.fingerprint, fixed.hexdigest(),
        )  # fmt: skip

    def terms(self, client: int) -> Terms:
        """What is asked of a client: as the client rule says, or as an algorithm that plans has chosen."""
        algorithm = self.experiment.algorithm
        if not algorithm.plans:
            return self._terms(self.work.steps(client))
        if client not in self._chosen:
            self._chosen[client] = self._choose(client)
        return self._chosen[client]

    def _terms(self, steps: int) -> Terms:
        """Those for so many steps; most clients have the same."""
        if steps not in self._alike:
            network = self.experiment.algorithm.network()
            self._alike[steps] = Terms(steps, network.seconds_per_step if network is not None else 0.0)
        return self._alike[steps]

    def _choose(self, client: int) -> Terms:
        algorithm, dispatch = self.experiment.algorithm, self.experiment.dispatch
        if isinstance(algorithm, FedLuck) and isinstance(dispatch, Periodic):
            k, delta = algorithm.choose(self.profile(client, 0), self.profile(client, 1), dispatch.period)
            return Terms(k, compression_rate=delta)
        assert isinstance(algorithm, FedCompass)
        return Terms(algorithm.choose(self.profile(client, 0), self._fastest))

    @functools.cached_property
    def _fastest(self) -> float:
        return min(self.profile(client, 0) for client in range(self.work.data.clients))

    def profile(self, client: int, which: int) -> float:
        """α_i (0) or β_i (1) of a device: given, or as the device itself measures it."""
        name, clients = ("alpha", "beta")[which], self.work.data.clients
        given: tuple[float, ...] = getattr(self.experiment.algorithm, name)
        if given and len(given) != clients:
            raise ConfigError(f"{len(given)} values for {clients} clients", key=f"algorithm.{name}")
        if given:
            return given[client]
        profile = self.world.delay.profile(
            client, key(self.experiment.seed, "device", client), 4 * self.work.layout.dim
        )
        if profile is None:
            raise ConfigError(
                f"give {name}, or use a delay law that knows its devices: devices, mix", key=f"algorithm.{name}"
            )
        return profile[which]
