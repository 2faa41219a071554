"""The steps of a recipe in JAX, on one batch of noise: the trainer's own programs, and Optax's SAM on the same loss.

What is in the images does not change the time of a step, so no data is needed. Every program is compiled ahead of time,
which also gives the compiler's account of its memory.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import optax

from looksam.bench.cycle import cycle
from looksam.methods import METHODS
from looksam.trainer.data import Dataset
from looksam.trainer.optimizers import make_optimizer, make_rule
from looksam.trainer.parallel import BatchSplit, Gradient, Layout, make_layout
from looksam.trainer.recipe import Recipe
from looksam.trainer.rule_settings import gradients_per_step, has_window, rule_settings
from looksam.trainer.step import (
    StepContext,
    TrainState,
    init_state,
    make_augment,
    make_loss,
    make_train_step,
    refresh_of,
)
from looksam.trainer.training import Programs, abstract_dataset, make_model, total_steps

Program = Callable[..., tuple[TrainState, Any]]  # (state, images, labels) -> (state, anything)


class CompiledSteps:
    """Steps of compiled programs on one batch.

    Args:
      state: the state at step 0, which is donated to the first step.
      recipe: that of a cycle; where its rule does not act on all steps, the rule's count restarts after each.
      batch: images and labels on the devices.
      programs: the compiled programs.
      program_of: the name of the program that step i of a cycle runs.
      gradients: the mean number of gradients per step; the recipe's by default.
      kept: the part of the state that the rule keeps, for ``facts``.
    """

    def __init__(
        self,
        state: TrainState,
        recipe: Recipe,
        batch: tuple[jax.Array, ...],
        programs: Mapping[Any, jax.stages.Compiled],
        program_of: Callable[[int], Any] = lambda step: None,
        gradients: float | None = None,
        kept: Callable[[TrainState], Any] = lambda state: state.rule_state,
    ) -> None:
        self._state, self._batch, self._programs, self._program_of = state, batch, programs, program_of
        self._kept, self._count, self._cycle = kept, 0, cycle(recipe)
        self._gradients = gradients_per_step(recipe, self._cycle) if gradients is None else gradients
        self._restarts = has_window(recipe)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            if self._restarts and self._count % self._cycle == 0:
                self._reset_count()
            program = self._programs[self._program_of(self._count % self._cycle)]
            self._state, _ = program(self._state, *self._batch)
            self._count += 1
        jax.block_until_ready(self._state)

    def _reset_count(self) -> None:
        rule_state = self._state.rule_state
        count = rule_state.count  # not read, which would wait for the step before
        zero = jax.device_put(np.zeros(count.shape, count.dtype), count.sharding)
        self._state = self._state._replace(rule_state=rule_state._replace(count=zero))

    def facts(self) -> dict[str, float]:
        """Gradients per step; what the rule keeps, and XLA's temporaries, in copies of the parameters."""
        size = _bytes(self._state.params)
        temporary = max(_temporaries(program) for program in self._programs.values())
        return {
            "gradients": self._gradients,
            "kept_copies": _bytes(self._kept(self._state)) / size,
            "temporary_copies": temporary / size,
        }


def _temporaries(program: jax.stages.Compiled) -> int:
    memory: Any = program.memory_analysis()
    return int(memory.temp_size_in_bytes)


def _bytes(tree: Any) -> int:
    return sum(array.nbytes for array in jax.tree.leaves(tree))


# --- our rules ----------------------------------------------------------------------------------------------------


def static(settings: Mapping[str, Any], store_dtype: str | None = None) -> CompiledSteps:
    """The trainer's step: the host knows which steps refresh and on which the rule acts, and selects the program."""
    return static_steps(Recipe(**settings), store_dtype)


def static_steps(recipe: Recipe, store_dtype: str | None = None) -> CompiledSteps:
    """The same, of the recipe of a cycle in this process."""
    # No program depends on which steps refresh, so all k > 1 share theirs.
    setup, rule = _setup(recipe.replace(k=min(recipe.k, 2)), store_dtype), make_rule(recipe, cycle(recipe))
    program_of = functools.partial(refresh_of, rule)
    needed = {program_of(step) for step in range(cycle(recipe))}
    programs = {refresh: setup.compiled(refresh) for refresh in needed}
    return CompiledSteps(setup.programs.init(recipe.seed), recipe, setup.batch, programs, program_of)


def traced(settings: Mapping[str, Any], store_dtype: str | None = None) -> CompiledSteps:
    """One program that decides by the rule's count on the device: what a jitted ``rule.gradient`` does by default."""
    recipe = Recipe(**settings)
    setup = _setup(recipe, store_dtype)

    def step(state: TrainState, *batch: jax.Array) -> tuple[TrainState, jax.Array]:
        state, metrics = setup.programs.step(state, "traced", *batch)
        return state, metrics["loss"]  # the norms among the metrics would cost one more pass

    state = setup.programs.init(recipe.seed)
    program = jax.jit(step, donate_argnums=0).lower(state, *setup.batch).compile()
    return CompiledSteps(state, recipe, setup.batch, {None: program})


class _Setup:
    """The trainer's programs of a recipe and a batch of noise."""

    def __init__(self, recipe: Recipe, store_dtype: str | None) -> None:
        layout = make_layout(recipe.mesh_sizes())
        dataset = abstract_dataset(recipe)
        settings = rule_settings(recipe, cycle(recipe)) | ({"store_dtype": store_dtype} if store_dtype else {})
        rule = METHODS[recipe.method].rule(settings)
        self.programs = Programs(recipe, dataset, total_steps(recipe), layout, lambda *batch: batch, rule)
        self.batch = _noise(recipe, dataset, layout)

    @functools.cache  # noqa: B019, setups are cached themselves
    def compiled(self, refresh: bool | None) -> jax.stages.Compiled:
        return self.programs.step.lower(self.programs.abstract_state, refresh, *self.batch).compile()


_setup = functools.cache(_Setup)


def _noise(recipe: Recipe, dataset: Dataset, layout: Layout) -> tuple[jax.Array, ...]:
    """A batch of random images and labels, on the devices as the trainer puts them."""
    rng, size = np.random.default_rng(0), recipe.batch_size
    images = rng.integers(0, 256, (size, *dataset.image_shape), np.uint8)
    labels = rng.integers(0, dataset.num_classes, size, np.int32)
    return layout.put_batch(size, images.__getitem__), layout.put_batch(size, labels.__getitem__)


# --- Optax's SAM --------------------------------------------------------------------------------------------------


def optax_transparent(settings: Mapping[str, Any], store_dtype: None = None) -> CompiledSteps:
    """``optax.contrib.sam`` as a drop-in optimizer: every second call moves the parameters, so two are one step."""
    peer = _OptaxSAM(Recipe(**settings), opaque=False)
    update = make_train_step(peer.recipe, peer.dataset, peer.model, None, peer.tx, peer.layout)

    def call(state: TrainState, images: jax.Array, labels: jax.Array) -> tuple[TrainState, jax.Array]:
        state, metrics = update(state, images, labels, None, False)
        return state, metrics["loss"]

    return _TwoCalls(*peer.compiled(call))


class _TwoCalls(CompiledSteps):
    def run(self, steps: int) -> None:
        super().run(2 * steps)


def optax_opaque(settings: Mapping[str, Any], store_dtype: None = None) -> CompiledSteps:
    """``optax.contrib.sam`` in opaque mode: one call takes both gradients."""
    peer = _OptaxSAM(Recipe(**settings), opaque=True)
    recipe, split = peer.recipe, BatchSplit.of(peer.recipe, peer.layout.devices)
    augment = peer.layout.map_rows(make_augment(recipe, split))
    gradient = Gradient(make_loss(recipe, peer.dataset, peer.model), peer.layout, split)

    def call(state: TrainState, images: jax.Array, labels: jax.Array) -> tuple[TrainState, jax.Array]:
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
        augment_key, *keys = jax.random.split(key, 3)
        batch = StepContext(state.stats, *keys), augment(augment_key, images), labels
        (loss, (stats, _)), g = gradient(state.params, *batch)
        grad_fn = lambda params, _: gradient(params, *batch)[1]
        updates, opt_state = peer.tx.update(g, state.opt_state, state.params, grad_fn=grad_fn)
        params = optax.apply_updates(state.params, updates)
        return TrainState(state.step + 1, params, stats, opt_state, (), state.key), loss

    return CompiledSteps(*peer.compiled(call))


class _OptaxSAM:
    """Optax's SAM around the base optimizer of a recipe."""

    def __init__(self, recipe: Recipe, *, opaque: bool) -> None:
        self.recipe = recipe.replace(method="base")
        self.layout, self.dataset = make_layout(recipe.mesh_sizes()), abstract_dataset(recipe)
        self.model = make_model(recipe, self.dataset)
        ascent = optax.chain(optax.contrib.normalize(), optax.sgd(recipe.rho))
        base = make_optimizer(recipe, total_steps(recipe))
        self.tx = optax.contrib.sam(base, ascent, opaque_mode=opaque)

    def compiled(self, call: Program) -> tuple[Any, ...]:
        """The arguments of ``CompiledSteps``."""

        def init() -> TrainState:
            return init_state(jax.random.key(self.recipe.seed), self.model, None, self.tx)

        shardings = self.layout.shardings(jax.eval_shape(init))
        state = jax.jit(init, out_shardings=shardings)()
        batch = _noise(self.recipe, self.dataset, self.layout)
        step = jax.jit(call, donate_argnums=0, out_shardings=(shardings, self.layout.replicated))
        kept = lambda state: state.opt_state._replace(opt_state=())  # without the base optimizer's own
        return state, self.recipe, batch, {None: step.lower(state, *batch).compile()}, lambda step: None, 2.0, kept
