"""What devices send each other in compiled programs, against counts made another way."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from looksam.trainer.plan.collectives import KINDS, Collective, collectives
from looksam.trainer.plan.flops import flops, uncounted
from looksam.trainer.plan.groups import group_size
from looksam.trainer.plan.hlo import parse


def mesh(**axes):
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def sharded(function, on, in_specs, out_specs, *shapes):
    """The text of ``function`` under shard_map."""
    mapped = jax.shard_map(function, mesh=on, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    arrays = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(on, spec))
        for shape, spec in zip(shapes, in_specs, strict=True)
    ]
    return jax.jit(mapped).lower(*arrays).compile().as_text()


def test_a_gradient_is_reduced_as_one_and_scalars_are_told_apart():
    def step(w, v, x):
        g = jax.grad(lambda p: jnp.sum(jnp.tanh(x @ p[0]) @ p[1]))((w, v))
        g = lax.psum(g, "data")
        return *g, lax.psum(jnp.max(x) * jnp.sum(g[0]), "data")

    program = sharded(step, mesh(data=8), (P(), P(), P("data")), (P(), P(), P()), (32, 64), (64, 16), (16, 32))
    found = collectives(program)
    assert [(c.bytes, c.largest) for c in found if not c.is_scalar] == [(4 * (32 * 64 + 64 * 16), 4 * 32 * 64)]
    assert [(c.bytes, c.largest) for c in found if c.is_scalar] == [(4, 4)]
    assert {(c.kind, c.group_size, c.trips, c.loops, c.conditional) for c in found} == {("all-reduce", 8, 1, (), False)}
    assert parse(program).devices == 8


def test_groups_along_one_axis_of_a_mesh_and_trips_of_loops():
    def step(x):
        def body(total, row):
            return total + lax.psum(row @ row, "data"), None

        total, _ = lax.scan(body, jnp.zeros_like(x[0]), x)
        return lax.psum(total, "fsdp")

    program = sharded(step, mesh(data=2, fsdp=4), (P(),), P(), (5, 32, 32))
    inside, after = collectives(program)
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
    (found,) = collectives(sharded(function, mesh(a=8), (P("a"),), P("a"), (8 * 16, 32)))
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


ASYNC = """HloModule m, is_scheduled=true, replica_count=2, num_partitions=4

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

%wrapped (p: f32[64]) -> f32[16] {
  %p = f32[64]{0} parameter(0)
  ROOT %rs = f32[16]{0} reduce-scatter(%p), replica_groups=[2,4]<=[8], dimensions={0}, to_apply=%add
}

ENTRY %main (x: f32[64], y: bf16[8]) -> f32[64] {
  %x = f32[64]{0} parameter(0), metadata={op_name="all-reduce(%nothing), to_apply={\\"}"}
  %y = bf16[8]{0:T(256)} parameter(1)
  %ar = (f32[64]{0}, /*index=1*/bf16[8]{0}) all-reduce-start(%x, %y), replica_groups={}, to_apply=%add
  %ard = (f32[64]{0}, bf16[8]{0}) all-reduce-done(%ar)
  %ag = (f32[64]{0}, f32[256]{0}) all-gather-start(%x), replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}
  %agd = f32[256]{0} all-gather-done(%ag)
  %rs = ((f32[64]{0}), f32[16]{0}) async-start(%x), calls=%wrapped
  %rsd = f32[16]{0} async-done(%rs)
  %cp = (f32[64]{0}, f32[64]{0}, u32[], u32[]) collective-permute-start(%x), source_target_pairs={{0,1},{1,0}}
  ROOT %cpd = f32[64]{0} collective-permute-done(%cp)
}
"""


def test_an_asynchronous_pair_counts_once():
    found = [(c.kind, c.bytes, c.largest, c.group_size) for c in collectives(ASYNC)]
    assert found == [
        ("all-reduce", 64 * 4 + 8 * 2, 64 * 4, 8),
        ("all-gather", 4 * 64 * 4, 4 * 64 * 4, 4),
        ("reduce-scatter", 64 * 4, 64 * 4, 4),
        ("collective-permute", 64 * 4, 64 * 4, 8),
    ]
    assert flops(ASYNC) == 0 and uncounted(ASYNC) == ()


def test_in_a_loop_of_unknown_length_scalars_are_free_and_more_raises():
    def step(x):
        return lax.while_loop(lambda y: lax.pmax(jnp.max(y), "a") < 9, lambda y: y + lax.psum(y, "a"), x)

    found = collectives(sharded(step, mesh(a=8), (P("a"),), P("a"), (8 * 32, 32)))
    scalar, array = sorted(found, key=lambda c: c.bytes)
    assert (scalar.trips, scalar.is_scalar, scalar.sent, array.trips) == (None, True, 0, None)
    with pytest.raises(ValueError, match=r"all-reduce \S+ of 4,096 bytes is in loop 'while\S*', and the compiler does"):
        array.sent  # noqa: B018


def test_a_collective_in_a_branch_is_marked():
    def step(p, x):
        return lax.cond(p[0] > 0, lambda: lax.psum(x, "a"), lambda: x)

    (found,) = collectives(sharded(step, mesh(a=8), (P(), P("a")), P("a"), (1,), (8 * 32, 32)))
    assert found.conditional and found.kind in KINDS


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("{{0,4},{1,5},{2,6},{3,7}}", 2),
        ("[2,4]<=[8]", 4),
        ("[4,2]<=[2,4]T(1,0)", 2),
        ("mesh['data'=2,'fsdp'=4] {'data','fsdp'}", 8),
        ("mesh['a'=8] {'a':(2)4}", 4),
        ("mesh['a'=1,'b'=2,'c'=4], device_ids=([4,2]T(1,0)) {'b'}", 2),
    ],
)
def test_group_sizes_are_read_in_every_form(groups, size):
    assert group_size(groups, 8) == size


def test_groups_of_a_reordered_mesh_are_one_attribute():
    groups = "mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a'}"
    line = f"  ROOT %r = f32[2]{{0}} all-reduce(%x), replica_groups={groups}, use_global_device_ids=true, to_apply=%add"
    program = (
        f"HloModule m, num_partitions=8\n\nENTRY %e (x: f32[2]) -> f32[2] {{\n  %x = f32[2] parameter(0)\n{line}\n}}\n"
    )
    assert [c.group_size for c in collectives(program)] == [2]


@pytest.mark.parametrize("groups", ["{{0,1},{2}}", "something", "mesh['a'=8] {'b'}"])
def test_groups_that_are_not_understood_raise(groups):
    with pytest.raises(ValueError, match="replica_groups="):
        group_size(groups, 8)
