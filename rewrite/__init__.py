"""Query rewriting: text -> better text. Imports none of the other packages."""
