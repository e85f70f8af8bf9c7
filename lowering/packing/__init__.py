"""Functions of torch that pack, replaced while a model is traced."""
