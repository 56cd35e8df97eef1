"""Hyperparameters: dataclass fields whose annotations carry their bounds.

An algorithm declares `eta: Positive = 1.0`. `Options.__post_init__` validates every field with pydantic, so a value
from Python, TOML or the command line is rejected with the same message. Without pydantic (a GPU machine that has only
torch and NumPy) nothing is validated.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

from offbeat.errors import ConfigError
from offbeat.renames import renamed_value

if TYPE_CHECKING:
    from annotated_types import Interval as Interval
    from pydantic import ValidationError
else:
    try:
        from annotated_types import Interval
    except ImportError:

        @dataclass(frozen=True)
        class Interval:
            """Stand-in that only keeps the bounds."""

            gt: float | None = None
            ge: float | None = None
            lt: float | None = None
            le: float | None = None


@dataclass(frozen=True)
class _FiniteMarker:
    """Annotation that rejects NaN and infinities."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        return handler(source) | {"allow_inf_nan": False}


@dataclass(frozen=True)
class _InstanceMarker:
    """Annotation that accepts instances of one class, whatever their content."""

    kind: type

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        return {"type": "is-instance", "cls": self.kind}


Finite = Annotated[float, _FiniteMarker()]
Positive = Annotated[float, _FiniteMarker(), Interval(gt=0)]
NonNegative = Annotated[float, _FiniteMarker(), Interval(ge=0)]
Probability = Annotated[float, Interval(ge=0, le=1)]
PositiveInt = Annotated[int, Interval(ge=1)]
NonNegativeInt = Annotated[int, Interval(ge=0)]

_BOUNDS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
_SIMPLE = (bool, int, float, str, type(None))
_WORDS = {
    bool: ("true or false", "values true or false"),
    int: ("an integer", "integers"),
    float: ("a number", "numbers"),
    str: ("a string", "strings"),
}


@functools.cache
def hints(kind: type) -> dict[str, Any]:
    """Return the type annotations of a class, including their bounds."""
    return get_type_hints(kind, include_extras=True)


def bounds(metadata: Iterable[object]) -> str:
    """Return the bounds among the metadata of an annotation in words, such as "≥ 0 and < 1"."""
    found = [(sign, getattr(part, name, None)) for part in metadata for name, sign in _BOUNDS.items()]
    return " and ".join(f"{sign} {limit:g}" for sign, limit in found if limit is not None)


def expected(annotation: Any, *, plural: bool = False) -> str:
    """Return a description of the values that an annotation accepts, such as "a number > 0"."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        limits = bounds(args[1:])
        if not limits and any(isinstance(part, _FiniteMarker) for part in args[1:]):
            return "finite numbers" if plural else "a finite number"
        return f"{expected(args[0], plural=plural)} {limits}".rstrip()
    if origin in (Union, types.UnionType):
        arms = [arm for arm in args if arm is not type(None)]
        return " or ".join(
            "a list of them" if get_args(arm) == (arms[0], ...) else expected(arm, plural=plural) for arm in arms
        )
    if origin is Literal:
        return f"one of {', '.join(map(repr, args))}"
    if origin is tuple:
        return _expected_list(args)
    kind = origin or annotation
    if kind in _WORDS:
        return _WORDS[kind][plural]
    return f"a {getattr(kind, '__name__', kind)}"


def _expected_list(items: tuple[Any, ...]) -> str:
    """Return a description of a tuple annotation with the given arguments."""
    if items[1:] == (...,):
        return f"a list of {expected(items[0], plural=True)}"
    if len(set(items)) == 1:
        return f"a list of {len(items)} {expected(items[0], plural=True)}"
    return f"a list of {', '.join(map(expected, items))}"


def plain(value: Any) -> Any:
    """Return a NumPy scalar as a Python number and a list as a tuple; other values unchanged."""
    if isinstance(value, np.generic):
        return value.item()
    return tuple(plain(item) for item in value) if isinstance(value, list) else value


class Options:
    """Mixin for dataclasses of hyperparameters, frozen or not, that validates every field."""

    def __post_init__(self) -> None:
        kind = cast("Any", type(self))
        for name, validate in _validators(kind):
            value = plain(getattr(self, name))
            try:
                value = validate(value)
            except ValueError as error:  # pydantic.ValidationError is one
                raise _config_error(cast("ValidationError", error), name, hints(kind)[name]) from None
            object.__setattr__(self, name, value)


@functools.cache
def _validators(kind: type) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
    """Return the name and the validator of each field of a dataclass."""
    annotations = hints(kind)
    return tuple((field.name, _validator(annotations[field.name])) for field in fields(cast("Any", kind)))


@functools.cache
def _validator(annotation: Any) -> Callable[[Any], Any]:
    """Return the function that validates a value for an annotation; the identity if pydantic is not installed."""
    try:
        import pydantic
    except ImportError:
        return lambda value: value
    # Strict: a string is never converted to a number, and a bool is not a number.
    adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(_shallow(annotation), config={"strict": True})
    return adapter.validate_python


def _shallow(annotation: Any) -> Any:
    """Return an annotation in which every class stands for an instance check.

    Nested options have validated themselves already. pydantic must neither validate them again nor copy a mapping.
    """
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation is Any or annotation in _SIMPLE or origin is Literal:
        return annotation
    if origin is Annotated:
        return Annotated[(_shallow(args[0]), *args[1:])]
    if origin in (Union, types.UnionType):
        return Union[tuple(_shallow(arm) for arm in args)]  # noqa: UP007
    if origin is tuple:
        return tuple[tuple(arm if arm is ... else _shallow(arm) for arm in args)]  # type: ignore[misc]
    kind = origin or annotation
    return Annotated[Any, _InstanceMarker(kind)] if isinstance(kind, type) else Any


def _config_error(error: ValidationError, key: str, annotation: Any) -> ConfigError:
    """Return a ConfigError that says which value was given and which values are valid."""

    def depth(details: Any) -> int:
        return sum(isinstance(part, int) for part in details["loc"])

    details = max(error.errors(include_url=False), key=depth)  # the alternative of a union that fits best
    value = details["input"]
    if details["type"] != "missing":  # else the input is the list that is too short
        for part in details["loc"]:
            annotation = _item(annotation, part) if isinstance(part, int) else annotation
    new = renamed_value(key, value)
    hint = f"; it is now called {new!r}" if new else ""
    return ConfigError(f"{value!r} is not {expected(annotation)}{hint}", key=key)


def _item(annotation: Any, index: int) -> Any:
    """Return the annotation of one entry of a list."""
    arms = (annotation, *get_args(annotation))
    args = next(get_args(arm) for arm in arms if get_origin(arm) is tuple)
    return args[0] if args[1:] == (...,) else args[index]
