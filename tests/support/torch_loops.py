"""A small network, the batches that frameworks train it on, and the loops that they are compared with."""

import copy

import torch
from torch import nn

from looksam.torch import MSAM, LookSAM

torch.set_num_threads(1)  # the tensors are tiny, and other tests run at the same time

DATA = torch.Generator().manual_seed(0)
X, Y = torch.randn(80, 6, generator=DATA), torch.randint(3, (80,), generator=DATA)
RHO, ALPHA, K, LR, MOMENTUM, CLIP = 0.1, 0.7, 3, 0.1, 0.9, 0.3
BATCH = 4


class Net(nn.Module):
    """A network with dropout and batch normalisation, which records the batches and masks of its passes."""

    def __init__(self, masks=None, dropout=0.2):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.masks, self.dropout, self.seen = masks, dropout, []

    def forward(self, x, labels=None):
        mask = torch.rand(len(x), 8) >= self.dropout if self.masks is None else self.masks[len(self.seen)]
        self.seen.append((x, labels, mask))
        logits = self.last(torch.relu(self.norm(self.first(x)) * mask))
        return logits if labels is None else {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def rule(net, name="look_sam"):
    """Returns LookSAM or MSAM around SGD with momentum."""
    base = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)
    if name == "msam":
        return MSAM(base, rho=RHO, momentum=MOMENTUM, model=net)
    return LookSAM(base, rho=RHO, alpha=ALPHA, k=K, model=net)


def dataset(steps, accumulate, dtype=torch.float64):
    """Returns the images and labels of this many steps, of ``accumulate`` micro-batches each."""
    size = steps * accumulate * BATCH
    return X[:size].to(dtype), Y[:size]


def clean_passes(net, steps, accumulate, refreshes):
    """Returns the micro-batches of each step, after a check that its second pass repeated them, masks included."""
    seen, windows = iter(net.seen), []
    for step in range(steps):
        windows.append([next(seen) for _ in range(accumulate)])
        if refreshes(step):
            for clean in windows[-1]:
                for ours, again in zip(clean, next(seen), strict=True):
                    assert ours is again is None or torch.equal(ours, again)
    assert list(seen) == []
    return windows


def plain_loop(net, data, accumulate, loss_of, scaler=None, clip=None):
    """Takes the steps with ``opt.step(closure)``, for mixed precision, where float64 is no reference."""
    opt = rule(net)
    if clip is not None:

        def clip_gradients(*_):
            nn.utils.clip_grad_norm_(net.parameters(), clip)

        opt.base.register_step_pre_hook(clip_gradients)
    batches = list(zip(*(part.split(BATCH) for part in data), strict=True))
    for i in range(0, len(batches), accumulate):

        def closure(window=batches[i : i + accumulate]):
            opt.zero_grad()
            for x, y in window:
                loss = loss_of(x, y) / accumulate
                (loss if scaler is None else scaler.scale(loss)).backward()

        opt.step(closure, scaler=scaler)
        if scaler is not None:
            scaler.update()
    return opt


class HandWritten:
    """LookSAM or MSAM around SGD with momentum, in plain PyTorch: no optimizer, and nothing of looksam."""

    def __init__(self, net, rule="look_sam", clip=None):
        self.net, self.rule, self.clip = net, rule, clip
        self.step, self.g_v, self.v = 0, None, None
        self.buffers = [torch.zeros_like(p) for p in net.parameters()]

    def take(self, windows):
        """Takes a step on each window, a list of (x, y, mask)."""
        for window in windows:
            returned = self.msam(window) if self.rule == "msam" else self.look_sam(window)
            if self.clip is not None:
                returned = returned * min(1.0, self.clip / (float(returned.norm()) + 1e-6))
            self.update(returned)
            self.step += 1

    def look_sam(self, window):
        g = self.gradient(self.net, window)
        if self.step % K == 0:
            g_s = self.gradient(self.moved(RHO * g / g.norm()), window)
            self.g_v = g_s - (g @ g_s) / (g @ g) * g
            return g_s
        return g + ALPHA * g.norm() / self.g_v.norm() * self.g_v

    def msam(self, window):
        moved = self.net if self.v is None else self.moved(-RHO * self.v / self.v.norm())
        g = self.gradient(moved, window)
        self.v = g if self.v is None else MOMENTUM * self.v + g
        if moved is not self.net:  # the only pass gives the statistics
            for ours, theirs in zip(self.net.buffers(), moved.buffers(), strict=True):
                ours.copy_(theirs)
        return g

    def gradient(self, net, window):
        """Returns the gradient of the mean loss of the micro-batches, as one vector."""
        total = 0.0
        for x, y, mask in window:
            net.masks, net.seen = [mask], []
            total = total + nn.functional.cross_entropy(net(x), y) / len(window)
        return nn.utils.parameters_to_vector(torch.autograd.grad(total, list(net.parameters())))

    def moved(self, epsilon):
        """Returns a copy of the network at w + ε."""
        net = copy.deepcopy(self.net)
        w = nn.utils.parameters_to_vector(net.parameters()).detach()
        nn.utils.vector_to_parameters(w + epsilon, net.parameters())
        return net

    def update(self, gradient):
        start = 0
        with torch.no_grad():
            for p, buffer in zip(self.net.parameters(), self.buffers, strict=True):
                buffer.mul_(MOMENTUM).add_(gradient[start : start + p.numel()].view_as(p))
                p.sub_(LR * buffer)
                start += p.numel()


def check_hand_written(net, labels, steps, accumulate, rule="look_sam", clip=None):
    """Checks the weights and statistics that a framework has arrived at, in float64."""
    refreshes = (lambda step: step % K == 0) if rule == "look_sam" else (lambda step: False)
    windows = clean_passes(net, steps, accumulate, refreshes)
    ys = iter(labels.split(BATCH))
    windows = [[(x, next(ys), mask) for x, _, mask in window] for window in windows]
    reference = HandWritten(Net().to(torch.float64), rule, clip)
    reference.take(windows)
    check_equal(net, reference.net, 1e-11)


def check_equal(net, other, tolerance=0.0):
    """Checks that two networks have the same parameters and buffers."""
    for name, ours in net.state_dict().items():
        torch.testing.assert_close(ours, other.state_dict()[name], rtol=tolerance, atol=tolerance, msg=name)
