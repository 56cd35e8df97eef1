"""Suggestions for unknown names."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, cast

import pytest

import offbeat as ob
from offbeat.errors import SYNONYMS, nearest
from offbeat.runs import catalog, config
from offbeat.runs.data import Data


@pytest.mark.parametrize(
    ("table", "hint"),
    [
        ({"client": {"learning_rate": 0.1}}, "Did you mean 'lr'?"),
        ({"algorithm": {"learning-rate": 0.1}}, "Did you mean 'eta'?"),
        ({"learning_rate": 0.1}, "Did you mean 'client.lr'?"),
        ({"client": {"optimizer": "adam"}}, "Did you mean 'client.name'?"),
        ({"data": {"num_clients": 3}}, "Did you mean 'clients'?"),
        ({"epochs": 3}, "Did you mean 'client.epochs'?"),
        ({"algorithm": "fedprox"}, "Did you mean 'client.name = \"prox\"'?"),
        ({"model": "logistic-regression"}, "Did you mean 'lr'?"),
        ({"data": {"partition": "non-iid"}}, "Did you mean 'dirichlet'?"),
        ({"algorithm": "fedbuf"}, "Did you mean 'fedbuff'?"),
    ],
)
def test_words_of_other_programs_are_understood(table: dict[str, Any], hint: str) -> None:
    with pytest.raises(ob.ConfigError) as caught:
        config.parse(table)
    assert hint in str(caught.value)


def test_every_suggestion_exists() -> None:
    kinds = [kind for choices in config.CHOICES.values() for kind in choices.values()]
    kinds += [ob.Experiment, ob.Evaluation, ob.Compression, Data, ob.Environment]
    keys = {entry.name for kind in kinds for entry in fields(cast("Any", kind))}
    names = {name for kind in catalog.KINDS for name in catalog.names(kind)}
    for word, ours in SYNONYMS.items():
        for each in ours:
            key, _, value = each.partition(" = ")
            assert key.rpartition(".")[2] in keys | names | {"name"}, (word, each)
            assert not value or value.strip('"') in names, (word, each)


def test_the_key_that_was_given_is_not_suggested() -> None:
    with pytest.raises(ob.ConfigError) as caught:
        config.parse({"scheduler": {"name": "rounds", "buffer": 3}})
    assert "Did you mean" not in str(caught.value)


def test_a_word_without_a_likeness_has_no_suggestion() -> None:
    assert nearest("qqq", ["lr", "eta"]) == "valid: lr, eta."
