"""How long a task takes, in units that only compare with each other, to tell the time left."""

from looksam.experiments.task import Task
from looksam.trainer.optimizers import gradients_per_step

IMAGE = {"mlp": 0.01, "vit": 0.08, "resnet": 0.16}  # a gradient on one image, about milliseconds; others as resnet


def cost(task: Task) -> float:
    recipe = task.recipe
    gradients = 4.0 if task.kind == "drift" else gradients_per_step(recipe)
    images = (recipe.train_limit or 600) * recipe.epochs
    augmented = 2.0 if recipe.randaugment else 1.0
    return images * gradients * augmented * IMAGE.get(recipe.model, IMAGE["resnet"])
