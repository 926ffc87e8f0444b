"""`rewrite-serve`: the rewriter and the tool index behind one HTTP door."""
