"""Training on several GPUs, and a model that predicts larger numbers of GPUs."""
