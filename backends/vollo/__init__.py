"""Vollo engine: translation for its compiler, execution on a device or its VM, streaming programs."""
