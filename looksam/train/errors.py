"""Failures of a run that are for its user to read."""


class RunError(RuntimeError):
    """A run cannot go on. The message says what happened, what is safe, and how to go on."""
