"""The reader of compiled programs that plans are compared with: each form in which the compiler prints collectives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hlo_collectives import Array, bits, collectives, group_size, parse, parse_shape

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


def test_shapes_have_the_bytes_of_their_elements():
    assert parse_shape("(f32[2,3]{1,0:T(8,128)}, pred[], (bf16[<=4], s4[3]), token[])") == (
        Array("f32", (2, 3)),
        Array("pred", ()),
        Array("bf16", (4,)),
        Array("s4", (3,)),
        Array("token", ()),
    )
    assert [array.bytes for array in parse_shape("f32[2,3] pred[] bf16[4] s4[3] f8e4m3fn[5] c128[2]")] == [
        *(24, 1, 8, 2, 5, 32)
    ]
    for dtype in (jnp.float32, jnp.bfloat16, jnp.int8, jnp.uint32, jnp.float64, jnp.complex64):
        array = np.zeros((3, 5), dtype)
        (shape,) = parse(jax.jit(lambda x: x).lower(array).compile().as_text()).computations["main.1"]["x.1"].shape
        assert (shape.dims, shape.bytes) == ((3, 5), array.nbytes)
    with pytest.raises(ValueError, match="element type 'zz' has no known width"):
        bits("zz")


def test_text_that_is_no_program_raises():
    with pytest.raises(ValueError, match="begins with 'module @jit_f'"):
        parse("module @jit_f\n")
    with pytest.raises(ValueError, match="has no ENTRY"):
        parse("HloModule m\n")
    with pytest.raises(ValueError, match="no instruction of a compiled program: 'what is this'"):
        parse("HloModule m\n\nENTRY %e () -> f32[] {\n  what is this\n}\n")
