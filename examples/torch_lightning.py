"""LookSAM in Lightning, with gradient accumulation, on digits: pip install 'looksam[lightning]' scikit-learn

python examples/torch_lightning.py
"""

import lightning
import sklearn.datasets
import torch
from torch import nn

from looksam.torch import LookSAM
from looksam.torch.lightning import SharpnessAwareCallback


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10)
        )

    def training_step(self, batch, _):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss)  # that of the clean pass
        return loss

    def configure_optimizers(self):
        base = torch.optim.AdamW(self.parameters(), lr=3e-3)
        return LookSAM(base, rho=0.1, alpha=0.5, k=5, model=self)


def main() -> float:
    lightning.seed_everything(0, verbose=False)
    images, labels = (torch.tensor(x) for x in sklearn.datasets.load_digits(return_X_y=True))
    images = images.float() / 16
    train = torch.utils.data.TensorDataset(images[:1400], labels[:1400])
    loader = torch.utils.data.DataLoader(train, batch_size=32, shuffle=True)

    module = Classifier()
    trainer = lightning.Trainer(
        max_epochs=10,
        accumulate_grad_batches=2,  # 64 images per step, in both passes
        gradient_clip_val=5.0,
        callbacks=[SharpnessAwareCallback()],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader)

    module.eval()
    accuracy = (module.net(images[1400:]).argmax(-1) == labels[1400:]).float().mean().item()
    print(f"test accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()
