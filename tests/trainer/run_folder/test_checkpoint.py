"""Checkpoints: the same bits back, or the one before, or a message; never something else."""

import hashlib
import json
import math
import pathlib
import shutil
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from looksam.trainer.run_folder import checkpoint_files, checksum
from looksam.trainer.run_folder.checkpoints import Checkpoints
from looksam.trainer.run_folder.run_directory import RunError


class State(NamedTuple):
    params: Any
    stats: Any
    opt_state: Any
    key: jax.Array
    typed: jax.Array
    order: np.ndarray


def make_state(seed: int) -> State:
    rng = np.random.default_rng(seed)
    params = {
        "dense": {
            "kernel": jnp.asarray(rng.normal(size=(16, 8)).astype(np.float32)),
            "bias": jnp.zeros(8, jnp.float32),
        },
        "half": jnp.asarray(rng.normal(size=(3, 5)), jnp.bfloat16),
        "odd": jnp.asarray([np.nan, -0.0, np.inf, 5e-324], jnp.float64),
        "none": jnp.zeros((0, 4), jnp.float32),
    }
    return State(
        params=params,
        stats={},
        opt_state=optax.adamw(1e-3).init(params),
        key=jnp.asarray([seed, 2**32 - 1], jnp.uint32),
        typed=jax.random.split(jax.random.key(seed), 3),
        order=rng.integers(2**62, size=7),
    )


def bits(tree: Any) -> list[tuple[str, str, tuple[int, ...], bytes]]:
    """Everything there is to know of a tree's leaves, with keys as their data."""
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = np.asarray(jax.random.key_data(leaf) if checkpoint_files.is_key(leaf) else leaf)
        found.append((jax.tree_util.keystr(path), str(leaf.dtype), array.shape, array.tobytes()))
    return found


def abstract(tree: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype) if isinstance(x, jax.Array) else x, tree)


def names(directory: pathlib.Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Two checkpoints, of steps 1 and 2; tests copy the folder before they touch it."""
    directory = tmp_path_factory.mktemp("saved") / "checkpoints"
    checkpoints = Checkpoints(directory, keep=2)
    checkpoints.save(1, make_state(1), {"epoch": 1})
    checkpoints.save(2, make_state(2), {"epoch": 2, "best": [0.1, None, -math.inf]})
    checkpoints.close()
    return directory


@pytest.fixture
def copy(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "checkpoints")


def test_same_bits_and_types_come_back(saved):
    checkpoints = Checkpoints(saved, keep=2, read_only=True)
    step, state, meta = checkpoints.restore(abstract(make_state(0)))
    assert (step, meta) == (2, {"epoch": 2, "best": [0.1, None, -math.inf]})
    assert bits(state) == bits(make_state(2))
    assert jax.tree.structure(state) == jax.tree.structure(make_state(2))
    assert isinstance(state.order, np.ndarray) and isinstance(state.params["half"], jax.Array)
    assert jax.random.uniform(state.typed[1]) == jax.random.uniform(make_state(2).typed[1])
    checkpoints.close()


def test_shardings_of_like_are_used(saved):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows, everywhere = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in (("data",), ()))
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=rows if x.shape == (16, 8) else everywhere),
        make_state(0),
    )
    checkpoints = Checkpoints(saved, keep=2, read_only=True)
    _, state, _ = checkpoints.restore(like)
    kernel = state.opt_state[0].mu["dense"]["kernel"]
    assert (
        kernel.sharding == rows
        and len(kernel.addressable_shards) == 8
        and kernel.addressable_shards[0].data.shape == (2, 8)
    )
    assert state.typed.sharding.is_fully_replicated and len(state.typed.sharding.device_set) == 8
    assert bits(state) == bits(make_state(2))
    checkpoints.close()


def text_of(array):
    return checksum.as_text(checksum.checksum(array))


def test_checksum_is_of_dtype_shape_and_bits():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    others = [array.reshape(3, 2), array.view(np.int32), array + np.float32(1), np.asfortranarray(array).T, -array]
    others += [array[::-1], array[:, ::-1], np.where(array == 0, np.float32(-0.0), array)]
    assert len({text_of(other) for other in [array, *others]}) == 9
    assert text_of(np.asfortranarray(array)) == text_of(array)  # memory order is not content


@pytest.mark.parametrize("dtype", ["bool", "uint8", "bfloat16", "float32", "float64", "int64", "complex64"])
def test_checksum_sees_every_bit_and_no_sharding(dtype):
    data = np.random.default_rng(0).integers(0, 2, size=(16, 4)).astype(jnp.dtype(dtype))
    expected = text_of(data)
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    for axes in [(), ("a",), ("b", "a"), (("a", "b"),)]:
        assert text_of(jax.device_put(data, jax.NamedSharding(mesh, jax.P(*axes)))) == expected
    assert text_of(jnp.asarray(data)) == expected
    for bit in range(8 * data.itemsize if dtype != "bool" else 1):
        changed = data.copy()
        changed.reshape(-1)[5:6].view(np.uint8)[bit // 8] ^= 1 << bit % 8
        assert text_of(changed) != expected, bit


def test_state_is_free_once_save_returns(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    state = {"on_host": np.arange(50_000), "on_device": jnp.arange(50_000)}
    checkpoints.save(1, state, {})
    state["on_host"][:] = -1
    state["on_device"].delete()
    checkpoints.wait()
    like = {name: np.zeros(50_000, np.int64) for name in state}
    _, restored, _ = checkpoints.restore(like)
    assert all((restored[name] == np.arange(50_000)).all() for name in state)
    checkpoints.close()


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path):
    path.write_bytes(b"")


def flip_one(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def flip_many(path):
    data = bytearray(path.read_bytes())
    data[::7] = bytes(byte ^ 0x55 for byte in data[::7])
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [truncate, empty, flip_one, flip_many, pathlib.Path.unlink])
def test_damage_to_any_file_is_found(saved, tmp_path, damage):
    files = sorted(path.relative_to(saved) for path in (saved / "2").rglob("*") if path.is_file())
    assert len(files) >= 8
    like, good = abstract(make_state(0)), bits(make_state(1))
    for number, file in enumerate(files):
        directory = shutil.copytree(saved, tmp_path / str(number))
        damage(directory / file)
        lines: list[str] = []
        checkpoints = Checkpoints(directory, keep=2, report=lines.append)
        step, state, meta = checkpoints.restore(like)
        assert (step, meta, bits(state)) == (1, {"epoch": 1}, good), file
        assert "step 2" in lines[0] and "damaged" in lines[0] and "step 1" in lines[1], file
        assert checkpoints.latest_step() == 1
        checkpoints.close()
        shutil.rmtree(directory)


def relist(directory):
    """Makes the list of files agree with what is there, as if it had been written so."""
    listed = json.loads((directory / "files.json").read_bytes())
    digests = {name: hashlib.sha256((directory / name).read_bytes()).hexdigest() for name in listed}
    (directory / "files.json").write_text(json.dumps(digests))


def change_meta(directory):
    path = directory / "manifest.json"
    path.write_text(path.read_text().replace('"epoch": 2', '"epoch": 3'))
    relist(directory)


def rename_step(directory):
    shutil.rmtree(directory)
    shutil.copytree(directory.with_name("1"), directory)


@pytest.mark.parametrize(("damage", "words"), [(change_meta, "manifest does not match"), (rename_step, "of step 1")])
def test_damage_behind_the_list_of_files_is_found(copy, damage, words):
    damage(copy / "2")
    lines: list[str] = []
    checkpoints = Checkpoints(copy, keep=2, report=lines.append)
    assert checkpoints.restore(abstract(make_state(0)))[0] == 1
    assert words in lines[0]
    checkpoints.close()


def test_arrays_other_than_those_saved_are_found(tmp_path, monkeypatch):
    lines: list[str] = []
    checkpoints = Checkpoints(tmp_path, keep=2, report=lines.append)
    checkpoints.save(1, {"a": np.arange(3), "b": np.arange(4)}, {})
    checkpoints.wait()
    with monkeypatch.context() as patch:  # as if a bit had flipped between the checksum and the disk
        patch.setattr(
            checkpoint_files, "checksum", lambda array, right=checksum.checksum: right(array + (array.size == 4))
        )
        checkpoints.save(2, {"a": np.arange(3), "b": np.arange(4)}, {})
        checkpoints.wait()
    assert checkpoints.restore({"a": np.zeros(3, np.int64), "b": np.zeros(4, np.int64)})[0] == 1
    assert "'b' does not match its checksum" in lines[0]
    checkpoints.close()


def test_a_run_resumes_past_a_damaged_checkpoint(copy):
    flip_one(copy / "2" / "manifest.json")
    lines: list[str] = []
    checkpoints = Checkpoints(copy, keep=2, report=lines.append)
    assert checkpoints.restore(abstract(make_state(0)))[0] == 1
    checkpoints.save(2, make_state(20), {"epoch": 20})
    checkpoints.wait()
    step, state, meta = checkpoints.restore(abstract(make_state(0)))
    assert (step, meta, bits(state)) == (2, {"epoch": 20}, bits(make_state(20)))
    assert names(copy) == {"1", "2", "2.damaged"}
    checkpoints.close()


def test_no_good_checkpoint_stops_the_run(copy):
    for step in "12":
        truncate(copy / step / "manifest.json")
    checkpoints = Checkpoints(copy, keep=2, report=lambda line: None)
    with pytest.raises(RunError, match=r"(?s)no checkpoint .* can be used:.*step 2: .*manifest.json.*step 1: .*step 0"):
        checkpoints.restore(abstract(make_state(0)))
    checkpoints.close()
    assert names(copy) == {"1", "2"}


def test_the_checkpoint_that_was_asked_for_is_not_replaced_by_another(copy):
    truncate(copy / "2" / "manifest.json")
    checkpoints = Checkpoints(copy, keep=2, read_only=True, report=lambda line: None)
    with pytest.raises(RunError, match=r"step 2: its file manifest.json .* the steps there are: 1\."):
        checkpoints.restore(abstract(make_state(0)), 2)
    assert checkpoints.restore(abstract(make_state(0)), 1)[0] == 1
    checkpoints.close()


def drop_bias(state):
    return state._replace(params={**state.params, "dense": {"kernel": state.params["dense"]["kernel"]}})


def widen(state):
    return state._replace(key=jnp.zeros(3, jnp.uint32))


def cast(state):
    return state._replace(params={**state.params, "half": state.params["half"].astype(jnp.float32)})


def add(state):
    return state._replace(stats={"mean": jnp.zeros(2, jnp.float32)})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (drop_bias, r"'params/dense/bias' \(float32\[8\]\) is in the checkpoint, and this run has no such"),
        (add, r"'stats/mean' \(float32\[2\]\) is not in the checkpoint"),
        (widen, r"'key' is uint32\[2\] in the checkpoint, and uint32\[3\] in this run"),
        (cast, r"'params/half' is bfloat16\[3, 5\] in the checkpoint, and float32\[3, 5\] in this run"),
    ],
)
def test_another_model_is_named(saved, change, words):
    checkpoints = Checkpoints(saved, keep=2, read_only=True)
    with pytest.raises(RunError, match=words):
        checkpoints.restore(abstract(change(make_state(0))))
    checkpoints.close()


def with_version(directory, version):
    """Rewrites a checkpoint as if another version of the format had written it."""
    path = directory / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["version"] = version
    path.write_text(json.dumps({name: value for name, value in manifest.items() if value is not None}))
    relist(directory)


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (2, "step 2 in .* has format version 2, written by a newer looksam, and this one reads version 1; upgrade"),
        (0, "step 2 in .* has format version 0, written by an older looksam, and this one reads version 1; install"),
        (None, "step 2 in .* has no format version: .* reads version 1. Read it with the looksam that wrote it, or"),
    ],
)
def test_another_version_of_the_format_is_named(copy, version, words):
    with_version(copy / "2", version)
    checkpoints = Checkpoints(copy, keep=2)
    with pytest.raises(RunError, match=words):
        checkpoints.restore(abstract(make_state(0)))
    checkpoints.close()
    assert names(copy) == {"1", "2"}


def test_checkpoints_from_before_versions_are_named(copy):
    """Those had their manifest elsewhere."""
    (copy / "2" / "manifest.json").rename(copy / "2" / "metadata")
    listed = json.loads((copy / "2" / "files.json").read_text())
    listed["metadata"] = listed.pop("manifest.json")
    (copy / "2" / "files.json").write_text(json.dumps(listed))
    checkpoints = Checkpoints(copy, keep=2, read_only=True)
    with pytest.raises(RunError, match="has no format version"):
        checkpoints.restore(abstract(make_state(0)))
    checkpoints.close()
