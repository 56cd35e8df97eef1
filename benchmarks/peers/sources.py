"""Collect pfl and FLSim in a folder of plain Python, for a machine on which nothing can be installed.

    python benchmarks/peers/sources.py --to peer-sources        # where pip works
    PYTHONPATH=peer-sources python benchmarks/peers/pfl_peer.py --device cuda   # where only torch, NumPy and SciPy are

The folder holds the two packages and the pure-Python parts of their dependencies at the versions below, without tests
and compiled files. Modules that they import but do not use here (differential privacy, plots, tables, image data sets)
are replaced by empty ones.
"""

from __future__ import annotations

import argparse
import pathlib
import shutil
import subprocess
import sys

PACKAGES = (
    "pfl==0.6.0",
    "flsim==0.1.0",
    "hydra-core==1.3.2",
    "omegaconf==2.3.0",
    "antlr4-python3-runtime==4.9.3",
    "PyYAML==6.0.2",
    "tqdm==4.67.1",
    "packaging==25.0",
)
STUBS = (
    "dp_accounting.pld",
    "dp_accounting.rdp",
    "multiprocess",
    "opacus.accountants.analysis",
    "opacus.optimizers",
    "pandas",
    "prv_accountant",
    "sklearn.cluster",
)
STUB = '''"""Empty: stands in for a package that is imported but not used in this benchmark."""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})
'''


def write_stubs(folder: pathlib.Path, names: tuple[str, ...]) -> None:
    """Write modules from which any name can be imported but none used."""
    for name in names:
        place = folder
        for part in name.split("."):
            place /= part
            place.mkdir(exist_ok=True)
            (place / "__init__.py").write_text(STUB)


def collect(folder: pathlib.Path) -> int:
    """Fill the folder and return its size in bytes."""
    if folder.exists():
        shutil.rmtree(folder)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", str(folder)]
    subprocess.run([*pip, *PACKAGES], check=True)
    for part in ("bin", "examples", "tests"):
        shutil.rmtree(folder / part, ignore_errors=True)
    for path in [*folder.rglob("tests"), *folder.rglob("*.so"), *folder.rglob("*.pyd")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    write_stubs(folder, STUBS)
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--to", type=pathlib.Path, required=True, help="the folder to create; an existing one is replaced"
    )
    args = parser.parse_args()
    sys.stdout.write(f"{args.to}: {collect(args.to) / 1e6:.1f} MB\n")
