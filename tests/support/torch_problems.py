"""The problem of problems.py in PyTorch, its rules and optimizers, and what the PyTorch tests share."""

from dataclasses import dataclass

import numpy as np
import torch
from oracle import SGDM, AdamW

from looksam.torch import SAM, LayerSAM, LookLayerSAM, LookSAM, SAMk

torch.set_num_threads(1)  # tiny tensors, and other tests beside

PERIOD = 3
LOOK_RULES = ("look_sam", "look_layer_sam")
OPTIMIZERS = {
    "sgdm": (lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9), SGDM),
    "adamw": (lambda params: torch.optim.AdamW(params, lr=0.05, weight_decay=0.01), AdamW),
}
RULES = {  # the same settings as RULES in problems.py, by the same names
    "sam": (SAM, {"rho": 0.1}),
    "sam_k": (SAMk, {"rho": 0.1, "k": PERIOD}),
    "look_sam": (LookSAM, {"rho": 0.1, "alpha": 0.7, "k": PERIOD}),
    "layer_sam": (LayerSAM, {"rho": 0.1}),
    "look_layer_sam": (LookLayerSAM, {"rho": 0.1, "alpha": 0.7, "k": PERIOD}),
}


def build(name, base, **options):
    rule, settings = RULES[name]
    return rule(base, **{**settings, **options})


@dataclass
class TorchProblem:
    """Parameters by name, in the order of jax.tree, and the loss of problems.Problem."""

    problem: object
    params: dict

    def loss(self):
        flat = torch.cat([p.reshape(-1) for p in self.params.values()]).double()
        seen, curvature, centre = (torch.from_numpy(getattr(self.problem, x)) for x in ("seen", "curvature", "centre"))
        w = flat * seen
        bowl = torch.sum(curvature * seen * (flat - centre) ** 2) / 2
        return bowl + torch.mean(w) ** 4 * 20 + torch.sum(w**4) / 8

    def loss_at(self, w):
        """The loss by hand, in NumPy."""
        problem = self.problem
        seen = w * problem.seen
        bowl = np.sum(problem.curvature * problem.seen * (w - problem.centre) ** 2) / 2
        return bowl + np.mean(seen) ** 4 * 20 + np.sum(seen**4) / 8

    def flat(self):
        return flat(self.params.values())

    def gradient(self):
        """What the base optimizer saw."""
        return flat([p.grad for p in self.params.values()])

    def closure(self, opt, calls=None):
        def run():
            opt.zero_grad()
            loss = self.loss()
            loss.backward()
            if calls is not None:
                calls.append(1)
            return loss

        return run


def flat(tensors):
    return np.concatenate([np.ravel(x.detach().double().numpy()) for x in tensors])


def torch_problem(seed=0, dtype=torch.float64, **options):
    import jax  # not for the processes of torch_ranks.py
    from problems import make_problem

    problem = make_problem(seed, **options)
    params = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(problem.params):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        params[name] = torch.nn.Parameter(torch.tensor(np.asarray(leaf), dtype=dtype))
    return TorchProblem(problem, params)


def sgd(params, lr=0.05):
    return torch.optim.SGD(params, lr=lr)


def given(params, opt, *gradients):
    """A closure that puts these gradients into the parameters, one list a pass."""
    answers = iter(gradients)

    def closure():
        opt.zero_grad()
        for p, g in zip(params, next(answers), strict=True):
            p.grad = None if g is None else g.clone()

    return closure


X = torch.randn(12, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randn(12, 1, generator=torch.Generator().manual_seed(1))


def network(*middle, seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), *middle, torch.nn.Tanh(), torch.nn.Linear(8, 1))


def closure_for(model, opt, x=X, y=Y):
    def closure():
        opt.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        return loss

    return closure
