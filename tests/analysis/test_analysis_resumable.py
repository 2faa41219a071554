"""Chunks give the numbers of the whole batch, and an interrupted measurement resumes with the same numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looksam.analysis import InMemory, chunked_loss, hessian_vector_product, measure, resumable

EXAMPLES = 9


def loss(params, x, y):
    return jnp.mean(jnp.square(jnp.tanh(x @ params["kernel"] + params["bias"]).sum(axis=1) - y))


@pytest.fixture(scope="module")
def problem():
    random = np.random.default_rng(0)
    params = {"kernel": jnp.asarray(random.normal(size=(3, 4))), "bias": jnp.asarray(random.normal(size=4))}
    batches = [
        (jnp.asarray(random.normal(size=(EXAMPLES, 3))), jnp.asarray(random.normal(size=EXAMPLES))) for _ in range(2)
    ]
    return params, batches


@pytest.mark.parametrize("size", [1, 2, 3, 8, 9, 100])
def test_chunks_give_the_value_gradient_and_products_of_the_whole(problem, size):
    params, (batch, _) = problem
    v = jax.tree.map(jnp.sin, params)

    def numbers(function):
        of_batch = lambda w: function(w, *batch)
        return jax.jit(lambda w: (jax.value_and_grad(of_batch)(w), hessian_vector_product(of_batch, w, v)))(params)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), numbers(chunked_loss(loss, size)), numbers(loss)
    )


def test_the_memory_of_chunks_is_that_of_one():
    """A product with the Hessian of 64 chunks takes hardly more than that of one, and far less than the whole."""

    def wide(params, x):
        for _ in range(4):
            x = jnp.tanh(x @ params)
        return jnp.mean(x)

    def temporary(function, rows):
        product = lambda w, x: hessian_vector_product(lambda w: function(w, x), w, w)
        compiled = jax.jit(product).lower(jnp.ones((32, 32)), jnp.ones((rows, 32))).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    one, chunks, whole = temporary(wide, 64), temporary(chunked_loss(wide, 64), 4096), temporary(wide, 4096)
    assert chunks < 4 * one and 8 * chunks < whole


class Interrupting:
    """A progress callback that interrupts the n-th time."""

    def __init__(self, after):
        self.left, self.titles = after, []

    def __call__(self, title, done, total):
        self.titles.append(title)
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


@pytest.mark.usefixtures("as_users_run_it")
def test_an_interrupted_measurement_resumes_with_the_same_numbers(problem, monkeypatch):
    monkeypatch.setattr(resumable, "KEEP_SECONDS", 0.0)
    params, (train, test) = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), problem)

    def measured(kept, progress):
        return measure(
            *(loss, params, train, test),
            rho=0.1,
            key=jax.random.key(0),
            eigenvalues=2,
            kept=kept,
            progress=progress,
        )

    whole = Interrupting(10**6)
    expected = measured(None, whole)
    kept, titles = InMemory(), []
    for _ in range(5):
        progress = Interrupting(int(0.6 * len(whole.titles)))
        try:
            resumed = measured(kept, progress)
        except KeyboardInterrupt:
            titles += progress.titles
            continue
        break
    titles += progress.titles
    assert resumed == expected
    assert len(titles) < 1.2 * len(whole.titles)  # little was done twice
    again = Interrupting(0)
    assert measured(kept, again) == expected and not again.titles
    dependent = {name.split()[0] for name in kept.parts if "rho=0.1" in name}  # on rho
    assert dependent == {"sharpness", "m_sharpness", "second_order", "named"} and len(kept.parts) == 9


def test_progress_ends_at_all_work_and_names_the_parts(problem):
    params, (train, test) = problem
    seen = []
    measure(
        *(loss, params, train, test),
        rho=0.1,
        key=jax.random.key(0),
        progress=lambda title, done, total: seen.append((title, done, total)),
    )
    titles, done, total = zip(*seen, strict=True)
    assert done[-1] == pytest.approx(total[-1]) and list(done) == sorted(done)
    assert {"sharpness, training images", "eigenvalues of the Hessian", "loss over a random plane"} <= set(titles)
