"""What happens around the two passes: gradients are collected, weights perturbed and put back, gradients adjusted."""

import operator
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from looksam.schedule import RefreshSchedule
from looksam.torch import formulas, tensors
from looksam.torch.buffers import Buffers, statistics_of
from looksam.torch.formulas import StepInfo
from looksam.torch.guards import Leftovers
from looksam.torch.param_groups import ParamGroups, trained
from looksam.torch.parts import Perturbation
from looksam.torch.phase import CurrentStep, Perturbed, Phase
from looksam.torch.replay import Replay
from looksam.torch.saved_weights import HalfSavedWeights, SavedWeights
from looksam.torch.scaling import Scaler, forget, overflowed
from looksam.torch.sharding import Ranks, VectorSpace, are_plain, local
from looksam.torch.state import Keeps, RuleState
from looksam.torch.tensors import Tensors

Entry = TypeVar("Entry")

SMALL_GRADIENT = 2**20  # entries


@dataclass
class Passes:
    """The work of one wrapper, in methods in the order of a step.

    It is one object, so that copies of the wrapper's attributes (Lightning makes some) share the same step.
    """

    groups: ParamGroups
    perturbation: Perturbation
    schedule: RefreshSchedule
    refresh_alpha: str | None  # the setting that is GSAM's α; None if a refresh returns g_s
    reuse_alpha: str | None  # the setting that is LookSAM's α; None if the other steps return g
    store_dtype: torch.dtype | None
    model: nn.Module | None
    ranks: Ranks | None  # None if all ranks share one perturbation
    clip_norm: float | None
    full_info: bool
    state: RuleState = field(default_factory=RuleState)
    step: CurrentStep = field(default_factory=CurrentStep)
    leftovers: Leftovers = field(init=False)
    buffers: Buffers = field(init=False)
    warned: set[str] = field(default_factory=set)
    info: StepInfo | None = None  # of the last step

    def __post_init__(self) -> None:
        self.leftovers, self.buffers = Leftovers(weights_too=self.store_dtype is not None), Buffers(self.model)

    @property
    def reuses(self) -> bool:
        """Whether g_v is kept. With k = 1, which is SAM, it never is."""
        return self.reuse_alpha is not None and self.schedule.k > 1

    @property
    def keeps(self) -> Keeps:
        """What is kept from step to step."""
        return "g_v" if self.reuses else "nothing"

    @property
    def is_due(self) -> bool:
        """Whether the schedule has a second gradient on the current step."""
        return bool(self.schedule.refreshes(self.state.count))

    @property
    def refreshes(self) -> bool:
        """Whether the current step takes a second gradient: if it is due, and if some ρ is not 0."""
        return self.is_due and self.groups.moves(self.state.count)

    @property
    def perturbs_first(self) -> bool:
        """Whether the only gradient of the current step is taken at w + ε, as by MSAM."""
        return False

    @property
    def only_creates_state(self) -> bool:
        """Whether a step now would only create the base optimizer's state; it does not count."""
        return self.step.phase is Phase.IDLE and self.groups.only_creates_state()

    def new_replay(self) -> Replay | None:
        """Records where the clean pass starts, if a second pass is due; does not ask for ρ before the step begins."""
        return self._replay() if self.is_due else None

    def clear_gradients(self) -> None:
        """Sets all gradients to None."""
        for p in self.groups.params:
            p.grad = None

    def perturb(self, scaler: Scaler | None) -> None:
        """Collects the clean gradients and moves the weights to w + ε; if the gradients overflowed, skips the step."""
        # Where ranks average their gradients, all of them must have the same ones.
        all_trained = {p for p in self.groups.params if p.requires_grad} if self._averages_g else ()
        params, grads, groups = self.groups.gradients(also=all_trained)
        space = VectorSpace.of(params)
        if scaler and self._overflows(scaler, grads, space):
            return
        self._warn_of_statistics(params)
        g = [_to_hold(x) for x in grads]
        self.clear_gradients()
        del grads  # those of which ``g`` has copies are freed
        shards, chosen = local(g), self.groups.perturbed(params, groups)
        moved = at(params, chosen)
        weights, epsilon = local(moved), None
        if moved:
            space = space if chosen is None else VectorSpace.of(moved)
            labels = self.groups.named(self.perturbation.argument, moved)
            directions, factors = self.perturbation.unit(at(shards, chosen), weights, labels, space)
            epsilon = by_group(factors, self.groups.values("rho", self.state.count), at(groups, chosen)), directions
        replay = self.step.start or self._replay()
        is_g = epsilon is not None and all(map(operator.is_, epsilon[1], at(shards, chosen)))
        saved = self._saved(params, weights, chosen, g=epsilon[1] if epsilon is not None and is_g else None)
        self.step.perturb(Perturbed(dict(zip(params, g, strict=True)), saved, replay))
        if epsilon is not None:
            saved.move(*epsilon, space.dtype)
        torch.clear_autocast_cache()  # it may hold casts of w
        if self.ranks and self._averages_g:
            self.ranks.average_(shards)

    def descend(self, wrapper: Optimizer) -> None:
        """Puts the weights back at w and leaves the gradient for the base optimizer in .grad."""
        self._warn_of_draws()
        held = self.step.return_to_w()
        if not self.groups.have_gradients:
            raise RuntimeError(
                "the second pass left no gradient; call loss.backward() in it: in the closure, or before the end of "
                "`with opt.ascend():`."
            )
        if self.step.scaler:
            self.step.scaler.unscale_(wrapper)
        params, g, g_s = self._pairs(held)
        alphas = self._refresh_alphas(params)
        into = g if self.full_info and alphas is None else None
        if self.reuses:
            into = self.state.g_v_buffers(params, self.store_dtype)
        self.info = formulas.refresh(
            g,
            g_s,
            VectorSpace.of(params),
            into=into,
            alphas=alphas,
            agree=self.ranks.agree if self.ranks and not self._averages_g else None,
            full_info=self.full_info,
        )
        self.state.norm = self.info.g_v_norm if self.reuses else None
        self.step.set_ready()

    def reuse(self, scaler: Scaler | None) -> None:
        """Adjusts the gradients in place; without a g_v they stay as they are."""
        state = self.state
        params, grads, groups = self.groups.gradients(also=state.kept)  # g is 0 where this batch uses no parameter
        space, g = VectorSpace.of(params), local(grads)
        if scaler and self._overflows(scaler, grads, space):
            return
        # Outside the window, or at a refresh that is left out because every ρ is 0.
        if self.is_due or not self.schedule.is_active(state.count):
            state.drop()
        if state.norm is not None and self.reuse_alpha is not None:
            g_v = _aligned(params, list(state.kept), local(list(state.kept.values())))
            if any(x is not None for x in g_v):
                alpha = self.groups.values(self.reuse_alpha, state.count)
                alphas = [alpha[i] for i in groups]
                self.info = formulas.reuse(g, g_v, alphas, state.norm, space, full_info=self.full_info)
                return
        self.info = formulas.plain(g, space, full_info=self.full_info)

    def end_second_pass(self, wrapper: Optimizer) -> None:
        """Calls ``descend``, and discards the second pass if it cannot be used."""
        try:
            self.descend(wrapper)
        except BaseException:
            self.restore(wrapper)
            raise

    def clip(self, known: bool) -> None:
        """Scales the gradient for the base optimizer down to ``clip_norm``, as torch.nn.utils.clip_grad_norm_ does.

        ``known`` is whether it certainly is the one that ``info`` describes.
        """
        if self.clip_norm is None:
            return
        params = [p for p in self.groups.params if p.grad is not None]
        grads = local([p.grad for p in params if p.grad is not None])
        norm = self.info.returned_norm if known and self.info is not None else None
        norm = VectorSpace.of(params).norm(grads) if norm is None else norm
        tensors.scale_(grads, (self.clip_norm / (norm + 1e-6)).clamp(max=1))

    def restore(self, wrapper: Optimizer) -> None:
        """Puts the weights back if they are not at w, and discards the second pass."""
        forget(self.step.scaler, self.groups.base, wrapper)
        self.step.restore()
        self.state.drop_unfinished()
        self.leftovers.remember(self.groups)

    @property
    def devices(self) -> list[torch.device]:
        """The devices of the parameters whose random states a pass may change, besides the CPU's."""
        devices = {p.device for p in self.groups.params}
        return sorted((x for x in devices if x.type not in ("cpu", "meta")), key=str)

    def _replay(self) -> Replay:
        return Replay(self.buffers, self.devices)

    def _overflows(self, scaler: Scaler, grads: Tensors, space: VectorSpace) -> bool:
        """Unscales the gradients; if they overflowed, skips the step."""
        self.step.scaler = scaler
        scaler.unscale_(self.groups.base)
        if overflowed(local(grads), space):
            self.step.skip()
            return True
        return False

    def _warn_of_statistics(self, params: Tensors) -> None:
        """Warns once if the second pass changes the running statistics of a layer, as there is no ``model``."""
        if self.model is not None or "statistics" in self.warned:
            return
        self.warned.add("statistics")
        layer = statistics_of(params)
        if layer:
            warnings.warn(
                f"a {layer} has running statistics, and the second pass updates them as well; pass model= to the "
                f"optimizer, so that they come from the clean pass alone.",
                stacklevel=2,
            )

    def _warn_of_draws(self) -> None:
        """Warns once if, in a loop without a closure, the second pass did not draw the dropout masks of the first."""
        held = self.step.perturbed
        if self.step.in_closure or held is None or held.replay is None or "draws" in self.warned:
            return
        if not held.replay.repeated:
            self.warned.add("draws")
            warnings.warn(
                "the second pass did not draw the random numbers of the clean one, so that their dropout masks differ; "
                "call opt.zero_grad() right before the clean pass, when its batch is there, and draw the same in both.",
                stacklevel=2,
            )

    @property
    def _averages_g(self) -> bool:
        """Whether ranks with a perturbation each need the mean of their clean gradients, as g_v and g_⊥ do."""
        return self.ranks is not None and (self.reuses or self.refresh_alpha is not None)

    def _saved(self, params: Tensors, weights: Tensors, chosen: list[int] | None, g: Tensors | None) -> SavedWeights:
        """Saves the weights, in the memory of g_v, which a refresh is about to overwrite, if its dtype allows.

        ``g`` has the clean gradients if the ε of each tensor is a multiple of them, else it is None.
        """
        if not self.reuses or not weights:
            return SavedWeights(weights, tensors.copies(weights))
        if self.store_dtype is None or tensors.all_of(self.store_dtype, weights):
            buffers = at(self.state.g_v_buffers(params, self.store_dtype), chosen)
            torch._foreach_copy_(buffers, weights)
            return SavedWeights(weights, buffers)
        if g is not None and self._can_be_halved(params, weights, g):
            return HalfSavedWeights(weights, at(self.state.g_v_buffers(params, self.store_dtype), chosen))
        self.state.drop()
        return SavedWeights(weights, tensors.copies(weights))

    def _can_be_halved(self, params: Tensors, weights: Tensors, g: Tensors) -> bool:
        """Whether the weights can be saved in 16 bits each; not if the clean pass itself changes them."""
        return (
            self.store_dtype is not None
            and self.store_dtype.itemsize == 2
            and are_plain(params)
            and not self._averages_g  # which changes g
            and all(x.device.type == "cpu" for x in weights)  # it reads numbers piece by piece
            and all(x.dtype == torch.float32 and x.is_contiguous() for x in (*weights, *g))
            and self.leftovers.left_alone(weights)
        )

    def _refresh_alphas(self, params: Tensors) -> list[float] | None:
        """Returns GSAM's α for each parameter; None where all are 0, which is SAM."""
        values = self.groups.values(self.refresh_alpha, self.state.count) if self.refresh_alpha else []
        if not any(values):
            return None
        by_parameter = {p: values[i] for i, group in enumerate(self.groups.base.param_groups) for p in group["params"]}
        return [by_parameter[p] for p in params]

    def _pairs(self, held: Perturbed) -> tuple[Tensors, Tensors, Tensors]:
        """Returns the parameters with a gradient in either pass, and the shards of both; a missing gradient is 0."""
        params = [p for p in self.groups.params if p.grad is not None or (p in held.g and not self.ranks)]
        grads = []
        for p in params:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            grads.append(p.grad)
        self.groups.check_dense(params, grads)
        g = [held.g[p] if p in held.g else torch.zeros_like(p) for p in params]
        return params, local(g), local(grads)


class SecondPass:
    """The context that ``opt.ascend()`` returns: the weights are put back at its end."""

    def __init__(self, passes: Passes, wrapper: Optimizer) -> None:
        self._passes, self._wrapper = passes, wrapper

    def __enter__(self) -> None:
        pass

    @torch.no_grad()
    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._passes.restore(self._wrapper)
        elif self._passes.step.phase is Phase.PERTURBED:
            self._passes.end_second_pass(self._wrapper)


def at(xs: Sequence[Entry], positions: list[int] | None) -> list[Entry]:
    """Returns the entries at these positions; None for all."""
    return list(xs) if positions is None else [xs[n] for n in positions]


def by_group(factors: Tensor, values: list[float], groups: list[int]) -> Tensors:
    """Returns the factor of each tensor, times the value of its group."""
    if len(set(values)) == 1:
        return (values[0] * factors).unbind()
    return torch._foreach_mul(factors.unbind(), [values[i] for i in groups])


def _aligned(params: Tensors, owners: Tensors, shards: Tensors) -> list[Tensor | None]:
    """Returns the shard that belongs to each parameter; None for one that has none, or was frozen since.

    Usually they are in order, and hashing tensors is slow.
    """
    is_trained = trained(params)
    if all(is_trained) and len(params) == len(owners) and all(map(operator.is_, params, owners)):
        return list(shards)
    by_owner = dict(zip(owners, shards, strict=True))
    return [by_owner.get(p) if here else None for p, here in zip(params, is_trained, strict=True)]


def _to_hold(grad: Tensor) -> Tensor:
    """Returns the clean gradient in a form that can be held during the second pass.

    It is a copy where DistributedDataParallel returned a view of a bucket, which that pass overwrites. On a CPU it is
    also a copy if it is small: held where backward left it, it would fragment the memory that the pass is about to
    use, and cost more in page faults than the copy does (five per cent of the pass for a ViT or a ResNet).
    """
    small = grad.device.type == "cpu" and grad.numel() <= SMALL_GRADIENT
    return grad.clone() if small or grad._is_view() else grad
