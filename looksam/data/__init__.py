"""Where images come from and in which order. Needs no jax, so that worker processes stay light."""

from looksam.data.dataset import Dataset, Encoded, Images
from looksam.data.decode import BadImageError
from looksam.data.load import NAMES, load_dataset
from looksam.data.noise import with_label_noise
from looksam.data.order import batch_across_epochs, epoch_batches, rows_per_epoch
from looksam.data.split import hold_out
from looksam.data.stream import eval_batches, train_batches

__all__ = [
    "NAMES",
    "BadImageError",
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
