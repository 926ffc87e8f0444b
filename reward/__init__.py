"""rewrites + gold -> scores. May import the types and protocols of retrievers."""
