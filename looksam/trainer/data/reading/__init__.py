"""Reading images on the host, with NumPy and without JAX, in the order in which data moves.

``load``: a dataset by name, from ``cifar_archive``, ``parquet`` or ``image_folder``; a new format starts here.
``own_dataset``: a dataset that a function of the user's own returns, checked.
``dataset``: what loading returns, a small set decoded in memory or a large one encoded on disk.
``labels``: labels are checked, replaced by noise, and used for stratified splits.
``image_sizes``: the sizes of images decide how they are read.
``order``: which images a step visits. ``decode``: from encoded bytes to pixels and crops.
``stream``: batches of a large set, decoded by worker processes during training.
"""

import os
from pathlib import Path

# The datasets by name, and the function of ``load`` that loads each. Here, so that the command line can read the names
# without importing NumPy.
DATASETS = {
    "cifar100": "load_cifar100",
    "digits": "load_digits",
    "folder": "load_folder",
    "imagenet": "load_imagenet",
    "parquet": "load_parquet",
}


def data_folder(data_dir: str | Path | None) -> Path | None:
    """Returns the absolute path of a data folder: relative to here, else to LOOKSAM_DATA, which is also the default."""
    root = os.environ.get("LOOKSAM_DATA")
    if data_dir is None:
        return Path(root).absolute() if root else None
    folder = Path(data_dir).expanduser()
    if root and not folder.exists() and (Path(root) / folder).is_dir():
        folder = Path(root) / folder
    return folder.absolute()
