"""Measuring and stressing this project. Nothing here is installed."""
