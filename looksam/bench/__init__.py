"""What a step costs: everything that times training steps.

``harness.py`` lets subjects take turns and compares them round by round; ``worker.py`` gives a subject a process of its
own, in which ``serve.py`` runs. ``subjects.py`` lists what can be measured of a recipe: our rules in JAX
(``jax_subjects.py``) and in PyTorch (``torch_subjects.py``, with the models of ``looksam.torch.vision_models``), and
other libraries' SAM. ``measure.py`` puts them together for ``looksam bench`` and ``benchmarks/``.
"""
