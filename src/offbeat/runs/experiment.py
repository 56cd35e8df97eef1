"""One experiment: model, data, algorithm, clients and environment."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

from offbeat.algorithms import CA2FL, Algorithm
from offbeat.client.context import Precision, TrainingContext
from offbeat.client.evaluation import Evaluator
from offbeat.client.gradients import ClientGradients
from offbeat.client.owners import test_owners
from offbeat.client.personalization import Personalization
from offbeat.client.rules import SGD, ClientRule
from offbeat.client.runtime import ClientRuntime
from offbeat.compression import Compression
from offbeat.data import Dataset, FederatedData, Population, data_dir
from offbeat.environment import Environment
from offbeat.errors import ConfigError, first_line, nearest
from offbeat.executors import EXECUTORS, Choice, Gossip, choose
from offbeat.executors.probe import worth_compiling
from offbeat.metric_info import MetricInfo
from offbeat.models import LR, Model
from offbeat.options import Finite, NonNegativeInt, Options, Positive, PositiveInt
from offbeat.random import key
from offbeat.runs import privacy
from offbeat.runs.assembly import Assembly
from offbeat.runs.budget import Budget
from offbeat.runs.data import Data
from offbeat.runs.network import check_network
from offbeat.scheduling import SCHEDULERS, Scheduler
from offbeat.server.validation import UpdateValidator
from offbeat.tasks import Classification, Task
from offbeat.trees import Tree, call, describe, map_tensors, size

MAX_CLIENTS = 20_000  # for metrics per client
_LOG = logging.getLogger("offbeat")


@dataclass(kw_only=True, frozen=True)
class Evaluation(Options):
    """When and how the model is evaluated, and when a run may stop early."""

    every: PositiveInt = 10
    """Versions between two evaluations; the first and the last version are always evaluated."""
    batch_size: PositiveInt = 1000
    """Test examples per forward pass; affects only memory."""
    target: Finite | Mapping[str, float] | None = None
    """Value of a metric whose first crossing is timed: of the main metric, such as 0.9, or by name, { mae = 0.5 }.
    Percentages may be given either way: 0.9 and 90 are equal."""
    stop_at_target: bool = False
    """Whether the run ends at the first evaluation that reaches the target."""
    patience: PositiveInt | None = None
    """Evaluations without an improvement of the main metric after which the run ends."""
    examples: PositiveInt | None = None
    """Number of test examples to use, a fixed random sample; all if not given."""
    per_client: bool = False
    """Whether metrics are also computed per client, on a test set that resembles its training data; with
    `personalization` they always are."""
    per_label: bool = False
    """Whether metrics are also computed per class label."""
    gradient_clients: PositiveInt | None = None
    """Number of clients, a fixed random sample, on whose training data the training loss, ‖∇f(x)‖² and the
    heterogeneity σ_g² are computed at every evaluation; none if not given."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.target, Mapping) and (
            len(self.target) != 1 or not all(isinstance(v, int | float) for v in self.target.values())
        ):
            raise ConfigError(
                f"{self.target!r} is not one metric with its value, such as {{ mae = 0.5 }}", key="target"
            )
        if self.stop_at_target and self.target is None:
            raise ConfigError("true, but there is no target; give evaluation.target", key="stop_at_target")

    def target_of(self, task: Task) -> tuple[MetricInfo, float] | None:
        """Return the metric of the target and its value; None without a target.

        Raises:
            ConfigError: The task has no such metric, or its direction is unknown.
        """
        if self.target is None:
            return None
        infos = {info.name: info for info in task.metric_infos()}
        by_name = self.target if isinstance(self.target, Mapping) else {task.main.name: self.target}
        name, value = next(iter(by_name.items()))
        if name not in infos:
            raise ConfigError(f"unknown metric {name!r}; {nearest(name, list(infos))}", key="evaluation.target")
        info = infos[name]
        if info.higher_is_better is None:
            raise ConfigError(
                f"whether higher values of {name!r} are better is unknown; pass Metric(…, higher_is_better=…)",
                key="evaluation.target",
            )
        if (target := info.target(float(value))) is None:
            raise ConfigError(
                f"{value!r} is neither a fraction nor a percentage; give {name} as 0.85 or 85", key="evaluation.target"
            )
        return info, target


@dataclass(kw_only=True, frozen=True)
class Experiment(Options):
    """Everything that determines the result of a run."""

    data: Data = field(default_factory=Data)
    """The data set and its partition among clients."""
    model: Model = field(default_factory=LR)
    """The model."""
    task: Task = field(default_factory=Classification)
    """What is learned: the loss and the metrics."""
    algorithm: Algorithm = field(default_factory=CA2FL)
    """The server's algorithm."""
    client: ClientRule = field(default_factory=SGD)
    """The clients' local training rule."""
    scheduler: Scheduler
    """When the server steps, and how many clients it keeps busy."""
    personalization: Personalization = field(default_factory=Personalization)
    """Parameters that stay on the clients, and fine-tuning before a client is tested."""
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
    budget: Budget | None = None
    """Client steps, updates, bytes or time after which the run ends, unless all rounds are done earlier."""
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
        if self.client.sends and self.client.server() is None:
            raise ConfigError(
                f"{type(self.client).__name__} sends {', '.join(self.client.sends)}, but nothing at the server "
                "receives it; return a ServerExtension from `server`, or remove `sends`",
                key="client",
            )
        self.algorithm.validate(self)
        privacy.check(self)
        self.evaluation.target_of(self.task)
        if self.evaluation.patience is not None and self.task.main.higher_is_better is None:
            raise ConfigError(
                f"whether higher values of {self.task.main.name!r} are better is unknown; "
                "pass Metric(…, higher_is_better=…)",
                key="evaluation.patience",
            )

    @property
    def time_limit(self) -> float | None:
        """The virtual time after which the run ends, by its own key or its budget."""
        limits = (self.virtual_seconds, self.budget.virtual_seconds if self.budget is not None else None)
        return min((limit for limit in limits if limit is not None), default=None)

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
        self.task.check_labels(known_labels(data.dataset), data.dataset.classes)
        environment = replace(self.environment, availability=self.environment.availability.among(data.label_counts))
        environment.check(data.clients)
        self.scheduler.validate(data.clients)
        self.algorithm.validate_participation(data.clients, environment.availability.probability_of)
        data = self._poisoned(environment, data)
        examples = len(data.dataset)
        if self.client.batch_size > examples:
            raise ConfigError(
                f"{self.client.batch_size} is more than the {examples} training examples in all",
                key="client.batch_size",
            )
        context = self.context(data)
        privacy.check_statistics(self.algorithm, bool(context.split.shared_buffers.names))
        return self._assembled(environment, ClientRuntime(context, self.compression), runs)

    def context(self, data: FederatedData) -> TrainingContext:
        """Build the model for a data set, and everything else that local training needs.

        Raises:
            ConfigError: The model does not suit the data, the task, the batches or the personalization.
        """
        context = TrainingContext(
            self.module(data.dataset), data, self.client, torch.device(self.device), precision=self.precision,
            augment=self.data.augment, task=self.task, personalization=self.personalization,
        )  # fmt: skip
        context.check_batches()
        return context

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
        classes = data.dataset.classes
        if classes is None:
            raise ConfigError("attackers can only change class labels; choose another attack", key="environment.attack")
        return data.relabeled(attackers, lambda y: attack.labels(y, classes))

    def _assembled(self, environment: Environment, runtime: ClientRuntime, runs: int) -> Assembly:
        """Choose the executor."""
        context, network = runtime.context, self.algorithm.network()
        evaluator, gradients = self._evaluator(context), self._gradients(context)
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
        return Assembly(self, environment, name, executor, evaluator, gradients, rates)

    def _evaluator(self, context: TrainingContext) -> Evaluator:
        settings, dataset = self.evaluation, context.data.dataset
        per_client = settings.per_client or self.personalization.tests_clients
        if per_client and context.data.clients > MAX_CLIENTS:
            raise ConfigError(
                f"{context.data.clients:,} clients are too many for metrics per client; at most {MAX_CLIENTS:,}",
                key="evaluation.per_client" if settings.per_client else "personalization",
            )
        if settings.per_label and not (dataset.has_class_labels and dataset.reader is None):
            raise ConfigError(
                "true, but the test examples have no class labels in memory; remove it", key="evaluation.per_label"
            )
        if dataset.test_x is None:
            _LOG.warning("there is no test data: all metrics are those of the training data")
        owners = test_owners(context) if per_client else None
        return Evaluator(
            context, settings.batch_size, examples=settings.examples, owners=owners, per_label=settings.per_label
        )

    def _gradients(self, context: TrainingContext) -> ClientGradients | None:
        count = self.evaluation.gradient_clients
        if count is not None and context.split.own.names:
            raise ConfigError(
                "part of the model stays on the clients, so x alone has no gradient: remove it or personalization",
                key="evaluation.gradient_clients",
            )
        return None if count is None else ClientGradients(context, count, self.evaluation.batch_size)

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
        outputs = self.task.output_size(first_examples(dataset)[1], dataset.outputs)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key(self.seed, "model") >> 1)
            try:
                module = copy.deepcopy(self.model.build(dataset.shape, outputs, dataset.vocabulary))
            except ConfigError as error:
                raise error.within("model") from None
        check_module(module, dataset, self.task)
        return module


def known_labels(dataset: Dataset) -> Tree:
    """Return the labels of all training examples, or of the first ones if examples are read when they are needed."""
    return dataset.y if dataset.reader is None else first_examples(dataset)[1]


def first_examples(dataset: Dataset) -> tuple[Tree, Tree]:
    """Return the inputs and labels of two training examples, or of one if there are no more."""
    if dataset.reader is not None:
        return dataset.reader.read(range(min(2, len(dataset))), 0)
    inputs, labels = (map_tensors(lambda t: t[:2], tree) for tree in (dataset.x, dataset.y))
    return dataset.prepare(inputs), dataset.prepare_labels(labels)


def check_module(module: nn.Module, dataset: Dataset, task: Task) -> None:
    """Check that a model can be trained on a data set.

    Raises:
        ConfigError: The model has no parameters, or does not fit the inputs, the labels or the task.
    """
    if not any(p.requires_grad for p in module.parameters()):
        raise ConfigError("the model has no trainable parameters", key="model")
    module.eval()
    inputs, labels = first_examples(dataset)
    try:
        with torch.no_grad():
            outputs = call(module, inputs)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ConfigError(
            f"the model does not accept inputs of shape {describe(inputs)}: {first_line(error)}", key="model"
        ) from error
    task.check_outputs(outputs, labels, dataset.classes)
    try:
        losses = task.losses(call(module, inputs), labels, size(labels))
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, KeyError) as error:
        raise ConfigError(
            f"it failed on the model's outputs and the labels: {type(error).__name__}: {first_line(error)}",
            key="task.loss",
        ) from error
    if not losses.requires_grad:
        raise ConfigError(
            "it does not depend on the model's parameters; is something detached, or converted to NumPy?",
            key="task.loss",
        )
    _check_broadcasting(module, inputs, labels, task)


@torch.no_grad()
def _check_broadcasting(module: nn.Module, inputs: Tree, labels: Tree, task: Task) -> None:
    """Check that losses and metrics do not combine the examples of a batch, as (B, 1) minus (B,) does: it is (B, B).

    Raises:
        ConfigError: The shape of one example's values depends on the number of examples.
    """
    metrics = {f"metrics.{name}": each.function for name, each in task.resolved_metrics().items() if not each.streams}
    first = map_tensors(lambda t: t[:1], (inputs, labels))
    for name, function in {"loss": task.loss, **metrics}.items():
        try:
            whole, one = (function(call(module, x), y) for x, y in ((inputs, labels), first))
        except Exception:  # the model may need two examples; other errors are reported where they matter
            continue
        if isinstance(whole, Tensor) and isinstance(one, Tensor) and whole.shape[1:] != one.shape[1:]:
            raise ConfigError(
                f"it returned {list(whole.shape)} for {size(labels)} examples and {list(one.shape)} for one: outputs "
                "and labels were broadcast against each other; give them the same shape, such as outputs.squeeze(-1)",
                key=f"task.{name}",
            )
