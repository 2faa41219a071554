"""Hugging Face: a Trainer whose steps are those of a rule of this package, also with gradient accumulation.

The Trainer calls ``optimizer.step()`` without a closure, so the second pass belongs into ``training_step``.
Micro-batches are kept until their step, and repeated at w + ε on refresh steps.
"""

from typing import Any

from torch import Tensor, nn

from looksam.torch.accelerate import PreparedWindow
from looksam.torch.frameworks import kept

try:
    from transformers import Trainer
except ModuleNotFoundError as error:
    raise ImportError(
        "looksam.torch.transformers needs transformers, which is not installed: pip install 'looksam[transformers]'",
        name="transformers",
    ) from error


class SharpnessAwareTrainer(Trainer):
    """A Trainer for an optimizer of ``looksam.torch``, or a mixin: ``class T(SharpnessAwareTrainer, Seq2SeqTrainer)``.

    - ``gradient_accumulation_steps``: all micro-batches of a step are one batch, in both passes.
    - ``max_grad_norm``: clips the gradient that the base optimizer gets, whose norm is logged as ``grad_norm``.
    - The logged loss is that of the clean pass (of MSAM, that of its only one); ``self.log`` ignores the second pass.
    - Logs have ``opt.info``, as ``looksam/grad_norm`` and so on.

    Example:
      >>> from looksam.torch.transformers import SharpnessAwareTrainer
      >>> # opt = LookSAM(torch.optim.AdamW(model.parameters(), lr=1e-3), rho=0.1, model=model)
      >>> # SharpnessAwareTrainer(model, arguments, train_dataset=dataset, optimizers=(opt, None)).train()
    """

    _window: PreparedWindow | None = None  # set while training

    def train(self, *arguments: Any, **options: Any) -> Any:
        self._window = None
        return super().train(*arguments, **options)

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        if self._window is None:
            self._window = PreparedWindow(self.accelerator, model, self.optimizer)
        training_step, saved = super().training_step, kept(inputs)
        return self._window.run(lambda: training_step(model, kept(saved), num_items_in_batch))

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if self._window is None:
            return super().log(logs, start_time)
        if not self._window.repeats:
            super().log({**logs, **(self._window.logs() if "loss" in logs else {})}, start_time)
