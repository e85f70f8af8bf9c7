"""Vollo engine: programs as modules that its compiler supports, its virtual machine, streaming programs."""
