"""Generate docs/reliability.md from the results of campaigns: `python benchmarks/chaos/page.py`.

    offbeat chaos benchmarks/chaos/NAME.toml --kills 40 --out runs/chaos/NAME
    python benchmarks/chaos/page.py runs/chaos/*/chaos.json

Given files, it first copies their results to results/NAME.json. No figure on the page is typed by hand.
"""

from __future__ import annotations

import json
import pathlib
import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[1] / "tools"))  # not part of the installed package

from offbeat_chaos.messages import FATES  # noqa: E402

PAGE = HERE.parents[1] / "docs" / "reliability.md"
RESULTS = HERE / "results"
KINDS = (
    "SIGKILL turn",
    "SIGTERM turn",
    "SIGINT turn",
    "SIGINT twice",
    "SIGKILL clock",
    "checkpoint",
    "file",
    "full disk",
    "read-only",
)

Found = Mapping[str, Any]


def page() -> str:
    """Return the page."""
    found = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(RESULTS.glob("*.json"))}
    deployments = [found.pop("deployment")] if "deployment" in found else []
    text = (HERE / "page.md").read_text(encoding="utf-8")
    tables = {
        "sum": _sum(found, deployments),
        "kills": _kills(found),
        "places": _places(found.values()),
        "invariants": _invariants(found.values()),
        "messages": _messages(found),
        "corruptions": _corruptions(found.values()),
        "deployment": _deployments(deployments),
        "commands": _commands(found, deployments),
        "made": _made([*found.values(), *deployments]),
    }
    return re.sub(r"^\{(\w+)\}$", lambda name: tables[name[1]], text, flags=re.M)


def _sum(found: Mapping[str, Found], deployments: Sequence[Found]) -> str:
    kills = sum(each["kills"] for each in found.values())
    real = sum(sum(each["kills"].values()) for each in deployments)
    messages = [each["messages"] for each in found.values() if "jobs" in (each["messages"] or {})]
    faults = sum(each["faults"].get(fate, 0) for each in messages for fate in FATES)
    vanished = sum(each["faults"].get("vanished", 0) for each in messages)
    broken = sum(not each["held"] for each in (*found.values(), *deployments))
    runs = sum(len(each["runs"]) for each in found.values())
    verdict = f"{broken} campaigns broke an invariant" if broken else "no invariant was broken, nothing was lost"
    return (
        f"**{kills} kills of {runs} simulated runs, {real} kills in a deployment, {faults:,} faults in "
        f"{sum(each['jobs'] for each in messages):,} trips, {vanished} vanished clients: {verdict}.**"
    )


def _kills(found: Mapping[str, Found]) -> str:
    rows = []
    for name, each in found.items():
        counts = Counter(kill["kind"] for run in each["runs"] for kill in run["kills"])
        rows.append([f"`{name}`", len(each["runs"]), each["kills"], *(counts[kind] for kind in KINDS), each["seconds"]])
    total = ["all", *(sum(row[place] for row in rows) for place in range(1, len(KINDS) + 4))]
    total[-1] = round(total[-1], 1)
    head = ["file", "runs", "kills", *(kind.replace("turn", "in a turn") for kind in KINDS), "seconds"]
    return _table([name.replace("SIGKILL clock", "SIGKILL by the clock") for name in head], [*rows, total])


def _places(found: Iterable[Found]) -> str:
    """Return the table of file operations at which processes died or were refused."""
    counts: Counter[tuple[str, str]] = Counter()
    for each in found:
        for kill in (kill for run in each["runs"] for kill in run["kills"]):
            if kill["kind"] in ("checkpoint", "file", "full disk", "read-only") and "place" in kill:
                what, _, path = kill["place"].partition(" ")
                counts[re.sub(r"\d{8}", "N", path), what] += 1
    operations = sorted({what for _, what in counts})
    paths = sorted({path for path, _ in counts})
    rows = [[f"`{path}`", *(counts[path, what] or "" for what in operations)] for path in paths]
    return _table(["file of the run folder", *operations], rows)


def _invariants(found: Iterable[Found]) -> str:
    checks: Counter[str] = Counter()
    held: dict[str, bool] = {}
    for each in (each for campaign in found for each in campaign["invariants"]):
        checks[each["name"]] += each["checks"]
        held[each["name"]] = held.get(each["name"], True) and each["held"]
    rows = [[name, f"{checks[name]:,}", "held" if good else "**violated**"] for name, good in held.items()]
    return _table(["invariant", "checks", "result"], rows)


def _messages(found: Mapping[str, Found]) -> str:
    rows = []
    for name, each in found.items():
        messages = each["messages"] or {}
        if "jobs" not in messages:
            continue
        plain, faulty = (_spread(messages[which]) for which in ("accuracy", "accuracy_with_faults"))
        faults, refused = messages["faults"], messages["refused"]
        rows.append(
            [
                f"`{name}`",
                f"{messages['jobs']:,}",
                *(faults.get(fate, 0) for fate in (*FATES, "vanished")),
                messages["lost"],
                sum(n for why, n in refused.items() if why != "unsolicited"),
                refused.get("unsolicited", 0),
                plain,
                faulty,
                f"{messages['chance']:.2f}",
            ]
        )
    head = ["file", "trips", *FATES, "clients vanished", "timed out", "rejected", "unsolicited",
            "accuracy % without faults", "accuracy % with faults", "chance"]  # fmt: skip
    return _table(head, rows)


def _corruptions(found: Iterable[Found]) -> str:
    every = [each["messages"] for each in found if "jobs" in (each["messages"] or {})]
    faults, refused = (sum((Counter(each[name]) for each in every), Counter[str]()) for name in ("faults", "refused"))
    damages = {name.removeprefix("corrupted: "): n for name, n in faults.items() if name.startswith("corrupted: ")}
    corrupted = ", ".join(f"{name} {n}" for name, n in sorted(damages.items()))
    rejected = ", ".join(f"{name} {n}" for name, n in sorted(refused.items()))
    return f"Corrupted: {corrupted}. Rejected: {rejected}."


def _deployments(found: Sequence[Found]) -> str:
    if not found:
        return "Not run yet."
    rows = [
        [each["rule"], *(each["kills"].get(what, 0) for what in ("server app", "SuperLink", "node")), each["versions"],
         each["updates"], each["lost"], "equal, bit for bit" if each["replayed"] else "**different**",
         "yes" if each["held"] else "**no**", each["seconds"]] for each in found
    ]  # fmt: skip
    head = ["algorithm", "kills of the server app", "of the SuperLink", "of a node", "versions", "updates",
            "lost trips", "x in the replay of the log", "all invariants held", "seconds"]  # fmt: skip
    return _table(head, rows)


def _commands(found: Mapping[str, Found], deployments: Sequence[Found]) -> str:
    lines = [
        f"offbeat chaos {each['file']} --kills {each['kills']} --seed {each['seed']} --out runs/chaos/{name}"
        for name, each in found.items()
    ]
    lines += [
        f"python benchmarks/chaos/deployment.py --rule {each['rule']} --kills {sum(each['kills'].values())} "
        f"--seed {each['seed']} --out runs/chaos/deployment"
        for each in deployments
    ]
    return "\n".join(lines)


def _made(found: Iterable[Found]) -> str:
    makers = sorted({(each["commit"] or "?", _machine(each)) for each in found})
    return "\n".join(f"* commit {commit}, {machine}" for commit, machine in makers)


def _machine(each: Found) -> str:
    processor = each["gpu"] or f"{each['cpus']} cores, {each['machine']}"
    return f"{processor}, Python {each['python']}, torch {each['torch']}"


def _spread(values: Sequence[float]) -> str:
    return f"{100 * statistics.fmean(values):.1f} ± {100 * statistics.stdev(values):.1f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


if __name__ == "__main__":
    RESULTS.mkdir(exist_ok=True)
    for place in map(pathlib.Path, sys.argv[1:]):
        result = json.loads(place.read_text(encoding="utf-8"))
        for run in result.get("runs", []):
            for kill in run["kills"]:
                kill.pop("at")
        kept = RESULTS / f"{place.parent.name}.json"
        kept.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
