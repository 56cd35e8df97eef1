# %% [markdown]
# # Time to 85 % accuracy with stragglers
#
# Fifty clients share the digits. Each has a few labels, and a fifth of the devices is five times slower than the
# rest. Four servers train the same model on them: FedAvg waits for its whole cohort, the others never wait. All of
# them see the same devices and the same delays, so the times can be compared.

# %%
import statistics

import offbeat as ob
from offbeat.data import Digits
from offbeat.environment import Speeds
from offbeat.models import MLP

TARGET, SEEDS = 0.85, (0, 1)

# %% [markdown]
# A server is an algorithm (the direction of a step) and a scheduler (when to step, and how many clients train). In
# all four, twenty clients train at the same time.

# %%
SERVERS = {
    "FedAvg, cohorts of 20": (ob.FedAvg(), ob.Rounds(concurrency=20)),
    "FedAsync, every arrival": (ob.FedAsync(alpha=0.6), ob.schedulers.PerArrival(concurrency=20)),
    "FedBuff, every 10th arrival": (ob.FedBuff(), ob.Buffered(concurrency=20, buffer=10)),
    "CA²FL, every 10th arrival": (ob.CA2FL(), ob.Buffered(concurrency=20, buffer=10)),
}


def run(algorithm, scheduler, seed):
    """Run one experiment."""
    return ob.run(
        data=Digits(),
        clients=50,
        partition=ob.partitions.Dirichlet(alpha=0.1),
        model=MLP(hidden=(64,)),
        algorithm=algorithm,
        scheduler=scheduler,
        client=ob.SGD(lr=0.1, epochs=1, batch_size=16),
        environment=ob.Environment(delay=Speeds(median=0.2, stragglers=0.2, slowdown=5.0)),
        evaluation=ob.Evaluation(every=20 if isinstance(scheduler, ob.schedulers.PerArrival) else 1, target=TARGET),
        rounds=100_000,  # the virtual time ends the run
        virtual_seconds=50.0,
        executor="vectorized",  # trains all clients in one stack; `auto` would try others first
        seed=seed,
    )


# %% [markdown]
# `target_seconds` is the virtual time at which the target was first reached, or None.

# %%
print(f"{'':34} {'accuracy':>8} {'s to 85 %':>10} {'versions':>9} {'max τ':>7}")
for name, (algorithm, scheduler) in SERVERS.items():
    results = [run(algorithm, scheduler, seed).summary for seed in SEEDS]
    accuracy = statistics.fmean(result["accuracy"] for result in results)
    times = [result["target_seconds"] for result in results if result["target_seconds"] is not None]
    reached = f"{statistics.fmean(times):.0f} ({len(times)}/{len(SEEDS)})" if times else "never"
    versions = statistics.fmean(result["rounds"] for result in results)
    staleness = max(result["staleness_max"] for result in results)
    print(f"{name:34} {accuracy:8.1%} {reached:>10} {versions:9.0f} {staleness:7}")

# %% [markdown]
# In 50 virtual seconds FedAvg completes a handful of rounds, each as long as its slowest client. FedAsync makes a
# version from every single update, some of them hundreds of versions stale. With a buffer of ten, versions are fewer
# and better, and CA²FL, which caches the latest updates of absent clients, reaches the target first.
