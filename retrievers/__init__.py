"""text -> ranked tools. Imports none of the other rooms."""
