"""LookSAM in the Hugging Face Trainer, with accumulation, on digits: pip install 'looksam[transformers]' scikit-learn

python examples/torch_transformers.py
"""

import tempfile

import sklearn.datasets
import torch
import transformers
from torch import nn

from looksam.torch import LookSAM
from looksam.torch.transformers import SharpnessAwareTrainer


class Classifier(nn.Module):
    """A model as the Trainer expects it: it returns its loss. Any model of transformers does as well."""

    def __init__(self) -> None:
        super().__init__()
        layers = nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10)
        self.net = nn.Sequential(*layers)

    def forward(self, pixels, labels):
        logits = self.net(pixels)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def main() -> float:
    transformers.set_seed(0)
    images, labels = (torch.tensor(x) for x in sklearn.datasets.load_digits(return_X_y=True))
    rows = [{"pixels": x, "labels": y} for x, y in zip(images.float() / 16, labels, strict=True)]

    model = Classifier()
    opt = LookSAM(torch.optim.AdamW(model.parameters(), lr=3e-3), rho=0.1, alpha=0.5, k=5, model=model)
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            num_train_epochs=10,
            per_device_train_batch_size=32,
            gradient_accumulation_steps=2,  # 64 images per step, in both passes
            max_grad_norm=5.0,
            logging_steps=50,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = SharpnessAwareTrainer(model, arguments, train_dataset=rows[:1400], optimizers=(opt, None))
        trainer.train()
        found = trainer.predict(rows[1400:])
    accuracy = float((found.predictions.argmax(-1) == found.label_ids).mean())
    print(f"test accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()
