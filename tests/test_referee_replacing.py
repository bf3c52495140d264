"""Recipes with some fields replaced: as the standard library makes them, only sooner."""

import dataclasses

import numpy as np
import pytest

from attncli import pose
from attncli.referee.recipe import recipe_of
from attncli.referee.replacing import replace


@pytest.fixture
def recipe():
    return recipe_of(pose(*np.ones((3, 5, 4)), causal=True))


def test_it_is_what_the_standard_library_makes(recipe):
    changes = {"rules": {}, "start": 3}
    ours, theirs = replace(recipe, **changes), dataclasses.replace(recipe, **changes)
    assert type(ours) is type(theirs)
    assert vars(ours) == vars(theirs)
    assert recipe.start == 0


def test_what_was_worked_out_of_other_fields_is_forgotten(recipe):
    assert not recipe.seen.all()
    assert replace(recipe, rules={}).seen.all()
    assert recipe.problem.shape == (1, 1, 5, 5)
    shorter = replace(recipe.problem, query=recipe.problem.query[:, :, :2])
    assert shorter.shape == (1, 1, 2, 5)


def test_names_of_no_field_are_refused(recipe):
    with pytest.raises(TypeError, match="Recipe has no field another"):
        replace(recipe, another=1)
