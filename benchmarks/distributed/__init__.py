"""Training on several GPUs, and what a model of them predicts for more."""
