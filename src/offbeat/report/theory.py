"""The figures of a run that convergence theories speak of, for a table; docs/report.md defines them."""

from __future__ import annotations

from typing import Any

from offbeat.report.read import Record, is_number

FIGURES = {
    "clients": ("N", "clients"),
    "staleness_mean": ("τ", "mean staleness of the aggregated updates"),
    "staleness_max": ("τ_max", "largest staleness of an aggregated update"),
    "staleness_step_mean": ("τ_avg", "mean over the steps of the mean staleness of a step"),
    "staleness_step_max": ("mean of τ_t^max", "mean over the steps of the largest staleness of a step"),
    "cache_age_mean": ("ζ", "mean age of the cached updates of absent clients, in versions"),
    "cache_age_max": ("ζ_max", "largest age of a cached update of an absent client"),
    "inactive_mean": ("τ̄", "mean inactive rounds of a client"),
    "inactive_max": ("τ(t,i), largest", "most inactive rounds of a client"),
    "inactive_max_square": ("d̄_max", "mean over the clients of the square of their most inactive rounds"),
    "clusters": ("K", "clusters of the network"),
    "rho": ("ρ", "‖W − 11ᵀ/n‖₂ of the worst cluster"),
    "rho_limit": ("M/(M + N)", "largest ρ for which AFGA's theorem holds"),
    "heterogeneity_max": ("σ_g²", "largest heterogeneity of the clients' gradients at an evaluation"),
    "gradient_square_mean": ("‖∇f‖²", "mean over the evaluations"),
    "train_loss": ("f", "training loss at the last evaluation"),
}
"""Symbol and meaning by the name in `summary.json`."""


def theory(record: Record) -> list[dict[str, Any]]:
    """Return the rows of the table: those figures that the summary of a run has."""
    values = {name: record.summary.get(name) for name in FIGURES}
    return [
        {"name": name, "symbol": symbol, "words": words, "value": values[name]}
        for name, (symbol, words) in FIGURES.items()
        if is_number(values[name])
    ]
