"""The PyTorch models are the trainer's: same parameters, same logits, same gradients."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn

from looksam.torch import vision_models
from looksam.trainer.models import MODELS, build_model
from looksam.trainer.models.functional import Mode
from looksam.trainer.models.layers import Dropout
from looksam.trainer.trained.weights import flat, torch_name

pytestmark = pytest.mark.usefixtures("in_float64")

SMALL = (8, 8, 3)
LARGE = (72, 72, 1)  # more than 64, so that a ResNet gets its ImageNet stem
CASES = {
    "mlp": ("mlp", SMALL, {}),
    "mlp widths": ("mlp", (4, 4, 1), {"widths": (7, 5)}),
    "resnet": ("resnet", SMALL, {}),
    "resnet large": ("resnet", LARGE, {"width": 4, "blocks": (1, 2)}),
    "resnet bottleneck": ("resnet", SMALL, {"width": 4, "blocks": (1, 1), "bottleneck": True, "zero_init": True}),
    "vit": ("vit", SMALL, {"width": 24, "depth": 2}),
    "vit as in public weights": ("vit", SMALL, {"width": 24, "depth": 2, "pooling": "token", "gelu": "exact"}),
    "vit sizes": ("vit", SMALL, {"width": 8, "depth": 1, "heads": 2, "patch": 2, "mlp_ratio": 1.5}),
    "wide_resnet": ("wide_resnet", SMALL, {"widen": 1}),
    "wide_resnet deep": ("wide_resnet", SMALL, {"depth": 16, "widen": 1}),
}
RATES = {
    "vit": ("vit", SMALL, {"width": 24, "depth": 2, "dropout": 0.4, "stochastic_depth": 0.4}),
    "wide_resnet": ("wide_resnet", SMALL, {"widen": 1, "dropout": 0.4}),
}


def built(name, image_shape, num_classes, **options):
    """The module of a model in MODELS."""
    entry = MODELS[name]
    return vision_models.build(entry.builder, image_shape, num_classes, **{**entry.fixed, **options})


def models(name, image_shape, options):
    """The model in JAX, its random weights, and the module that holds the same weights."""
    model = build_model(name, image_shape=image_shape, num_classes=5, dtype=jnp.float64, **options)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    rng = np.random.default_rng(0)
    params, stats = jax.tree.map(lambda x: rng.normal(0.5, 0.3, x.shape), shapes)
    stats = jax.tree.map(np.abs, stats)
    module = built(name, image_shape, 5, **options).double()
    return model, params, stats, module, flat(params, stats)


def as_torch(arrays, module):
    """The arrays of JAX by PyTorch's names and in its layout."""
    own = module.state_dict()
    named = {torch_name(path): (path.rpartition("/")[2], value) for path, value in arrays.items()}
    assert named.keys() == {name for name in own if not name.endswith("num_batches_tracked")}
    return {name: _converted(last, value, own[name]) for name, (last, value) in named.items()}


def _converted(last, value, like):
    value = torch.tensor(np.asarray(value, np.float64))
    if last != "kernel":
        return value
    if like.ndim == 4:  # (height, width, in, out); the ViT's embedding is a dense layer on patches in JAX
        height, width = like.shape[2:]
        return value.reshape(height, width, like.shape[1], like.shape[0]).permute(3, 2, 0, 1)
    return value.T


def batch(image_shape):
    rng = np.random.default_rng(1)
    return rng.normal(size=(6, *image_shape)), rng.integers(0, 5, 6)


@pytest.mark.parametrize("case", CASES)
def test_logits_and_gradients_are_those_of_the_trainer(case):
    name, image_shape, options = CASES[case]
    model, params, stats, module, arrays = models(name, image_shape, options)
    module.load_state_dict(as_torch(arrays, module), strict=False)
    images, labels = batch(image_shape)

    def loss(params):
        logits, _ = model.apply(params, stats, jnp.asarray(images), train=True)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean(), logits

    (_, logits), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    ours = module.train()(torch.tensor(images).permute(0, 3, 1, 2))
    nn.functional.cross_entropy(ours, torch.tensor(labels)).backward()
    np.testing.assert_allclose(ours.detach(), logits, rtol=1e-10, atol=1e-10)
    expected = {torch_name(path): (path.rpartition("/")[2], g) for path, g in flat(grads).items()}
    theirs = {name: _converted(last, g, module.get_parameter(name)) for name, (last, g) in expected.items()}
    for parameter_name, parameter in module.named_parameters():
        np.testing.assert_allclose(parameter.grad, theirs[parameter_name], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("case", RATES)
def test_dropout_has_the_places_and_rates_of_the_trainer(case):
    name, image_shape, options = RATES[case]
    model, params, stats, module, arrays = models(name, image_shape, options)
    module.load_state_dict(as_torch(arrays, module), strict=False)
    images, _ = batch(image_shape)
    inputs = torch.tensor(images).permute(0, 3, 1, 2)
    logits, _ = model.apply(params, stats, jnp.asarray(images), train=False)  # nothing is dropped
    np.testing.assert_allclose(module.eval()(inputs).detach(), logits, rtol=1e-10, atol=1e-10)

    entry = MODELS[name]
    builder = getattr(importlib.import_module(f"looksam.trainer.models.{entry.module}"), entry.builder)
    theirs = builder(image_shape, 5, jnp.dtype("float32"), **options)(nnx.Rngs(0))
    rates = {".".join(map(str, path)): m.rate for path, m in nnx.iter_modules(theirs) if isinstance(m, Dropout)}
    drops = {n: m for n, m in module.named_modules() if isinstance(m, (nn.Dropout, vision_models.DropPath))}
    assert {n: m.p if isinstance(m, nn.Dropout) else m.rate for n, m in drops.items()} == rates

    calls = []
    for drop in drops.values():
        drop.register_forward_hook(lambda *_: calls.append(1))
    module.train()(inputs)
    mode = Mode(True, jax.random.split(jax.random.key(0), len(images)))
    theirs(jnp.asarray(images, jnp.float32), mode)
    assert len(calls) == mode._layers


def test_stochastic_depth_drops_whole_images():
    drop = vision_models.DropPath(0.25).train()
    torch.manual_seed(0)
    scales = drop(torch.ones(400, 3, 2)).reshape(400, 6)
    assert (scales == scales[:, :1]).all()
    assert set(scales[:, 0].tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert (scales[:, 0] == 0).float().mean() == pytest.approx(0.25, abs=0.1)
    assert drop.eval()(torch.ones(2, 1)).tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_the_parameters_of_the_trainer(name):
    image_shape = (32, 32, 3)
    model = build_model(name, image_shape=image_shape, num_classes=10)
    params, stats = jax.eval_shape(model.init, jax.random.key(0))
    with torch.device("meta"):
        own = built(name, image_shape, 10).state_dict()
    sizes = {name: value.numel() for name, value in own.items() if not name.endswith("num_batches_tracked")}
    assert sizes == {torch_name(path): int(np.prod(value.shape)) for path, value in flat(params, stats).items()}
