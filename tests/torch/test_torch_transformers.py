"""The Hugging Face Trainer with a rule, compared with loops written by hand."""

import pytest
import torch
from torch import nn
from torch_loops import BATCH, CLIP, Net, check_equal, check_hand_written, dataset, plain_loop, rule

transformers = pytest.importorskip("transformers")

from looksam.torch.transformers import SharpnessAwareTrainer  # noqa: E402


def constant(opt):
    return torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 1.0)


def trainer_of(net, data, folder, name="look_sam", kind=SharpnessAwareTrainer, **options):
    arguments = transformers.TrainingArguments(
        str(folder),
        **{
            "num_train_epochs": 1,
            "per_device_train_batch_size": BATCH,
            "max_grad_norm": 0,
            "use_cpu": True,
            "report_to": "none",
            "save_strategy": "no",
            "logging_strategy": "no",
            "disable_tqdm": True,
            "train_sampling_strategy": "sequential",
            **options,
        },
    )
    opt = rule(net, name)
    rows = [{"x": x, "labels": y} for x, y in zip(*data, strict=True)]
    return kind(net, arguments, train_dataset=rows, optimizers=(opt, constant(opt)))


@pytest.mark.parametrize("clip", [None, CLIP])
@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("name", ["look_sam", "msam"])
def test_steps_of_several_batches(tmp_path, name, accumulate, clip):
    net, data = Net().double(), dataset(5, accumulate)
    trainer_of(net, data, tmp_path, name, gradient_accumulation_steps=accumulate, max_grad_norm=clip or 0).train()
    check_hand_written(net, data[1], 5, accumulate, name, clip)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_bfloat16(tmp_path, accumulate):
    net, plain, data = Net(), Net(), dataset(5, accumulate, torch.float32)
    trainer_of(net, data, tmp_path, gradient_accumulation_steps=accumulate, bf16=True).train()
    plain.masks = [entry[2] for entry in net.seen]

    def loss_of(x, y):
        with torch.autocast("cpu", torch.bfloat16):
            return plain(x, y)["loss"]

    plain_loop(plain, data, accumulate, loss_of)
    check_equal(net, plain)


@pytest.mark.parametrize("clip", [None, CLIP])
def test_float16_with_overflow(tmp_path, clip):
    """A CPU has no fp16 in Accelerate, so its accelerator is told to; steps that overflow are skipped as in a loop."""
    net, plain, data = Net(), Net(), dataset(5, 2, torch.float32)
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**20) for _ in range(2)]
    trainer = trainer_of(net, data, tmp_path, gradient_accumulation_steps=2, bf16=True, max_grad_norm=clip or 0)
    trainer.accelerator.state._mixed_precision, trainer.accelerator.scaler = "fp16", scalers[0]
    trainer.train()
    plain.masks = [entry[2] for entry in net.seen]

    def loss_of(x, y):
        with torch.autocast("cpu", torch.float16):
            return plain(x, y)["loss"]

    reference = plain_loop(plain, data, 2, loss_of, scalers[1], clip)
    check_equal(net, plain)
    assert trainer.optimizer.optimizer.count == reference.count and 0 < reference.count < 5
    assert scalers[0].get_scale() == scalers[1].get_scale() < 2.0**20


def test_resumed_in_the_middle_of_a_cycle(tmp_path):
    data, nets = dataset(5, 2), [Net(dropout=0.0).double() for _ in range(3)]
    options = {"gradient_accumulation_steps": 2, "save_strategy": "steps", "save_steps": 4}
    trainer_of(nets[0], data, tmp_path / "whole", **options).train()
    trainer_of(nets[1], data, tmp_path / "parts", **options, max_steps=4).train()
    resumed = trainer_of(nets[2], data, tmp_path / "parts", **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "parts" / "checkpoint-4"))
    assert resumed.optimizer.optimizer.count == 5
    check_equal(nets[2], nets[0])


def test_logs(tmp_path):
    """The loss is that of the clean passes, ``grad_norm`` that of the clipped gradient before clipping."""
    net, data, clean = Net().double(), dataset(4, 2), []

    class Noisy(SharpnessAwareTrainer):
        def compute_loss(self, *arguments, **options):
            loss = super().compute_loss(*arguments, **options)
            self.log({"own": 1.0})
            clean.append(float(loss.detach()))
            return loss

    trainer = trainer_of(
        net, data, tmp_path, kind=Noisy, gradient_accumulation_steps=2, logging_strategy="steps", logging_steps=4
    )
    trainer.train()
    info = trainer.optimizer.optimizer.info  # that of a refresh
    own = [line for line in trainer.state.log_history if "own" in line]
    assert len(own) == 8 and len(clean) == 12
    (line,) = [line for line in trainer.state.log_history if "loss" in line]
    assert line["loss"] == pytest.approx(sum(clean[n] for n in (0, 1, 4, 5, 6, 7, 8, 9)) / 8)
    assert line["grad_norm"] == pytest.approx(float(info.returned_norm))
    assert line["looksam/grad_norm"] == float(info.grad_norm)
    assert line["looksam/g_v_norm"] == float(info.g_v_norm)
    assert line["looksam/refreshed"] == 0.5


def test_it_is_a_mixin(tmp_path):
    class Both(SharpnessAwareTrainer, transformers.Seq2SeqTrainer):
        pass

    assert Both.__mro__.index(SharpnessAwareTrainer) < Both.__mro__.index(transformers.Seq2SeqTrainer)
    assert Both.__mro__.index(transformers.Seq2SeqTrainer) < Both.__mro__.index(transformers.Trainer)


def test_an_exception_in_the_second_pass_leaves_the_weights_at_w(tmp_path):
    net = Net().double()
    before = nn.utils.parameters_to_vector(net.parameters()).clone()

    class Failing(SharpnessAwareTrainer):
        def compute_loss(self, *arguments, **options):
            if len(net.seen) == 3:
                raise ZeroDivisionError
            return super().compute_loss(*arguments, **options)

    trainer = trainer_of(net, dataset(2, 2), tmp_path, kind=Failing, gradient_accumulation_steps=2)
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    assert torch.equal(nn.utils.parameters_to_vector(net.parameters()), before)


def test_a_plain_optimizer_is_refused(tmp_path):
    net = Net()
    options = {"max_steps": 1, "use_cpu": True, "report_to": "none", "disable_tqdm": True}
    arguments = transformers.TrainingArguments(str(tmp_path), **options)
    rows = [{"x": x, "labels": y} for x, y in zip(*dataset(1, 1, torch.float32), strict=True)]
    with pytest.raises(TypeError, match=r"none of looksam.torch; wrap it, as in LookSAM\(optimizer, rho=0.1\)"):
        SharpnessAwareTrainer(net, arguments, train_dataset=rows).train()


def test_the_plain_trainer_is_refused_before_a_step(tmp_path):
    net = Net().double()
    before = nn.utils.parameters_to_vector(net.parameters()).clone()
    trainer = trainer_of(net, dataset(2, 4), tmp_path, kind=transformers.Trainer, gradient_accumulation_steps=4)
    with pytest.raises(RuntimeError, match="this step takes a second gradient.*looksam.torch.transformers"):
        trainer.train()
    assert torch.equal(nn.utils.parameters_to_vector(net.parameters()), before)
