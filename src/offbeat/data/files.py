"""Location, download and parsing of data files."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.client
import os
import pathlib
import struct
import urllib.error
import urllib.request
import zlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from offbeat.data.preparing import preparing
from offbeat.errors import DataError

CHUNK = 1 << 20


def data_dir(given: str | os.PathLike[str] | None = None) -> pathlib.Path:
    """Return the folder of all datasets.

    Args:
        given: The folder to use. The default is $OFFBEAT_DATA, or else a folder in the user's cache.

    Returns:
        The folder, which may not exist yet.
    """
    if given is not None:
        return pathlib.Path(given)
    if os.environ.get("OFFBEAT_DATA"):
        return pathlib.Path(os.environ["OFFBEAT_DATA"])
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    return cache / "offbeat"


def find(folder: pathlib.Path, names: Sequence[str], subfolders: Sequence[str] = ()) -> list[pathlib.Path] | None:
    """Return the paths of the named files in the folder or in one of its subfolders, or None unless all exist."""
    for place in (folder, *(folder / subfolder for subfolder in subfolders)):
        if all((place / name).is_file() for name in names):
            return [place / name for name in names]
    return None


def fetch(folder: pathlib.Path, base: str, checksums: Mapping[str, str]) -> None:
    """Download the missing files into a folder. A file appears only once it is complete and its checksum is right.

    Args:
        folder: The target folder.
        base: The URL that the file names are appended to.
        checksums: File names and their MD5 checksums.

    Raises:
        DataError: A download failed, or its checksum is wrong.
    """
    missing = [name for name in checksums if not (folder / name).is_file()]
    for name in missing:
        part = folder / f".{name}.{os.getpid()}.part"
        try:
            digest = hashlib.md5(usedforsecurity=False)
            with urllib.request.urlopen(base + name, timeout=30) as response:
                folder.mkdir(parents=True, exist_ok=True)
                length = response.headers.get("Content-Length", "")
                total = int(length) if length.isdecimal() else None
                with part.open("wb") as out, preparing(name, total, in_bytes=True) as report:
                    while chunk := response.read(CHUNK):
                        digest.update(chunk)
                        out.write(chunk)
                        report(out.tell())
            if digest.hexdigest() != checksums[name]:
                raise DataError(
                    f"{base}{name}: md5 {digest.hexdigest()}, expected {checksums[name]}; the file was discarded"
                )
            part.replace(folder / name)
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            raise DataError(
                f"{name} is not in {folder} and could not be downloaded from {base} ({error}).\n"
                f"Put these files into {folder}: {', '.join(checksums)}\n"
                "or choose another folder with --data-dir or OFFBEAT_DATA."
            ) from error
        finally:
            with contextlib.suppress(OSError):
                part.unlink()


def read_idx(path: pathlib.Path) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes (the format of MNIST), gzipped or not."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        zero, kind, rank = struct.unpack_from(">HBB", raw)
        shape = struct.unpack_from(f">{rank}I", raw, 4)
        body = np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * rank)
        if zero != 0 or kind != 0x08 or rank == 0 or body.size != np.prod(shape):
            raise ValueError(f"the header declares type {kind:#x} and shape {shape}, but {body.size} bytes follow")
        return body.reshape(shape)
    except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
        raise DataError(f"{path} is not a complete IDX file of bytes: {error}") from error


def read_text(path: pathlib.Path) -> str:
    """Read a UTF-8 text file."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not readable UTF-8 text: {error}") from error
