"""One experiment: model, data, algorithm, clients and environment."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

from offbeat.algorithms import CA2FL, Algorithm
from offbeat.client.context import Precision, TrainingContext
from offbeat.client.evaluation import Evaluator
from offbeat.client.rules import SGD, ClientRule
from offbeat.client.runtime import ClientRuntime
from offbeat.compression import Compression
from offbeat.data import Dataset, FederatedData, Population, data_dir
from offbeat.environment import Environment
from offbeat.errors import ConfigError
from offbeat.executors import EXECUTORS, Choice, Gossip, choose
from offbeat.executors.probe import worth_compiling
from offbeat.models import LR, Model
from offbeat.options import NonNegativeInt, Options, Positive, PositiveInt, Probability
from offbeat.random import key
from offbeat.runs import privacy
from offbeat.runs.assembly import Assembly
from offbeat.runs.data import Data
from offbeat.runs.network import check_network
from offbeat.scheduling import SCHEDULERS, Scheduler
from offbeat.server.validation import UpdateValidator


@dataclass(kw_only=True, frozen=True)
class Evaluation(Options):
    """When and how the model is evaluated."""

    every: PositiveInt = 10
    """Versions between two evaluations; the first and the last version are always evaluated."""
    batch_size: PositiveInt = 1000
    """Test examples per forward pass; affects only memory."""
    target: Probability | None = None
    """Accuracy whose first crossing is timed."""


@dataclass(kw_only=True, frozen=True)
class Experiment(Options):
    """Everything that determines the result of a run."""

    data: Data = field(default_factory=Data)
    """The data set and its partition among clients."""
    model: Model = field(default_factory=LR)
    """The model."""
    algorithm: Algorithm = field(default_factory=CA2FL)
    """The server's algorithm."""
    client: ClientRule = field(default_factory=SGD)
    """The clients' local training rule."""
    scheduler: Scheduler
    """When the server steps, and how many clients it keeps busy."""
    compression: Compression = field(default_factory=Compression)
    """Compression of uploads and downloads."""
    environment: Environment = field(default_factory=Environment)
    """Delays, availability, losses and attacks."""
    validation: UpdateValidator = field(default_factory=UpdateValidator)
    """Bounds that an update must meet to be accepted."""
    evaluation: Evaluation = field(default_factory=Evaluation)
    """When the model is evaluated."""
    rounds: PositiveInt = 100
    """Server steps (model versions) to make."""
    virtual_seconds: Positive | None = None
    """Virtual time after which the run ends, unless all rounds are done earlier."""
    seed: NonNegativeInt = 0
    """Seed of everything random."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where clients train and the server steps."""
    executor: Choice = "auto"
    """How clients are trained; `auto` times the candidates, unless the run is short, and chooses the fastest."""
    compile: bool | None = None
    """Whether to compile local steps on a GPU; by default if there are enough steps to pay for it."""
    precision: Precision = "tf32"
    """Precision of products and convolutions on a GPU: full, inputs rounded to 10 bits, or bfloat16."""

    def __post_init__(self) -> None:
        super().__post_init__()
        name = next((name for name, kind in SCHEDULERS.items() if type(self.scheduler) is kind), None)
        if name is not None and name not in self.algorithm.schedulers:
            raise ConfigError(
                f"{type(self.algorithm).__name__} does not support {name!r}; "
                f"valid: {', '.join(self.algorithm.schedulers)}.",
                key="scheduler.name",
            )
        self.algorithm.validate(self)
        privacy.check(self)

    def assemble(self, folder: str | os.PathLike[str] | None = None, runs: int = 1) -> Assembly:
        """Load the data, build the model and check that everything fits; nothing is written.

        Args:
            folder: The data directory; None selects the default.
            runs: Number of runs like this one that will be trained together.

        Returns:
            The experiment, ready to run.

        Raises:
            ConfigError: Settings do not fit each other, the data or this machine.
        """
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("'cuda' is not available on this machine; valid: cpu.", key="device")
        data = self.data.load(data_dir(folder), self.seed)
        environment = replace(self.environment, availability=self.environment.availability.among(data.label_counts))
        environment.check(data.clients)
        self.scheduler.validate(data.clients)
        self.algorithm.validate_participation(data.clients, environment.availability.probability_of)
        data = self._poisoned(environment, data)
        examples = len(data.dataset.y)
        if self.client.batch_size > examples:
            raise ConfigError(
                f"{self.client.batch_size} is more than the {examples} training examples in all",
                key="client.batch_size",
            )
        context = TrainingContext(
            self.module(data.dataset), data, self.client, torch.device(self.device), precision=self.precision,
            augment=self.data.augment,
        )  # fmt: skip
        privacy.check_statistics(self.algorithm, bool(context.buffers.names))
        return self._assembled(environment, ClientRuntime(context, self.compression), runs)

    def _poisoned(self, environment: Environment, data: FederatedData) -> FederatedData:
        """Return the data with the labels of poisoning attackers changed."""
        attack, attackers = environment.attack, environment.attackers(self.seed, data.clients)
        if attack is None or not attack.poisons_labels or not attackers:
            return data
        if isinstance(data, Population):
            raise ConfigError(
                "clients share examples, so labels cannot be changed for attackers only; choose another partition",
                key="data.partition",
            )
        return data.relabeled(attackers, lambda y: attack.labels(y, data.dataset.classes))

    def _assembled(self, environment: Environment, runtime: ClientRuntime, runs: int) -> Assembly:
        """Choose the executor."""
        context, network = runtime.context, self.algorithm.network()
        evaluator = Evaluator(context, self.evaluation.batch_size)
        if network is None:
            name, rates = choose(self.executor, runtime, self.together(context.data.clients), self.rounds)
            executor = EXECUTORS[name](runtime)
        else:
            check_network(self, network, context)
            name, rates = "vectorized", {}
            try:
                cohort = self.scheduler.cohort(context.data.clients)
                executor = Gossip(runtime, network, key(self.seed, "gossip"), cohort)
            except ConfigError as error:
                raise error.within("algorithm.topology") from None
        executor.compiled = executor.compiled and self._compiles(context, runs)
        return Assembly(self, environment, name, executor, evaluator, rates)

    def _compiles(self, context: TrainingContext, runs: int) -> bool:
        if self.compile is not None:
            return self.compile
        steps = sum(context.steps(client) for client in range(self.together(context.data.clients)))
        return worth_compiling(context, runs * self.rounds * steps)

    def together(self, clients: int) -> int:
        """Return about how many jobs are trained at once."""
        return self.scheduler.concurrency or min(clients, 10)

    def module(self, dataset: Dataset) -> nn.Module:
        """Build the model for a data set, initialized by the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key(self.seed, "model") >> 1)
            try:
                module = copy.deepcopy(self.model.build(dataset.shape, dataset.classes, dataset.vocabulary))
            except ConfigError as error:
                raise error.within("model") from None
        check_module(module, dataset)
        return module


def check_module(module: nn.Module, dataset: Dataset) -> None:
    """Check that a model can be trained on a data set.

    Raises:
        ConfigError: The model has no parameters, or does not fit the inputs or the number of classes.
    """
    if not any(p.requires_grad for p in module.parameters()):
        raise ConfigError("the model has no trainable parameters", key="model")
    module.eval()
    try:
        with torch.no_grad():
            outputs = module(dataset.prepare(dataset.x[:2]))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"the model does not accept inputs of shape {list(dataset.shape)}: {reason}", key="model"
        ) from error
    expected = (min(2, len(dataset.x)), dataset.classes)
    shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    if shape != expected:
        raise ConfigError(
            f"the model's output for {expected[0]} inputs is {shape}, but the labels need {expected}: "
            f"one score for each of the {dataset.classes} classes (pass classes=… to from_arrays if some are absent)",
            key="model",
        )
