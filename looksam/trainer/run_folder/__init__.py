"""The folder of a run: its recipe and lock, checkpoints, metrics and the summary of its data."""
