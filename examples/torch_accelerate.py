"""LookSAM with Accelerate, with gradient accumulation, on digits: pip install 'looksam[accelerate]' scikit-learn

python examples/torch_accelerate.py
"""

import accelerate
import sklearn.datasets
import torch
from torch import nn

from looksam.torch import LookSAM
from looksam.torch.accelerate import Backward


def main() -> float:
    torch.manual_seed(0)
    images, labels = (torch.tensor(x) for x in sklearn.datasets.load_digits(return_X_y=True))
    images = images.float() / 16
    train = torch.utils.data.TensorDataset(images[:1400], labels[:1400])
    loader = torch.utils.data.DataLoader(train, batch_size=32, shuffle=True)

    accelerator = accelerate.Accelerator(gradient_accumulation_steps=2)  # 64 images per step, in both passes
    model = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10))
    opt = LookSAM(torch.optim.AdamW(model.parameters(), lr=3e-3), rho=0.1, alpha=0.5, k=5, model=model)
    model, opt, loader = accelerator.prepare(model, opt, loader)

    def loss_of(x, y):
        return nn.functional.cross_entropy(model(x), y)

    backward = Backward(accelerator, model, opt, loss_of)
    for epoch in range(10):
        for batch in loader:
            with accelerator.accumulate(model):
                loss = backward(*batch)  # in place of accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 5.0)
                opt.step()
                opt.zero_grad()
        logs = backward.logs()
        print(f"epoch {epoch}: loss {loss:.4f}, |g| {logs['looksam/grad_norm']:.3f}")

    model.eval()
    logits = model(images[1400:].to(accelerator.device)).cpu()
    accuracy = (logits.argmax(-1) == labels[1400:]).float().mean().item()
    print(f"test accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()
