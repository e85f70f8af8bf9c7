"""Each engine on trial: compiled, held against eager, measured."""
