"""offbeat, through `offbeat.run`.

Settings: executor "auto" unless --executor names another; scheduler "rounds" for FedAvg and "continuous" for FedBuff (a
client that becomes idle is replaced at once, as in FLSim and APPFL), trips of U(0.5, 1.5) virtual seconds, staleness
weight 1, threads as offbeat chooses them. Nothing is written to disk. The time is that of the whole run, including
client selection, training, the server's step and the log. x is evaluated on a single example after the warm-up and at
the end, because that is when the public API reports the time.
"""

from __future__ import annotations

import functools

from common import BUFFER, Data, Task, main, parser
from torch import nn

import offbeat as ob
from offbeat.environment.delays import Uniform
from offbeat.vectors import Layout


def train(executor: str, task: Task, module: nn.Module, data: Data) -> tuple[float, nn.Module]:
    """Train with offbeat; return the timed seconds and the model."""
    asynchronous = task.algorithm == "fedbuff"
    result = ob.run(
        data=ob.Dataset(data.x, data.y, data.x[:1], data.y[:1], classes=10),
        partition=[range(i * task.samples, (i + 1) * task.samples) for i in range(task.users)],
        model=module,
        algorithm=ob.FedBuff(eta=task.server_rate) if asynchronous else ob.FedAvg(),
        client=ob.SGD(lr=task.lr, epochs=1, batch_size=task.batch_size),
        scheduler=ob.Continuous(concurrency=task.cohort, buffer=BUFFER)
        if asynchronous
        else ob.Rounds(concurrency=task.cohort),
        environment=ob.Environment(delay=Uniform(low=0.5, high=1.5)),
        evaluation=task.warmup_versions,
        rounds=task.versions,
        device=task.device,
        executor=executor,
    )
    warm = next(line for line in result.evaluations if line["version"] == task.warmup_versions)
    seconds = result.evaluations[-1]["wall_seconds"] - warm["wall_seconds"]
    steps = result.evaluations[-1]["client_steps"] - warm["client_steps"]
    if steps != task.timed_steps:
        raise RuntimeError(f"{steps} client steps, {task.timed_steps} expected")
    Layout.of(module).write(module.to(result.x.device), result.x)
    return seconds, module


if __name__ == "__main__":
    p = parser(__doc__, ("fedavg", "fedbuff"))
    p.add_argument("--executor", default="auto")
    args = p.parse_args()
    main("offbeat", "offbeat", args, functools.partial(train, args.executor))
