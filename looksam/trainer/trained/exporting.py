"""Writes a trained model for use elsewhere: safetensors for PyTorch and others, StableHLO for JAX without this package.

The folder of an export:

    model.safetensors   the weights, under PyTorch's names and with its order of axes
    config.json         the model and its options, image size, normalisation, class names, and versions
    model.stablehlo     logits of uint8 images, with the weights inside; for batches of any size
    README.txt          how to use both
"""

import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import looksam
from looksam.trainer.data.reading.dataset import require
from looksam.trainer.data.reading.decode import EVAL_RESIZE
from looksam.trainer.run_folder.checkpoints import CheckpointChoice
from looksam.trainer.run_folder.run_directory import RunError, write_atomically
from looksam.trainer.trained.trained_model import VERSION, TrainedModel, load_model
from looksam.trainer.trained.weights import CONFIG, FORMAT, WEIGHTS, write_safetensors

STABLEHLO, README = "model.stablehlo", "README.txt"
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")

_IN_PYTORCH = """\
{name}, {classes} classes, images of {height} x {width} x {channels}; step {step} of a run of looksam {version}.

model.safetensors has the weights, with PyTorch's names and order of axes. config.json has the class names, in the
order of the logits, and how images are prepared: {preparation}.

In PyTorch, with looksam and without JAX:

    from looksam.torch import load_exported
    model = load_exported(".")
    logits = model(model.preprocess("image.jpg"))
    print(model.class_names[int(logits[0].argmax())])
"""
_IN_JAX = """
In JAX, without looksam (pip install jax flatbuffers). It takes uint8 images (batch, {height}, {width}, {channels}), and
normalises them itself:

    import jax.export
    model = jax.export.deserialize(open("model.stablehlo", "rb").read())
    logits = model.call(images)
"""


def export_run(
    run: str | pathlib.Path,
    out: str | pathlib.Path,
    *,
    checkpoint: CheckpointChoice = "last",
    stablehlo: bool = True,
    platforms: Sequence[str] = PLATFORMS,
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Exports a run's checkpoint to a folder; returns what was written.

    Args:
      run: the folder of the run, whose data need not be there.
      out: the folder to write, created if need be; files of an earlier export are replaced.
      checkpoint: "last", "best" or a step.
      stablehlo: also write ``model.stablehlo``.
      platforms: on which that may run.
      report: takes one line per file.
    """
    return export_model(load_model(run, checkpoint), out, stablehlo=stablehlo, platforms=platforms, report=report)


def export_model(
    model: TrainedModel,
    out: str | pathlib.Path,
    *,
    stablehlo: bool = True,
    platforms: Sequence[str] = PLATFORMS,
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Exports a trained model to a folder; the arguments are those of ``export_run``."""
    folder, files = pathlib.Path(out), [WEIGHTS, CONFIG, README]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_safetensors(folder / WEIGHTS, model.torch_arrays())
        write_atomically(folder / CONFIG, (json.dumps(config(model), indent=1) + "\n").encode())
        write_atomically(folder / README, _readme(model, stablehlo).encode())
        if stablehlo:
            report(f"tracing {model.name} for {', '.join(platforms)}")
            write_atomically(folder / STABLEHLO, stablehlo_bytes(model, platforms))
            files.append(STABLEHLO)
        else:
            (folder / STABLEHLO).unlink(missing_ok=True)  # of an earlier export, with other weights
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror}; pass another folder.") from error
    parameters = sum(leaf.size for leaf in jax.tree.leaves(model.params))
    return {"out": str(folder), "files": files, "step": model.step, "parameters": parameters, "run_dir": model.source}


def config(model: TrainedModel) -> dict[str, Any]:
    """Returns what ``config.json`` holds."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": model.name,
        "builder": model.builder,
        "options": model.options,
        "dtype": model.dtype,
        "image_shape": model.image_shape,
        "preprocessing": "crop" if model.crops else "resize",
        "mean": model.data.mean,
        "std": model.data.std,
        "class_names": model.class_names,
        "step": model.step,
        "looksam": looksam.__version__,
        "jax": jax.__version__,
    }


def stablehlo_bytes(model: TrainedModel, platforms: Sequence[str] = PLATFORMS) -> bytes:
    """Returns the serialised program ``logits(images)``, for uint8 images in batches of any size."""
    from jax import export  # here: it is not loaded with jax itself

    require("flatbuffers")

    function = model.logits_function()
    params, stats = jax.tree.map(jnp.asarray, (model.params, model.stats))
    (batch,) = export.symbolic_shape("batch")
    images = jax.ShapeDtypeStruct((batch, *model.image_shape), jnp.uint8)
    program = export.export(jax.jit(lambda images: function(params, stats, images)), platforms=platforms)(images)
    return bytes(program.serialize())


def _readme(model: TrainedModel, stablehlo: bool) -> str:
    height, width, channels = model.image_shape
    crop = f"the short side is scaled to {round(height * EVAL_RESIZE)}, and the centre is cropped"
    return (_IN_PYTORCH + (_IN_JAX if stablehlo else "")).format(
        name=model.name,
        classes=len(model.class_names),
        step=model.step,
        version=looksam.__version__,
        height=height,
        width=width,
        channels=channels,
        preparation=crop if model.crops else "an image of another size is resized to this one",
    )
