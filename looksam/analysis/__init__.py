"""Tools to see flatness."""

from looksam.analysis.sharpness import one_step_sharpness

__all__ = ["one_step_sharpness"]
