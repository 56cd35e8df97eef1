"""The secret seed of private noise.

Clients know the seeds of their jobs, which follow from the seed of the run, and the config of a run may be public.
Noise that hides the updates of clients is therefore drawn from a secret that is stored in the server's folder only.
"""

from __future__ import annotations

import os
import pathlib
import secrets

from offbeat.algorithms import Algorithm
from offbeat.errors import RunFolderError
from offbeat.runs.folder import CHECKPOINT, is_finished
from offbeat.runs.privacy import private

NOISE = "noise.key"


def server_seed(algorithm: Algorithm, seed: int, folder: pathlib.Path | None) -> int:
    """Return the seed of the server's own draws.

    Args:
        algorithm: The server rule. If it adds private noise, its aggregator is switched to sums.
        seed: The seed of the run, which is returned if there is no private noise.
        folder: The run folder with the secret of a run that is resumed.

    Raises:
        RunFolderError: The secret of a run that is resumed is missing or damaged.
    """
    aggregator = private(algorithm)
    if aggregator is None:
        return seed
    aggregator.by_sum = True
    if folder is None or not (folder / NOISE).is_file():
        if folder is not None and (any((folder / CHECKPOINT).glob("*.pt")) or is_finished(folder)):
            raise RunFolderError(
                f"{folder / NOISE} is missing, so the noise of the run cannot be reproduced; restore the file"
            )
        return secrets.randbits(63)
    try:
        return int((folder / NOISE).read_text(encoding="ascii"), base=16)
    except ValueError:
        raise RunFolderError(f"{folder / NOISE} is not a hexadecimal key; restore the file") from None


def save_noise_key(algorithm: Algorithm, folder: pathlib.Path) -> None:
    """Write the secret of a new run to its folder, readable by this user only; do nothing without private noise."""
    if private(algorithm) is None or (folder / NOISE).is_file():
        return
    part = folder / f".{NOISE}.part"
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
        file.write(f"{algorithm.seed:x}\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(folder / NOISE)
