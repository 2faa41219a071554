"""What devices send each other, counted in the jaxpr, against counts made another way and the compiled programs."""

import hlo_collectives
import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from looksam.trainer.plan.flops import COLLECTIVES, count
from looksam.trainer.plan.program import Collective


def mesh(**axes):
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def collectives(function, on, in_specs, out_specs, *shapes):
    """Those of ``function`` under shard_map, from the jaxpr; those of the compiled program must be the same."""
    mapped = jax.shard_map(function, mesh=on, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    arrays = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(on, spec))
        for shape, spec in zip(shapes, in_specs, strict=True)
    ]
    traced = jax.jit(mapped).trace(*arrays)
    found = count(traced.jaxpr).collectives
    compiled = hlo_collectives.collectives(traced.lower().compile().as_text())
    assert sorted(map(facts, found)) == sorted(map(facts, compiled))
    return found


def facts(c):
    return c.kind, c.bytes, c.largest, c.group_size, c.trips or -1, len(c.loops), c.conditional


def test_a_gradient_is_reduced_as_one_and_scalars_are_told_apart():
    def step(w, v, x):
        g = jax.grad(lambda p: jnp.sum(jnp.tanh(x @ p[0]) @ p[1]))((w, v))
        g = lax.psum(g, "data")
        return *g, lax.psum(jnp.max(x) * jnp.sum(g[0]), "data")

    shapes = (32, 64), (64, 16), (16, 32)
    found = collectives(step, mesh(data=8), (P(), P(), P("data")), (P(), P(), P()), *shapes)
    assert [(c.bytes, c.largest) for c in found if not c.is_scalar] == [(4 * (32 * 64 + 64 * 16), 4 * 32 * 64)]
    assert [(c.bytes, c.largest) for c in found if c.is_scalar] == [(4, 4)]
    assert {(c.kind, c.group_size, c.trips, c.loops, c.conditional) for c in found} == {("all-reduce", 8, 1, (), False)}


def test_groups_along_one_axis_of_a_mesh_and_trips_of_loops():
    def step(x):
        def body(total, row):
            return total + lax.psum(row @ row, "data"), None

        total, _ = lax.scan(body, jnp.zeros_like(x[0]), x)
        return lax.psum(total, "fsdp")

    inside, after = collectives(step, mesh(data=2, fsdp=4), (P(),), P(), (5, 32, 32))
    assert (inside.group_size, inside.trips, len(inside.loops)) == (2, 5, 1)
    assert (after.group_size, after.trips, after.loops) == (4, 1, ())
    assert inside.bytes == after.bytes == 4 * 32 * 32
    assert (inside.sent, after.sent) == (5 * 2 * 4096 * 1 / 2, 2 * 4096 * 3 / 4)


OPERATIONS = {
    "all-gather": (lambda x: lax.all_gather(x, "a", tiled=True), 8 * 16 * 32 * 4),
    "reduce-scatter": (lambda x: lax.psum_scatter(x, "a", tiled=True), 16 * 32 * 4),
    "all-to-all": (lambda x: lax.all_to_all(x, "a", 0, 1, tiled=True), 16 * 32 * 4),
    "collective-permute": (lambda x: lax.ppermute(x, "a", [(i, (i + 1) % 8) for i in range(8)]), 16 * 32 * 4),
}


@pytest.mark.parametrize("kind", OPERATIONS)
def test_each_kind_has_its_bytes(kind):
    function, expected = OPERATIONS[kind]
    (found,) = collectives(function, mesh(a=8), (P("a"),), P("a"), (8 * 16, 32))
    assert (found.kind, found.bytes, found.largest, found.group_size) == (kind, expected, expected, 8)


def ring(kind, n, parts):
    """Bytes that device 0 sends, from playing the ring algorithm: a device passes a part on until all have it."""
    sent = 0
    rounds = {"all-reduce": 2 * (n - 1), "all-gather": n - 1, "reduce-scatter": n - 1}[kind]
    for step in range(rounds):
        sent += parts[(0 - step) % n]
    return sent


@pytest.mark.parametrize("kind", ["all-reduce", "all-gather", "reduce-scatter"])
@pytest.mark.parametrize("n", [1, 2, 8])
def test_sent_bytes_are_those_of_the_ring(kind, n):
    found = Collective(kind, 840 * n, 840 * n, n, 1, (), False, "x")
    assert found.sent == ring(kind, n, [840] * n)


def test_an_all_to_all_keeps_its_own_part_and_a_permutation_sends_all():
    assert Collective("all-to-all", 80, 80, 8, 3, (), False, "x").sent == 3 * 7 * 10
    assert Collective("collective-permute", 80, 80, 8, 3, (), False, "x").sent == 3 * 80


def test_in_a_loop_of_unknown_length_scalars_are_free_and_more_raises():
    def step(x):
        return lax.while_loop(lambda y: lax.pmax(jnp.max(y), "a") < 9, lambda y: y + lax.psum(y, "a"), x)

    found = collectives(step, mesh(a=8), (P("a"),), P("a"), (8 * 32, 32))
    scalar, array = sorted(found, key=lambda c: c.bytes)
    assert (scalar.trips, scalar.is_scalar, scalar.sent, array.trips) == (None, True, 0, None)
    with pytest.raises(ValueError, match=r"all-reduce \S+ of 4,096 bytes is in loop 'while\S*', and it is not known"):
        array.sent  # noqa: B018


def test_all_reduces_that_wait_for_each_other_stay_apart():
    def step(x):
        first = lax.psum(x, "a")
        return first, lax.psum(jnp.tanh(first), "a"), lax.pmax(x, "a"), lax.psum(2 * x, "a")

    found = collectives(step, mesh(a=8), (P("a"),), (P("a"),) * 4, (8 * 32, 32))
    assert sorted(c.bytes for c in found) == [4096, 4096, 8192]


def test_axes_of_one_device_send_nothing_and_what_is_not_known_raises():
    (alone,) = collectives(lambda x: lax.psum(x, "a"), mesh(a=1, b=8), (P("b"),), P("b"), (8 * 32, 32))
    assert (alone.group_size, alone.sent) == (1, 0)
    offsets = jnp.arange(8, dtype=jnp.int32)
    ones = jnp.ones(8, jnp.int32)

    def send(x):
        return lax.ragged_all_to_all(x, x, offsets, ones, offsets, ones, axis_name="a")

    mapped = jax.shard_map(send, mesh=mesh(a=8), in_specs=P("a"), out_specs=P("a"), check_vma=False)
    with pytest.raises(ValueError, match="ragged_all_to_all over .*: how much it sends is not known here"):
        count(jax.make_jaxpr(mapped)(jnp.ones(64)))


def test_a_collective_in_a_branch_is_marked():
    def step(p, x):
        return lax.cond(p[0] > 0, lambda: lax.psum(x, "a"), lambda: x)

    (found,) = collectives(step, mesh(a=8), (P(), P("a")), P("a"), (1,), (8 * 32, 32))
    assert found.conditional and found.kind in COLLECTIVES.values()
