"""Random training loops in PyTorch, step by step next to a float64 model in NumPy of what must hold.

A step may have zero, NaN, infinite or huge gradients in either pass, exceptions in either pass, missing gradients,
parameters that were frozen since, micro-batches, a checkpoint before it, or gradients that its closure would clear; it
may be taken with a closure or without. ``Fuzz.run`` raises AssertionError where the optimizer and the model disagree.
"""

import contextlib
import math
import random

import numpy as np
import pytest
import torch
from oracle import REFERENCES
from torch import nn
from torch_problems import ARGUMENTS, LAYER_RULES, LOOK_RULES, ONE_GRADIENT_RULES, build

from looksam.torch.phase import Phase

SHAPES = ((3, 2), (4,), (2,), (5,), (1,))
ENDS = np.cumsum([math.prod(shape) for shape in SHAPES])
PARTS = [slice(int(end) - math.prod(shape), int(end)) for end, shape in zip(ENDS, SHAPES, strict=True)]
SIZE = int(ENDS[-1])
SLOTS = range(len(PARTS))
SPOILS = ("zero", "nan", "inf", "huge")
TOLERANCE = {"rtol": 1e-9, "atol": 1e-11}
CONSTANTS = np.random.default_rng(0).normal(size=(2, SIZE))
CURVATURE, CENTRE = np.abs(CONSTANTS[0]) + 0.1, CONSTANTS[1]


class PassError(Exception):
    """An exception that a pass raises."""


ERRORS = {  # the contexts of steps that fail, and of those that do not
    None: contextlib.nullcontext,
    "failure": lambda: pytest.raises(PassError),
    "no gradient": lambda: pytest.raises(RuntimeError, match="the second pass left no gradient"),
}


class Noisy(nn.Module):
    """A loss that draws random numbers, and uses and updates a buffer."""

    def __init__(self, seed):
        super().__init__()
        start = np.random.default_rng(seed).normal(size=SIZE)
        self.weights = nn.ParameterList(
            nn.Parameter(torch.tensor(start[part].reshape(shape))) for part, shape in zip(PARTS, SHAPES, strict=True)
        )
        self.register_buffer("mean", torch.zeros(SIZE, dtype=torch.float64))

    def forward(self):
        w, noise = torch.cat([p.reshape(-1) for p in self.weights]), torch.rand(SIZE, dtype=torch.float64)
        curvature, centre = torch.from_numpy(CURVATURE), torch.from_numpy(CENTRE)
        loss = (curvature * (noise + 0.5) * (w - centre) ** 2).sum() / 2 + (w**4).sum() / 8 + (self.mean * w).sum()
        self.mean = 0.9 * self.mean + 0.1 * noise * w.detach()
        return loss


class Careful(torch.optim.SGD):
    """SGD that records the gradients it gets, and takes no step along those that are huge or not finite."""

    def step(self, closure=None):
        self.seen = [None if p.grad is None else p.grad.numpy().ravel().copy() for p in self.param_groups[0]["params"]]
        if is_usable(self.seen):
            super().step(closure)


def is_usable(grads):
    return all(np.all(np.abs(x) < 1e3) for x in grads if x is not None)


class Reference:
    """What must hold, in NumPy: weights, the base's momentum, the count, g_v or v, and the model's buffer."""

    def __init__(self, name, settings, w):
        self.name, self.settings = name, settings
        self.w, self.velocity, self.mean = w, [None] * len(PARTS), np.zeros(SIZE)
        self.count, self.kept, self.norm = 0, {}, None  # kept: g_v or v, by the index of the tensor
        given = {x: settings[x] for x in ("rho", "k", "alpha", "p") if x in settings}
        scaling = "normalized" if name in LAYER_RULES else None
        self.oracle = REFERENCES[name](**given, scaling=scaling, layers=PARTS)

    def gradient(self, w, noises):
        """Returns the gradient of a pass over micro-batches, and updates the buffer."""
        total = np.zeros(SIZE)
        for noise in noises:
            total += CURVATURE * (noise + 0.5) * (w - CENTRE) + w**3 / 2 + self.mean
            self.mean = 0.9 * self.mean + 0.1 * noise * w
        return total / max(len(noises), 1)

    @property
    def refreshes(self):
        return self.name not in ONE_GRADIENT_RULES and self.count % self.settings.get("k", 1) == 0

    def epsilon(self, g, has):
        """Returns the perturbation made of the clean gradient, or of the momentum; None where nothing is claimed."""
        entries = np.zeros(SIZE, bool)
        for i in has:
            entries[PARTS[i]] = True
        moved = np.zeros(SIZE)
        if self.name in ONE_GRADIENT_RULES:
            v = np.concatenate([self.kept[i] if i in has else np.zeros(PARTS[i].stop - PARTS[i].start) for i in SLOTS])
            norm = np.linalg.norm(v)
            return -self.settings["rho"] * v / norm if norm > 0 else moved
        if not np.all(np.abs(g) < 1e100):
            return None
        moved[entries] = self.oracle.direction(g[entries], self.w[entries], entries)
        return self.settings["rho"] * moved

    def refreshed(self, g, g_s, present):
        """Returns what a refresh hands to the base; keeps g_v."""
        with np.errstate(all="ignore"):
            usable = np.isfinite(g @ g) and np.isfinite(g_s @ g_s)
        returned = self.oracle.refreshed(g, g_s) if usable else g
        g_v = self.oracle.g_v if usable else np.zeros(SIZE)
        if self.name in LOOK_RULES and self.settings["k"] > 1:
            self.kept = {i: g_v[PARTS[i]].copy() for i in present}
            self.norm = np.linalg.norm(g_v)
        return returned

    def reused(self, g):
        """Returns what any other step hands to the base; g_v stays."""
        with np.errstate(all="ignore"):
            norm = math.sqrt(g @ g)
        if self.name not in LOOK_RULES or not self.norm or not math.isfinite(norm):
            return g
        returned = g.copy()
        for i, v in self.kept.items():
            if i in self.has_gradient:
                returned[PARTS[i]] += self.settings["alpha"] * norm / self.norm * v
        return returned

    def accumulate(self, g, present):
        """Adds a gradient to MSAM's momentum, unless it is not finite; parameters that have none lose theirs."""
        with np.errstate(all="ignore"):
            finite = np.isfinite(g @ g)
        old = {i: self.kept.get(i, np.zeros(PARTS[i].stop - PARTS[i].start)) for i in present}
        self.kept = {i: 0.9 * v + g[PARTS[i]] if finite else v for i, v in old.items()}
        self.norm = math.sqrt(sum(float(v @ v) for v in self.kept.values()))

    def descend(self, returned, present):
        """Clips, takes the base optimizer's step, and returns the gradients that it gets."""
        clip = self.settings.get("clip_norm")
        if clip is not None:
            with np.errstate(all="ignore"):
                factor = clip / (math.sqrt(returned @ returned) + 1e-6)
                returned = returned * factor if not factor >= 1 else returned
        grads = [returned[part] if i in present else None for i, part in enumerate(PARTS)]
        if is_usable(grads):
            for i, g in enumerate(grads):
                if g is not None:
                    self.velocity[i] = g.copy() if self.velocity[i] is None else 0.9 * self.velocity[i] + g
                    self.w[PARTS[i]] -= 0.02 * self.velocity[i]
        self.count += 1
        return grads


def flat(tensors):
    return np.concatenate([x.detach().numpy().ravel() for x in tensors])


class Fuzz:
    """One optimizer in random loops, next to its reference."""

    def __init__(self, name, seed):
        self.random = random.Random(f"{name}{seed}")
        self.name = name
        self.settings = self.random_settings()
        torch.manual_seed(seed)
        self.model = Noisy(seed)
        self.opt = self.new_optimizer()
        self.reference = Reference(name, self.settings, flat(self.model.weights))
        self.errors = 0

    def random_settings(self):
        options = {
            "rho": [0.05, 0.5],
            "alpha": [0.3, 0.7],
            "k": [1, 2, 3],
            "p": [2.0, 2.0, 3.0, math.inf],
            "clip_norm": [None, 0.5],
        }
        return {x: self.random.choice(values) for x, values in options.items() if x in ARGUMENTS[self.name]} | {
            "clip_norm": self.random.choice(options["clip_norm"])
        }

    def new_optimizer(self):
        base = Careful(self.model.weights, lr=0.02, momentum=0.9)
        return build(self.name, base, model=self.model, **self.settings)

    def run(self, steps):
        for _ in range(steps):
            self.between_steps()
            self.step()

    # What happens between steps.

    def between_steps(self):
        if self.random.random() < 0.15:
            p = self.random.choice(list(self.model.weights)[1:])
            p.requires_grad_(not p.requires_grad)
        if self.random.random() < 0.1:
            self.checkpoint()
        if self.random.random() < 0.05:
            self.pass_before_a_closure()
        if self.random.random() < 0.2:
            self.opt.zero_grad(set_to_none=self.random.random() < 0.5)

    def checkpoint(self):
        """Continues with a new model and optimizer, loaded from the state of these."""
        old, saved = self.model, self.opt.state_dict()
        self.model = Noisy(99)
        self.model.load_state_dict(old.state_dict())
        for p, q in zip(self.model.weights, old.weights, strict=True):
            p.requires_grad_(q.requires_grad)
        self.opt = self.new_optimizer()
        self.opt.load_state_dict(saved)

    def pass_before_a_closure(self):
        """Takes gradients before a step with a closure, which refuses to clear them."""
        self.opt.zero_grad()
        noises, _ = self.draws(1)
        self.reference.gradient(self.reference.w, noises)
        self.model().backward()
        with pytest.raises(RuntimeError, match=r"opt.step\(closure\) would clear them"):
            self.opt.step(lambda: None)
        self.opt.zero_grad()
        self.check_state()

    # One step.

    def step(self):
        plan = self.plan()
        w, trained = self.reference.w.copy(), [i for i, p in enumerate(self.model.weights) if p.requires_grad]
        noises, after = self.draws(0 if plan["fails"] == 0 and plan["fails_early"] else plan["micro_batches"])
        error = self.expect(plan, noises, trained)
        python = random.getstate()
        with ERRORS[error]():
            self.take(plan)
        assert torch.equal(torch.get_rng_state(), after) and random.getstate() == python
        self.check_step(w)
        if error is not None:
            self.errors += 1
            np.testing.assert_array_equal(flat(self.model.weights), w)
        self.check_state()

    def plan(self):
        one_of = lambda values, likely: self.random.choice(values) if self.random.random() < likely else None
        missing = lambda: {i for i in SLOTS[1:] if self.random.random() < 0.15}
        all_missing = lambda: set(SLOTS) if self.random.random() < 0.04 else missing()
        forms = ("closure", "with") if self.name in ONE_GRADIENT_RULES else ("closure", "with", "ascend")
        return {
            "form": self.random.choice(forms),
            "micro_batches": self.random.choice((1, 1, 2)),
            "spoils": (one_of(SPOILS, 0.15), one_of(SPOILS, 0.15)),
            "missing": (all_missing(), all_missing()),
            "fails": one_of((0, 1), 0.1),
            "fails_early": self.random.random() < 0.5,  # before anything is drawn
        }

    def draws(self, micro_batches):
        """Returns the noise that a pass is about to draw, and the random state after it."""
        generator = torch.Generator()
        generator.set_state(torch.get_rng_state())
        noises = [torch.rand(SIZE, dtype=torch.float64, generator=generator).numpy() for _ in range(micro_batches)]
        return noises, generator.get_state()

    def take(self, plan):
        """Takes the step as a user would."""
        opt, self.places, passes = self.opt, [], iter((0, 1))

        def one_pass():
            number = next(passes)
            self.places.append(flat(self.model.weights))
            if plan["fails"] == number and plan["fails_early"]:
                raise PassError
            for _ in range(plan["micro_batches"]):
                (self.model() / plan["micro_batches"]).backward()
            if plan["fails"] == number:
                raise PassError
            for i, p in enumerate(self.model.weights):
                if i in plan["missing"][number]:
                    p.grad = None
            spoil(self.model.weights, plan["spoils"][number])

        def closure():
            opt.zero_grad()
            one_pass()

        if plan["form"] == "closure":
            opt.step(closure)
            return
        opt.zero_grad()
        try:
            self.take_without_closure(one_pass, plan["form"])
        except PassError:
            opt.restore()
            opt.zero_grad()
            raise

    def take_without_closure(self, one_pass, form):
        opt = self.opt
        if self.name in ONE_GRADIENT_RULES:
            with opt.ascend():
                one_pass()
        else:
            one_pass()
            if opt.needs_second_pass and any(p.grad is not None for p in self.model.weights):
                ascent = opt.ascend()
                if form == "with":
                    with ascent:
                        one_pass()
                else:
                    one_pass()
        opt.step()

    def expect(self, plan, noises, trained):
        """Advances the reference by this step, and returns how the step fails, if it does."""
        r, self.epsilon, self.grads = self.reference, None, None
        start = r.mean
        first, second = ([i for i in trained if i not in missing] for missing in plan["missing"])
        if self.name in ONE_GRADIENT_RULES:
            return self.expect_one_pass(plan, noises, trained, first)
        g = spoilt(r.gradient(r.w, noises), first, plan["spoils"][0])
        if plan["fails"] == 0:
            return "failure"
        if not first:
            return None
        if not r.refreshes:
            r.has_gradient = sorted({*first, *(i for i in r.kept if i in trained)})
            self.grads = r.descend(r.reused(g), r.has_gradient)
            return None
        self.epsilon = r.epsilon(g, first)
        at = np.full(SIZE, np.nan) if self.epsilon is None else r.w + self.epsilon
        end, r.mean = r.mean, start
        g_s = spoilt(r.gradient(at, noises), second, plan["spoils"][1])
        r.mean = end
        if plan["fails"] == 1 or not second:
            r.kept, r.norm = {}, None
            return "failure" if plan["fails"] == 1 else "no gradient"
        present = sorted({*first, *second})
        self.grads = r.descend(r.refreshed(g, g_s, present), present)
        return None

    def expect_one_pass(self, plan, noises, trained, has):
        r = self.reference
        self.epsilon = r.epsilon(None, [i for i in r.kept if i in trained])
        g = spoilt(r.gradient(r.w + self.epsilon, noises), has, plan["spoils"][0])
        if plan["fails"] == 0:
            return "failure"
        if has:
            present = sorted({*has, *(i for i in r.kept if i in trained)})
            r.accumulate(g, present)
            self.grads = r.descend(g, present)
        return None

    # What must hold after it.

    def check_state(self):
        opt, r, weights = self.opt, self.reference, list(self.model.weights)
        state = opt._passes.state
        assert opt.count == r.count and opt._passes.step.phase is Phase.IDLE
        assert opt.needs_second_pass == r.refreshes
        np.testing.assert_allclose(flat(weights), r.w, **TOLERANCE)
        np.testing.assert_allclose(self.model.mean.numpy(), r.mean, **TOLERANCE)
        positions = {id(p): i for i, p in enumerate(weights)}
        kept = {positions[id(p)]: x.numpy().ravel() for p, x in state.kept.items()}
        assert kept.keys() == r.kept.keys() and (state.norm is None) == (r.norm is None)
        for i, x in kept.items():
            np.testing.assert_allclose(x, r.kept[i], **TOLERANCE)
        for i, p in enumerate(weights):
            velocity = opt.base.state[p].get("momentum_buffer") if p in opt.base.state else None
            assert (velocity is None) == (r.velocity[i] is None)
            if velocity is not None:
                np.testing.assert_allclose(velocity.numpy().ravel(), r.velocity[i], **TOLERANCE)
                r.velocity[i] = velocity.numpy().ravel().copy()
        r.w, r.mean = flat(weights).copy(), self.model.mean.numpy().copy()  # so that rounding does not add up
        r.kept = {i: x.copy() for i, x in kept.items()}
        if r.norm is not None:
            np.testing.assert_allclose(float(state.norm), r.norm, **TOLERANCE)
            r.norm = float(state.norm)

    def check_step(self, w):
        """Checks where the passes were, and the gradient that the base optimizer got."""
        np.testing.assert_array_equal(self.places[0] if self.name not in ONE_GRADIENT_RULES else w, w)
        perturbed = self.places[0 if self.name in ONE_GRADIENT_RULES else 1 :]
        if perturbed and self.epsilon is not None:
            np.testing.assert_allclose(perturbed[0], w + self.epsilon, **TOLERANCE)
        if self.grads is not None:
            for ours, expected in zip(self.opt.base.seen, self.grads, strict=True):
                assert (ours is None) == (expected is None)
                if ours is not None:
                    np.testing.assert_allclose(ours, expected, **TOLERANCE)


def spoil(weights, kind):
    """Changes the gradients in place."""
    grads = [p.grad.view(-1) for p in weights if p.grad is not None]
    for grad in grads[: 1 if kind in ("nan", "inf") else len(grads)]:
        if kind in ("nan", "inf"):
            grad[0] = float(kind)
        elif kind:
            grad *= {"zero": 0.0, "huge": 1e200}[kind]


def spoilt(g, has, kind):
    """Returns a gradient as ``spoil`` changes it, 0 for the tensors that have none."""
    result = np.zeros(SIZE)
    for i in has:
        result[PARTS[i]] = g[PARTS[i]] * {"zero": 0.0, "huge": 1e200}.get(kind, 1.0)
    if has and kind in ("nan", "inf"):
        result[PARTS[has[0]].start] = float(kind)
    return result
