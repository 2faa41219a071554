"""The Lightning callback, compared with loops written by hand."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch_loops import BATCH, CLIP, LR, RHO, K, Net, check_equal, check_hand_written, dataset, plain_loop, rule

lightning = pytest.importorskip("lightning")
torchmetrics = pytest.importorskip("torchmetrics")

from lightning.pytorch.plugins.precision import MixedPrecision  # noqa: E402

from looksam.torch import SAM  # noqa: E402
from looksam.torch.lightning import SharpnessAwareCallback  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers which may be a bottleneck"),
    pytest.mark.filterwarnings("ignore:.*is smaller than the logging interval"),
]


class Classifier(lightning.LightningModule):
    def __init__(self, net, name="look_sam"):
        super().__init__()
        self.net, self.name, self.losses = net, name, []
        self.accuracy = torchmetrics.classification.MulticlassAccuracy(3, average="micro")

    def training_step(self, batch, index):
        x, y = batch
        logits = self.net(x)
        loss = nn.functional.cross_entropy(logits, y)
        self.accuracy(logits, y)
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("accuracy", self.accuracy, on_step=False, on_epoch=True)
        self.losses.append((float(loss.detach()), float((logits.argmax(-1) == y).double().mean())))
        return loss

    def configure_optimizers(self):
        return rule(self.net, self.name)


class Recorder(lightning.pytorch.loggers.logger.DummyLogger):
    """A logger that keeps what it is sent."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def log_metrics(self, metrics, step=None):
        self.lines.append((step, dict(metrics)))


def fit(module, data, checkpoint=None, callback=True, **options):
    trainer = lightning.Trainer(
        **{
            "max_epochs": 1,
            "accelerator": "cpu",
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "callbacks": [SharpnessAwareCallback()] if callback else [],
            **options,
        }
    )
    loader = DataLoader(TensorDataset(*data), batch_size=BATCH)
    trainer.fit(module, loader, ckpt_path=checkpoint)
    return trainer


@pytest.mark.parametrize("clip", [None, CLIP])
@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("name", ["look_sam", "msam"])
def test_steps_of_several_batches(name, accumulate, clip):
    net, data = Net().double(), dataset(5, accumulate)
    fit(Classifier(net, name).double(), data, accumulate_grad_batches=accumulate, gradient_clip_val=clip)
    check_hand_written(net, data[1], 5, accumulate, name, clip)


def loss_in(dtype, net):
    def loss_of(x, y):
        with torch.autocast("cpu", dtype, cache_enabled=False):
            return nn.functional.cross_entropy(net(x), y)

    return loss_of


@pytest.mark.parametrize("accumulate", [1, 4])
def test_bfloat16(accumulate):
    net, plain, data = Net(), Net(), dataset(5, accumulate, torch.float32)
    fit(Classifier(net), data, accumulate_grad_batches=accumulate, precision="bf16-mixed")
    plain.masks = [entry[2] for entry in net.seen]
    plain_loop(plain, data, accumulate, loss_in(torch.bfloat16, plain))
    check_equal(net, plain)


@pytest.mark.parametrize("clip", [None, CLIP])
@pytest.mark.parametrize("accumulate", [1, 4])
def test_float16_with_overflow(accumulate, clip):
    """The scale is too large at first, so that some steps are skipped; they do not count."""
    net, plain, data = Net(), Net(), dataset(5, accumulate, torch.float32)
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**20) for _ in range(2)]
    trainer = fit(
        Classifier(net),
        data,
        accumulate_grad_batches=accumulate,
        gradient_clip_val=clip,
        plugins=[MixedPrecision("16-mixed", "cpu", scalers[0])],
    )
    plain.masks = [entry[2] for entry in net.seen]
    opt = plain_loop(plain, data, accumulate, loss_in(torch.float16, plain), scalers[1], clip)
    check_equal(net, plain)
    assert trainer.optimizers[0].count == opt.count and 0 < opt.count < 5
    assert scalers[0].get_scale() == scalers[1].get_scale() < 2.0**20


def test_resumed_in_the_middle_of_a_cycle(tmp_path):
    """Each epoch has four steps, and so the first ends in the middle of the second cycle."""
    data = dataset(4, 2)
    whole, parts = (Classifier(Net(dropout=0.0).double()).double() for _ in range(2))
    fit(whole, data, accumulate_grad_batches=2, max_epochs=2)
    fit(parts, data, accumulate_grad_batches=2).save_checkpoint(tmp_path / "half.ckpt")
    resumed = Classifier(Net(dropout=0.0).double()).double()
    trainer = fit(resumed, data, tmp_path / "half.ckpt", accumulate_grad_batches=2, max_epochs=2)
    assert trainer.optimizers[0].count == 8
    check_equal(resumed.net, whole.net)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_logs_are_those_of_the_clean_pass(accumulate):
    module, data, logger = Classifier(Net().double()).double(), dataset(4, accumulate), Recorder()
    fit(module, data, accumulate_grad_batches=accumulate, logger=logger, log_every_n_steps=1)
    starts = [passes_before(step, accumulate) for step in (0, K)]
    second = {start + i for start in starts for i in range(accumulate)}
    clean = [values for n, values in enumerate(module.losses) if n not in second]
    assert len(clean) == 4 * accumulate < len(module.losses)
    steps = [line["loss_step"] for _, line in logger.lines if "loss_step" in line]
    assert steps == pytest.approx([loss for loss, _ in clean][accumulate - 1 :: accumulate])
    (epoch,) = [line for _, line in logger.lines if "loss_epoch" in line]
    assert epoch["loss_epoch"] == pytest.approx(sum(loss for loss, _ in clean) / len(clean))
    assert epoch["accuracy"] == pytest.approx(sum(right for _, right in clean) / len(clean))


def passes_before(step, accumulate):
    """Returns the number of forward passes before the second pass of a step."""
    return accumulate * (step + 1 + len(range(0, step, K)))


def test_the_loggers_get_the_info():
    module, logger, seen = Classifier(Net().double()).double(), Recorder(), []
    data = dataset(6, 2)

    class Watcher(lightning.Callback):
        def on_train_batch_end(self, trainer, *_):
            seen.append(trainer.optimizers[0].info)

    callbacks = [SharpnessAwareCallback(), Watcher()]
    fit(module, data, accumulate_grad_batches=2, logger=logger, log_every_n_steps=3, callbacks=callbacks)
    lines = [(step, line) for step, line in logger.lines if "looksam/grad_norm" in line]
    assert [step for step, _ in lines] == [2, 5]
    refresh, reuse = seen[7], seen[11]  # of steps 3 and 5; a field that a reuse step leaves out is that of the refresh
    fields = ("grad_norm", "returned_norm", "g_v_norm", "cosine")
    latest = {name: getattr(refresh if getattr(reuse, name) is None else reuse, name) for name in fields}
    assert lines[1][1] == {
        **{f"looksam/{name}": float(value) for name, value in latest.items()},
        "looksam/refreshed": 1 / 3,
        "looksam/fell_back": 0.0,
    }
    assert reuse.returned_norm is None
    silent = Recorder()
    fit(Classifier(Net().double()).double(), data, logger=silent, callbacks=[SharpnessAwareCallback(log_info=False)])
    assert not [line for _, line in silent.lines if "looksam/grad_norm" in line]


def test_hooks_see_each_step_once_with_the_gradient_of_the_base_optimizer():
    net, norms = Net().double(), []

    class Watcher(lightning.Callback):
        def on_before_optimizer_step(self, trainer, module, optimizer):
            norms.append(math.sqrt(sum(float(p.grad.square().sum()) for p in net.parameters())))

    callbacks = [SharpnessAwareCallback(), Watcher()]
    trainer = fit(Classifier(net).double(), dataset(4, 2), accumulate_grad_batches=2, callbacks=callbacks)
    assert len(norms) == 4
    assert norms[-1] == pytest.approx(float(trainer.optimizers[0].info.returned_norm))


@pytest.mark.parametrize("name", ["look_sam", "msam"])
@pytest.mark.parametrize("fails_at", [1, 3, 5])
def test_an_exception_leaves_the_weights_at_w(name, fails_at):
    """Passes 0 to 3 are the clean ones of the first step, 4 to 7 its second ones; for MSAM, those of the next step."""
    net = Net().double()

    class Failing(Classifier):
        def training_step(self, batch, index):
            if len(net.seen) == fails_at:
                raise ZeroDivisionError
            return super().training_step(batch, index)

    def weights(net=net):
        return nn.utils.parameters_to_vector(net.parameters()).detach().clone()

    before = weights()
    module = Failing(net, name).double()
    with pytest.raises(ZeroDivisionError):
        fit(module, dataset(3, 4), accumulate_grad_batches=4)
    moved = not torch.equal(weights(), before)
    assert moved == (name == "msam" and fails_at == 5)
    if moved:  # the first step of MSAM is that of SGD
        plain = Net(masks=[entry[2] for entry in net.seen]).double()
        fit(Classifier(plain, name).double(), dataset(1, 4), accumulate_grad_batches=4)
        assert torch.equal(weights(), weights(plain))


def test_a_training_step_that_returns_none_is_left_out():
    class Skipping(Classifier):
        def training_step(self, batch, index):
            return None if index == 1 else super().training_step(batch, index)

    nets = [Net(dropout=0.0).double() for _ in range(2)]
    x, y = dataset(3, 1)
    with pytest.warns(UserWarning, match="training_step. returned .None"):
        trainer = fit(Skipping(nets[0]).double(), (x, y))
    assert trainer.optimizers[0].count == 2
    keep = [n for n in range(len(x)) if n // BATCH != 1]
    fit(Classifier(nets[1]).double(), (x[keep], y[keep]))
    check_equal(*nets)


def test_accumulation_without_the_callback_is_refused_before_a_step():
    net = Net().double()
    before = nn.utils.parameters_to_vector(net.parameters()).detach().clone()
    with pytest.raises(RuntimeError, match="looksam.torch.lightning"):
        fit(Classifier(net).double(), dataset(2, 4), callback=False, accumulate_grad_batches=4)
    assert torch.equal(nn.utils.parameters_to_vector(net.parameters()), before)


def test_wrong_optimizers_and_manual_optimization():
    class Plain(Classifier):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=LR)

    class Manual(Classifier):
        def __init__(self, net):
            super().__init__(net)
            self.automatic_optimization = False

    data = dataset(1, 1, torch.float32)
    with pytest.raises(TypeError, match=r"configure_optimizers returned SGD.*LookSAM\(optimizer, rho=0.1\)"):
        fit(Plain(Net()), data)
    with pytest.raises(ValueError, match=r"needs automatic optimization.*opt.step\(closure\)"):
        fit(Manual(Net()), data)


def test_the_strategy_is_left_as_it_was():
    trainer = fit(Classifier(Net()), dataset(1, 1, torch.float32))
    assert not {"training_step", "optimizer_step"} & set(vars(trainer.strategy))


def test_sam_by_its_closure_equals_the_callback_for_single_batches():
    class WithSAM(Classifier):
        def configure_optimizers(self):
            return SAM(torch.optim.SGD(self.net.parameters(), lr=LR), rho=RHO, model=self.net)

    nets = [Net().double() for _ in range(2)]
    for net, callback in zip(nets, (True, False), strict=True):
        torch.manual_seed(1)
        fit(WithSAM(net).double(), dataset(3, 1), callback=callback)
    check_equal(*nets)
