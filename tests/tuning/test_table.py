"""A search as a TOML table."""

from __future__ import annotations

from typing import Any

import pytest
from tests.tuning.test_search import BASE

import offbeat as ob
from offbeat.tuning.table import parse

RULES = [{"label": "A", "algorithm": "fedbuff"}, {"label": "B", "algorithm": "ca2fl"}]


def table(**tune: Any) -> dict[str, Any]:
    return BASE | {"variants": RULES, "tune": {"space": {"client": {"lr": [0.1, 0.2]}}} | tune}


def test_a_table_describes_a_search() -> None:
    tuning, seeds = parse(table(method="asha", trials=9, seeds=[5, 6]) | {"seeds": [1, 2]})
    assert list(tuning.rules) == ["A", "B"]
    assert (tuning.search.method, tuning.search.trials, tuning.search.seeds) == ("asha", 9, (5, 6))
    assert tuning.space == {"client.lr": ob.choice([0.1, 0.2])}
    assert seeds == [1, 2]


def test_options_of_the_command_replace_those_of_the_file() -> None:
    tuning, _ = parse(table(method="asha", trials=9), method="random", trials=None)
    assert (tuning.search.method, tuning.search.trials) == ("random", 9)


def test_the_search_has_a_seed_that_the_comparison_does_not_have() -> None:
    assert parse(table())[0].search.seeds == (0,)
    assert parse(table() | {"seeds": [0, 1, 3]})[0].search.seeds == (2,)
    assert parse(table() | {"seed": 7})[0].search.seeds == (7,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tune": None}, "tune: missing"),
        ({"tune": {"space": {}}}, r"tune\.space: empty"),
        ({"tune": {"trails": 3, "space": {"client.lr": [0.1]}}}, r"tune\.trails: unknown key; .*Did you mean 'trials'"),
        ({"tune": {"trials": 0, "space": {"client.lr": [0.1]}}}, r"tune\.trials: 0"),
    ],
)
def test_mistakes(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ob.ConfigError, match=message):
        parse(table() | changes)


def test_other_commands_say_which_one_is_for_a_search() -> None:
    from offbeat.runs import config

    with pytest.raises(ob.ConfigError, match="tune: describes a search; run it with: offbeat tune"):
        config.parse({name: value for name, value in table().items() if name != "variants"})
