"""Parts of models that are not in model.py."""
