"""MassTool (arXiv 2507.00487), made to answer any text and to live: detection, graph, intent and transfer in one index.

model.py says what is computed and why it folds into one inner product a tool; train.py how it is learned.
"""
