"""The bound against arithmetic written out."""

from math import log, sqrt

import pytest

from looksam.analysis import pac_bayes_bound


def test_written_out():
    found = pac_bayes_bound(n=100, parameters=4, weight_norm=3.0, rho=0.3, rho0=0.4, delta=0.1, worst_loss=0.25)
    # rho'^2 = 0.09 + 0.16 = 0.25, so ||w||^2 / rho'^2 = 36; log 100 = 4.605170185988091
    growth = (1 + sqrt(4.605170185988091 / 4)) ** 2
    assert log(1 + 36 * growth) == pytest.approx(5.0479394835593492, rel=1e-14)
    assert found.weights == pytest.approx(4 * 5.0479394835593492, rel=1e-12)
    assert found.confidence == pytest.approx(4 * 6.907755278982137, rel=1e-12)  # 4 log(100 / 0.1) = 4 log 1000
    assert found.constant == pytest.approx(8 * 6.416732282512326, rel=1e-12)  # 8 log(600 + 12)
    total = 20.191757934237397 + 27.631021115928548 + 51.333858260098609
    assert found.slack == pytest.approx(sqrt(total / 99), rel=1e-12)
    assert found.bound == pytest.approx(0.25 + sqrt(total / 99), rel=1e-12)
    assert found.worst_loss == 0.25


def test_exact_sam_has_no_second_radius():
    assert pac_bayes_bound(100, 4, 3.0, 0.5) == pac_bayes_bound(100, 4, 3.0, 0.3, 0.4)


def test_weights_of_zero_cost_nothing():
    assert pac_bayes_bound(100, 4, 0.0, 0.5).weights == 0


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"n": 1}, ValueError, "n=1 is out of range; pass n >= 2"),
        ({"n": 10.0}, TypeError, "n=10.0 is not an int"),
        ({"parameters": 0}, ValueError, "parameters=0 is out of range; pass parameters >= 1"),
        ({"weight_norm": -1.0}, ValueError, "weight_norm=-1.0 is out of range"),
        ({"weight_norm": float("nan")}, ValueError, "weight_norm=nan is out of range"),
        ({"rho": 0.0}, ValueError, "rho=0.0 and rho0=0.0 give a radius of 0 and an infinite bound; pass rho > 0"),
        ({"rho": "0.1"}, TypeError, "rho='0.1' is not a number"),
        ({"rho0": -0.1}, ValueError, "rho0=-0.1 is out of range"),
        ({"delta": 0.0}, ValueError, "delta=0.0 is out of range; pass 0 < delta < 1"),
        ({"delta": 1.0}, ValueError, "delta=1.0 is out of range"),
        ({"delta": True}, TypeError, "delta=True is not a number"),
        ({"worst_loss": float("inf")}, ValueError, "worst_loss=inf is out of range"),
    ],
)
def test_bad_arguments(change, error, message):
    with pytest.raises(error, match=message):
        pac_bayes_bound(**({"n": 100, "parameters": 4, "weight_norm": 3.0, "rho": 0.5} | change))
