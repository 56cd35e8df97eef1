"""An experiment that is ready to run."""

from __future__ import annotations

import functools
import pathlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from offbeat.algorithms.workload import Device, Workload
from offbeat.client.context import TrainingContext
from offbeat.client.evaluation import Evaluator
from offbeat.client.gradients import ClientGradients
from offbeat.client.runtime import ClientRuntime
from offbeat.environment import Environment
from offbeat.executors import Executor, Name
from offbeat.random import key
from offbeat.server.session import ServerSettings

if TYPE_CHECKING:
    from offbeat.runs.experiment import Experiment


@dataclass(frozen=True)
class Assembly:
    """An experiment with its data, model, executor and evaluator."""

    experiment: Experiment
    environment: Environment  # resolved for the clients of the data set
    executor_name: Name
    executor: Executor
    evaluate: Evaluator
    gradients: ClientGradients | None = None  # evaluated together with the metrics
    rates: dict[str, float] = field(default_factory=dict)  # client steps per second of the executors that were tried
    _planned: dict[int, Workload] = field(default_factory=dict)  # by client
    _common: dict[int, Workload] = field(default_factory=dict)  # by steps

    @property
    def runtime(self) -> ClientRuntime:
        """The clients' runtime."""
        return self.executor.runtime

    @property
    def context(self) -> TrainingContext:
        """The clients' model, data and rule."""
        return self.executor.context

    @functools.cached_property
    def attackers(self) -> frozenset[int]:
        """The clients that attack."""
        return self.environment.attackers(self.experiment.seed, self.context.data.clients)

    @property
    def pool(self) -> object:
        """A key that is equal for runs whose jobs can be trained in one stack, or None if pooling gains nothing."""
        if not self.executor.poolable:
            return None
        attack = self.environment.attack
        if attack is not None and attack.poisons_labels and self.attackers:
            return None  # the labels depend on the run's attackers
        context, module = self.context, self.context.module
        return (
            self.executor_name, str(context.device), context.precision, context.augment, id(context.data.dataset),
            context.task.pool_key, context.personalization,
            str(module), context.layout.fingerprint, context.fixed_fingerprint,
        )  # fmt: skip

    def server_settings(self, folder: pathlib.Path | None = None) -> ServerSettings:
        """Return the server's settings for a simulated run.

        Args:
            folder: Where the run keeps its files.
        """
        experiment, context, runtime = self.experiment, self.context, self.runtime
        return ServerSettings(
            algorithm=experiment.algorithm,
            scheduler=experiment.scheduler,
            environment=self.environment,
            validator=experiment.validation,
            x=context.split.shared.read(context.module),
            layout=context.split.shared,
            clients=context.data.clients,
            seed=experiment.seed,
            workload=self.workload,
            local_schedule=experiment.client.schedule,
            extension=runtime.server_extension(),
            auxiliary_sizes=runtime.auxiliary_sizes(),
            outgoing=runtime.outgoing,
            stateful=runtime.stateful,
            tests_clients=context.personalization.tests_clients,
            folder=folder,
        )

    def workload(self, client: int) -> Workload:
        """Return the workload of a client: planned by the algorithm, or the default of the client rule."""
        algorithm = self.experiment.algorithm
        if not algorithm.plans:
            return self._default(self.context.steps(client))
        if client not in self._planned:
            planned = algorithm.workload(self.device(client))
            self._planned[client] = self._default(self.context.steps(client)) if planned is None else planned
        return self._planned[client]

    def _default(self, steps: int) -> Workload:
        """Return the workload for a number of steps; clients share these objects."""
        if steps not in self._common:
            network = self.experiment.algorithm.network()
            self._common[steps] = Workload(steps, network.seconds_per_step if network is not None else 0.0)
        return self._common[steps]

    def device(self, client: int) -> Device:
        """Return what a planning algorithm may know about a client."""
        context, experiment = self.context, self.experiment
        return Device(
            client, context.data.clients, context.steps(client), experiment.scheduler.step_period, self._profile,
            self._upload_share,
        )  # fmt: skip

    def _upload_share(self, rate: float) -> float:
        """Return the size of an update compressed at a rate, as a share of the whole model's."""
        layout = self.context.split.shared
        return self.experiment.compression.upload.size(layout, rate) / (4 * layout.dim)

    def _profile(self, client: int) -> tuple[float, float] | None:
        """Return a device's seconds per step and seconds per upload, as the delay model knows them."""
        device_key = key(self.experiment.seed, "device", client)
        return self.environment.delay.profile(client, device_key, 4 * self.context.split.shared.dim)
