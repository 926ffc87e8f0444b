"""text -> better text. Imports none of the other rooms."""
