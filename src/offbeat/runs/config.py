"""Conversion between TOML and `Experiment`.

The dataclasses of the packages are the schema: a table's `name` selects a class from the package's dict, and its other
keys are the fields of that class. The classes validate their own values; see `offbeat.options`.
"""

from __future__ import annotations

import pathlib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, cast, get_args

import tomli_w
from torch.optim import Optimizer

from offbeat.algorithms import (
    AGGREGATORS,
    ALGORITHMS,
    OPTIMIZERS,
    STALENESS,
    TOPOLOGIES,
    Aggregator,
    Algorithm,
    ServerOptimizer,
    Staleness,
    Topology,
)
from offbeat.cache import CACHES, UpdateCache
from offbeat.client.personalization import Personalization
from offbeat.client.rules import (
    CLIENT_RULES,
    LOCAL_OPTIMIZERS,
    ClientRule,
    Correction,
    LocalOptimizer,
    TorchOptimizer,
)
from offbeat.client.rules.correction import no_pure_step
from offbeat.compression import CODECS, Codec, Compression
from offbeat.data import AUGMENTS, DATASETS, PARTITIONS, Augment, Partition, Source
from offbeat.environment import (
    ATTACKS,
    AVAILABILITIES,
    DELAYS,
    LOCAL_WORK,
    Attack,
    Availability,
    Delay,
    Environment,
    LocalWork,
)
from offbeat.errors import ConfigError, nearest
from offbeat.models import MODELS, Model
from offbeat.options import Options, expected, hints, plain
from offbeat.renames import reject_renamed_key, renamed_value
from offbeat.runs.budget import Budget
from offbeat.runs.custom import CustomModel, CustomPartition, CustomSource, CustomTask, name_of, resolve
from offbeat.runs.data import Data
from offbeat.runs.experiment import Evaluation, Experiment
from offbeat.schedules import SCHEDULES, CustomSchedule, Schedule
from offbeat.scheduling import SCHEDULERS, Scheduler
from offbeat.server.validation import UpdateValidator
from offbeat.tasks import TASKS, Task

Table = dict[str, Any]
SHARED = {entry.name for entry in fields(ClientRule)}
"""Options that all client rules have."""

CHOICES: dict[type, Mapping[str, type]] = {
    Algorithm: ALGORITHMS,
    ClientRule: CLIENT_RULES,
    LocalOptimizer: LOCAL_OPTIMIZERS,
    Scheduler: SCHEDULERS,
    Delay: DELAYS,
    Availability: AVAILABILITIES,
    UpdateCache: CACHES,
    Staleness: STALENESS,
    ServerOptimizer: OPTIMIZERS,
    Aggregator: AGGREGATORS,
    Topology: TOPOLOGIES,
    Codec: CODECS,
    LocalWork: LOCAL_WORK,
    Attack: ATTACKS,
    Source: DATASETS,
    Partition: PARTITIONS,
    Augment: AUGMENTS,
    Model: MODELS,
    Task: TASKS,
    Schedule: SCHEDULES,
}
CUSTOM: dict[type, type] = {
    Source: CustomSource,
    Partition: CustomPartition,
    Model: CustomModel,
    Task: CustomTask,
    Schedule: CustomSchedule,
}


def read(path: pathlib.Path) -> Table:
    """Read a TOML file.

    Raises:
        ConfigError: The file cannot be read or is not valid TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def override(table: Table, assignment: str) -> None:
    """Apply an assignment such as `algorithm.eta=0.5` to a table, in place.

    The value is parsed as TOML; text that is not valid TOML becomes a string.
    """
    dotted, equals, text = assignment.partition("=")
    if not equals or not dotted.strip():
        raise ConfigError(f"{assignment!r}: expected KEY=VALUE, such as algorithm.eta=0.5")
    put(table, dotted.strip(), value_of(text.strip()))


def value_of(text: str) -> Any:
    """Parse text as a TOML value; text that is not valid TOML is returned as a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def put(table: Table, dotted: str, value: Any) -> None:
    """Set the value of a dotted key, in place; missing tables are created."""
    *parents, last = dotted.split(".")
    for part in parents:
        inner = table.setdefault(part, {})
        if isinstance(inner, str):  # the short form `partition = "iid"`
            inner = table[part] = {"name": inner}
        if not isinstance(inner, dict):
            raise ConfigError(f"{inner!r} is not a table, so it has no key {last!r}", key=part)
        table = inner
    table[last] = value


def parse(table: Table) -> Experiment:
    """Build an experiment from a table.

    Raises:
        ConfigError: A key or value is not valid; the error names the key.
    """
    valid = [field.name for field in fields(Experiment)]
    for name in table:
        if name not in valid:
            reject_renamed_key("", name)
            if name == "tune":
                raise ConfigError("describes a search; run it with: offbeat tune", key=name)
            raise ConfigError(f"unknown key; {nearest(name, valid)}", key=name)
    values: Table = dict(table)
    values["algorithm"] = _choose(Algorithm, table.get("algorithm", {}), "algorithm", "ca2fl")
    values["client"] = _choose(ClientRule, table.get("client", {}), "client", "sgd")
    values["scheduler"] = _scheduler(table.get("scheduler", {}), values["algorithm"])
    values["model"] = _choose(Model, table.get("model", {}), "model", "lr")
    values["task"] = _choose(Task, table.get("task", {}), "task", "classification")
    values["data"] = _data(table.get("data", {}))
    values["environment"] = _build(Environment, table.get("environment", {}), "environment")
    values["personalization"] = _build(Personalization, table.get("personalization", {}), "personalization")
    values["compression"] = _build(Compression, table.get("compression", {}), "compression")
    values["validation"] = _build(UpdateValidator, table.get("validation", {}), "validation")
    values["evaluation"] = _build(Evaluation, table.get("evaluation", {}), "evaluation")
    if "budget" in table:
        values["budget"] = _build(Budget, table["budget"], "budget")
    return cast("Experiment", _make(Experiment, values, ""))


def _data(given: object) -> Data:
    """Build `Data` from its table, which holds the keys of the source next to those of `Data` itself."""
    table = _table(given, "data")
    siblings = ("clients", "partition", "augment")
    shared = {name: table.pop(name) for name in siblings if name in table}
    values: Table = {"source": _choose(Source, table, "data", "digits", siblings=siblings)}
    if "partition" in shared:
        values["partition"] = _choose(Partition, shared["partition"], "data.partition", "iid")
    if "augment" in shared:
        values["augment"] = _choose(Augment, shared["augment"], "data.augment")
    if "clients" in shared:
        values["clients"] = shared["clients"]
    return cast("Data", _make(Data, values, "data"))


def _scheduler(given: object, algorithm: Algorithm) -> Scheduler:
    """Build the scheduler; without a name it is the algorithm's default, with the keys that apply to it.

    One file can then serve a sweep over algorithms with different schedulers.
    """
    table = _table(given, "scheduler")
    if "name" not in table:
        known = {field.name for kind in SCHEDULERS.values() for field in fields(cast("Any", kind))}
        for name in table:
            if name not in known:
                raise ConfigError(
                    f"unknown key; {nearest(name, ['name', *sorted(known)], f'scheduler.{name}')}",
                    key=f"scheduler.{name}",
                )
        default = algorithm.schedulers[0]
        applies = {field.name for field in fields(cast("Any", SCHEDULERS[default]))}
        table = {"name": default} | {name: value for name, value in table.items() if name in applies}
    return cast("Scheduler", _choose(Scheduler, table, "scheduler"))


def _table(given: object, path: str) -> Table:
    """Return a copy of a table; a bare name stands for a table with that name."""
    if isinstance(given, str):
        return {"name": given}
    if isinstance(given, dict):
        return dict(given)
    raise ConfigError(f"{given!r} is neither a name nor a table", key=path)


def _choose(base: type, given: object, path: str, default: str | None = None, siblings: Sequence[str] = ()) -> Any:
    """Build an instance of the class that a table names."""
    table = _table(given, path)
    choices = CHOICES[base]
    name = table.pop("name", default)
    if name is None:
        raise ConfigError(f"missing; valid: {', '.join(choices)}.", key=f"{path}.name")
    if not isinstance(name, str):
        raise ConfigError(f"{name!r} is not a name; valid: {', '.join(choices)}.", key=f"{path}.name")
    if ":" in name:
        return _custom(base, name, table, path)
    normalized = name.lower().replace("_", "-")
    if normalized not in choices:
        if new := renamed_value(f"{path}.name", normalized):
            raise ConfigError(f"{name!r} is now called {new!r}; rename it", key=f"{path}.name")
        raise ConfigError(
            f'unknown name {name!r}; {nearest(normalized, choices)} For your own class, give "package.module:name".',
            key=f"{path}.name",
        )
    return _build(choices[normalized], table, path, siblings=("name", *siblings))


def _custom(base: type, name: str, table: Table, path: str) -> Any:
    """Build a user's object: an instance of a subclass of the base, or a callable that `runs.custom` wraps."""
    try:
        target = resolve(name)
        if isinstance(target, type) and issubclass(target, base) and issubclass(target, Options):
            return _build(target, table, path, siblings=("name",))
        if base is ClientRule and isinstance(target, type) and issubclass(target, Optimizer):
            options = {key: table.pop(key) for key in table.keys() - SHARED}
            return _build(TorchOptimizer, {"optimizer": target, "options": options, **table}, path)
        if base is LocalOptimizer:
            raise ConfigError(no_pure_step(name))
        if base not in CUSTOM:
            raise ConfigError(f"{name!r} is not a subclass of {base.__module__}.{base.__name__}", key="name")
        return CUSTOM[base](make=target, options=table)
    except ConfigError as error:
        raise (error if error.key.startswith(path) else error.within(path)) from None


def _build(kind: type, given: object, path: str, siblings: Sequence[str] = ()) -> Any:
    """Build a dataclass from a table, after the tables nested in it."""
    if not isinstance(given, dict):
        raise ConfigError(f"{given!r} is not a table", key=path)
    table = dict(given)
    annotations = hints(kind)
    for name, value in table.items():
        base = _base(annotations.get(name))
        if base is not None:
            table[name] = _choose(base, value, f"{path}.{name}", _default_name(kind, name, CHOICES[base]))
    return _make(kind, table, path, siblings)


def _default_name(kind: type, field: str, choices: Mapping[str, type]) -> str | None:
    """Return the name of the class that is the default of a field, or None."""
    factory: object = next(f.default_factory for f in fields(cast("Any", kind)) if f.name == field)
    return next((name for name, choice in choices.items() if choice is factory), None)


def _base(annotation: object) -> type | None:
    """Return the base class in `CHOICES` that an annotation names, or None."""
    candidates = (annotation, *get_args(annotation))
    return next((c for c in candidates if isinstance(c, type) and c in CHOICES), None)


def _make(kind: type, table: Table, path: str, siblings: Sequence[str] = ()) -> Any:
    """Build a dataclass from a table of its fields; the class validates the values.

    Args:
        kind: The dataclass.
        table: Values by field name.
        path: Dotted name of the table, for error messages.
        siblings: Other keys that are valid in the same table.

    Raises:
        ConfigError: A key is unknown, renamed or missing, or the class rejects a value.
    """
    dotted = f"{path}." if path else ""
    known = {field.name: field for field in fields(cast("Any", kind))}
    for name in table:
        if name not in known:
            reject_renamed_key(path, name)
            raise ConfigError(
                f"unknown key; {nearest(name, [*siblings, *known], dotted + name)}{_owners(kind, name)}",
                key=dotted + name,
            )
    for name, field in known.items():
        if name not in table and field.default is MISSING and field.default_factory is MISSING:
            raise ConfigError(f"missing; give {expected(hints(kind)[name])}.", key=dotted + name)
    try:
        return kind(**table)
    except ConfigError as error:
        raise error.within(path) from None


def _owners(kind: type, key: str) -> str:
    """Return a sentence that lists the alternatives of a class that do have a key."""
    choices = next((choices for base, choices in CHOICES.items() if issubclass(kind, base)), {})
    owners = [name for name, other in choices.items() if key in {field.name for field in fields(cast("Any", other))}]
    return f" {key!r} is a key of {', '.join(owners)}." if owners else ""


def dump(experiment: Experiment) -> str:
    """Return the complete TOML of an experiment."""
    return dumps(describe(experiment))


def dumps(table: Table) -> str:
    """Return a table as TOML."""
    return tomli_w.dumps(table)


def _toml(value: Any) -> Any:
    """Return a value as TOML has it, with lists instead of tuples."""
    return [_toml(item) for item in value] if isinstance(value, tuple) else value


def describe(options: Options) -> Table:
    """Return the complete table of an options object; `parse` restores it. Fields that are None are omitted."""
    table: Table = {}
    kinds = next((choices for base, choices in CHOICES.items() if isinstance(options, base)), None)
    if type(options) in CUSTOM.values():
        custom = cast("CustomModel | CustomSource | CustomPartition | CustomTask | CustomSchedule", options)
        return {"name": name_of(custom.make), **custom.options}
    if kinds is not None:
        table["name"] = next((name for name, kind in kinds.items() if type(options) is kind), name_of(type(options)))
    if isinstance(options, TorchOptimizer):
        table |= {"name": name_of(options.optimizer), **options.options}
    for field in fields(cast("Any", options)):
        value = getattr(options, field.name)
        if value is None or (isinstance(options, TorchOptimizer) and field.name not in SHARED):
            continue
        table[field.name] = (
            describe(value) if is_dataclass(value) and isinstance(value, Options) else _toml(plain(value))
        )
    if isinstance(options, Correction):  # its own options next to its optimizer's
        table["optimizer"] = {name: value for name, value in table["optimizer"].items() if name not in SHARED}
    if isinstance(options, Data):
        source = table.pop("source")
        return {**source, **table}
    return table
