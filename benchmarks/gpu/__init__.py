"""The engine `cuda` on a GPU beside its rivals. It needs torch alone."""
