"""What is done with a trained model: evaluate, predict, export, fine-tune, analyze."""
