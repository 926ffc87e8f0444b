"""MassTool (arXiv 2507.00487): a dense index with votes of similar queries, a query-tool graph and a detector.

model.py describes the score and why it folds into one inner product per tool; training/ trains it; faithful.py is the
authors' behaviour.
"""
