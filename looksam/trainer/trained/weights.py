"""Weights in safetensors files: the names and axes of PyTorch, and the layouts of public ViTs.

A file of ours holds the parameters and running statistics of a model under the names of its PyTorch module,
``blocks.0.attention.query.weight`` for ``blocks/0/attention/query/kernel``, with PyTorch's order of axes: (out, in) for
dense layers and (out, in, height, width) for convolutions, a ViT's patch embedding among them.

Public ViTs come in the layouts of timm (``blocks.0.attn.qkv.weight``) and Hugging Face
(``vit.encoder.layer.0.attention.attention.query.weight``). ``read_weights`` recognises them and renames to ours.
"""

import dataclasses
import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from looksam.rules.pytree import path_string
from looksam.trainer.data.reading.dataset import require
from looksam.trainer.run_folder.run_directory import RunError

WEIGHTS, CONFIG = "model.safetensors", "config.json"
FORMAT = "looksam"  # in the config of an export
Arrays = dict[str, np.ndarray]

_TORCH_NAMES = {"kernel": "weight", "scale": "weight", "mean": "running_mean", "var": "running_var"}
_CONVOLUTION_AXES = (3, 2, 0, 1)  # (height, width, in, out) to (out, in, height, width)


# --- our own layout -----------------------------------------------------------------------------------------------


def flat(*trees: Any) -> dict[str, Any]:
    """Returns the arrays of some trees by path, such as ``blocks/0/norm1/scale``."""
    return {path_string(path): leaf for tree in trees for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def rebuilt(tree: Any, values: Mapping[str, Any]) -> Any:
    """Returns a tree of the same structure with the values of its paths."""
    return jax.tree.unflatten(jax.tree.structure(tree), [values[path] for path in flat(tree)])


def torch_name(path: str) -> str:
    """Returns the name of a parameter in PyTorch.

    >>> torch_name("blocks/0/norm1/scale")
    'blocks.0.norm1.weight'
    """
    *modules, last = path.split("/")
    return ".".join((*modules, _TORCH_NAMES.get(last, last)))


def to_torch(params: Any, stats: Any, patch_embedding: tuple[int, int, int] | None = None) -> Arrays:
    """Returns all arrays of a model under PyTorch's names, with PyTorch's order of axes.

    Args:
      params: the parameters.
      stats: the running statistics.
      patch_embedding: (patch, patch, channels) of a ViT, whose patch embedding becomes a convolution.
    """
    arrays = {}
    for path, leaf in flat(params, stats).items():
        value = np.asarray(leaf)
        if path == "embed/kernel" and patch_embedding:
            value = value.reshape(*patch_embedding, -1)
        arrays[torch_name(path)] = np.ascontiguousarray(_transposed(path, value))
    return arrays


def _transposed(path: str, value: np.ndarray) -> np.ndarray:
    if not path.endswith("kernel"):
        return value
    return value.transpose(_CONVOLUTION_AXES) if value.ndim == 4 else value.T if value.ndim == 2 else value


def from_torch(path: str, value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """Returns PyTorch's array as the parameter at ``path`` has it; None if it does not fit ``shape``."""
    if path.endswith("kernel") and value.ndim == 4:
        value = value.transpose(2, 3, 1, 0)
        if len(shape) == 2:  # a patch embedding, which is a dense layer on flattened patches
            value = value.reshape(-1, value.shape[-1])
    elif path.endswith("kernel") and value.ndim == 2:
        value = value.T
    return np.ascontiguousarray(value) if value.shape == shape else None


def write_safetensors(path: pathlib.Path, arrays: Arrays) -> None:
    """Writes a safetensors file that PyTorch's loaders read too."""
    require("safetensors.numpy").save_file(arrays, path, metadata={"format": "pt"})


# --- files of any layout ------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Weights:
    """Weights under our names in PyTorch's layout, with what is known of the model that they were made for."""

    where: str  # the file or folder, for messages
    arrays: Arrays
    made_for: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # options that shapes do not tell
    class_names: tuple[str, ...] | None = None  # None: unknown
    grid: tuple[int, int] | None = None  # rows and columns of a ViT's patches; None: as many of both


def read_weights(path: pathlib.Path) -> Weights:
    """Reads a safetensors file, or ``model.safetensors`` of a folder, in our layout, timm's or Hugging Face's.

    Raises RunError where the file is missing or damaged, or its layout is none of these.
    """
    file = path / WEIGHTS if path.is_dir() else path
    arrays, config = _read_safetensors(file), read_config(file.with_name(CONFIG))
    if "patch_embed.proj.weight" in arrays:
        return Weights(str(path), _renamed(_without_joint_qkv(arrays), _TIMM), _public_options(arrays, {}))
    arrays = {re.sub(r"^vit\.", "", name): value for name, value in arrays.items()}
    if "embeddings.patch_embeddings.projection.weight" in arrays:
        return Weights(str(path), _renamed(arrays, _HUGGING_FACE), _public_options(arrays, config))
    if "head.weight" not in arrays and config.get("format") != FORMAT:
        shown = ", ".join(sorted(arrays)[:3])
        raise RunError(
            f"{file} has names that are not known here ({shown}, …); pass a file of `looksam export`, or a ViT in the "
            "layout of timm or of Hugging Face's transformers."
        )
    options = config.get("options", {})
    names = tuple(config["class_names"]) if "class_names" in config else None
    return Weights(str(path), arrays, options, names, _grid(config.get("image_shape"), options.get("patch")))


def read_config(path: pathlib.Path) -> dict[str, Any]:
    """Returns the JSON object in a file; empty where there is no such file."""
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text())
    except ValueError as error:
        raise RunError(f"{path} is damaged: it is not JSON ({error}); export the model again.") from error
    return config if isinstance(config, dict) else {}


def _read_safetensors(file: pathlib.Path) -> Arrays:
    safetensors = require("safetensors")
    if not file.is_file():
        raise RunError(f"{file} is not a file; pass the folder of a run or of an export, or a .safetensors file.")
    try:
        with safetensors.safe_open(file, framework="np") as opened:
            return {name: _as_float32(opened.get_tensor(name)) for name in opened.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, TypeError) as error:
        raise RunError(f"{file} cannot be read as safetensors ({error}); check that it is whole.") from error


def _as_float32(value: np.ndarray) -> np.ndarray:
    return value.astype(np.float32)


def _grid(image_shape: Any, patch: Any) -> tuple[int, int] | None:
    return (image_shape[0] // patch, image_shape[1] // patch) if image_shape and patch else None


# --- public layouts -----------------------------------------------------------------------------------------------

_TIMM = (
    (r"^patch_embed\.proj\.", "embed."),
    (r"^cls_token$", "token"),
    (r"^pos_embed$", "position"),
    (r"\.attn\.proj\.", ".attention.out."),
    (r"\.attn\.", ".attention."),
    (r"\.mlp\.fc1\.", ".up."),
    (r"\.mlp\.fc2\.", ".down."),
)
_HUGGING_FACE = (
    (r"^pooler\..*", ""),  # a layer that classification does not use
    (r"^embeddings\.mask_token$", ""),
    (r"^embeddings\.patch_embeddings\.projection\.", "embed."),
    (r"^embeddings\.cls_token$", "token"),
    (r"^embeddings\.position_embeddings$", "position"),
    (r"^(encoder\.layer|layers)\.", "blocks."),
    (r"\.attention\.attention\.", ".attention."),
    (r"\.attention\.output\.dense\.", ".attention.out."),
    (r"\.q_proj\.", ".query."),
    (r"\.k_proj\.", ".key."),
    (r"\.v_proj\.", ".value."),
    (r"\.o_proj\.", ".out."),
    (r"\.(intermediate\.dense|mlp\.fc1)\.", ".up."),
    (r"\.(output\.dense|mlp\.fc2)\.", ".down."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"^layernorm\.", "norm."),
    (r"^classifier\.", "head."),
)


def _renamed(arrays: Arrays, rules: tuple[tuple[str, str], ...]) -> Arrays:
    named = {}
    for old, value in arrays.items():
        name = old
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        if name in ("token", "position"):
            value = value.reshape(-1, value.shape[-1])  # without the axis of the batch
        if name:
            named[name] = value[0] if name == "token" else value
    return named


def _without_joint_qkv(arrays: Arrays) -> Arrays:
    """Splits timm's joint layer of query, key and value."""
    split = {}
    for name, value in arrays.items():
        if ".attn.qkv." not in name:
            split[name] = value
            continue
        for part, rows in zip(("query", "key", "value"), np.split(value, 3), strict=True):
            split[name.replace("qkv", part)] = rows
    return split


def _public_options(arrays: Arrays, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of the ViT that public weights were made for, as far as they are known."""
    has_token = any(name.endswith("cls_token") for name in arrays)
    gelu = "exact" if config.get("hidden_act", "gelu") == "gelu" else "tanh"
    options = {"pooling": "token" if has_token else "mean", "gelu": gelu}
    return options | ({"heads": config["num_attention_heads"]} if "num_attention_heads" in config else {})
