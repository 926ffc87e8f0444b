"""From what users confirmed and agents called to a better retriever or rewriter, promoted only if it is one."""
