"""LookSAM in the Hugging Face Trainer, with a small ViT on digits: pip install 'looksam[transformers]' scikit-learn

python examples/torch_transformers.py
"""

import tempfile

import sklearn.datasets
import torch
import transformers

from looksam.torch import LookSAM
from looksam.torch.transformers import SharpnessAwareTrainer


def main() -> float:
    transformers.set_seed(0)
    images, labels = (torch.tensor(x) for x in sklearn.datasets.load_digits(return_X_y=True))
    images = images.float().view(-1, 1, 8, 8) / 16
    rows = [{"pixel_values": x, "labels": y} for x, y in zip(images, labels, strict=True)]

    sizes = {"image_size": 8, "patch_size": 2, "num_channels": 1, "hidden_size": 32, "intermediate_size": 64}
    config = transformers.ViTConfig(**sizes, num_hidden_layers=2, num_attention_heads=2, num_labels=10)
    model = transformers.ViTForImageClassification(config)
    opt = LookSAM(torch.optim.AdamW(model.parameters(), lr=5e-3), rho=0.1, alpha=0.5, k=5, model=model)

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
        trainer = SharpnessAwareTrainer(
            model, arguments, train_dataset=rows[:1400], eval_dataset=rows[1400:], optimizers=(opt, None)
        )
        trainer.train()
        found = trainer.predict(rows[1400:])
    accuracy = float((found.predictions.argmax(-1) == found.label_ids).mean())
    print(f"test accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()
