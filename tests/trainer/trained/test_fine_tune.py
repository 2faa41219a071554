"""Fine-tuning: weights from runs, exports and public layouts, new heads, other image sizes, and frozen layers."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flowers import recipe_for, write_flowers
from safetensors.numpy import load_file, save_file
from torch.nn import functional
from transformers import ViTConfig, ViTForImageClassification

import looksam
from looksam.trainer import Recipe, RunError, evaluate_run, export_run, load_model, run
from looksam.trainer.loop import restored
from looksam.trainer.trained.fine_tune import resize_positions, with_initial_weights
from looksam.trainer.trained.weights import flat
from looksam.trainer.training import Training

pytestmark = pytest.mark.usefixtures("as_users_run_it")

PUBLIC = {"width": 24, "depth": 2, "heads": 3, "pooling": "token", "gelu": "exact"}


def started(recipe):
    """The training of a recipe, its state before the first step, and what was reported."""
    training, lines = Training(recipe), []
    return training, with_initial_weights(training, training.init(), lines.append), lines


def arrays(state):
    return {path: np.asarray(value) for path, value in flat(state.params, state.stats).items()}


# --- from runs and exports ----------------------------------------------------------------------------------------


def test_a_run_starts_from_another_and_replaces_the_head_if_the_classes_differ(flowers_run, tmp_path):
    source, data = flowers_run[0], flowers_run[0].parent / "data"
    trained = load_model(source)
    there = flat(trained.params, trained.stats)
    _, state, lines = started(recipe_for(data, init_from=str(source), seed=1))
    assert lines == [f"starting from {source}"]
    for path, value in arrays(state).items():
        np.testing.assert_array_equal(value, there[path])

    export_run(source, tmp_path / "export", stablehlo=False)
    other = write_flowers(tmp_path / "other", ("aster", "lily", "rose", "tulip"), side=12)
    recipe = recipe_for(other, init_from=str(tmp_path / "export"), seed=1)
    training, state, lines = started(recipe)
    [line] = lines
    assert "the head is new (4 classes in place of 3)" in line
    assert "position embeddings resized from 2×2 to 3×3 patches" in line
    fresh = flat(training.init().params)
    for path, value in arrays(state).items():
        if path.startswith("head/"):
            np.testing.assert_array_equal(value, fresh[path])
        elif path != "position":
            np.testing.assert_array_equal(value, there[path])

    renamed = write_flowers(tmp_path / "renamed", ("daisy", "rose", "violet"))
    *_, [line] = started(recipe_for(renamed, init_from=str(source)))
    assert "the head is new (the classes have other names, or another order)" in line


def test_a_fine_tuned_run_resumes_bit_for_bit_without_its_source(flowers_run, tmp_path):
    source, data = tmp_path / "source", flowers_run[0].parent / "data"
    shutil.copytree(flowers_run[0], source)
    recipe = recipe_for(data, init_from=str(source), freeze="^blocks/0/", optimizer="adamw", method="sam", epochs=2)
    quiet = {"quiet": True, "report": lambda line: None}
    run(recipe, tmp_path / "whole", **quiet)
    run(recipe.replace(steps=1), tmp_path / "parts", **quiet)
    shutil.rmtree(source)
    result = run(recipe, tmp_path / "parts", **quiet)
    states = []
    for name in ("whole", "parts"):
        with restored(tmp_path / name) as (_, step, state):
            assert step == 4
            states.append(jax.tree.map(np.asarray, state))
    jax.tree.map(np.testing.assert_array_equal, *states)
    assert evaluate_run(tmp_path / "parts")["test_accuracy"] == result["test_accuracy"]
    with pytest.raises(RunError, match="init_from='.*source' is neither a file nor a folder"):
        run(recipe, tmp_path / "new", **quiet)


# --- public weights -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hugging_face(tmp_path_factory):
    """A ViT of transformers with random weights, as it saves them."""
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=96,
        image_size=8,
        patch_size=4,
        num_labels=3,
        layer_norm_eps=1e-6,
        initializer_range=0.3,
    )
    model, folder = ViTForImageClassification(config).eval(), tmp_path_factory.mktemp("hugging_face")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model, folder


def as_timm(tensors):
    """The weights of transformers as timm would save them."""
    named = {name.removeprefix("vit."): value for name, value in tensors.items()}
    result = {
        "cls_token": named["embeddings.cls_token"],
        "pos_embed": named["embeddings.position_embeddings"],
    }
    for kind in ("weight", "bias"):
        result[f"patch_embed.proj.{kind}"] = named[f"embeddings.patch_embeddings.projection.{kind}"]
        result[f"norm.{kind}"], result[f"head.{kind}"] = named[f"layernorm.{kind}"], named[f"classifier.{kind}"]
        for i in range(2):
            there, here = f"encoder.layer.{i}", f"blocks.{i}"
            parts = [named[f"{there}.attention.attention.{part}.{kind}"] for part in ("query", "key", "value")]
            result[f"{here}.attn.qkv.{kind}"] = np.concatenate(parts)
            result[f"{here}.attn.proj.{kind}"] = named[f"{there}.attention.output.dense.{kind}"]
            result[f"{here}.norm1.{kind}"] = named[f"{there}.layernorm_before.{kind}"]
            result[f"{here}.norm2.{kind}"] = named[f"{there}.layernorm_after.{kind}"]
            result[f"{here}.mlp.fc1.{kind}"] = named[f"{there}.intermediate.dense.{kind}"]
            result[f"{here}.mlp.fc2.{kind}"] = named[f"{there}.output.dense.{kind}"]
    return result


@pytest.mark.parametrize("layout", ["folder", "file", "timm"])
def test_public_vits_give_the_same_logits(layout, hugging_face, flowers_run, tmp_path):
    model, folder = hugging_face
    source = {"folder": folder, "file": folder / "model.safetensors", "timm": tmp_path / "timm.safetensors"}[layout]
    if layout == "timm":
        save_file(as_timm(load_file(folder / "model.safetensors")), source)
    data = flowers_run[0].parent / "data"
    training, state, lines = started(recipe_for(data, init_from=str(source), **PUBLIC))
    assert lines == [f"starting from {source}"]
    images = np.random.default_rng(0).normal(size=(4, 8, 8, 3)).astype(np.float32)
    ours, _ = training.programs.model.apply(state.params, state.stats, jnp.asarray(images), train=False)
    with torch.no_grad():
        theirs = model(torch.tensor(images).permute(0, 3, 1, 2)).logits
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_class_token_is_never_dropped_in_silence(hugging_face, flowers_run):
    data, source = flowers_run[0].parent / "data", str(hugging_face[1])
    with pytest.raises(RunError, match="pooling=token, gelu=exact, .*; pass --pooling token --gelu exact"):
        started(recipe_for(data, init_from=source, width=24, heads=3))
    *_, [line] = started(recipe_for(data, init_from=source, **PUBLIC | {"pooling": "mean"}))
    assert "with pooling=mean in place of token" in line


@pytest.mark.parametrize(("old", "new"), [((3, 3), (5, 5)), ((6, 6), (4, 3)), ((2, 4), (4, 4))])
def test_position_embeddings_are_resized_as_by_pytorch(old, new):
    position = np.random.default_rng(0).normal(size=(old[0] * old[1], 7)).astype(np.float32)
    grid = torch.tensor(position).reshape(1, *old, 7).permute(0, 3, 1, 2)
    expected = functional.interpolate(grid, new, mode="bicubic", antialias=True)[0].permute(1, 2, 0).reshape(-1, 7)
    np.testing.assert_allclose(resize_positions(position, old, new), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"depth": 3}, "lacks 'blocks.2"),
        ({"depth": 1}, "has 'blocks.1.*which the model has not"),
        ({"width": 12}, "with shape .* which does not fit"),
        ({"patch": 2}, "'embed.weight' with shape .* does not fit 'embed/kernel'"),
        ({"model": "resnet", "width": None, "depth": None, "heads": None, "pooling": None, "gelu": None}, "lacks"),
    ],
)
def test_weights_of_another_model_are_refused(change, message, hugging_face, flowers_run):
    recipe = recipe_for(flowers_run[0].parent / "data", init_from=str(hugging_face[1]))
    with pytest.raises(RunError, match=message + ".*pass --model and its sizes as they were trained"):
        started(recipe.replace(**PUBLIC | change))


def test_files_that_are_no_weights_are_refused(flowers_run, tmp_path):
    data = flowers_run[0].parent / "data"
    save_file({"layer1.conv.weight": np.zeros(1, np.float32)}, tmp_path / "other.safetensors")
    (tmp_path / "damaged.safetensors").write_bytes(b"damaged")
    (tmp_path / "folder").mkdir()
    for name, message in (
        ("other.safetensors", "has names that are not known here"),
        ("damaged.safetensors", "cannot be read as safetensors"),
        ("folder", "model.safetensors is not a file"),
    ):
        with pytest.raises(RunError, match=message):
            started(recipe_for(data, init_from=str(tmp_path / name)))


# --- frozen layers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["look_sam", "layer_sam", "asam"])
def test_frozen_parameters_are_constants_of_every_step(method):
    """Equal to steps by hand on the other parameters alone: perturbation, norms, clipping, decay."""
    recipe = Recipe(mesh="data=1", batch_size=200, epochs=2, method=method, rho=0.1, k=3, learning_rate=0.05)
    recipe = recipe.replace(freeze="^hidden/[01]/", weight_decay=0.1, clip_norm=0.5)
    training = Training(recipe)
    state = training.init()
    before = jax.tree.map(np.array, state.params)
    rule = {
        "look_sam": lambda: looksam.look_sam(0.1, 0.7, k=3),
        "layer_sam": lambda: looksam.layer_sam(0.1),
        "asam": lambda: looksam.asam(0.1),
    }[method]()
    rate = optax.cosine_decay_schedule(0.05, 6)
    decay = optax.add_decayed_weights(0.1)
    tx = optax.chain(optax.clip_by_global_norm(0.5), decay, optax.sgd(rate, momentum=0.9))
    frozen = {name: before["hidden"][name] for name in "01"}
    params = {"hidden": {"2": before["hidden"]["2"]}, "head": before["head"]}
    rule_state, opt_state = rule.init(params), tx.init(params)

    def loss(params, images, labels):
        whole = {"hidden": frozen | params["hidden"], "head": params["head"]}
        logits, _ = training.programs.model.apply(whole, {}, images / np.float32(240), train=True)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    for i in range(4):
        images, labels = training.batches.to_batch(*training.batches.arguments(i))
        state, metrics = training.step(state, i)
        _, grads, rule_state, info = rule.gradient(
            jax.value_and_grad(loss), params, rule_state, images.astype(jnp.float32), labels
        )
        updates, opt_state = tx.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        np.testing.assert_allclose(metrics["grad_norm"], info.grad_norm, rtol=1e-4)
    after = jax.tree.map(np.asarray, state.params)
    for name in "01":
        jax.tree.map(np.testing.assert_array_equal, after["hidden"][name], frozen[name])
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, {"hidden": {"2": after["hidden"]["2"]}, "head": after["head"]}, params)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"freeze": "blocks"}, "freeze='blocks' matches none of the parameters, head/bias"),
        ({"freeze": ""}, "freeze='' matches every parameter, so that nothing is trained"),
        ({"freeze": "hidden", "perturb": "hidden", "method": "sam"}, "perturb='hidden' matches none.*that are trained"),
    ],
)
def test_expressions_that_leave_nothing_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Training(Recipe(mesh="data=1", **settings))


def test_frozen_layers_on_a_mesh_are_those_on_one_device():
    recipe = Recipe(batch_size=200, epochs=1, method="sam", freeze="^hidden/0/", weight_decay=0.1)
    ends = []
    for mesh in ("data=1", "data=2,fsdp=2"):
        training = Training(recipe.replace(mesh=mesh))
        state = training.init()
        for i in range(2):
            state, _ = training.step(state, i)
        ends.append(jax.tree.map(np.asarray, state.params))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), *ends)
