"""pfl (pfl-research), SimulatedBackend with FederatedAveraging.

Settings, after pfl's guide "Fast distributed simulations" and its CIFAR-10 benchmark: `Dataset` in memory (according to
the guide the fastest if the data fits), its tensors on the training device from the start, one `Dataset` object per
user so that its batches are split once, no evaluation, no callback except a clock, central SGD with rate 1. One
process; --processes N starts N of them with torchrun, pfl's documented way to use more cores (here only on the CPU:
with torchrun, pfl 0.6.0 uses the GPU with the number of the process). Users are drawn with `minimize_reuse`: a cohort
without repetitions, as in the other systems. pfl keeps the batches of a user in a fixed order and so saves shuffling.
It also runs from a folder of sources.py.
"""

from __future__ import annotations

import argparse
import os
import sys

import numpy as np
import torch
from common import Clock, Data, Task, main, parser
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn


class Classifier(nn.Module):
    """The common module with the two methods that pfl requires.

    Args:
        module: The common module.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss on a batch."""
        return nn.functional.cross_entropy(self.module(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """Return no metrics."""
        return {}


def train(task: Task, module: nn.Module, data: Data) -> tuple[float, nn.Module]:
    """Train with pfl; return the timed seconds and the model."""
    clock = Clock(task)

    class Tick(TrainingProcessCallback):
        def after_central_iteration(self, *args: object, **kwargs: object) -> tuple[bool, Metrics]:
            clock.tick()
            return False, Metrics()

    np.random.seed(0)  # noqa: NPY002  (pfl draws users from the global generator)
    classifier = Classifier(module.to(task.device).train())
    model = PyTorchModel(
        model=classifier,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(classifier.parameters(), lr=1.0),
    )
    users = [Dataset([part.to(task.device) for part in data.user(i)], user_id=str(i)) for i in range(task.users)]
    federation = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", range(task.users)))
    FederatedAveraging().run(
        backend=SimulatedBackend(training_data=federation, val_data=federation),
        model=model,
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=task.versions,
            evaluation_frequency=task.versions + 1,
            train_cohort_size=task.cohort,
            val_cohort_size=0,
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=task.lr, local_batch_size=task.batch_size
        ),
        callbacks=[Tick()],
    )
    return clock.seconds, module


def restart(args: argparse.Namespace) -> None:
    """Replace this process by torchrun with the requested number of processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={args.processes}"]
    os.environ.setdefault("OMP_NUM_THREADS", str(args.threads or 1))
    os.execv(sys.executable, [*command, *sys.argv])


if __name__ == "__main__":
    p = parser(__doc__, ("fedavg",))
    p.add_argument("--processes", type=int, default=1)
    args = p.parse_args()
    if args.processes > 1 and args.device == "cuda":
        p.error("--processes above 1 needs one GPU per process; leave it out")
    os.environ["PFL_PYTORCH_DEVICE"] = args.device
    if args.processes > 1 and "LOCAL_RANK" not in os.environ:
        restart(args)
    main("pfl", "pfl", args, train, silent=os.environ.get("LOCAL_RANK", "0") != "0")
