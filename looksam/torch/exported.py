"""A model that ``looksam export`` wrote, in PyTorch: neither JAX nor the trainer is needed.

The weights are read with safetensors, and images with Pillow and NumPy.
"""

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from looksam.torch import vision_models

CONFIG, WEIGHTS = "config.json", "model.safetensors"
FORMAT, VERSION = "looksam", 1
EVAL_RESIZE = 256 / 224  # ratio of the short side, before the centre crop, to the crop, as in the trainer


class ExportedModel(nn.Module):
    """A trained network with its class names and its preprocessing; ``load_exported`` returns one.

    Calling it takes normalised images (batch, channels, height, width), as ``preprocess`` returns them, to logits.
    """

    def __init__(self, network: nn.Module, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.network = network
        self.class_names: tuple[str, ...] = tuple(config["class_names"])
        self.image_shape: tuple[int, int, int] = tuple(config["image_shape"])
        self.crops = config["preprocessing"] == "crop"
        mean, std = (torch.tensor(config[name], dtype=torch.float32).view(-1, 1, 1) for name in ("mean", "std"))
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network(images)
        return logits

    def preprocess(self, image: Any) -> Tensor:
        """Returns an image as the network takes it, a batch of one on the network's device.

        Args:
          image: the path of a file, or an image of Pillow.
        """
        return self.normalize(self._pixels(image))

    def normalize(self, pixels: Tensor) -> Tensor:
        """Returns uint8 pixels (…, channels, height, width) as the network takes them."""
        mean, std = self.get_buffer("mean"), self.get_buffer("std")
        return (pixels.to(mean.device, torch.float32) / 255 - mean) / std

    def _pixels(self, image: Any) -> Tensor:
        """Returns uint8 pixels (1, channels, height, width), prepared as in the trainer's evaluation."""
        from PIL import Image

        height, width, channels = self.image_shape
        opened = Image.open(image) if isinstance(image, str | os.PathLike) else image
        opened = opened.convert("RGB" if channels == 3 else "L")
        if self.crops:
            return _as_tensor(_centre_crop(opened, height))
        pixels = _as_tensor(opened)
        if pixels.shape[2:] == (height, width):
            return pixels
        smooth = functional.interpolate(pixels.float(), (height, width), mode="bilinear", antialias=True)
        return smooth.round().clamp(0, 255).to(torch.uint8)


def load_exported(folder: str | os.PathLike[str], device: torch.device | str = "cpu") -> ExportedModel:
    """Returns the model in a folder that ``looksam export`` wrote, in evaluation mode.

    Args:
      folder: with ``config.json`` and ``model.safetensors``.
      device: where to put it.

    Example:
      >>> from looksam.torch import load_exported
      >>> model = load_exported("exported/flowers")  # doctest: +SKIP
      >>> logits = model(model.preprocess("rose.jpg"))  # doctest: +SKIP
      >>> model.class_names[int(logits[0].argmax())]  # doctest: +SKIP
      'roses'
    """
    try:
        from safetensors.torch import load_file
    except ModuleNotFoundError as error:
        raise ImportError(
            "load_exported needs safetensors, which is not installed: pip install 'looksam[torch]'", name="safetensors"
        ) from error
    directory = pathlib.Path(folder)
    config = _read_config(directory)
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in config["options"].items()}
    network = vision_models.build(config["builder"], config["image_shape"], len(config["class_names"]), **options)
    missing, unexpected = network.load_state_dict(load_file(directory / WEIGHTS), strict=False)
    missing = [name for name in missing if not name.endswith("num_batches_tracked")]
    if missing or unexpected:
        raise ValueError(
            f"{directory / WEIGHTS} does not hold the model that {CONFIG} describes: "
            f"{(missing or unexpected)[0]!r} is in one of them only; export it again."
        )
    return ExportedModel(network, config).to(device).eval()


def _read_config(directory: pathlib.Path) -> dict[str, Any]:
    path = directory / CONFIG
    if not path.is_file():
        raise FileNotFoundError(f"{directory} has no {CONFIG}; pass the folder that `looksam export` wrote.")
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if config.get("format") != FORMAT or config.get("version") != VERSION:
        raise ValueError(
            f"{path} has format {config.get('format')!r}, version {config.get('version')}, and this looksam reads "
            f"{FORMAT!r}, version {VERSION}; export the model with the same version of looksam."
        )
    return config


def _centre_crop(image: Any, size: int) -> Any:
    """Scales the short side of an image of Pillow to size * 256 / 224, and returns the centre."""
    from PIL import Image

    short = round(size * EVAL_RESIZE)
    scale = short / min(image.size)
    width, height = (max(short, round(side * scale)) for side in image.size)
    left, top = (width - size) // 2, (height - size) // 2
    return image.resize((width, height), Image.Resampling.BILINEAR).crop((left, top, left + size, top + size))


def _as_tensor(image: Any) -> Tensor:
    import numpy as np

    pixels = torch.from_numpy(np.array(image))
    return (pixels[None, None] if pixels.ndim == 2 else pixels.permute(2, 0, 1)[None]).contiguous()
