"""The compared systems and their virtual environments."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import venv
from dataclasses import dataclass

from sources import write_stubs

HERE = pathlib.Path(__file__).resolve().parent


@dataclass(frozen=True)
class System:
    """How a system is installed and called. Without requirements it runs in the current Python."""

    script: str
    algorithms: tuple[str, ...]
    requirements: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()  # installed without their dependencies
    stubs: tuple[str, ...] = ()  # imported but not used; replaced where importing them fails
    options: tuple[str, ...] = ()
    tunable: bool = True  # a single process, whose number of threads can be chosen
    pure: bool = False  # runs from a folder of sources.py

    @property
    def environment(self) -> str:
        """Name of the virtual environment."""
        return self.script.removesuffix("_peer.py")


CORES = str(os.cpu_count() or 1)
PFL = ("pfl[pytorch]==0.6.0",)
# FLSim requires torchvision, which must match torch to the build, but does not need it here.
FLSIM = ("torch", "numpy", "hydra-core", "omegaconf", "opacus", "pandas", "scikit-learn", "tqdm")

SYSTEMS = {
    "offbeat": System("offbeat_peer.py", ("fedavg", "fedbuff"), pure=True),
    "pfl": System("pfl_peer.py", ("fedavg",), PFL, pure=True),
    "pfl-multi": System("pfl_peer.py", ("fedavg",), PFL, options=("--processes", CORES), tunable=False),
    "flower": System("flower_peer.py", ("fedavg",), ("flwr[simulation]==1.41.0", "torch"), tunable=False),
    "flsim": System("flsim_peer.py", ("fedavg", "fedbuff"), FLSIM, bare=("flsim==0.1.0",), pure=True),
    "appfl": System(
        "appfl_peer.py",
        ("fedavg", "fedbuff"),
        ("appfl==1.12.0",),
        stubs=("piq", "torchvision.datasets.utils", "torchvision.transforms"),
    ),
}


class UnavailableError(Exception):
    """Raised when a system cannot be installed here; the message says why."""


def interpreter(system: System, folder: pathlib.Path, torch: str) -> pathlib.Path:
    """Return the Python of a system's virtual environment, which is created if it is missing or out of date.

    Args:
        system: The system.
        folder: Where the environments are.
        torch: Version of torch for every environment.

    Raises:
        UnavailableError: The installation fails.
    """
    if not system.requirements:
        return pathlib.Path(sys.executable)
    place = folder / system.environment
    python = place / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    wanted = "\n".join((f"torch=={torch}", *system.requirements, *system.bare))
    stamp = place / "installed.txt"
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    sys.stderr.write(f"installing {system.environment} in {place}\n")
    venv.create(place, with_pip=True, clear=True)
    constraints = place / "constraints.txt"
    constraints.write_text(f"torch=={torch}\n")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "--constraint", str(constraints), *system.requirements])
    if system.bare:
        _run([*pip, "--no-deps", *system.bare])
    _replace(system, python)
    stamp.write_text(wanted)
    return python


def _replace(system: System, python: pathlib.Path) -> None:
    """Replace packages that a system imports but does not use by empty modules if importing them fails."""
    names = sorted({stub.split(".")[0] for stub in system.stubs})
    if not names or subprocess.run([python, "-c", f"import {', '.join(names)}"], capture_output=True).returncode == 0:
        return
    subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", *names], check=True)
    shown = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    write_stubs(pathlib.Path(shown.stdout.strip()), system.stubs)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise UnavailableError(" ".join(errors[-3:]) or f"pip failed with exit status {done.returncode}")
