"""Figures that a notebook shows as the result of a cell, without pyplot: no global state, no display needed."""

from __future__ import annotations

import io

from matplotlib.figure import Figure

INLINE_DPI = 110


class InlineFigure(Figure):
    """A figure with the method by which notebooks ask an object for its picture."""

    def _repr_png_(self) -> bytes:
        picture = io.BytesIO()
        self.savefig(picture, format="png", dpi=INLINE_DPI)
        return picture.getvalue()
