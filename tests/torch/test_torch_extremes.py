"""Zero, overflow, NaN and missing gradients: no finite gradient becomes a NaN, and nothing non-finite is kept."""

import numpy as np
import pytest
import torch
from torch_problems import LOOK_RULES, TWO_GRADIENT_RULES, build, given, saved_rule

from looksam.torch import tensors

every_rule = pytest.mark.parametrize("name", TWO_GRADIENT_RULES)  # for MSAM see test_torch_momentum.py
look_rule = pytest.mark.parametrize("name", LOOK_RULES)


@pytest.fixture(params=["host", "device"], autouse=True)
def where_conditions_are_decided(request, monkeypatch):
    """Runs each test twice: conditions decided by Python, as on a CPU, and by tensors, as on an accelerator."""
    if request.param == "device":
        monkeypatch.setattr(tensors, "on_host", lambda x: False)


def as_tensors(*values, dtype=torch.float64):
    return [torch.tensor(x, dtype=dtype) for x in values]


G, G_S = as_tensors([0.3, 0.1], [-0.2]), as_tensors([0.5, -0.1], [0.4])
ZERO = as_tensors([0.0, 0.0], [0.0])


class Still(torch.optim.SGD):
    """An optimizer that does nothing; a learning rate of 0 times infinity would be a NaN."""

    def step(self, closure=None):
        pass


class Stage:
    """Two parameters with given gradients, for refresh and reuse steps on request."""

    def __init__(self, name, params=([1.0, -2.0], [0.5]), dtype=torch.float64, **options):
        self.params = [torch.nn.Parameter(x) for x in as_tensors(*params, dtype=dtype)]
        self.opt = build(name, Still(self.params), full_info=True, **options)

    def refresh(self, g, g_s):
        self.opt.count = 0
        self.opt.step(given(self.params, self.opt, g, g_s))
        return self.grads

    def reuse(self, g):
        self.opt.count = 1
        self.opt.step(given(self.params, self.opt, g))
        return self.grads

    @property
    def grads(self):
        return [p.grad for p in self.params]

    @property
    def g_v(self):
        return list(saved_rule(self.opt)["kept"].values())

    @property
    def info(self):
        return [float(x) for x in self.opt.info]


def same(a, b):
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)


def spoilt(g, value):
    return [g[0], torch.full_like(g[1], value)]


def finite(xs):
    return all(bool(torch.isfinite(x).all()) for x in xs)


@every_rule
def test_zero_gradient(name):
    stage = Stage(name)
    same(stage.refresh(ZERO, ZERO), ZERO)
    assert finite(stage.g_v) and np.all(np.isfinite(stage.info)) and not stage.opt.info.fell_back


@look_rule
def test_zero_g_v_and_zero_g_on_reuse(name):
    stage = Stage(name)
    stage.refresh(G, [3 * g for g in G])  # parallel: g_v is rounding, so 0
    assert float(stage.opt.info.g_v_norm) == 0.0
    same(stage.g_v, ZERO)
    same(stage.reuse(G), G)
    stage.refresh(G, G_S)
    same(stage.reuse(ZERO), ZERO)
    assert np.all(np.isfinite(stage.info))


@every_rule
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e200])  # 1e200: its square overflows
def test_a_bad_sam_gradient_falls_back_to_g(name, value):
    stage = Stage(name)
    stage.refresh(G, G_S)
    same(stage.refresh(G, spoilt(G_S, value)), G)
    assert stage.opt.info.fell_back and finite(stage.g_v) and np.all(np.isfinite(stage.info))
    if name in LOOK_RULES:
        same(stage.g_v, ZERO)
        same(stage.reuse(G), G)  # plain g until the next refresh
        assert not stage.opt.info.fell_back
        stage.refresh(G, G_S)
        assert float(stage.opt.info.g_v_norm) > 0


@every_rule
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_bad_gradient_is_passed_on_and_poisons_nothing(name, value):
    stage, bad = Stage(name), spoilt(G, value)
    stage.refresh(G, G_S)
    if name in LOOK_RULES:
        before = [x.clone() for x in stage.g_v]
        same(stage.reuse(bad), bad)
        same(stage.g_v, before)
    same(stage.refresh(bad, bad), bad)  # the first tensor untouched
    assert finite(stage.g_v)
    same(stage.params, as_tensors([1.0, -2.0], [0.5]))


@every_rule
def test_a_norm_that_overflows_is_not_a_nan(name):
    stage, huge = Stage(name), [1e200 * g for g in G]
    stage.refresh(G, G_S)
    if name in LOOK_RULES:
        same(stage.reuse(huge), huge)
        assert stage.opt.info.fell_back and not torch.isnan(stage.opt.info.cosine)
    same(stage.refresh(huge, huge), huge)
    assert stage.opt.info.fell_back and finite(stage.g_v) and not torch.isnan(stage.opt.info.cosine)


@look_rule
def test_float16_that_overflows_when_rounded(name):
    half = lambda *x: as_tensors(*x, dtype=torch.float16)
    stage = Stage(name, params=([1.0, 1.0, 1.0],), dtype=torch.float16)
    stage.refresh(half([6e4, 0.0, 0.0]), half([0.0, 1.0, 0.0]))
    assert float(stage.g_v[0][1]) == 1.0
    g = half([3.9e4, 3.9e4, 3.9e4])  # + 0.7 ‖g‖ along the second: past 65,504
    same(stage.reuse(g), g)
    assert stage.opt.info.fell_back
    stage.refresh(half([6e4, 6e4, 0.0]), half([6e4, -6e4, 6e4]))
    assert finite(stage.g_v)


def test_gsam_leaves_a_part_of_rounding_errors_alone():
    """Where g_s is parallel to g, or 0, the step is that of SAM, however large α is."""
    stage = Stage("gsam", alpha=1e12)
    parallel = [0.7 * g for g in G]
    same(stage.refresh(G, parallel), parallel)
    assert float(stage.opt.info.g_v_norm) == 0.0 and float(stage.opt.info.cosine) == pytest.approx(1.0)
    same(stage.refresh(G, ZERO), ZERO)
    same(stage.refresh(ZERO, G_S), G_S)
    assert np.all(np.isfinite(stage.info))


def test_gsam_that_overflows_when_rounded_or_in_its_norm():
    half = lambda *x: as_tensors(*x, dtype=torch.float16)
    stage = Stage("gsam", params=([1.0, 1.0],), dtype=torch.float16, alpha=4.0)
    g = half([3e4, 3e4])
    same(stage.refresh(g, half([3e4, 0.0])), g)  # 0 − 4 · 3e4 in the second entry
    assert stage.opt.info.fell_back and np.all(np.isfinite(stage.info))
    wide = Stage("gsam", alpha=1e200)
    same(wide.refresh(G, G_S), G)
    assert wide.opt.info.fell_back and np.all(np.isfinite(wide.info))


@look_rule
def test_a_g_v_too_large_for_its_store_is_dropped(name):
    stage, g_s = Stage(name, store_dtype=torch.float16), [1e6 * x for x in G_S]
    same(stage.refresh(G, g_s), g_s)
    assert finite(stage.g_v) and float(stage.opt.info.g_v_norm) == 0.0 and not stage.opt.info.fell_back


@every_rule
def test_a_parameter_without_a_gradient_counts_as_zero(name):
    """It does so in either pass, and the weights are put back all the same."""
    zero = torch.zeros(1, dtype=torch.float64)
    for g, g_s in (([G[0], None], G_S), (G, [G_S[0], None])):
        explicit, stage = Stage(name), Stage(name)
        filled = [[zero if x is None else x for x in xs] for xs in (g, g_s)]
        same(stage.refresh(g, g_s), explicit.refresh(*filled))
        same(stage.g_v, explicit.g_v)
        same(stage.params, explicit.params)
        assert stage.info == explicit.info
        if name in LOOK_RULES:
            same(stage.reuse([G[0], None]), explicit.reuse([G[0], zero]))


@every_rule
def test_a_parameter_that_is_never_seen_stays_without_a_gradient(name):
    stage = Stage(name)
    assert stage.refresh([G[0], None], [G_S[0], None])[1] is None
    if name in LOOK_RULES:
        assert stage.reuse([G[0], None])[1] is None
        assert list(saved_rule(stage.opt)["kept"]) == [0]


@look_rule
def test_a_g_v_of_the_last_refresh_only(name):
    """A parameter that had a g_v and gets no gradient at the next refresh has no g_v any more."""
    stage = Stage(name)
    stage.refresh(G, G_S)
    stage.refresh([G[0], None], [G_S[0], None])
    assert stage.reuse([G[0], None])[1] is None


@look_rule
def test_parameters_added_later_have_no_g_v_until_the_next_refresh(name):
    stage = Stage(name)
    stage.refresh(G, G_S)
    new = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    stage.opt.add_param_group({"params": [new]})
    stage.params.append(new)
    extra = torch.tensor([3.0, 4.0], dtype=torch.float64)
    g_v, (norm_v, g) = [x.clone() for x in stage.g_v], (float(stage.opt.info.g_v_norm), [*G, extra])
    grads = stage.reuse(g)
    same(grads[2:], [extra])
    norm = np.sqrt(sum(float((x**2).sum()) for x in g))  # over all parameters, the new one too
    for grad, x, v in zip(grads, G, g_v, strict=False):
        np.testing.assert_allclose(grad, x + 0.7 * norm / norm_v * v, rtol=1e-12)
    stage.refresh(g, [*G_S, extra])
    assert len(stage.g_v) == 3
