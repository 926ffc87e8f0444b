"""Search with trained heads, in numpy: a server needs no PyTorch. The same numbers as model.py and faithful.py."""
