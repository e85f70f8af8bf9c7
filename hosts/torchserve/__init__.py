"""TorchServe as a process: its settings, log and installation."""
