"""TOML ↔ `Experiment`.

The dataclasses of the rule rooms are the schema: a table's `name` picks a class from that room's dict, its other keys
are the class's fields.  pydantic checks the types, the classes themselves check bounds and combinations.
"""

from __future__ import annotations

import functools
import pathlib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, cast, get_args

import pydantic
import tomli_w

from offbeat.algorithms import (
    ALGORITHMS,
    COMBINES,
    OPTIMISERS,
    STALENESS,
    TOPOLOGIES,
    Algorithm,
    Combine,
    ServerOptimiser,
    Staleness,
    Topology,
)
from offbeat.clients import CLIENTS, ClientRule
from offbeat.compression import CODECS, Codec, Compression
from offbeat.data import AUGMENTS, DATASETS, PARTITIONS, Augment, Partition, Source
from offbeat.engine import DISPATCHES, Dispatch, Gate
from offbeat.errors import ConfigError, nearest
from offbeat.experiments.data import Data
from offbeat.experiments.experiment import Evaluation, Experiment
from offbeat.experiments.own import OwnModel, OwnPartition, OwnSource, name_of, resolve
from offbeat.memory import MEMORIES, Memory
from offbeat.models import MODELS, Model
from offbeat.options import Options, hints
from offbeat.world import ATTACKS, AVAILABILITIES, DELAYS, EFFORTS, Attack, Availability, Delay, Effort, World

Table = dict[str, Any]

CHOICES: dict[type, Mapping[str, type]] = {
    Algorithm: ALGORITHMS,
    ClientRule: CLIENTS,
    Dispatch: DISPATCHES,
    Delay: DELAYS,
    Availability: AVAILABILITIES,
    Memory: MEMORIES,
    Staleness: STALENESS,
    ServerOptimiser: OPTIMISERS,
    Combine: COMBINES,
    Topology: TOPOLOGIES,
    Codec: CODECS,
    Effort: EFFORTS,
    Attack: ATTACKS,
    Source: DATASETS,
    Partition: PARTITIONS,
    Augment: AUGMENTS,
    Model: MODELS,
}
OWN: dict[type, type] = {Source: OwnSource, Partition: OwnPartition, Model: OwnModel}


def read(path: pathlib.Path) -> Table:
    """A TOML file as a table."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def override(table: Table, assignment: str) -> None:
    """Apply `a.b=value` to a table, in place.  The value is TOML; what is not is taken as a string."""
    dotted, equals, text = assignment.partition("=")
    if not equals or not dotted.strip():
        raise ConfigError(f"{assignment!r}: expected KEY=VALUE, such as algorithm.eta=0.5")
    put(table, dotted.strip(), value_of(text.strip()))


def value_of(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def put(table: Table, dotted: str, value: Any) -> None:
    *parents, last = dotted.split(".")
    for part in parents:
        inner = table.setdefault(part, {})
        if isinstance(inner, str):  # the short form `partition = "iid"`
            inner = table[part] = {"name": inner}
        if not isinstance(inner, dict):
            raise ConfigError(f"{inner!r} is a value, not a table", key=part)
        table = inner
    table[last] = value


def parse(table: Table) -> Experiment:
    """A table as an experiment.  Every mistake is a ConfigError that names the key."""
    valid = [field.name for field in fields(Experiment)]
    for name in table:
        if name not in valid:
            raise ConfigError(f"unknown key; {nearest(name, valid)}", key=name)
    values: Table = dict(table)
    values["algorithm"] = _choose(Algorithm, table.get("algorithm", {}), "algorithm", "ca2fl")
    values["client"] = _choose(ClientRule, table.get("client", {}), "client", "sgd")
    values["dispatch"] = _dispatch(table.get("dispatch", {}), values["algorithm"])
    values["model"] = _choose(Model, table.get("model", {}), "model", "lr")
    values["data"] = _data(table.get("data", {}))
    values["world"] = _plain(World, table.get("world", {}), "world")
    values["compression"] = _plain(Compression, table.get("compression", {}), "compression")
    values["gate"] = _plain(Gate, table.get("gate", {}), "gate")
    values["evaluation"] = _plain(Evaluation, table.get("evaluation", {}), "evaluation")
    return cast("Experiment", _make(Experiment, values, ""))


def _data(given: object) -> Data:
    """`clients`, `partition` and `augment` stand in the data's table beside the source's own keys."""
    table = _table(given, "data")
    beside = ("clients", "partition", "augment")
    shared = {name: table.pop(name) for name in beside if name in table}
    values: Table = {"source": _choose(Source, table, "data", "digits", beside=beside)}
    if "partition" in shared:
        values["partition"] = _choose(Partition, shared["partition"], "data.partition", "iid")
    if "augment" in shared:
        values["augment"] = _choose(Augment, shared["augment"], "data.augment")
    if "clients" in shared:
        values["clients"] = shared["clients"]
    return cast("Data", _make(Data, values, "data"))


def _dispatch(given: object, algorithm: Algorithm) -> Dispatch:
    """Without a name: the algorithm's own dispatch, which takes the keys that apply to it."""
    table = _table(given, "dispatch")
    if "name" not in table:
        known = {field.name for kind in DISPATCHES.values() for field in fields(cast("Any", kind))}
        for name in table:
            if name not in known:
                raise ConfigError(f"unknown key; {nearest(name, ['name', *sorted(known)])}", key=f"dispatch.{name}")
        own = algorithm.dispatches[0]
        applies = {field.name for field in fields(cast("Any", DISPATCHES[own]))}
        table = {"name": own} | {name: value for name, value in table.items() if name in applies}
    return cast("Dispatch", _choose(Dispatch, table, "dispatch"))


def _table(given: object, path: str) -> Table:
    if isinstance(given, str):
        return {"name": given}
    if isinstance(given, dict):
        return dict(given)
    raise ConfigError(f"{given!r} is neither a name nor a table", key=path)


def _choose(base: type, given: object, path: str, default: str | None = None, beside: Sequence[str] = ()) -> Any:
    """Build the class that a table names."""
    table = _table(given, path)
    choices = CHOICES[base]
    name = table.pop("name", default)
    if name is None:
        raise ConfigError(f"missing; valid: {', '.join(choices)}.", key=f"{path}.name")
    if not isinstance(name, str):
        raise ConfigError(f"{name!r} is not a name; valid: {', '.join(choices)}.", key=f"{path}.name")
    if ":" in name:
        return _own(base, name, table, path)
    plain = name.lower().replace("_", "-")
    if plain not in choices:
        raise ConfigError(
            f'unknown name {name!r}; {nearest(plain, choices)} Your own goes by "package.module:name".',
            key=f"{path}.name",
        )
    return _plain(choices[plain], table, path, beside=("name", *beside))


def _own(base: type, name: str, table: Table, path: str) -> Any:
    """A user's own thing: a subclass of the base with its own keys, or what `experiments.own` wraps."""
    try:
        found = resolve(name)
        if isinstance(found, type) and issubclass(found, base):
            return _plain(found, table, path, beside=("name",))
        if base not in OWN:
            raise ConfigError(f"{name!r} is not a subclass of {base.__module__}.{base.__name__}", key="name")
        return OWN[base](make=found, options=table)
    except ConfigError as error:
        raise (error if error.key.startswith(path) else error.within(path)) from None


def _plain(kind: type, given: object, path: str, beside: Sequence[str] = ()) -> Any:
    """Build a dataclass from a table, nested choices first."""
    table = _table(given, path) if isinstance(given, dict) else _refuse(given, path)
    annotations = hints(kind)
    for name, value in table.items():
        base = _base(annotations.get(name))
        if base is not None:
            table[name] = _choose(base, value, f"{path}.{name}", _default_name(kind, name, CHOICES[base]))
    return _make(kind, table, path, beside)


def _default_name(kind: type, field: str, choices: Mapping[str, type]) -> str | None:
    """The name of what a class puts into this field by itself."""
    factory: object = next(f.default_factory for f in fields(cast("Any", kind)) if f.name == field)
    return next((name for name, choice in choices.items() if choice is factory), None)


def _refuse(given: object, path: str) -> Table:
    raise ConfigError(f"{given!r} is not a table", key=path)


def _base(annotation: object) -> type | None:
    """The choice that an annotation stands for, if it is one."""
    candidates = (annotation, *get_args(annotation))
    return next((c for c in candidates if isinstance(c, type) and c in CHOICES), None)


def _make(kind: type, table: Table, path: str, beside: Sequence[str] = ()) -> Any:
    """Check the types with pydantic, then let the class check the rest."""
    dotted = f"{path}." if path else ""
    try:
        checked = _schema(kind).model_validate({name: _tuples(value) for name, value in table.items()})
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            valid = [*beside, *(field.name for field in fields(kind))]
            raise ConfigError(f"unknown key; {nearest(name, valid)}{_others(kind, name)}", key=dotted + name) from None
        key = str(first["loc"][0])
        raise ConfigError(f"{first['input']!r}: {_lower(first['msg'])}", key=dotted + key) from None
    try:
        return kind(**{name: getattr(checked, name) for name in table})
    except ConfigError as error:
        raise error.within(path) from None


def _others(kind: type, key: str) -> str:
    """Which of the names that a table may have take a key that this one does not."""
    choices = next((choices for base, choices in CHOICES.items() if issubclass(kind, base)), {})
    having = [name for name, other in choices.items() if key in {field.name for field in fields(cast("Any", other))}]
    return f" {key!r} is a key of {', '.join(having)}." if having else ""


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]


def _tuples(value: object) -> object:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


@functools.cache
def _schema(kind: type) -> type[pydantic.BaseModel]:
    annotations = hints(kind)
    config = pydantic.ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True)
    members: Any = {field.name: (annotations[field.name], _default(field)) for field in fields(cast("Any", kind))}
    made: type[pydantic.BaseModel] = pydantic.create_model(kind.__name__, __config__=config, **members)
    return made


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return pydantic.Field(default_factory=cast("Any", field.default_factory))
    return ... if field.default is MISSING else field.default


def dump(experiment: Experiment) -> str:
    """The complete TOML of an experiment."""
    return dumps(describe(experiment))


def dumps(table: Table) -> str:
    return tomli_w.dumps(table)


def describe(thing: Options) -> Table:
    """The table from which `parse` makes the thing again, complete; what is None is left out."""
    table: Table = {}
    kinds = next((choices for base, choices in CHOICES.items() if isinstance(thing, base)), None)
    if type(thing) in OWN.values():
        own = cast("OwnModel | OwnSource | OwnPartition", thing)
        return {"name": name_of(own.make), **own.options}
    if kinds is not None:
        table["name"] = next((name for name, kind in kinds.items() if type(thing) is kind), name_of(type(thing)))
    for field in fields(cast("Any", thing)):
        value = getattr(thing, field.name)
        if value is None:
            continue
        table[field.name] = describe(value) if is_dataclass(value) and isinstance(value, Options) else value
    if isinstance(thing, Data):
        source = table.pop("source")
        return {**source, **table}
    return table
