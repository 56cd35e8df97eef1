"""Compare offbeat with other frameworks on the same federated work.

    python benchmarks/peers/run.py                          # everything, on the CPU
    python benchmarks/peers/run.py --check                  # do all systems compute the same?
    python benchmarks/peers/run.py --sources DIR --device cuda --systems offbeat,pfl,flsim

Each system runs in its own virtual environment, which is created on the first call. Repetitions are interleaved (A B C
A B C …) and ratios are taken between runs of the same turn, so that a slow phase of the machine affects all systems. A
system that cannot be installed or run is reported with the reason. README.md in this folder explains the figures.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import pathlib
import statistics
import subprocess
import sys
from typing import Any

from systems import HERE, SYSTEMS, System, UnavailableError, interpreter

Line = dict[str, Any]
CHECK = ("--users", "20", "--cohort", "20", "--batch-size", "50", "--rounds", "3", "--warmup", "1")


class Bench:
    """Runs the systems and collects their output.

    Args:
        args: Options of the command line.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.lines: list[Line] = []
        self.pythons: dict[str, pathlib.Path] = {}
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text("")

    def install(self) -> None:
        """Find or create an interpreter for each system."""
        for name in self.args.systems:
            system = SYSTEMS[name]
            if self.args.sources and not system.pure:
                self._failed(name, "cannot run from source: it needs its own environment")
                continue
            try:
                own = pathlib.Path(sys.executable)
                self.pythons[name] = own if self.args.sources else interpreter(system, self.args.venvs, self.args.torch)
            except (UnavailableError, OSError, subprocess.CalledProcessError) as error:
                self._failed(name, f"cannot be installed: {error}")

    def compare(self, model: str, algorithm: str) -> None:
        """Run all repetitions of one model and algorithm, interleaved."""
        names = [name for name in self.pythons if algorithm in SYSTEMS[name].algorithms]
        work = ["--model", model, "--algorithm", algorithm, "--device", self.args.device]
        timed = CHECK if self.args.check else ("--rounds", str(self.args.rounds), "--warmup", str(self.args.warmup))
        threads = {name: self._threads(name, work) for name in names}
        for turn in range(self.args.repeat):
            for name, option in threads.items():
                if option is not None:
                    self._record(name, turn, [*work, *timed, *option])

    def _threads(self, name: str, work: list[str]) -> list[str] | None:
        """Return the options for the faster number of threads in a short trial: the system's own choice, or one.

        Returns None if the system does not run at all.
        """
        system = SYSTEMS[name]
        if self.args.threads != "tune" or not system.tunable or self.args.device == "cuda" or self.args.check:
            fixed = self.args.threads.isdigit() and system.tunable
            return ["--threads", self.args.threads] if fixed else []
        speeds = {}
        for option in ("", "1"):
            trial = ["--threads", option] if option else []
            self._measuring(f"{name}, {', '.join(work[1:4:2])}, threads: {option or 'its own choice'}")
            try:
                line = self._call(system, name, [*work, "--rounds", "1", "--warmup", "1", *trial])
            except RuntimeError as error:
                self._failed(name, f"{' '.join(work[1:4:2])}: {error}")
                return None
            speeds[option] = line["client_steps_per_second"]
        best = max(speeds, key=speeds.__getitem__)
        return ["--threads", best] if best else []

    def _record(self, name: str, turn: int, options: list[str]) -> None:
        self._measuring(f"{name}, {', '.join(options[1:4:2])}, turn {turn + 1} of {self.args.repeat}")
        try:
            line = self._call(SYSTEMS[name], name, options)
        except RuntimeError as error:
            self._failed(name, f"{' '.join(options[1:4:2])}: {error}")
            return
        self._keep(line | {"name": name, "turn": turn})
        _print(f"{name:10} {line['model']:9} {line['algorithm']:8} {line['client_steps_per_second']:9.1f} steps/s")

    def _call(self, system: System, name: str, options: list[str]) -> Line:
        """Run a system once in a new process and return its line of output.

        Raises:
            RuntimeError: It fails; the message is its last line of output.
        """
        environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
        if self.args.sources:
            environment["PYTHONPATH"] = str(self.args.sources.resolve())
        command = [self.pythons[name], HERE / system.script, *system.options, *options]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, env=environment, timeout=self.args.timeout, check=False
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"not finished after {self.args.timeout} s") from None
        if done.returncode or not done.stdout.strip():
            raise RuntimeError((done.stderr.strip().splitlines() or ["no output"])[-1])
        line: Line = json.loads(done.stdout.strip().splitlines()[-1])
        return line

    def _measuring(self, what: str) -> None:
        """Show in a terminal what is measured, until the next line replaces it."""
        if sys.stderr.isatty():
            _print(what[: os.get_terminal_size(sys.stderr.fileno()).columns - 1], end="\r")

    def _failed(self, name: str, reason: str) -> None:
        _print(f"{name}: {reason}")
        self._keep({"name": name, "failed": reason})

    def _keep(self, line: Line) -> None:
        self.lines.append(line)
        with self.args.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _print(text: str, end: str = "\n") -> None:
    clear = "\x1b[K" if sys.stderr.isatty() else ""
    sys.stderr.write(f"{text}{clear}{end}")
    sys.stderr.flush()


def table(lines: list[Line]) -> str:
    """Return a Markdown table per model: figures of each system, and how much faster offbeat is in the same turn."""
    out = []
    good = [line for line in lines if "failed" not in line]
    for model, algorithm in dict.fromkeys((line["model"], line["algorithm"]) for line in good):
        group = [line for line in good if (line["model"], line["algorithm"]) == (model, algorithm)]
        own = {line["turn"]: line["client_steps_per_second"] for line in group if line["name"] == "offbeat"}
        out += [f"\n{model}, {algorithm}: client steps per second\n"]
        out += ["| system | processes × threads | median (min – max) | offbeat is faster by | training loss |"]
        out += ["|---|---|---|---|---|"]
        out += [_row(name, group, own) for name in dict.fromkeys(line["name"] for line in group)]
    failed = [f"{line['name']}: {line['failed']}" for line in lines if "failed" in line]
    return "\n".join([*out, "", *failed])


def _row(name: str, group: list[Line], own: dict[int, float]) -> str:
    mine = [line for line in group if line["name"] == name]
    speeds = [line["client_steps_per_second"] for line in mine]
    ratios = [own[line["turn"]] / line["client_steps_per_second"] for line in mine if line["turn"] in own]
    ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} – {max(ratios):.2f})" if ratios else "–"
    last = mine[-1]
    threads = last["threads"] or ("own choice" if last["processes"] == 1 else 1)
    return (
        f"| {name} {last['version']} | {last['processes']} × {threads} "
        f"| {statistics.median(speeds):,.0f} ({min(speeds):,.0f} – {max(speeds):,.0f}) "
        f"| {'1' if name == 'offbeat' else ratio} | {last['loss_before']:.4f} → {last['loss_after']:.4f} |"
    )


def agreement(lines: list[Line]) -> tuple[str, bool]:
    """Return whether all systems end at the same loss where nothing is random, with the losses as text."""
    out, same = [], True
    good = [line for line in lines if "failed" not in line]
    for model in dict.fromkeys(line["model"] for line in good):
        losses = {line["name"]: line["loss_after"] for line in good if line["model"] == model}
        spread = max(losses.values()) - min(losses.values())
        same = same and spread < 1e-4
        shown = ", ".join(f"{name} {loss:.6f}" for name, loss in losses.items())
        out.append(f"{model}: {'agree' if spread < 1e-4 else 'DIFFER'} to {spread:.1e}: {shown}")
    return "\n".join(out), same


def arguments() -> argparse.Namespace:
    """Return the options of the command line."""

    def names(text: str) -> list[str]:
        return [part for part in text.split(",") if part]

    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--systems", type=names, default=list(SYSTEMS), help=f"of {','.join(SYSTEMS)}")
    p.add_argument("--models", type=names, default=["lr", "mlp", "cnn"], help="and lr-cifar, mlp-cifar")
    p.add_argument("--algorithms", type=names, default=["fedavg", "fedbuff"])
    p.add_argument("--rounds", type=int, default=10, help="timed rounds of 50 clients each")
    p.add_argument("--warmup", type=int, default=2)
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    p.add_argument("--threads", default="tune", help="a number, 'own', or 'tune': own choice or 1, whichever is faster")
    p.add_argument("--timeout", type=int, default=1800, help="seconds for a single run")
    p.add_argument("--venvs", type=pathlib.Path, default=pathlib.Path.home() / ".cache/offbeat-peers")
    p.add_argument("--sources", type=pathlib.Path, help="folder of sources.py, instead of virtual environments")
    p.add_argument("--torch", default=importlib.metadata.version("torch").split("+")[0], help="for every environment")
    p.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/peers.jsonl"))
    p.add_argument(
        "--check", action="store_true", help="20 users, all of them every round, whole batches: compare losses"
    )
    args = p.parse_args()
    if unknown := set(args.systems) - set(SYSTEMS):
        p.error(f"unknown system {', '.join(sorted(unknown))}; valid: {', '.join(SYSTEMS)}")
    return args


def main() -> int:
    """Run the comparison and return the exit status."""
    args = arguments()
    if args.check:
        args.repeat, args.algorithms = 1, ["fedavg"]
    bench = Bench(args)
    bench.install()
    for model in args.models:
        for algorithm in args.algorithms:
            bench.compare(model, algorithm)
    if args.check:
        text, same = agreement(bench.lines)
        sys.stdout.write(text + "\n")
        return 0 if same else 1
    sys.stdout.write(table(bench.lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
