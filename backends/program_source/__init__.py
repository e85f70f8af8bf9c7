"""Programs as Python source: a form that no release of torch binds.

`write.py` writes the graph of an exported program as a function of torch's operators, and `read.py` makes a program of
it again. Exported programs themselves are read only by the release of torch that wrote them, or a later one.
"""
