"""The seed of a server's own draws, where these must stay its own.

Clients know the seeds of their jobs, which lead back to the run's, and the run's config may be in anybody's hands.
Noise that hides clients' updates therefore comes from a secret, which lies in the server's folder alone.
"""

from __future__ import annotations

import os
import pathlib
import secrets

from offbeat.algorithms import Algorithm
from offbeat.errors import RunFolderError
from offbeat.runs.privacy import private

NOISE = "noise.key"


def server_seed(algorithm: Algorithm, seed: int, folder: pathlib.Path | None) -> int:
    """The run's seed; for a rule that adds private noise the secret of its folder, or a new one for a new run."""
    hidden = private(algorithm)
    if hidden is None:
        return seed
    hidden.by_sum = True
    if folder is None or not (folder / NOISE).is_file():
        if folder is not None and (any(folder.glob("checkpoint/*.pt")) or (folder / "summary.json").is_file()):
            raise RunFolderError(f"{folder / NOISE} is missing: the run's noise cannot be drawn again")
        return secrets.randbits(63)
    try:
        return int((folder / NOISE).read_text(encoding="ascii"), base=16)
    except ValueError:
        raise RunFolderError(f"{folder / NOISE} is no key") from None


def keep(algorithm: Algorithm, folder: pathlib.Path) -> None:
    """Lay the secret with which a new run has started into its folder, for this user alone."""
    if private(algorithm) is None or (folder / NOISE).is_file():
        return
    part = folder / f".{NOISE}.part"
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
        file.write(f"{algorithm.seed:x}\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(folder / NOISE)
