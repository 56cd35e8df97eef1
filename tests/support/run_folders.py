"""Fixtures of the report and the live page: runs of several kinds and incomplete folders."""

from __future__ import annotations

import json
import pathlib
import shutil

import pytest

from offbeat.runs import config
from offbeat.runs.api import execute
from offbeat.runs.sweep import merge

BASE: config.Table = {
    "rounds": 12,
    "executor": "vectorized",
    "client": {"lr": 0.1, "batch_size": 20, "steps": 2},
    "scheduler": {"concurrency": 6, "buffer": 3},
    "environment": {"delay": {"name": "exponential", "mean": 1.0}},
    "data": {"name": "digits", "clients": 12, "partition": {"name": "dirichlet", "alpha": 0.5, "min_size": 2}},
    "model": {"name": "lr"},
    "evaluation": {"every": 2, "target": 0.3},
}
KINDS: dict[str, config.Table] = {
    "fedbuff": {"algorithm": {"name": "fedbuff"}},
    "ca2fl": {"algorithm": {"name": "ca2fl"}, "evaluation": {"gradient_clients": 4}},
    "lossy": {"algorithm": {"name": "fedbuff"}, "environment": {"loss": 0.3, "trip_timeout": 5.0}},
    "cafga": {"algorithm": {"name": "cafga", "clusters": 2}, "scheduler": {"name": "rounds", "concurrency": 4}},
    "fedluck": {
        "algorithm": {"name": "fedluck"},
        "scheduler": {"name": "periodic", "concurrency": 12, "period": 3.0},
        "compression": {"upload": {"name": "top-k", "rate": 0.1}},
        "environment": {
            "delay": {
                "name": "devices",
                "seconds_per_step": [0.1 + 0.05 * i for i in range(12)],
                "up": [500.0 + 100 * i for i in range(12)],
                "down": [1e6] * 12,
            }
        },
    },
}


def experiment(kind: str, **more: object) -> config.Table:
    change = KINDS[kind]
    base = {name: value for name, value in BASE.items() if name != "scheduler" or name not in change}
    if "delay" in change.get("environment", {}):
        del base["environment"]
    return merge(merge(base, change), dict(more))


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return a folder of complete runs; tests that change something copy it first."""
    root = tmp_path_factory.mktemp("runs")
    sweep = []
    for kind in ("fedbuff", "ca2fl"):
        for seed in (0, 1):
            folder = f"{kind}/seed-{seed}"
            execute(config.parse(experiment(kind, seed=seed)), out=root / "sweep" / folder)
            sweep.append({"label": kind.upper(), "seed": seed, "folder": folder})
    (root / "sweep" / "sweep.json").write_text(json.dumps({"runs": sweep}))
    for kind in ("lossy", "cafga", "fedluck"):
        execute(config.parse(experiment(kind)), out=root / kind)
    return root


def with_epsilon(runs: pathlib.Path, place: pathlib.Path) -> pathlib.Path:
    """Return a run with recorded ε; the accountant need not be installed."""
    shutil.copytree(runs / "lossy", place)
    lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    told = [json.dumps(line | {"epsilon": 0.5 * number}) + "\n" for number, line in enumerate(lines)]
    (place / "metrics.jsonl").write_text("".join(told))
    return place


@pytest.fixture
def mixed(runs: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """Return a folder with complete, broken and hostile runs."""
    root = tmp_path / "mixed"
    shutil.copytree(runs, root)
    good = root / "sweep" / "ca2fl" / "seed-0"
    for name in ("torn", "garbled", "nameless", "cut", "killed", "hostile"):
        shutil.copytree(good, root / name)
    with (root / "torn" / "metrics.jsonl").open("a") as file:
        file.write('{"version": 99, "virt')  # a line that is still being written
    (root / "garbled" / "metrics.jsonl").write_text('{"version": 0}\nnot JSON\n')
    (root / "nameless" / "config.toml").write_bytes(b"\xff\xfe = [")
    (root / "cut" / "summary.json").write_text('{"accuracy": 0.')
    (root / "cut" / "updates.npy").write_bytes(b"\x93NUMPY")
    (root / "killed" / "summary.json").unlink()
    status = json.loads((root / "killed" / "status.json").read_text()) | {"state": "running"}
    (root / "killed" / "status.json").write_text(json.dumps(status))
    bad = "</script><script>document.title='owned'</script><img src=x onerror=document.title='owned'>"
    (root / "hostile" / "sweep.json").write_text(
        json.dumps({"runs": [{"label": bad, "seed": 0, "folder": "../../etc"}, 3, {"label": bad, "folder": bad[:20]}]})
    )
    inside = root / "hostile" / bad[:20].replace("/", "_")
    shutil.copytree(good, inside)
    (root / "hostile" / "config.toml").unlink()
    for name in ("status.json", "metrics.jsonl", "summary.json"):
        (root / "hostile" / name).unlink()
    (root / "hostile" / "sweep.json").write_text(
        json.dumps({"runs": [{"label": bad, "seed": 0, "folder": inside.name}]})
    )
    (root / "passwd").symlink_to("/etc")
    return root
