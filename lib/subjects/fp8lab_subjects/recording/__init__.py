"""Records what PyTorch programs hold."""
