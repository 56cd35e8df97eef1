"""Local training with any optimizer of `torch.optim`, or with the interface of `torch.optim.Optimizer`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from offbeat.client.rules.base import ClientRule
from offbeat.errors import ConfigError, first_line
from offbeat.options import plain

if TYPE_CHECKING:
    from offbeat.client.local_loop import Batch, Batches, LocalJob

Kind = type[torch.optim.Optimizer]


@dataclass(kw_only=True, frozen=True, init=False)
class TorchOptimizer(ClientRule):
    """Local steps of an optimizer class such as `torch.optim.RMSprop`; every job starts with a new optimizer.

    It trains one client after the other, since the steps of such a class cannot be stacked. Batches, schedule, clipping
    and accumulation are those of every rule. `lr` and `weight_decay` have the defaults of the class.

    Args:
        optimizer: The class.
        options: Its options by name.
        settings: Settings of every client rule; others are options of the class.

    Raises:
        ConfigError: The class does not accept the options.
    """

    optimizer: Kind
    """The class of the optimizer."""
    options: Mapping[str, Any] = field(hash=False)
    """Options of the optimizer."""

    name: ClassVar[str] = "torch"

    def __init__(self, optimizer: Kind, *, options: Mapping[str, Any] | None = None, **settings: Any) -> None:
        if not (isinstance(optimizer, type) and issubclass(optimizer, torch.optim.Optimizer)):
            hint = "; every job starts with a new one" if isinstance(optimizer, torch.optim.Optimizer) else ""
            raise ConfigError(f"{optimizer!r:.80} is not a class such as torch.optim.RMSprop{hint}", key="optimizer")
        defaults = inspect.signature(optimizer).parameters
        for entry in fields(ClientRule):
            value = entry.default if entry.default_factory is MISSING else entry.default_factory()
            if entry.name in ("lr", "weight_decay") and isinstance(_default(defaults, entry.name), float | int):
                value = _default(defaults, entry.name)
            object.__setattr__(self, entry.name, settings.pop(entry.name, value))
        chosen = {name: plain(value) for name, value in (dict(options or {}) | settings).items()}
        if odd := [name for name, value in chosen.items() if not isinstance(value, bool | int | float | str | tuple)]:
            raise ConfigError(f"{chosen[odd[0]]!r} is not a number, text or list of them", key=odd[0])
        object.__setattr__(self, "optimizer", optimizer)
        object.__setattr__(self, "options", chosen)
        self.__post_init__()
        self._try()

    def create(self, parameters: Sequence[tuple[str, nn.Parameter]], lr: float) -> torch.optim.Optimizer:
        """Return a new optimizer of named parameters.

        Raises:
            ConfigError: The class does not accept the parameters or the options.
        """
        kind: Any = self.optimizer
        known = inspect.signature(kind).parameters
        decay = {"weight_decay": self.weight_decay} if self.weight_decay or "weight_decay" in known else {}
        try:
            made: torch.optim.Optimizer = kind(parameters, lr=lr, **decay, **self.options)
        except (TypeError, ValueError, RuntimeError) as error:
            valid = ", ".join(name for name in known if name != "params")
            raise ConfigError(f"{first_line(error)}; options of {kind.__name__}: {valid}", key="optimizer") from error
        return made

    def _try(self) -> None:
        """Take a step of one parameter, so that an optimizer that cannot work is refused before the run."""
        parameter = nn.Parameter(torch.zeros(1, 1))
        parameter.grad = torch.ones(1, 1)
        optimizer = self.create([("parameter", parameter)], self.lr)
        try:
            _step(optimizer, lambda: float(parameter.detach().sum()))
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(f"{self.optimizer.__name__}: {first_line(error)}", key="optimizer") from error

    def train(self, model: nn.Module, batches: Batches, job: LocalJob) -> None:
        """Take one step per batch."""
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        optimizer, parameters = self.create(named, job.lr), [p for _, p in named]
        for batch in batches:
            _step(optimizer, functools.partial(self._gradient, model, parameters, batch))

    def _gradient(self, model: nn.Module, parameters: Sequence[nn.Parameter], batch: Batch) -> Any:
        """Compute the clipped gradient of a batch's mean loss, and return the loss as a tensor."""
        total = torch.zeros((), device=parameters[0].device)
        for p in parameters:
            p.grad = None
        for part in batch.parts():
            loss = part.loss(part.outputs(model)).sum() / len(batch)
            loss.backward()  # type: ignore[no-untyped-call]
            total = total + loss.detach()
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(parameters, self.clip_norm)
        return total


def _step(optimizer: torch.optim.Optimizer, gradient: Callable[[], float]) -> None:
    """Take a step; an optimizer that needs a closure, such as LBFGS, computes the gradient several times itself."""
    parameters = inspect.signature(optimizer.step).parameters.values()
    if any(p.name == "closure" and p.default is inspect.Parameter.empty for p in parameters):
        optimizer.step(gradient)
    else:
        gradient()
        optimizer.step()


def _default(parameters: Mapping[str, inspect.Parameter], name: str) -> Any:
    return parameters[name].default if name in parameters else None


def as_client_rule(given: Any) -> Any:
    """Return a class of `torch.optim` as a client rule; anything else unchanged, for the validation of the options.

    Raises:
        ConfigError: It is an optimizer of a module, or one that needs options.
    """
    if isinstance(given, torch.optim.Optimizer):
        name = type(given).__name__
        raise ConfigError(
            f"a {name} of a module was given, but every job starts with a new one: TorchOptimizer({name}, lr=…)",
            key="client",
        )
    return TorchOptimizer(given) if isinstance(given, type) and issubclass(given, torch.optim.Optimizer) else given
