"""Reading images on the host, with NumPy and without JAX, in the order in which data moves.

``load``: a dataset by name, from ``cifar_archive``, ``parquet`` or ``image_folder``; a new format starts here.
``dataset``: what loading returns, a small set decoded in memory or a large one encoded on disk.
``labels``: labels are checked, replaced by noise, and used for stratified splits.
``order``: which images a step visits. ``decode`` and ``crops``: from encoded bytes to pixels.
``stream``: batches of a large set, decoded by worker processes during training.
"""
