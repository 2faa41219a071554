"""Transforming batches on the device, as pure JAX functions: augmentation, normalisation, label smoothing, Mixup."""
