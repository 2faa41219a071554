"""Images and labels on their way to the model: ``reading`` on the host, then ``transforms`` on the device.

``reading`` finds, decodes and orders images; it needs no JAX, so that worker processes stay light.
``transforms`` crops, augments, normalises and mixes the images of a batch, in JAX.
The names below are those of ``reading``; they load on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from looksam.trainer.data.reading.dataset import DataError, Dataset, Encoded, Images
    from looksam.trainer.data.reading.decode import BadImageError
    from looksam.trainer.data.reading.labels import hold_out, with_label_noise
    from looksam.trainer.data.reading.load import load_dataset
    from looksam.trainer.data.reading.order import batch_across_epochs, epoch_batches, rows_per_epoch
    from looksam.trainer.data.reading.stream import eval_batches, train_batches

__all__ = [
    "BadImageError",
    "DataError",
    "Dataset",
    "Encoded",
    "Images",
    "batch_across_epochs",
    "epoch_batches",
    "eval_batches",
    "hold_out",
    "load_dataset",
    "rows_per_epoch",
    "train_batches",
    "with_label_noise",
]

_MODULES = {
    **dict.fromkeys(("DataError", "Dataset", "Encoded", "Images"), "dataset"),
    "BadImageError": "decode",
    **dict.fromkeys(("hold_out", "with_label_noise"), "labels"),
    "load_dataset": "load",
    **dict.fromkeys(("batch_across_epochs", "epoch_batches", "rows_per_epoch"), "order"),
    **dict.fromkeys(("eval_batches", "train_batches"), "stream"),
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"{__name__}.reading.{_MODULES[name]}"), name)
