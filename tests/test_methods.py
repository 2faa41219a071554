"""Names of rows, there and back."""

import pytest

from looksam.experiments.small_scale import LAMB_STARTS, SAM_ROWS, TIMED_ROWS
from looksam.methods import METHODS, label, parse_row, settings_of
from looksam.trainer.recipe import Recipe


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_row_and_a_label(name):
    method = METHODS[name]
    row = method.row_name(7)
    assert parse_row(row).method is parse_row(name).method is method
    assert label(row, k=7) == label(name, k=7) == method.display(7)
    recipe = Recipe(k=7).replace(**settings_of(row))
    assert METHODS[recipe.method].row_name(recipe.k) == row


def test_rows_of_tables_have_labels_of_their_own():
    for rows in (SAM_ROWS, tuple(LAMB_STARTS), *TIMED_ROWS.values()):
        assert len({label(row) for row in rows}) == len(rows)


def test_an_unknown_row():
    with pytest.raises(ValueError, match="row 'gsam_5' names no method; the methods are base, sam, sam_k"):
        parse_row("gsam_5")
    for name, message in (
        ("sam@", "starts at ''"),
        ("sam@8", "starts at '8'; write a fraction"),
        ("base@0.8", "base is no rule"),
        ("sam:literal", "sam takes none"),
    ):
        with pytest.raises(ValueError, match=message):
            parse_row(name)
