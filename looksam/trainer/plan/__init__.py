"""What a training step costs, read from the program the compiler made of it."""
