"""The engine `cuda` on a GPU beside its rivals. Needs torch alone; others run where they are installed."""
