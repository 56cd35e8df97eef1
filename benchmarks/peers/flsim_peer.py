"""FLSim: its asynchronous trainer (FedBuff, its specialty) and its synchronous one (FedAvg).

Settings: users as prepared batches on the training device (`FLDataProviderFromList`), no evaluation, no metrics, equal
weights, the default `minimize_cuda_transfer`, global SGD with rate η (η/10 for FedBuff, which sums its buffer of 10).
One client starts every 1/cohort of a virtual second and takes U(0.5, 1.5) seconds, so that `cohort` clients train on
average. One process: the asynchronous trainer has no other mode, and the synchronous one is compared with it. FLSim
keeps the batches of a user in a fixed order and so saves shuffling.

FLSim 0.1.0 uses dataclasses as defaults of other dataclasses, which Python rejects since 3.11; `legacy_dataclasses`
lets it import unchanged and has no effect later. It also runs from a folder of sources.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import random
from collections.abc import Iterator
from typing import Any

os.environ["TQDM_DISABLE"] = "1"  # no progress bars

from common import BUFFER, Clock, Data, FinishedError, Task, main, parser
from torch import Tensor, nn


@contextlib.contextmanager
def legacy_dataclasses() -> Iterator[None]:
    """Make FLSim's dataclasses hashable, so that one may be another's default as in Python 3.10."""
    original = dataclasses.dataclass

    def hashable(cls: type | None = None, /, **options: Any) -> Any:
        if cls is None:
            return lambda decorated: hashable(decorated, **options)
        return original(cls, **({"unsafe_hash": cls.__module__.startswith("flsim")} | options))

    dataclasses.dataclass = hashable  # type: ignore[assignment]
    try:
        yield
    finally:
        dataclasses.dataclass = original


with legacy_dataclasses():
    from flsim.clients.base_client import ClientConfig
    from flsim.data.data_provider import FLDataProviderFromList
    from flsim.interfaces.model import IFLModel
    from flsim.optimizers.async_aggregators import FedAvgWithLRFedBuffAggregatorConfig
    from flsim.optimizers.local_optimizers import LocalOptimizerSGDConfig
    from flsim.optimizers.server_optimizers import FedAvgWithLROptimizerConfig
    from flsim.servers.sync_servers import SyncServerConfig
    from flsim.trainers.async_trainer import AsyncTrainer, AsyncTrainerConfig
    from flsim.trainers.sync_trainer import SyncTrainer, SyncTrainerConfig
    from flsim.utils.async_trainer.training_event_generator import (
        AsyncTrainingEventGeneratorConfig,
        ConstantAsyncTrainingStartTimeDistrConfig,
    )
    from flsim.utils.simple_batch_metrics import FLBatchMetrics
    from flsim.utils.timing.training_duration_distribution import PerUserUniformDurationDistributionConfig
    from omegaconf import OmegaConf

Batch = tuple[Tensor, Tensor]


class Classifier(IFLModel):
    """The common module with FLSim's interface.

    Args:
        module: The common module.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def fl_get_module(self) -> nn.Module:
        """Return the module."""
        return self.module

    def fl_cuda(self) -> None:
        """Move the module to the GPU."""
        self.module.cuda()

    def fl_create_training_batch(self, batch: Batch) -> Batch:
        """Return the batch, which is ready for training."""
        return batch

    def fl_forward(self, batch: Batch) -> FLBatchMetrics:
        """Return the loss on a batch."""
        x, y = batch
        outputs = self.module(x)
        loss = nn.functional.cross_entropy(outputs, y)
        return FLBatchMetrics(loss=loss, num_examples=len(y), predictions=outputs, targets=y, model_inputs=x)

    def get_eval_metrics(self, batch: Batch) -> FLBatchMetrics:
        """Return the loss on a batch."""
        return self.fl_forward(batch)

    def get_num_examples(self, batch: Batch) -> int:
        """Return the size of a batch."""
        return len(batch[1])


def shared(task: Task) -> dict[str, Any]:
    """Return the settings of both trainers. The epochs are more than enough; the clock ends the run."""
    client = ClientConfig(epochs=1, optimizer=LocalOptimizerSGDConfig(lr=task.lr))
    return {
        "epochs": 1000.0,
        "do_eval": False,
        "report_train_metrics": False,
        "always_keep_trained_model": True,
        "client": client,
    }


def asynchronous(task: Task, model: Classifier, clock: Clock) -> AsyncTrainer:
    """Return the trainer for FedBuff."""

    class Timed(AsyncTrainer):
        def _global_update_done(self) -> None:
            super()._global_update_done()
            clock.tick()

    config = AsyncTrainerConfig(
        aggregator=FedAvgWithLRFedBuffAggregatorConfig(lr=task.server_rate / BUFFER, buffer_size=BUFFER),
        training_event_generator=AsyncTrainingEventGeneratorConfig(
            training_start_time_distribution=ConstantAsyncTrainingStartTimeDistrConfig(training_rate=task.cohort),
            duration_distribution_generator=PerUserUniformDurationDistributionConfig(
                training_duration_mean=1.0, training_duration_min=0.5
            ),
        ),
        **shared(task),
    )
    return Timed(model=model, cuda_enabled=task.device == "cuda", **OmegaConf.structured(config))


def synchronous(task: Task, model: Classifier, clock: Clock) -> SyncTrainer:
    """Return the trainer for FedAvg."""

    class Timed(SyncTrainer):
        def _train_one_round(self, *args: Any, **kwargs: Any) -> None:
            super()._train_one_round(*args, **kwargs)
            clock.tick()

    server = SyncServerConfig(server_optimizer=FedAvgWithLROptimizerConfig(lr=1.0))
    config = SyncTrainerConfig(users_per_round=task.cohort, server=server, **shared(task))
    return Timed(model=model, cuda_enabled=task.device == "cuda", **OmegaConf.structured(config))


def train(task: Task, module: nn.Module, data: Data) -> tuple[float, nn.Module]:
    """Train with FLSim; return the timed seconds and the model."""
    logging.disable(logging.INFO)
    random.seed(0)
    clock = Clock(task, stop=True)
    model = Classifier(module.to(task.device))
    parts = [[part.to(task.device).split(task.batch_size) for part in data.user(i)] for i in range(task.users)]
    users = [list(zip(*part, strict=True)) for part in parts]
    trainer = (asynchronous if task.algorithm == "fedbuff" else synchronous)(task, model, clock)
    with contextlib.suppress(FinishedError):
        trainer.train(
            data_provider=FLDataProviderFromList(users, [], [], model),
            metrics_reporter=None,
            num_total_users=task.users,
            distributed_world_size=1,
        )
    return clock.seconds, trainer.global_model().fl_get_module()


if __name__ == "__main__":
    main("flsim", "flsim", parser(__doc__, ("fedbuff", "fedavg")).parse_args(), train)
