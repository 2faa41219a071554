"""Lightning: gradient accumulation, clipping, fp16 and clean logs with a rule of this package.

Lightning's own call, ``optimizer.step(closure)``, covers one batch per step. The callback replaces it where steps are
longer: it keeps the micro-batches of a step, and repeats them at w + ε on refresh steps.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from looksam.torch.frameworks import InfoLog, Window, kept
from looksam.torch.optimizer import SharpnessAware

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError as error:
    raise ImportError(
        "looksam.torch.lightning needs lightning, which is not installed: pip install 'looksam[lightning]'",
        name="lightning",
    ) from error


class SharpnessAwareCallback(Callback):
    """Takes the steps of a rule in Lightning's automatic optimization. Without it, each step must be of one batch.

    - ``accumulate_grad_batches``: all micro-batches of a step are one batch, in both passes.
    - ``gradient_clip_val``: clips the gradient that the base optimizer gets.
    - ``precision="16-mixed"``: both passes are unscaled, and a step that overflows is skipped.
    - ``self.log`` and torchmetrics: values are those of the clean pass; the second pass leaves no trace.
    - The loggers get ``opt.info``, as ``looksam/grad_norm`` and so on, every ``log_every_n_steps`` steps.

    Args:
      log_info: whether the loggers get ``opt.info``.

    Example:
      >>> from looksam.torch.lightning import SharpnessAwareCallback
      >>> callback = SharpnessAwareCallback()  # for Trainer(callbacks=[callback], accumulate_grad_batches=4)
    """

    def __init__(self, log_info: bool = True) -> None:
        self._log_info, self._info = log_info, InfoLog()
        self._window: Window | None = None  # set while training
        self._steps = False  # whether the current micro-batch is the last of its step

    # Before and after training.

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        opt, strategy = _optimizer(trainer, pl_module), trainer.strategy
        self._trainer, self._module = trainer, pl_module
        self._window = Window(opt, getattr(strategy, "block_backward_sync", contextlib.nullcontext))
        # The two methods through which the loop runs a micro-batch and a step; ``teardown`` brings back their own.
        self._forward: Callable[..., Any] = strategy.training_step
        vars(strategy).update(training_step=self._training_step, optimizer_step=self._optimizer_step)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self._window is not None:
            self._window.opt.restore()  # before another callback saves the weights

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self._window is not None:
            self._window = None
            for name in ("training_step", "optimizer_step"):
                vars(trainer.strategy).pop(name)

    # A micro-batch.

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if (
            self._window is not None and batch_idx % trainer.accumulate_grad_batches == 0
        ):  # where Lightning clears .grad
            self._window.clear()

    def _training_step(self, *arguments: Any) -> Any:
        """Runs the forward pass of a micro-batch; Lightning's backward pass follows."""
        assert self._window is not None
        saved = [kept(argument) for argument in arguments]

        def backward() -> None:
            output = self._forward(*map(kept, saved))
            loss = output["loss"] if isinstance(output, Mapping) else output
            if loss is not None:
                loss = loss / self._trainer.accumulate_grad_batches
                self._trainer.strategy.backward(loss, self._trainer.optimizers[0])

        self._window.begin(backward, scaler=self._scaler)
        return self._forward(*arguments)

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._window is not None and not self._steps:
            self._window.pause()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._window is not None:
            self._window.pause()  # if there was no backward pass

    # A step.

    @property
    def _scaler(self) -> Any:
        return getattr(self._trainer.precision_plugin, "scaler", None)

    def _optimizer_step(
        self, optimizer: SharpnessAware, closure: Callable[[], Any], model: Any = None, **options: Any
    ) -> Any:
        """Runs the last micro-batch of a step, then the second pass if one is due, and takes the step."""
        window, scaler = self._window, self._scaler
        assert window is not None
        self._steps = True
        try:
            result = closure()
            with _unlogged(self._module) if optimizer.needs_second_pass else contextlib.nullcontext():
                window.finish(scaler=scaler)
        except BaseException:
            optimizer.restore()
            raise
        finally:
            self._steps = False
        if all(p.grad is None for group in optimizer.param_groups for p in group["params"]):
            return result  # training_step returned None
        # Hooks and clipping, as Lightning does between closure and step. The gradients are unscaled by now; Lightning
        # would refuse to clip those of an optimizer that can unscale them by itself, as the wrapper can.
        clipped = optimizer if scaler is None else optimizer.base
        self._trainer.precision_plugin._after_closure(self._module, clipped)
        optimizer.step(scaler=scaler, **options)
        if scaler is not None:
            scaler.update()
        self._info.add(optimizer.info)
        self._log()
        return result

    def _log(self) -> None:
        trainer = self._trainer
        if self._log_info and trainer.loggers and trainer._logger_connector.should_update_logs:
            values, step = self._info.take(), trainer.fit_loop.epoch_loop._batches_that_stepped
            for logger in trainer.loggers if values else []:
                logger.log_metrics(values, step=step)


def _optimizer(trainer: Trainer, module: LightningModule) -> SharpnessAware:
    """Returns the optimizer, or raises an error that names what the callback cannot work with."""
    if not module.automatic_optimization:
        raise ValueError(
            "SharpnessAwareCallback needs automatic optimization; in manual optimization leave it out, and call "
            "opt.step(closure) with all micro-batches of the step in the closure."
        )
    if trainer.strategy.handles_gradient_accumulation:
        name = type(trainer.strategy).__name__
        raise ValueError(f"SharpnessAwareCallback does not work with {name}, which takes the steps itself.")
    (opt,) = trainer.optimizers
    if not isinstance(opt, SharpnessAware):
        raise TypeError(
            f"configure_optimizers returned {type(opt).__name__}, which is none of looksam.torch; wrap it, as in "
            "LookSAM(optimizer, rho=0.1), or leave SharpnessAwareCallback out."
        )
    return opt


@contextlib.contextmanager
def _unlogged(module: LightningModule) -> Iterator[None]:
    """Ignores ``self.log``, and undoes what happens to metrics, whose states are not buffers of the module."""
    metrics: list[Any] = [metric for metric in module.modules() if hasattr(metric, "metric_state")]
    originals = [(metric, dict(vars(metric))) for metric in metrics]
    for metric in metrics:  # the second pass works on copies
        states = metric.metric_state
        vars(metric).update({name: x.copy() if isinstance(x, list) else x.clone() for name, x in states.items()})
    vars(module)["log"] = lambda *_, **__: None
    try:
        yield
    finally:
        del vars(module)["log"]
        for metric, attributes in originals:
            vars(metric).update(attributes)
