"""LookSAM in a plain PyTorch loop, on scikit-learn's digits: pip install 'looksam[torch]' scikit-learn

python examples/torch_loop.py
"""

import sklearn.datasets
import torch
from torch import nn

from looksam.torch import LookSAM

EPOCHS = 10


def main() -> float:
    torch.manual_seed(0)
    images, labels = (torch.tensor(x) for x in sklearn.datasets.load_digits(return_X_y=True))
    images = images.float() / 16
    train = torch.utils.data.TensorDataset(images[:1400], labels[:1400])
    loader = torch.utils.data.DataLoader(train, batch_size=64, shuffle=True)

    model = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10))
    base = torch.optim.AdamW(model.parameters(), lr=3e-3)
    opt = LookSAM(base, rho=0.1, alpha=0.5, k=5, model=model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=EPOCHS * len(loader))

    for epoch in range(EPOCHS):
        for x, y in loader:

            def closure(x=x, y=y):
                opt.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                return loss

            loss = opt.step(closure)
            scheduler.step()
        print(f"epoch {epoch}: loss {loss:.4f}, |g| {opt.info.grad_norm:.3f}")

    model.eval()
    accuracy = (model(images[1400:]).argmax(-1) == labels[1400:]).float().mean().item()
    print(f"test accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()
