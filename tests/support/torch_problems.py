"""The problem of problems.py in PyTorch, with rules, optimizers and closures for all PyTorch tests."""

import inspect
from dataclasses import dataclass

import numpy as np
import torch
from oracle import SGDM, AdamW

from looksam.torch import sam_family

torch.set_num_threads(1)  # the tensors are tiny, and other tests run at the same time

PERIOD = 3
SETTINGS = {"rho": 0.1, "alpha": 0.7, "k": PERIOD}  # as in problems.py; the rest is left at its default
ARGUMENTS = {name: set(inspect.signature(rule).parameters) for name, rule in sam_family.RULES.items()}
RULES = {  # name: (class, settings), for every rule in PyTorch; the suites run over all of them
    name: (rule, {setting: value for setting, value in SETTINGS.items() if setting in ARGUMENTS[name]})
    for name, rule in sam_family.RULES.items()
}
ALPHA_RULES = tuple(name for name in RULES if "alpha" in ARGUMENTS[name])
LOOK_RULES = tuple(name for name in RULES if {"alpha", "k"} <= ARGUMENTS[name])  # those that reuse g_v
LAYER_RULES = tuple(name for name in RULES if "scaling" in ARGUMENTS[name])
P_RULES = tuple(name for name in RULES if "p" in ARGUMENTS[name])
ONE_GRADIENT_RULES = tuple(name for name in RULES if "momentum" in ARGUMENTS[name])  # taken at w + ε
TWO_GRADIENT_RULES = tuple(name for name in RULES if name not in ONE_GRADIENT_RULES)
BALL_RULES = tuple(name for name in TWO_GRADIENT_RULES if "eta" not in ARGUMENTS[name])  # ε has length ρ
OPTIMIZERS = {
    "sgdm": (lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9), SGDM),
    "adamw": (lambda params: torch.optim.AdamW(params, lr=0.05, weight_decay=0.01), AdamW),
}


def refreshes(name, step):
    """Whether a rule takes the second gradient on this step."""
    return name not in ONE_GRADIENT_RULES and ("k" not in ARGUMENTS[name] or step % PERIOD == 0)


def build(name, base, **options):
    """Returns the rule around a base optimizer; ``options`` replace its settings."""
    rule, settings = RULES[name]
    return rule(base, **{**settings, **options})


@dataclass
class TorchProblem:
    """The loss of problems.Problem, with parameters by name in the order of jax.tree."""

    problem: object
    params: dict

    def loss(self):
        flat = torch.cat([p.reshape(-1) for p in self.params.values()]).double()
        seen, curvature, centre = (torch.from_numpy(getattr(self.problem, x)) for x in ("seen", "curvature", "centre"))
        w = flat * seen
        bowl = torch.sum(curvature * seen * (flat - centre) ** 2) / 2
        return bowl + torch.mean(w) ** 4 * 20 + torch.sum(w**4) / 8

    def loss_at(self, w):
        """Returns the loss, written out in NumPy."""
        problem = self.problem
        seen = w * problem.seen
        bowl = np.sum(problem.curvature * problem.seen * (w - problem.centre) ** 2) / 2
        return bowl + np.mean(seen) ** 4 * 20 + np.sum(seen**4) / 8

    def flat(self):
        return flat(self.params.values())

    def gradient(self):
        """Returns the gradient that the base optimizer saw."""
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


def step_without_closure(backward, opt, **scaler):
    """Takes a step in two phases, or in the only one of a rule with one gradient; returns what the first pass did."""
    opt.zero_grad()
    if isinstance(opt, sam_family.RULES["msam"]):
        with opt.ascend(**scaler):
            first = backward()
    else:
        first = backward()
        if opt.needs_second_pass:
            opt.ascend(**scaler)
            opt.zero_grad()
            backward()
    opt.step(**scaler)
    return first


def saved_rule(opt):
    """Returns what a rule saves with the parameters: count and norm once, and g_v or v by the parameter's position."""
    entries = {i: entry["rule"] for i, entry in opt.state_dict()["state"].items() if "rule" in entry}
    kept = {i: entry for i, entry in entries.items() if not np.isnan(float(entry.get("norm", np.nan)))}
    first, owner = next(iter(entries.values())), next(iter(kept.values()), {"norm": None})
    return {
        "keeps": first["keeps"],
        "count": first["count"],
        "kept": {i: entry["kept"] for i, entry in kept.items()},
        "norm": owner["norm"],
    }


def flat(tensors):
    return np.concatenate([np.ravel(x.detach().double().numpy()) for x in tensors])


def torch_problem(seed=0, dtype=torch.float64, **options):
    import jax  # the processes of torch_ranks.py do not need it
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
    """Returns a closure that assigns these gradients to the parameters, one list per pass."""
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
